"""Whether the executable is right, and how fast it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from workbench.errors import NotViableError, printable
from workbench.ir.hlir import Graph
from workbench.runtime.compare import Tolerance, compare
from workbench.runtime.protocol import by_kernel
from workbench.session import events as ev
from workbench.session.executable import Arrays, Compiled, Executable
from workbench.session.points import as_text
from workbench.session.reference import Expected, Reference, output_nodes
from workbench.session.rounding import undecided_outputs
from workbench.session.tolerances import tolerance
from workbench.session.view import SessionView

LARGEST = sys.float_info.max
"""Stands for an infinite error in events and reports: JSON has no infinity."""

LATENCY_SECONDS = 1.0
"""How long whole runs are timed."""
KERNEL_RUNS = 20
"""Runs in which each launch is timed, fewer of slow models."""


class WrongResult(NotViableError):
    """The compiled model does not compute what it should."""


def tolerances(graph: Graph, reference: Reference | None = None) -> dict[str, Tolerance]:
    """What each output of the model may be off by, by name; with a reference, what hangs on its roundings included."""
    undecided = undecided_outputs(graph, reference) if reference is not None else {}
    return {
        name: replace(tolerance(graph, node_id), undecided=undecided.get(node_id, 0.0))
        for name, node_id in output_nodes(graph).items()
    }


def compare_outputs(got: Arrays, wanted: Arrays, allowed: Mapping[str, Tolerance]) -> tuple[bool, float, float]:
    """(all right, largest absolute error, largest error relative to its output's largest value); of both errors the
    worst over the outputs in `wanted`, each judged by what it is allowed."""
    ok, worst, relative = True, 0.0, 0.0
    for name, array in wanted.items():
        may = allowed[name]
        right, absolute, scaled = compare(got[name], array, may.rtol, may.atol_scale, may.undecided)
        ok, worst, relative = ok and right, max(worst, absolute), max(relative, scaled)
    return ok, min(worst, LARGEST), min(relative, LARGEST)


def verify(graph: Graph, executable: Executable, reference: Reference, expected: Expected | None) -> ev.Verified:
    """One run held against the interpreter, and against expected outputs where they are given."""
    got = executable.run(reference.inputs)
    allowed = tolerances(graph, reference)
    checks = [compare_outputs(got, {name: reference.values[i] for name, i in output_nodes(graph).items()}, allowed)]
    origin = "interpreter"
    if expected and expected.outputs:
        origin = f"interpreter and {printable(expected.origin)}"
        checks.append(compare_outputs(got, expected.outputs, allowed))
    oks, absolutes, relatives = zip(*checks, strict=True)
    loosest = max(allowed.values(), key=lambda t: (t.atol_scale, t.undecided), default="")
    return ev.Verified(
        ok=all(oks),
        max_abs_err=max(absolutes),
        max_rel_err=max(relatives),
        reference=origin,
        tolerance=str(loosest),
    )


def wrong(view: SessionView) -> WrongResult:
    """The error that says at which of the points that are not right it is largest."""
    found = [(point.verified, place) for place, point in view.points.items() if point.verified is not None]
    verdict, place = max((each for each in found if not each[0].ok), key=lambda each: each[0].max_rel_err)
    where = as_text(view.point_info(place).dims)
    return WrongResult(
        f"the compiled model is wrong{f' at {where}' if where else ''}: largest relative error "
        f"{verdict.max_rel_err:.3g} (allowed: {verdict.tolerance}) against the {verdict.reference}"
    )


def measure(
    executable: Executable, inputs: Arrays, keep: Callable[[Compiled, Sequence[float]], None]
) -> ev.Measured:
    """The latency of whole runs, and of each kernel. `keep` is given the program and the milliseconds of each of its
    launches."""
    latency = executable.measure(inputs, LATENCY_SECONDS)
    runs = min(KERNEL_RUNS, max(1, int(2 * LATENCY_SECONDS * 1e3 / latency.median)))
    compiled, times = executable.launch_times(inputs, runs)
    keep(compiled, times)
    rows = [
        ev.KernelRow(name, calls, ms, flops / max(ms, 1e-9) / 1e6, size / max(ms, 1e-9) / 1e6)
        for name, calls, ms, flops, size in by_kernel(compiled.plan.launches, times)
    ]
    return ev.Measured(median=latency.median, p20=latency.p20, p80=latency.p80, runs=latency.runs, kernels=rows)
