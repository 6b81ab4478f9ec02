"""How the saturation grows with depth: the repeating chunk many times over in one e-graph, rule by rule."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from workbench.chunking import Chunk, Group
from workbench.chunking.repeat import repeat
from workbench.egraph.messages import StepDone
from workbench.egraph.program import emit
from workbench.egraph.rules import category, read_library
from workbench.egraph.saturate import SaturationStopped, Saturator
from workbench.egraph.snapshot import Snapshot
from workbench.errors import InputError, printable
from workbench.ir.hlir import Graph
from workbench.session.saturation import limits_of
from workbench.session.spec import DEMO, SessionSpec
from workbench.targets import resolved

MOST_PRIMITIVES = 200_000
"""Of the largest program."""
QUICK_SECONDS = 2.0
"""Below this a saturation is repeated, for a median."""
REPEATS = 3


class _Run(msgspec.Struct):
    """One size: medians over the repeats. Sums by rule are over all steps."""

    copies: int
    primitives: int
    nodes: int | None = None
    classes: int | None = None
    seconds: float | None = None
    steps: int | None = None
    repeats: int = 0
    stopped: str = ""
    culprit: str = ""
    matches: dict[str, int] = {}
    rule_seconds: dict[str, float] = {}


def parse_sizes(text: str) -> list[int]:
    """`1,2,4,8` as ascending numbers of copies. Raises InputError."""
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch("0*[1-9][0-9]{0,5}", word) for word in words):
        raise InputError(f"--scaling: '{printable(text, 40)}' is not a list of numbers of copies like 1,2,4,8")
    return sorted({int(word) for word in words})


def scaling_report(
    spec: SessionSpec, sizes: Sequence[int], group: int | None, scratch: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Saturate `sizes` copies of the chunk of `group` (by default the one with most members), and compare: the object
    that `rules --scaling --json` prints. `say` hears a line per size.

    Past a size that a limit stops, larger ones are not tried. Raises InputError for a group or a size that cannot be,
    and what importing and saturating raise."""
    from workbench.session.importing import imported
    from workbench.session.inspection import split_and_group

    target = resolved(spec.target)
    files = read_library(Path(spec.egg) if spec.egg else None, [Path(r) for r in spec.rules], target)
    path = Path(spec.model)
    if spec.model == DEMO:
        from workbench.frontend.demo import write_demo

        path = write_demo(scratch / "demo.onnx")
    with Saturator(files, limits_of(spec)) as saturator:
        rules = saturator.rules
        graph = imported(spec, path).graph
        chunks, _, groups = split_and_group(graph, spec.breaks)
        chosen = _chosen(groups, chunks, group)
        chunk = chunks[chosen.representative]
        largest = len(chunk.nodes) * max(sizes)
        if largest > MOST_PRIMITIVES:
            raise InputError(
                f"--scaling: {max(sizes)} copies are {largest:,} primitives", f"at most {MOST_PRIMITIVES:,} at once"
            )
        runs: list[_Run] = []
        for copies in sizes:
            stopped = next((r.copies for r in runs if r.stopped), None)
            if stopped is None:
                runs.append(_measure(saturator, graph, chunk, copies))
            else:
                word = f"not tried, since {stopped} copies were stopped"
                runs.append(_Run(copies, len(chunk.nodes) * copies, stopped=word))
            say(_line(runs[-1]))
    chained = repeat(graph, chunk, 1).chained
    return {
        "model": spec.model,
        "target": target,
        "group": chosen.index,
        "members": list(chosen.members),
        "chained": chained,
        "sizes": list(sizes),
        "runs": [
            {k: v for k, v in msgspec.to_builtins(r).items() if k not in ("matches", "rule_seconds")} for r in runs
        ],
        "egraph": {
            f"{what}_exponent": _exponents(runs, [getattr(r, what) for r in runs])
            for what in ("nodes", "classes", "seconds")
        },
        "rules": sorted((_rule(rule, runs) for rule in rules), key=_threat),
    }


def _chosen(groups: Sequence[Group], chunks: Sequence[Chunk], group: int | None) -> Group:
    if group is None:
        return max(groups, key=lambda g: (len(g.members), len(chunks[g.representative].nodes)))
    if not 0 <= group < len(groups):
        raise InputError(f"there is no group {group}", f"there are groups 0 to {len(groups) - 1}")
    return groups[group]


def _measure(saturator: Saturator, graph: Graph, chunk: Chunk, copies: int) -> _Run:
    several = repeat(graph, chunk, copies)
    program = emit(several.graph, several.nodes, several.inputs, several.outputs).text
    run = _Run(copies, len(several.nodes))
    seconds: list[float] = []
    by_rule: list[dict[str, float]] = []
    while not run.repeats or (run.repeats < REPEATS and not run.stopped and max(seconds) < QUICK_SECONDS):
        steps: list[StepDone] = []
        try:
            result = saturator.saturate(program, steps.append)
        except SaturationStopped as stopped:
            run.stopped, run.repeats = str(stopped), 1
            return run
        run.repeats += 1
        seconds.append(result.engine_seconds)
        matches: dict[str, int] = {}
        spent: dict[str, float] = {}
        for step in steps:
            for name, count in step.matches.items():
                matches[name] = matches.get(name, 0) + count
            for name, took in step.rule_seconds.items():
                spent[name] = spent.get(name, 0.0) + took
        by_rule.append(spent)
        snapshot = Snapshot(result.snapshot)
        run.nodes, run.classes, run.steps = snapshot.node_count, snapshot.class_count, len(steps)
        run.stopped, run.matches = result.stopped, matches
        run.culprit = result.culprit.text if result.culprit else ""
    run.seconds = median(seconds)
    run.rule_seconds = {name: median(each.get(name, 0.0) for each in by_rule) for name in by_rule[-1]}
    return run


