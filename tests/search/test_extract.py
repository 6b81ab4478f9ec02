"""Whatever a genome chooses, its kernels compute what the interpreter computes: on chunks of the test models."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest

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
from tests.search.conftest import Model
from tests.small_graphs import constant, elementwise, linear, matmul, residual_mlp, whole
from workbench.chunking import find_breaks, split, stitch
from workbench.egraph.program import emit
from workbench.egraph.saturate import Saturator
from workbench.egraph.snapshot import Snapshot
from workbench.ir import dtype as dt
from workbench.ir import interpret, llir, ops
from workbench.ir import layout as lay
from workbench.ir.expr import ZERO, Z, var
from workbench.ir.hlir import CustomOpSpec, Graph
from workbench.ir.llir import Program
from workbench.runtime import get_runtime
from workbench.search.binding import Binding, bind
from workbench.search.extract import extract, extract_exactly, fitted
from workbench.search.placement import Rejected
from workbench.search.space import Genome, build_space

Load = Callable[[str], Model]


def case_of(saturator: Saturator, model: Model, chunk: int) -> Case:
    return saturated(saturator, model.graph, model.chunks[chunk])


def viable_genomes(case: Case, wanted: int, dims: Mapping[str, int]) -> list[tuple[Genome, Program]]:
    """`wanted` genomes that can be extracted, of at most 12 times as many tried."""
    rng = random.Random(0)
    found: list[tuple[Genome, Program]] = []
    for _ in range(12 * wanted):
        genome = random_genome(case.space, rng)
        try:
            found.append((genome, extracted(case, genome, dims)))
        except Rejected as rejected:
            assert rejected.reason in ("kernel-size", "library-refuses")  # noqa: PT017
        if len(found) == wanted:
            break
    return found


@pytest.mark.parametrize(
    "name",
    ["llama3_tiny_4l_ts17", "minilm_6l_ts17", "vit_tiny_4l_ts17", "mlp_dynbatch_ts17"],
)
def test_random_genomes_of_every_group_of_a_model(saturator: Saturator, model: Load, name: str) -> None:
    it = model(name)
    for group in it.groups:
        case = case_of(saturator, it, group.representative)
        programs = viable_genomes(case, 2, it.graph.dims)
        assert programs
        for _, program in programs:
            given = {b.source: it.values[b.source] for b in program.buffers if b.role == "boundary"}
            for node_id, found in zip(case.chunk.outputs, computed(program, given), strict=True):
                # a chain of a layer's reductions in f32, against f64 sums
                assert_near(found, it.values[node_id], steps=2000)


def test_every_alternative_of_a_llama_layer(saturator: Saturator, model: Load) -> None:
    it = model("llama3_tiny_4l_ts17")
    seen_kinds: set[str] = set()
    for group in it.groups:
        if len(group.members) < 2:
            continue
        case = case_of(saturator, it, group.representative)
        rng = random.Random(2)
        programs = []
        for genome in forced_genomes(case.space, rng):
            try:
                programs.append(extracted(case, genome))
            except Rejected:
                continue
        for program in rng.sample(programs, min(8, len(programs))):
            given = {b.source: it.values[b.source] for b in program.buffers if b.role == "boundary"}
            seen_kinds |= {type(k).__name__ for k in program.kernels}
            for node_id, found in zip(case.chunk.outputs, computed(program, given), strict=True):
                assert_near(found, it.values[node_id], steps=2000)
    assert seen_kinds == {"MapKernel", "ReduceKernel", "RowKernel", "GemmCall"}


@pytest.mark.parametrize("name", ["llama3_tiny_4l_ts17", "llama3_tiny_4l_dynamo", "gpt2_tiny_2l_ts17"])
def test_one_genome_serves_every_member_and_the_whole_stitches(
    saturator: Saturator, model: Load, expected: Callable[..., tuple[Mapping, Mapping]], name: str
) -> None:
    """The representative's genome, bound to each member by its own inputs, gives the model's stored outputs."""
    it = model(name)
    programs: list[Program | None] = [None] * len(it.chunks)
    for group in it.groups:
        case = case_of(saturator, it, group.representative)
        genome = viable_genomes(case, 1, it.graph.dims)[0][0]
        kernels = extract(case.space, genome, it.graph.dims)
        for member in group.members:
            programs[member] = bind(kernels, Binding.of(it.programs[member], it.chunks[member].outputs))
    whole_program = stitch(it.graph, it.chunks, [p for p in programs if p is not None])
    inputs, outputs = expected(name)
    values = leaf_values(it.graph, it.graph.dims)
    for node_id in it.graph.inputs:
        op = it.graph[node_id].op
        assert isinstance(op, ops.Input)
        values[node_id] = np.ascontiguousarray(inputs[op.name]).reshape(-1)
    runtime = get_runtime("cpu", 1)
    given = {b.id: values[b.source] for b in whole_program.buffers if b.role in ("input", "constant")}
    found = runtime.load(runtime.plan(whole_program, {}), {}).run(given)
    for node_id, array in zip(it.graph.outputs, found, strict=True):
        op = it.graph[node_id].op
        assert isinstance(op, ops.Output)
        np.testing.assert_allclose(array, outputs[op.name].reshape(-1), rtol=2e-3, atol=2e-4)


def test_stitching_shares_what_chunks_share(saturator: Saturator) -> None:
    graph = residual_mlp(layers=3)
    chunks = split(graph, find_breaks(graph, "add"))
    programs = []
    for chunk in chunks:
        case = saturated(saturator, graph, chunk)
        programs.append(extracted(case, (0,) * len(case.space.genes)))
    whole_program = stitch(graph, chunks, programs)
    assert [b.id for b in whole_program.buffers] == list(range(len(whole_program.buffers)))
    sources = [b.source for b in whole_program.buffers if b.role in ("input", "constant")]
    assert len(sources) == len(set(sources))
    (output,) = whole_program.outputs
    assert whole_program.buffers[output].source == graph[graph.outputs[0]].operands[0].source
    assert all(b.role != "boundary" for b in whole_program.buffers)
    written = [k.out for k in whole_program.kernels]
    assert len(written) == len(set(written))
    known = {b.id for b in whole_program.buffers if b.role in ("input", "constant")}
    for kernel in whole_program.kernels:
        assert llir.reads(kernel) <= known
        known.add(kernel.out)


@pytest.mark.parametrize("batch", [1, 2, 5, 16])
def test_dimensions_other_than_the_representative(saturator: Saturator, model: Load, batch: int) -> None:
    it = model("mlp_dynbatch_ts17")
    (name,) = it.graph.dims
    case = case_of(saturator, it, 0)
    rng = random.Random(batch)
    genomes = [random_genome(case.space, rng) for _ in range(3)]
    dims = {name: batch}
    values = leaf_values(it.graph, dims)
    wanted = dict(values)
    interpret.evaluate(it.graph, case.chunk.nodes, wanted, dims)
    for genome in genomes:
        program = extracted(case, genome, dims)
        for node_id, found in zip(case.chunk.outputs, computed(program, values), strict=True):
            assert_near(found, wanted[node_id], steps=500)


def test_a_named_sequence_length_flows_through_attention(saturator: Saturator) -> None:
    """softmax-free attention over a named length: scores [s, s], then a weighted sum."""
    s = var("s")
    graph = Graph("attention", dims={"s": 6})
    x = graph.add(ops.Input("x"), [], (s, 4), dt.F32, "x")
    weight = constant(graph, np.random.default_rng(0).random((4, 4), np.float32))
    query = linear(graph, x, weight)
    shape = (s, s, 4)
    a = lay.expand(lay.insert_axis(lay.contiguous((s, 4)), 1), shape)
    b = lay.expand(lay.insert_axis(lay.contiguous((s, 4)), 0), shape)
    scores = matmul(graph, query, a, x, b)
    weights = elementwise(graph, "Sin", scores)
    shape = (s, 4, s)
    a = lay.expand(lay.insert_axis(lay.contiguous((s, s)), 1), shape)
    b = lay.expand(lay.insert_axis(lay.permute(lay.contiguous((s, 4)), (1, 0)), 0), shape)
    mixed = matmul(graph, weights, a, x, b)
    graph.add(ops.Output("y"), [whole(mixed)], mixed.shape, dt.F32)
    case = saturated(saturator, graph)
    rng = random.Random(0)
    genomes = [random_genome(case.space, rng) for _ in range(6)]
    for length in (1, 2, 6, 9):
        ran = assert_computes_the_same(case, genomes, {"s": length})
        assert any("RmRm" in kernels for kernels in ran)


def test_a_batch_too_large_for_the_library_is_refused(saturator: Saturator) -> None:
    graph = Graph()
    batch, shape = 70_000, (70_000, 2, 2, 2)
    x, y = (graph.add(ops.Input(name), [], (batch, 2, 2), dt.F32, name) for name in "xy")
    a = lay.expand(lay.insert_axis(lay.contiguous((batch, 2, 2)), 2), shape)
    b = lay.expand(lay.insert_axis(lay.contiguous((batch, 2, 2)), 1), shape)
    product = matmul(graph, x, a, y, b)
    graph.add(ops.Output("z"), [whole(product)], product.shape, dt.F32)
    case = saturated(saturator, graph)
    reasons = set()
    for genome in forced_genomes(case.space, random.Random(0)):
        try:
            extract_exactly(case.space, genome, {})
        except Rejected as rejected:
            reasons.add(rejected.reason)
    assert reasons == {"library-refuses"}


def test_a_matmul_that_the_library_refuses_is_a_kernel_instead(saturator: Saturator) -> None:
    """Overlapping windows, a convolution with a step, have rows nearer to each other than they are long."""
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (20,), dt.F32, "x")
    weight = constant(graph, np.random.default_rng(0).random((3, 4), np.float32))
    shape = (9, 3, 4)
    windows = lay.Layout(shape, (Z * 2, ZERO, Z))
    product = matmul(graph, x, windows, weight, lay.expand(lay.insert_axis(lay.contiguous((3, 4)), 0), shape))
    graph.add(ops.Output("y"), [whole(product)], product.shape, dt.F32)
    case = saturated(saturator, graph)
    called = next(g for g in forced_genomes(case.space, random.Random(0)) if _calls_library(case, g))
    with pytest.raises(Rejected, match="shorter than a row"):
        extract_exactly(case.space, called, {})
    fits = fitted(case.space, called, {})
    assert "shorter than a row" in " ".join(fits.notes)
    assert not _calls_library(case, fits.genome)
    (kernels,) = assert_computes_the_same(case, [called])
    assert "RmCm" not in kernels


def _calls_library(case: Case, genome: Genome) -> bool:
    space = case.space
    return any(space.snapshot.op(space.options[c][g]) == "Sgemm" for c, g in zip(space.genes, genome, strict=True))


def test_buffers_know_the_nodes_they_hold(layer: Case) -> None:
    program = extracted(layer, random_genome(layer.space, random.Random(0)))
    for kernel in program.kernels:
        assert kernel.sources[0] == program.buffers[kernel.out].source
        assert set(kernel.sources) <= set(layer.chunk.nodes)
    for output, node_id in zip(program.outputs, layer.chunk.outputs, strict=True):
        assert program.buffers[output].source == node_id
        assert program.buffers[output].role == "output"


def test_a_custom_operator_is_called_under_its_members_own_number(saturator: Saturator) -> None:
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (2, 3), dt.F32, "x")
    values = [x]
    for custom_id in (4, 7):
        graph.custom_ops[custom_id] = CustomOpSpec("Custom", "Custom", b"")
        values.append(graph.add(ops.CustomOp(custom_id), [whole(v) for v in values], (2, 3), dt.F32))
    graph.add(ops.Output("y"), [whole(values[-1])], (2, 3), dt.F32)
    case = saturated(saturator, graph)
    first, second = extracted(case, ()).kernels
    assert isinstance(first, llir.OpaqueCall)
    assert isinstance(second, llir.OpaqueCall)
    assert (first.custom_id, second.custom_id) == (4, 7)
    assert second.operand_shapes == ((2, 3), (2, 3))


def test_emission_is_independent_of_what_was_emitted_before(saturator: Saturator, layer: Case) -> None:
    again = emit(layer.graph, layer.chunk.nodes, layer.chunk.inputs, layer.chunk.outputs)
    assert again == layer.program
    space = build_space(Snapshot(saturator.saturate(again.text).snapshot), again.root)
    assert space.options == layer.space.options
