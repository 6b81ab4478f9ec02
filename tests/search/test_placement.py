"""Where values live: what becomes one kernel, what computes the same however it is placed, and what does not fit."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.choices import (
    Case,
    assert_computes_the_same,
    assert_near,
    computed,
    extracted,
    forced_genomes,
    leaf_values,
    random_genome,
    saturated,
)
from tests.row_graphs import (
    Model,
    bias_gelu,
    instance_norm,
    layer_norm,
    masked_softmax,
    of_everything,
    rms_norm,
    scaled_sum,
    softmax,
)
from tests.small_graphs import linear, whole
from workbench.egraph.saturate import Saturator
from workbench.frontend.normalization import softmax_over
from workbench.ir import dtype as dt
from workbench.ir import interpret, llir, ops
from workbench.ir import layout as lay
from workbench.ir.dtype import DType
from workbench.ir.expr import ZERO, var
from workbench.ir.hlir import Graph, Operand
from workbench.ir.llir import GemmCall, MapKernel, Program, RowKernel
from workbench.runtime import get_runtime
from workbench.runtime.arena import plan_arena
from workbench.search import extract as extraction
from workbench.search.extract import fitted
from workbench.search.placement import Rejected
from workbench.search.strategies import Evolve, fused_genome

ONE_KERNEL: dict[str, tuple[Callable[[], Graph], list[str]]] = {
    "softmax": (softmax, ["max", "sum", "map"]),
    "masked softmax": (masked_softmax, ["max", "sum", "map"]),
    "LayerNorm": (layer_norm, ["sum", "sum", "map"]),
    "RMSNorm": (rms_norm, ["sum", "map"]),
    "InstanceNorm": (instance_norm, ["sum", "sum", "map"]),
    "a scale before a sum": (scaled_sum, ["sum"]),
    "a sum over everything": (of_everything, ["sum", "map"]),
}


def fused(case: Case) -> Program:
    """What the search tries first."""
    (first,) = Evolve(case.space, 0, lambda genome: fitted(case.space, genome, case.graph.dims)).propose(None)
    return extracted(case, first.genome)


def run_and_compare(case: Case, program: Program, dims: Mapping[str, int] | None = None) -> None:
    dims = case.graph.dims if dims is None else dims
    values = leaf_values(case.graph, dims)
    wanted = dict(values)
    interpret.evaluate(case.graph, case.chunk.nodes, wanted, dims, keep=[*values, *case.chunk.outputs])
    for node_id, found in zip(case.chunk.outputs, computed(program, values), strict=True):
        assert_near(found, wanted[node_id])


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_what_is_one_kernel(saturator: Saturator, name: str) -> None:
    made, passes = ONE_KERNEL[name]
    case = saturated(saturator, made())
    program = fused(case)
    (kernel,) = program.kernels
    assert isinstance(kernel, RowKernel)
    assert llir.row_passes(kernel) == passes
    assert set(kernel.sources) == set(case.chunk.nodes)
    run_and_compare(case, program)


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_every_placement_computes_the_same(saturator: Saturator, name: str) -> None:
    case = saturated(saturator, ONE_KERNEL[name][0]())
    rng = random.Random(1)
    genomes = [*forced_genomes(case.space, rng), *(random_genome(case.space, rng) for _ in range(12))]
    assert_computes_the_same(case, genomes)


@settings(max_examples=30)
@given(
    made=st.sampled_from((softmax, layer_norm, rms_norm)),
    lead=st.lists(st.sampled_from((1, 2, 3, 5)), max_size=2),
    extent=st.sampled_from((1, 2, 7, 16, 17, 40)),
    dtype=st.sampled_from((dt.F32, dt.F64)),
    seed=st.integers(0, 99),
)
def test_rows_of_any_shape(
    saturator: Saturator, made: Callable[..., Graph], lead: list[int], extent: int, dtype: DType, seed: int
) -> None:
    case = saturated(saturator, made((*lead, extent), dtype))
    rng = random.Random(seed)
    first = fitted(case.space, fused_genome(case.space), {}).genome
    assert len(extracted(case, first).kernels) == 1
    assert_computes_the_same(case, [first, *(random_genome(case.space, rng) for _ in range(3))], seed=seed)


@pytest.mark.parametrize("length", [1, 4, 9])
def test_rows_of_a_named_length(saturator: Saturator, length: int) -> None:
    case = saturated(saturator, _softmax_of_scores())
    first = fused_genome(case.space)
    program = extracted(case, first, {"s": length})
    assert [type(k) for k in program.kernels] == [RowKernel]
    run_and_compare(case, program, {"s": length})


def _softmax_of_scores() -> Graph:
    m = Model()
    return m.ended(softmax_over(m.b, m.input("x", 2, var("s"), var("s")), 2), s=6)


# Epilogues in place of a library call's result


@pytest.mark.parametrize("residual", [False, True])
def test_what_is_elementwise_behind_a_matmul_runs_in_place(saturator: Saturator, residual: bool) -> None:
    case = saturated(saturator, bias_gelu(residual=residual))
    program = fused(case)
    call, epilogue = program.kernels
    assert isinstance(call, GemmCall)
    assert isinstance(epilogue, MapKernel)
    assert epilogue.in_place == call.out
    assert "in place" in _names(program)[1]
    run_and_compare(case, program)
    (output,) = program.outputs
    offsets, nbytes = plan_arena(program)
    assert offsets[call.out] == offsets[output]
    assert nbytes == 6 * 20 * 4 + -6 * 20 * 4 % 64


def _names(program: Program) -> list[str]:
    return [launch.name for launch in get_runtime("cpu").plan(program, {}).launches]


def test_softmax_runs_in_place_of_the_scores(saturator: Saturator) -> None:
    graph = Graph("scores")
    x, weight = graph.add(ops.Input("x"), [], (1, 12, 8), dt.F32), graph.add(ops.Input("w"), [], (8, 19), dt.F32)
    scores = linear(graph, x, weight)
    most = graph.add(ops.Reduce("MaxReduce"), [whole(scores)], (1, 12), dt.F32)
    spread = Operand(most.id, lay.expand(lay.insert_axis(lay.contiguous((1, 12)), 2), scores.shape))
    lower = graph.add(ops.Elementwise("LessThan"), [whole(scores), spread], scores.shape, dt.BOOL)
    result = graph.add(ops.Elementwise("Select"), [whole(lower), whole(scores), spread], scores.shape, dt.F32)
    graph.add(ops.Output("y"), [whole(result)], scores.shape, dt.F32)
    case = saturated(saturator, graph)
    program = fused(case)
    call, row = program.kernels
    assert isinstance(row, RowKernel)
    assert row.in_place == call.out
    assert _names(program)[1] == "row: max, map 1x12x19 in place"
    run_and_compare(case, program)


def test_a_matmul_through_its_sum_ends_in_its_epilogue(saturator: Saturator) -> None:
    case = saturated(saturator, bias_gelu(residual=True))
    genome = _choosing(case, ("RowSum", "Inline"))
    (kernel,) = extracted(case, genome).kernels
    assert isinstance(kernel, RowKernel)
    assert (llir.row_passes(kernel), kernel.result) == (["sum"], (1, 6, 20))
    run_and_compare(case, extracted(case, genome))


# What does not fit together


def _choosing(case: Case, wanted: tuple[str, ...]) -> tuple[int, ...]:
    """The genome that takes the first of `wanted` that is offered, in every gene."""
    chosen = []
    for eclass in case.space.genes:
        kinds = [case.space.snapshot.op(n) for n in case.space.options[eclass]]
        chosen.append(next((kinds.index(w) for w in wanted if w in kinds), 0))
    return tuple(chosen)


def _rejection(case: Case, genome: tuple[int, ...]) -> str:
    """Why the choices of `genome`, taken to the letter, are no program."""
    with pytest.raises(Rejected) as caught:
        extraction.extract_exactly(case.space, genome, case.graph.dims)
    assert caught.value.reason == "placement"
    assert caught.value.eclass is not None
    return caught.value.detail


def _spread(axes: tuple[int, ...], shape: tuple[int, ...]) -> Graph:
    """Sums of the rows of x, spread along `axes` into `shape`, plus something of that shape; x is [4, 5]."""
    graph = Graph()
    x, y = graph.add(ops.Input("x"), [], (4, 5), dt.F32), graph.add(ops.Input("y"), [], shape, dt.F32)
    sums = graph.add(ops.Reduce("SumReduce"), [whole(x)], (4,), dt.F32)
    view = lay.contiguous((4,))
    for axis in axes:
        view = lay.insert_axis(view, axis)
    added = graph.add(ops.Elementwise("Add"), [Operand(sums.id, lay.expand(view, shape)), whole(y)], shape, dt.F32)
    graph.add(ops.Output("z"), [whole(added)], shape, dt.F32)
    return graph


def test_a_reduction_for_more_rows_than_it_has_is_no_row(saturator: Saturator) -> None:
    case = saturated(saturator, _spread((0, 2), (3, 4, 6)))
    genome = _choosing(case, ("RowSum",))
    assert _rejection(case, genome) == "the sum over 5 elements would be computed again for 12 rows, of which 4 differ"
    kinds = [type(k).__name__ for k in extracted(case, genome).kernels]
    assert kinds == ["ReduceKernel", "MapKernel"]
    run_and_compare(case, extracted(case, genome))
    good = saturated(saturator, _spread((1, 2), (4, 3, 6)))
    (kernel,) = extracted(good, _choosing(good, ("RowSum",))).kernels
    assert isinstance(kernel, RowKernel)
    assert (kernel.shape, kernel.extent) == ((4,), 18)
    run_and_compare(good, extracted(good, _choosing(good, ("RowSum",))))


def test_a_reduction_for_every_element_of_another_is_no_row(saturator: Saturator) -> None:
    """The maximum over what are sums themselves: the sums differ from element to element."""
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (3, 4, 5), dt.F32)
    sums = graph.add(ops.Reduce("SumReduce"), [whole(x)], (3, 4), dt.F32)
    most = graph.add(ops.Reduce("MaxReduce"), [whole(sums)], (3,), dt.F32)
    graph.add(ops.Output("z"), [whole(most)], (3,), dt.F32)
    case = saturated(saturator, graph)
    genome = _choosing(case, ("RowSum", "MaxInner", "SumInner"))
    assert _rejection(case, genome) == (
        "the sum over 5 elements would be computed again for each of the 4 elements that a max is over"
    )
    assert_computes_the_same(case, [genome])


def test_rows_go_along_the_reduced_axis(saturator: Saturator) -> None:
    """A reduction that keeps another is no reduction across rows."""
    case = saturated(saturator, layer_norm())
    reasons = []
    for element, gene in case.space.gene_of.items():
        kinds = [case.space.snapshot.op(n) for n in case.space.options[element]]
        if "RowSum" in kinds:
            mixed = list(_choosing(case, ("SumOuter", "Inline", "Load")))
            mixed[gene] = kinds.index("RowSum")
            try:
                extraction.extract_exactly(case.space, tuple(mixed), {})
            except Rejected as rejected:
                reasons.append(rejected.detail)
    assert "the sum over 33 elements is kept per row of a reduction that goes across rows" in reasons


def test_a_result_with_another_reader_is_not_overwritten(saturator: Saturator) -> None:
    case = saturated(saturator, bias_gelu(outputs=2))
    genome = _choosing(case, ("InPlace", "Inline"))
    assert _rejection(case, genome) == "what would be overwritten in place is an output"
    run_and_compare(case, extracted(case, genome))
    # Two kernels that each keep the bias's sum to themselves: the product has two readers.
    case = saturated(saturator, _two_readers())
    genome = _choosing(case, ("InPlace", "Inline"))
    assert _rejection(case, genome) == "what would be overwritten in place has 2 readers"
    program = extracted(case, genome)
    assert all(k.in_place is None for k in program.kernels if isinstance(k, MapKernel))
    run_and_compare(case, program)


def _two_readers() -> Graph:
    graph = Graph()
    x, weight = graph.add(ops.Input("x"), [], (1, 6, 8), dt.F32), graph.add(ops.Input("w"), [], (8, 20), dt.F32)
    product = linear(graph, x, weight)
    for i, name in enumerate(("Sin", "Floor")):
        made = graph.add(ops.Elementwise(name), [whole(product)], product.shape, dt.F32)
        graph.add(ops.Output(f"y{i}"), [whole(made)], product.shape, dt.F32)
    return graph


def test_one_kernel_takes_the_place_of_one_result(saturator: Saturator) -> None:
    graph = Graph()
    weight = graph.add(ops.Input("w"), [], (8, 20), dt.F32)
    products = [linear(graph, graph.add(ops.Input(n), [], (1, 6, 8), dt.F32), weight) for n in "ab"]
    made = graph.add(ops.Elementwise("Add"), [whole(p) for p in products], products[0].shape, dt.F32)
    graph.add(ops.Output("y"), [whole(made)], made.shape, dt.F32)
    case = saturated(saturator, graph)
    genome = _choosing(case, ("InPlace", "Inline"))
    assert _rejection(case, genome) == "two library calls' results cannot both give their place to one kernel"
    program = extracted(case, genome)
    assert sum(isinstance(k, MapKernel) and k.in_place is not None for k in program.kernels) == 1
    run_and_compare(case, program)


def test_a_result_read_whole_over_spaces_of_two_ranks_stays_two_elements(saturator: Saturator) -> None:
    """A product, and the sum of all of it: one reads its rows, the other all elements in one row."""
    graph = Graph()
    x, weight = graph.add(ops.Input("x"), [], (1, 6, 8), dt.F32), graph.add(ops.Input("w"), [], (8, 20), dt.F32)
    product = linear(graph, x, weight)
    total = graph.add(ops.Reduce("SumReduce"), [Operand(product.id, lay.contiguous((120,)))], (), dt.F32)
    everywhere = Operand(total.id, lay.Layout((1, 6, 20), (ZERO, ZERO, ZERO)))
    made = graph.add(ops.Elementwise("Mul"), [whole(product), everywhere], product.shape, dt.F32)
    graph.add(ops.Output("y"), [whole(made)], made.shape, dt.F32)
    case = saturated(saturator, graph)
    for wanted in (("InPlace", "Inline"), ("Load",), ("RowSum", "InPlace", "Inline")):
        run_and_compare(case, extracted(case, _choosing(case, wanted)))


def test_another_dtype_is_no_place(saturator: Saturator) -> None:
    graph = Graph()
    x, weight = graph.add(ops.Input("x"), [], (1, 6, 8), dt.F32), graph.add(ops.Input("w"), [], (8, 20), dt.F32)
    product = linear(graph, x, weight)
    made = graph.add(ops.Cast(dt.I32), [whole(product)], product.shape, dt.I32)
    graph.add(ops.Output("y"), [whole(made)], made.shape, dt.I32)
    case = saturated(saturator, graph)
    genome = _choosing(case, ("InPlace", "Inline"))
    assert _rejection(case, genome) == "120 elements of f32 are no place for 120 of i32"
    run_and_compare(case, extracted(case, genome))


def test_a_kernel_in_place_reads_its_own_place_only(saturator: Saturator) -> None:
    """The product plus its own transpose: what is overwritten would be read again elsewhere."""
    graph = Graph()
    x, weight = graph.add(ops.Input("x"), [], (6, 8), dt.F32), graph.add(ops.Input("w"), [], (8, 6), dt.F32)
    product = linear(graph, x, weight)
    turned = Operand(product.id, lay.permute(lay.contiguous((6, 6)), (1, 0)))
    made = graph.add(ops.Elementwise("Add"), [whole(product), turned], (6, 6), dt.F32)
    graph.add(ops.Output("y"), [whole(made)], (6, 6), dt.F32)
    case = saturated(saturator, graph)
    genome = _choosing(case, ("InPlace", "Inline"))
    assert _rejection(case, genome) == "a kernel in place of a result reads it in another order too"
    run_and_compare(case, extracted(case, genome))


def test_a_fitted_genome_is_what_is_extracted(saturator: Saturator) -> None:
    case = saturated(saturator, _two_readers())
    genome = _choosing(case, ("InPlace", "Inline", "Sgemm"))
    made = fitted(case.space, genome, {})
    assert made.notes == ("what would be overwritten in place has 2 readers",)
    assert fitted(case.space, made.genome, {}) == replace(made, notes=())
    assert extraction.extract_exactly(case.space, made.genome, {}).kernels == extraction.extract(
        case.space, genome, {}
    ).kernels
    strategy = Evolve(case.space, 0, lambda g: fitted(case.space, g, {}))
    (first,) = strategy.propose(None)
    assert case.space.digest(first.genome) == case.space.digest(made.genome)
    assert first.note == "kept in memory instead: what would be overwritten in place has 2 readers"