def _rule(rule: Any, runs: Sequence[_Run]) -> dict[str, Any]:
    ran = [r.repeats > 0 and r.seconds is not None for r in runs]
    matches = [r.matches.get(rule.name, 0) if there else None for r, there in zip(runs, ran, strict=True)]
    seconds = [r.rule_seconds.get(rule.name, 0.0) if there else None for r, there in zip(runs, ran, strict=True)]
    return {
        "name": rule.name,
        "category": category(rule.file),
        "ruleset": rule.ruleset,
        "file": rule.file,
        "line": rule.line,
        "matches": matches,
        "seconds": seconds,
        "matches_exponent": _exponents(runs, matches),
        "seconds_exponent": _exponents(runs, seconds),
    }


def _exponents(runs: Sequence[_Run], values: Sequence[float | None]) -> list[float | None]:
    """The local growth exponent between consecutive sizes: the ratio of the logarithms of their growth. None where one
    of the two was stopped, or is 0."""
    found: list[float | None] = []
    for (a, low), (b, high) in pairwise(zip(runs, values, strict=True)):
        if a.stopped or b.stopped or not low or not high:
            found.append(None)
        else:
            found.append(math.log(high / low) / math.log(b.copies / a.copies))
    return found


def _threat(row: dict[str, Any]) -> tuple[float, int, str]:
    """Order of the rules: the one that will eat the time first. Its exponent times its cost at the largest size."""
    cost = next((s for s in reversed(row["seconds"]) if s is not None), 0.0)
    exponent = next((e for e in reversed(row["seconds_exponent"]) if e is not None), 1.0)
    matches = next((m for m in reversed(row["matches"]) if m is not None), 0)
    return (-cost * max(exponent, 0.0), -matches, row["name"])


def _line(run: _Run) -> str:
    copies = f"{run.copies} {'copy' if run.copies == 1 else 'copies'}"
    if run.seconds is None:
        return f"{copies}: {run.stopped}"
    word = f", stopped at its {run.stopped}" if run.stopped else ""
    assert run.nodes is not None
    return f"{copies}: {run.nodes:,} e-nodes, {run.seconds * 1e3:,.1f} ms{word}"


def as_text(report: dict[str, Any]) -> str:
    """The report for a person."""
    sizes = report["sizes"]
    grown = [f"{a}>{b}" for a, b in pairwise(sizes)]
    how = f"each reads {report['chained']} of the one before" if report["chained"] else "side by side"
    lines = [
        f"{printable(report['model'])}  target {report['target']}  copies of group {report['group']}, "
        f"of which the model has {len(report['members'])}; {how}",
        "",
        f"{'e-graph':40}" + "".join(f"{s:>10}" for s in sizes) + "   exponent " + "".join(f"{g:>7}" for g in grown),
    ]
    for title, key, show in (
        ("e-nodes", "nodes", "{:,}".format),
        ("e-classes", "classes", "{:,}".format),
        ("ms in the engine", "seconds", lambda s: f"{s * 1e3:,.1f}"),
    ):
        cells = "".join(f"{'-' if r[key] is None else show(r[key]):>10}" for r in report["runs"])
        lines.append(f"{title:40}{cells}            {_powers(report['egraph'][f'{key}_exponent'])}")
    for run in report["runs"]:
        if run["stopped"]:
            lines.append(f"  {run['copies']} copies: {printable(run['stopped'])}")
            if run["culprit"]:
                lines.append(f"    {run['culprit']}")
    fired = [r for r in report["rules"] if any(r["matches"])]
    lines += ["", f"{'ms by rule, what will cost most first':40}" + "".join(f"{s:>10}" for s in sizes)]
    lines[-1] += "   exponent " + "".join(f"{g:>7}" for g in grown) + f"  {'matches':>9} exponent"
    for row in fired:
        cells = "".join(f"{'-' if s is None else f'{s * 1e3:.3f}':>10}" for s in row["seconds"])
        last = next((m for m in reversed(row["matches"]) if m is not None), 0)
        power = next((e for e in reversed(row["matches_exponent"]) if e is not None), None)
        lines.append(
            f"{printable(row['name'], 39):40}{cells}            {_powers(row['seconds_exponent'])}  {last:>9,} "
            f"{_power(power):>8}"
        )
    lines += ["", f"{len(report['rules']) - len(fired)} of {len(report['rules'])} rules never fired"]
    return "\n".join(lines)


def _powers(values: Sequence[float | None]) -> str:
    return "".join(f"{_power(v):>7}" for v in values)


def _power(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
