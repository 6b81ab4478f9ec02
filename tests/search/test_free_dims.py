"""Programs with dimensions left free: one template computes, at every length, what the interpreter does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import row_graphs
from tests.choices import Case, assert_near, leaf_values, random_genome, saturated
from tests.dynamic_models import write_decoder
from tests.small_graphs import residual_mlp
from workbench import chunking
from workbench.egraph.program import emit
from workbench.egraph.saturate import Saturator
from workbench.frontend import import_model
from workbench.ir import expr as ex
from workbench.ir import interpret, llir
from workbench.ir.hlir import Graph
from workbench.ir.llir import Program
from workbench.runtime import get_runtime
from workbench.search.binding import Binding, bind
from workbench.search.extract import extract
from workbench.search.placement import Rejected
from workbench.search.space import Genome

N, M = ex.var("n"), ex.var("m")
LENGTHS = (1, 7, 16, 33)
GENOMES = 6


def general(case: Case, genome: Genome) -> Program:
    """The program of a genome, bound to its chunk, for all values of the dimensions."""
    return bind(extract(case.space, genome, {}), Binding.of(case.program, case.chunk.outputs))


def assert_right_at(case: Case, genomes: Sequence[Genome], points: Sequence[dict[str, int]]) -> set[str]:
    """Every genome that can be extracted is right at all points; names of the kernels that depend on a dimension."""
    runtime, names = get_runtime("cpu", 1), set()
    known = []
    for dims in points:
        values = leaf_values(case.graph, dims)
        keep = {*values, *case.chunk.inputs, *case.chunk.outputs}
        interpret.evaluate(case.graph, [n.id for n in case.graph], values, dims, keep=keep)
        known.append(values)
    for genome in genomes:
        try:
            program = general(case, genome)
        except Rejected as rejected:
            if rejected.reason != "kernel-size":
                raise
            continue
        template = runtime.template(program, {})
        for dims, values in zip(points, known, strict=True):
            plan = template.plan(dims)
            bound = {b.id: values[b.source] for b in program.buffers if b.role == "boundary"}
            found = runtime.load(plan, bound).run({})
            for node_id, array in zip(case.chunk.outputs, found, strict=True):
                assert_near(array, values[node_id], steps=512)
            names |= {launch.name for launch in plan.launches}
        assert any(llir.dims_of(kernel, program.buffers) for kernel in program.kernels)
    return names


@pytest.mark.parametrize(
    "graph",
    [row_graphs.softmax((3, N, M)), row_graphs.layer_norm((N, 5, M)), row_graphs.rms_norm((N, M))],
    ids=["softmax", "layer_norm", "rms_norm"],
)
def test_rows_of_any_number_and_length(saturator: Saturator, graph: Graph) -> None:
    rng = random.Random(5)
    case = saturated(saturator, graph)
    points = [{"n": n, "m": m} for n, m in ((1, 1), (2, 7), (5, 16), (3, 40))]
    names = assert_right_at(case, [random_genome(case.space, rng) for _ in range(GENOMES)], points)
    assert any(name.startswith("row: ") for name in names)


@pytest.mark.parametrize("cached", [False, True], ids=["plain", "cached"])
def test_random_genomes_of_a_decoder(saturator: Saturator, tmp_path: Path, cached: bool) -> None:
    graph = import_model(write_decoder(tmp_path / "m.onnx", cached)).graph
    chunks = chunking.split(graph, chunking.find_breaks(graph, "auto"))
    groups = chunking.group([emit(graph, c.nodes, c.inputs, c.outputs).digest for c in chunks])
    rng = random.Random(1)
    points = [{"seq": n, "past": p} if cached else {"seq": n} for n, p in zip(LENGTHS, (5, 1, 30, 2), strict=True)]
    names: set[str] = set()
    for group in groups:
        case = saturated(saturator, graph, chunks[group.representative])
        names |= assert_right_at(case, [random_genome(case.space, rng) for _ in range(4)], points)
    assert any("sgemm" in name and "seq" in name for name in names)


def test_kernels_without_a_dimension_are_those_of_the_specialised_program(saturator: Saturator) -> None:
    """Leaving no dimension free changes nothing."""
    case = saturated(saturator, residual_mlp(layers=1))
    genome = random_genome(case.space, random.Random(0))
    assert extract(case.space, genome, {}) == extract(case.space, genome, {"elsewhere": 3})
