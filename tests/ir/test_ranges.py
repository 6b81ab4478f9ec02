"""What integers can be: never less than what they are, and never more than the bits they come from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.small_graphs import constant, elementwise, whole
from workbench.ir import dtype as dt
from workbench.ir import layout as lay
from workbench.ir import ops
from workbench.ir.dtype import DType
from workbench.ir.hlir import Graph, Node, Operand
from workbench.ir.interpret import evaluate
from workbench.ir.ranges import integer_range, magnitude

SIZE = 64


def wide(graph: Graph, node: Node, dtype: DType = dt.I32) -> Node:
    return graph.add(ops.Cast(dtype), [whole(node)], node.shape, dtype)


def number(graph: Graph, value: int, dtype: DType = dt.I32) -> Operand:
    made = constant(graph, np.asarray(value, dtype.numpy))
    return Operand(made.id, lay.expand(lay.contiguous(()), (SIZE,)))


def given_bytes(graph: Graph, dtype: DType) -> Node:
    return graph.add(ops.Input(f"x{len(graph)}"), [], (SIZE,), dtype)


def test_bytes_keep_their_range_in_wider_types() -> None:
    graph = Graph()
    for dtype, expected in ((dt.U8, (0, 255)), (dt.I8, (-128, 127)), (dt.BOOL, (0, 1))):
        x = wide(graph, wide(graph, given_bytes(graph, dtype)), dt.I64)
        assert integer_range(graph, x.id) == expected
    assert integer_range(graph, given_bytes(graph, dt.I32).id) is None
    assert integer_range(graph, given_bytes(graph, dt.F32).id) is None
    assert integer_range(graph, wide(graph, given_bytes(graph, dt.F32)).id) is None
    assert integer_range(graph, wide(graph, given_bytes(graph, dt.F32), dt.U8).id) == (0, 255)


@pytest.mark.parametrize("zero", [0, 1, 128, 255])
def test_a_zero_point_leaves_a_difference_of_two_bytes(zero: int) -> None:
    graph = Graph()
    x = wide(graph, given_bytes(graph, dt.U8))
    shifted = graph.add(ops.Elementwise("Add"), [whole(x), number(graph, -zero)], (SIZE,), dt.I32)
    computed = wide(graph, given_bytes(graph, dt.U8))
    minus = graph.add(ops.Elementwise("Mul"), [whole(computed), number(graph, -1)], (SIZE,), dt.I32)
    for node in (shifted, elementwise(graph, "Add", x, minus)):
        assert integer_range(graph, node.id) == (-255, 255)
        assert magnitude(graph, node.id) == 255


def test_zero_points_along_an_axis_count_as_bytes() -> None:
    graph = Graph()
    x = wide(graph, given_bytes(graph, dt.I8))
    zeros = constant(graph, np.arange(-SIZE, 0, dtype=np.int32))
    assert integer_range(graph, elementwise(graph, "Add", x, zeros).id) == (-383, 382)
    assert integer_range(graph, constant(graph, np.arange(SIZE, dtype=np.int32) * 9).id) is None


def test_what_might_wrap_has_no_range() -> None:
    graph = Graph()
    x = wide(graph, given_bytes(graph, dt.U8))
    for _ in range(3):
        x = elementwise(graph, "Mul", x, x)
        assert magnitude(graph, x.id) in (255**2, None)
    assert magnitude(graph, x.id) is None


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_element_lies_outside(data: st.DataObject) -> None:
    graph = Graph()
    nodes = [given_bytes(graph, dtype) for dtype in (dt.U8, dt.I8, dt.BOOL, dt.I32)]
    values = {
        n.id: np.random.default_rng(n.id).integers(-(1 << 31), 1 << 31, SIZE).astype(n.dtype.numpy) for n in nodes
    }
    nodes = [n if n.dtype is dt.I32 else wide(graph, n) for n in nodes]
    for _ in range(data.draw(st.integers(1, 6))):
        x, y = (data.draw(st.sampled_from(nodes)) for _ in range(2))
        match data.draw(st.sampled_from(["Add", "Mul", "number", "Select", "narrow", "Gather"])):
            case "number":
                value = number(graph, data.draw(st.integers(-300, 300)))
                name = data.draw(st.sampled_from(["Add", "Mul"]))
                nodes.append(graph.add(ops.Elementwise(name), [whole(x), value], (SIZE,), dt.I32))
            case "Select":
                nodes.append(elementwise(graph, "Select", elementwise(graph, "LessThan", x, y), x, y))
            case "narrow":
                nodes.append(wide(graph, wide(graph, x, data.draw(st.sampled_from([dt.U8, dt.I8])))))
            case "Gather":
                nodes.append(graph.add(ops.Gather(0), [whole(x), whole(y)], (SIZE,), dt.I32))
            case name:
                nodes.append(elementwise(graph, name, x, y))
    evaluate(graph, [n.id for n in graph], values, {})
    for node in nodes:
        found = integer_range(graph, node.id)
        if found is not None:
            assert found[0] <= values[node.id].min()
            assert values[node.id].max() <= found[1]
