"""What hangs on a rounding: a step where a value is close to the middle, nothing elsewhere or where all is integer."""

from __future__ import annotations

import numpy as np
import pytest

from tests.small_graphs import byte_matmul, constant, elementwise, linear, whole
from workbench.ir import dtype as dt
from workbench.ir import layout as lay
from workbench.ir import ops
from workbench.ir.dtype import DType
from workbench.ir.hlir import Graph, Operand
from workbench.ir.interpret import evaluate
from workbench.runtime.compare import Tolerance, compare
from workbench.session.reference import interpret
from workbench.session.rounding import MARGIN, rounds, undecided_outputs, undecided_values


def rounded(dtype: DType = dt.F32) -> Graph:
    """y = round(x) in 8 bits, and z = y @ w in floats."""
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (1, 4), dtype)
    y = graph.add(ops.Cast(dt.U8), [whole(elementwise(graph, "Round", x))], (1, 4), dt.U8)
    floats = graph.add(ops.Cast(dt.F32), [whole(y)], (1, 4), dt.F32)
    weight = constant(graph, np.array([[0.5], [3], [-7], [1]], np.float32))
    z = linear(graph, floats, weight)
    graph.add(ops.Output("y"), [whole(y)], y.shape, y.dtype)
    graph.add(ops.Output("z"), [whole(z)], z.shape, z.dtype)
    return graph


def undecided(graph: Graph, x: np.ndarray) -> list[float]:
    reference = interpret(graph, {"x": x}, (), lambda: None)
    return list(undecided_outputs(graph, reference).values())


@pytest.mark.parametrize(
    ("x", "steps"),
    [
        ([10, 20, 30, 100], [0, 0]),
        ([10.4, 20.6, 30.3, 100], [0, 0]),
        ([10.5, 20, 30, 100], [1, 0.5]),
        ([10, 20, 30.4999, 100], [1, 7]),
        ([10, 20, 30.49, 100], [0, 0]),
    ],
    ids=str,
)
def test_a_value_close_to_the_middle_leaves_a_step_open(x: list[float], steps: list[float]) -> None:
    """And in what follows, the step times its weight."""
    found = undecided(rounded(), np.array([x], np.float32))
    np.testing.assert_allclose(found, MARGIN * np.array(steps))


def test_halves_leave_more_open_than_floats() -> None:
    x = np.array([[10, 20, 30.3, 100]])
    assert undecided(rounded(), x.astype(np.float32)) == [0, 0]
    assert undecided(rounded(dt.F16), x.astype(np.float16)) == [MARGIN, 7 * MARGIN]


def test_sums_of_integers_must_be_exact() -> None:
    graph = byte_matmul(3, 4, 5, scaled=True)
    assert not rounds(graph, range(len(graph)))
    inputs = {"x": np.full((3, 5), 200, np.uint8), "w": np.full((5, 4), -3, np.int8)}
    reference = interpret(graph, inputs, (), lambda: None)
    assert set(undecided_outputs(graph, reference).values()) == {0.0}


def test_what_is_given_is_not_moved() -> None:
    """A chunk's own roundings count, not those of the chunks before it."""
    graph = rounded()
    (x,) = graph.inputs
    y, z = (graph[o].operands[0].source for o in graph.outputs)
    values = {x: np.array([10.5, 20, 30, 100], np.float32)}
    nodes = [n.id for n in graph if n.id in graph.ancestors([z])]
    evaluate(graph, nodes, values, {}, keep=[x, y, z])
    behind = [n for n in nodes if n not in graph.ancestors([y])]
    assert undecided_values(graph, behind, {y: values[y]}, {z: values[z]}, {}) == {z: 0.0}
    assert undecided_values(graph, nodes, {x: values[x]}, {z: values[z]}, {}) == {z: 0.5 * MARGIN}


def test_a_step_more_than_is_open_is_wrong() -> None:
    want = np.array([10, 20, 30], np.uint8)
    for dtype in (np.uint8, np.float32):
        for off, ok in ((1, True), (2, False)):
            got = want.astype(dtype) + np.array([0, off, 0], dtype)
            assert compare(got, want.astype(dtype), 0.0, 0.0, undecided=1.0)[0] is ok
    assert str(Tolerance(1e-4, 1e-4, "f32", 0.25)) == "0.0001 relative, f32; 0.25 where a rounding is close"


def test_a_spread_scale_is_no_rounding() -> None:
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (3,), dt.F32)
    scale = constant(graph, np.asarray(0.5, np.float32))
    y = graph.add(
        ops.Elementwise("Mul"), [whole(x), Operand(scale.id, lay.expand(lay.contiguous(()), (3,)))], (3,), dt.F32
    )
    graph.add(ops.Output("y"), [whole(y)], (3,), dt.F32)
    assert undecided(graph, np.array([1.0, 3.0, 5.0], np.float32)) == [0.0]
