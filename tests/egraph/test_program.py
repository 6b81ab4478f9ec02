"""A chunk as text: what its digest is about, and that no name in a model can break out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.small_graphs import constant, elementwise, linear, residual_mlp, whole
from workbench.chunking import split
from workbench.egraph.program import ROOT, ChunkProgram, emit, parse_literal
from workbench.egraph.saturate import Saturator
from workbench.egraph.snapshot import Snapshot
from workbench.ir import dtype as dt
from workbench.ir import layout as lay
from workbench.ir import ops
from workbench.ir.dtype import DType
from workbench.ir.expr import var
from workbench.ir.hlir import CustomOpSpec, Graph, Operand


def program_of(graph: Graph) -> ChunkProgram:
    (chunk,) = split(graph, ())
    return emit(graph, chunk.nodes, chunk.inputs, chunk.outputs)


def small(
    shape: lay.Shape = (2, 3),
    dtype: DType = dt.F32,
    scalar: float = 0.5,
    view: Callable[[lay.Layout], lay.Layout] = lambda it: it,
    label: str = "",
    extra_nodes: int = 0,
) -> Graph:
    """sin(scalar * view(sqrt(x)))"""
    graph = Graph()
    for _ in range(extra_nodes):  # other ids for all that follows
        constant(graph, np.zeros(3, np.float32))
    x = graph.add(ops.Input(f"x{label}"), [], shape, dtype, label)
    root = elementwise(graph, "Sqrt", x, label=label)
    layout = view(lay.contiguous(shape))
    factor = constant(graph, np.asarray(scalar, dtype.numpy), label)
    operands = [Operand(factor.id, lay.expand(lay.contiguous(()), layout.shape)), Operand(root.id, layout)]
    scaled = graph.add(ops.Elementwise("Mul"), operands, layout.shape, dtype, label)
    y = elementwise(graph, "Sin", scaled, label=label)
    graph.add(ops.Output("y"), [whole(y)], y.shape, dtype)
    return graph


def test_names_and_ids_are_no_part_of_the_digest() -> None:
    plain = program_of(small())
    named = program_of(small(label='layers.7/"Mul"', extra_nodes=5))
    assert named.digest == plain.digest
    assert named.text != plain.text


def test_everything_else_is() -> None:
    variants = [
        small(),
        small(shape=(3, 2)),
        small(shape=(2, 4)),
        small(shape=(var("n"), 3)),
        small(dtype=dt.F64),
        small(scalar=0.25),
        small(view=lambda it: lay.permute(it, (1, 0))),
        small(view=lambda it: lay.slice_axis(it, 1, 1, 1, 2)),
        small(view=lambda it: lay.slice_axis(it, 1, 0, 1, 2)),
    ]
    assert len({program_of(g).digest for g in variants}) == len(variants)


def test_custom_operators_are_numbered_within_the_chunk() -> None:
    def graph_with(custom_id: int) -> Graph:
        graph = Graph()
        graph.custom_ops[custom_id] = CustomOpSpec("Custom", "Custom", b"")
        x = graph.add(ops.Input("x"), [], (2,), dt.F32)
        y = graph.add(ops.CustomOp(custom_id), [whole(x)], (2,), dt.F32)
        graph.add(ops.Output("y"), [whole(y)], (2,), dt.F32)
        return graph

    first, second = program_of(graph_with(0)), program_of(graph_with(4))
    assert first.digest == second.digest
    assert (first.custom_ids, second.custom_ids) == ((0,), (4,))


def test_lines_and_variables_lead_to_the_nodes() -> None:
    graph = residual_mlp(layers=1)
    program = program_of(graph)
    lines = program.text.splitlines()
    for node_id, variable in program.variables.items():
        assert lines[program.lines[node_id] - 1].startswith(f"(let {variable} (")
    assert list(program.variables.values()) == [f"$t{i}" for i in range(len(program.variables))]
    assert lines[-1].startswith(f"(let {ROOT} (RCons ")


def test_scalars_are_written_in_place_unless_read_as_a_buffer() -> None:
    graph = Graph()
    index = graph.add(ops.Input("i"), [], (4,), dt.I64)
    table = constant(graph, np.array([2.5], np.float32))
    picked = graph.add(ops.Gather(0), [whole(index), whole(table)], (4,), dt.F32)
    factor = constant(graph, np.array([[3.5]], np.float32))
    operands = [whole(picked), Operand(factor.id, lay.Layout((4,), (lay.ZERO,)))]
    y = graph.add(ops.Elementwise("Mul"), operands, (4,), dt.F32)
    graph.add(ops.Output("y"), [whole(y)], (4,), dt.F32)
    program = program_of(graph)
    assert table.id in program.inputs
    assert factor.id not in program.inputs
    assert '(Immediate "3.5" (F32))' in program.text


HOSTILE = [
    'a"b',
    "a\nb",
    "a\r\nb ; (panic \"x\")",
    '") (let $root (RNil))',
    "\\",
    '\\" (',
    "; comment",
    "((((",
    "\x00\x07\x1b[31m",
    "\u2028\u0085\u202e",
    "x" * 100_000,
    "$t0",
    "größe 模型 🙂",
    "\udc80",
]


@pytest.mark.parametrize("label", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_stays_in_its_place(saturator: Saturator, label: str) -> None:
    plain, named = program_of(small()), program_of(small(label=label))
    assert named.digest == plain.digest
    assert len(named.text.splitlines()) == len(plain.text.splitlines())
    assert all(len(line) < 1000 for line in named.text.splitlines())
    result = saturator.saturate(named.text)
    wanted = saturator.saturate(plain.text)
    assert Snapshot(result.snapshot).node_count == Snapshot(wanted.snapshot).node_count
    assert set(result.snapshot.variables) == set(wanted.snapshot.variables)


@settings(max_examples=40)
@given(st.text(st.characters(codec="utf-8"), max_size=30))
@example('"\\')
def test_any_name_keeps_the_lines_and_the_digest(label: str) -> None:
    plain, named = program_of(small()), program_of(small(label=label))
    assert named.digest == plain.digest
    assert len(named.text.splitlines()) == len(plain.text.splitlines())


SCALARS = [
    (np.float32(np.inf), dt.F32),
    (np.float32(-np.inf), dt.F32),
    (np.float32(np.nan), dt.F32),
    (np.float32(-0.0), dt.F32),
    (np.float32(1e-45), dt.F32),
    (np.float32(0.1), dt.F32),
    (np.float64(0.1), dt.F64),
    (np.int64(-(2**63)), dt.I64),
    (np.int32(-7), dt.I32),
    (np.bool_(True), dt.BOOL),
    (np.bool_(False), dt.BOOL),
]


@pytest.mark.parametrize(("value", "dtype"), SCALARS, ids=[f"{v} {d}" for v, d in SCALARS])
def test_an_immediate_comes_back_from_the_e_graph(saturator: Saturator, value: np.generic, dtype: DType) -> None:
    graph = Graph()
    scalar = constant(graph, np.asarray(value))
    spread = Operand(scalar.id, lay.expand(lay.contiguous(()), (3,)))
    copy = graph.add(ops.Cast(dtype), [spread], (3,), dtype)
    graph.add(ops.Output("y"), [whole(copy)], (3,), dtype)
    snapshot = Snapshot(saturator.saturate(program_of(graph).text).snapshot)
    (node,) = [n for n in range(snapshot.node_count) if snapshot.op(n) == "Immediate"]
    text, of = snapshot.children(node)
    assert snapshot.dtype(of) is dtype
    found = np.asarray(parse_literal(str(snapshot.literal(text)), dtype), dtype.numpy)
    assert found.tobytes() == np.asarray(value).tobytes()


@given(st.floats(width=32))
def test_every_float_is_written_exactly(value: float) -> None:
    from workbench.egraph.program import _literal

    back = np.float32(parse_literal(_literal(value), dt.F32))
    np.testing.assert_array_equal(back, np.float32(value))


def test_equal_layers_have_equal_programs() -> None:
    graph = residual_mlp(layers=3)
    cuts = {n.id for n in graph if n.label.endswith(".add")}
    chunks = split(graph, cuts)
    digests = [emit(graph, c.nodes, c.inputs, c.outputs).digest for c in chunks]
    assert len(digests) == 3
    assert len(set(digests)) == 1
    wider = residual_mlp(layers=3, width=4)
    assert emit(wider, chunks[0].nodes, chunks[0].inputs, chunks[0].outputs).digest != digests[0]


def test_a_product_under_a_sum_states_its_row_major_strides() -> None:
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (4, 8), dt.F32)
    y = linear(graph, x, constant(graph, np.ones((8, 5), np.float32)))
    graph.add(ops.Output("y"), [whole(y)], y.shape, dt.F32)
    assert program_of(graph).text.count("(set (row_major ") == 1
    assert "(set (row_major " not in program_of(small()).text


def test_changing_a_label_changes_only_comments_and_inputs() -> None:
    graph, other = small(label="a"), small(label="b")
    for left, right in zip(program_of(graph).text.splitlines(), program_of(other).text.splitlines(), strict=True):
        assert left == right or "(Input " in left or left.split(" ; ")[0] == right.split(" ; ")[0]
    assert replace(program_of(graph), text="") == replace(program_of(other), text="")


def test_a_sum_of_another_chunk_is_not_said_to_be_read_whole() -> None:
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (3, 4), dt.F32)
    total = graph.add(ops.Reduce("SumReduce"), [whole(x)], (3,), dt.F32)
    root = elementwise(graph, "Sqrt", total)
    graph.add(ops.Output("y"), [whole(root)], root.shape, dt.F32)
    before, after = split(graph, [total.id])
    assert "(whole " in program_of(graph).text
    assert "(whole " not in emit(graph, after.nodes, after.inputs, after.outputs).text
    assert emit(graph, before.nodes, before.inputs, before.outputs).inputs == (x.id,)
