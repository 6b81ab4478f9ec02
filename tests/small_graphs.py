"""Small HLIR graphs built by hand, for tests of the rooms behind the frontend."""

from __future__ import annotations

import numpy as np

from workbench.ir import dtype as dt
from workbench.ir import layout as lay
from workbench.ir import ops
from workbench.ir.dtype import DType
from workbench.ir.hlir import Graph, Node, Operand
from workbench.ir.layout import Layout, Shape


def whole(node: Node) -> Operand:
    """`node` read front to back."""
    return Operand(node.id, lay.contiguous(node.shape))


def elementwise(graph: Graph, name: str, *nodes: Node, label: str = "") -> Node:
    """An elementwise node over operands of one shape."""
    result = ops.ELEMENTWISE[name].result or nodes[-1].dtype
    return graph.add(ops.Elementwise(name), [whole(n) for n in nodes], nodes[0].shape, result, label)


def constant(graph: Graph, array: np.ndarray, label: str = "weight") -> Node:
    """A constant held in memory."""
    dtype = dt.from_numpy(array.dtype)
    assert dtype is not None
    node = graph.add(ops.Constant(), [], tuple(array.shape), dtype, label)
    graph.constants[node.id] = array
    return node


def matmul(graph: Graph, a: Node, a_view: Layout, b: Node, b_view: Layout, label: str = "matmul") -> Node:
    """The sum over the last axis of the product of two views of shape [.., m, n, k]."""
    product = graph.add(ops.Elementwise("Mul"), [Operand(a.id, a_view), Operand(b.id, b_view)], a_view.shape, a.dtype)
    return graph.add(ops.Reduce("SumReduce"), [whole(product)], a_view.shape[:-1], a.dtype, label)


def linear(graph: Graph, x: Node, weight: Node, label: str = "linear") -> Node:
    """x [.., m, k] times weight [k, n], row-major both."""
    *lead, m, k = x.shape
    n = weight.shape[1]
    shape: Shape = (*lead, m, n, k)
    a = lay.expand(lay.insert_axis(lay.contiguous(x.shape), len(lead) + 1), shape)
    b = lay.expand(lay.permute(lay.contiguous(weight.shape), (1, 0)), shape)
    return matmul(graph, x, a, weight, b, label)


def residual_mlp(layers: int = 3, width: int = 8, rows: int = 4, seed: int = 0) -> Graph:
    """x + relu(x @ w) for each of `layers`; input x [1, rows, width], output y."""
    rng = np.random.default_rng(seed)
    graph = Graph("residual_mlp")
    x = graph.add(ops.Input("x"), [], (1, rows, width), dt.F32, "x")
    for i in range(layers):
        weight = constant(graph, rng.standard_normal((width, width), dtype=np.float32) / width**0.5, f"w{i}")
        h = linear(graph, x, weight, f"layers.{i}.linear")
        zero = constant(graph, np.zeros((), np.float32), "zero")
        zeros = Operand(zero.id, lay.expand(lay.contiguous(()), h.shape))
        positive = graph.add(ops.Elementwise("LessThan"), [zeros, whole(h)], h.shape, dt.BOOL, f"layers.{i}.relu")
        relu = graph.add(
            ops.Elementwise("Select"), [whole(positive), whole(h), zeros], h.shape, dt.F32, f"layers.{i}.relu"
        )
        x = elementwise(graph, "Add", x, relu, label=f"layers.{i}.add")
    graph.add(ops.Output("y"), [whole(x)], x.shape, dt.F32, "y")
    return graph


def byte_matmul(
    m: int, n: int, k: int, left: DType = dt.U8, right: DType = dt.I8, zero: int = 0, scaled: bool = False
) -> Graph:
    """(x - zero) @ w of inputs x [m, k] and w [k, n] in 8 bits, summed in I32; then as floats times 0.5 if `scaled`."""
    graph = Graph("byte_matmul")
    x = graph.add(ops.Input("x"), [], (m, k), left, "x")
    w = graph.add(ops.Input("w"), [], (k, n), right, "w")
    a, b = (graph.add(ops.Cast(dt.I32), [whole(each)], each.shape, dt.I32) for each in (x, w))
    if zero:
        shift = constant(graph, np.asarray(-zero, np.int32))
        spread = Operand(shift.id, lay.expand(lay.contiguous(()), a.shape))
        a = graph.add(ops.Elementwise("Add"), [whole(a), spread], a.shape, dt.I32)
    total = linear(graph, a, b)
    graph.add(ops.Output("sums"), [whole(total)], total.shape, dt.I32)
    if scaled:
        floats = graph.add(ops.Cast(dt.F32), [whole(total)], total.shape, dt.F32)
        half = constant(graph, np.asarray(0.5, np.float32))
        spread = Operand(half.id, lay.expand(lay.contiguous(()), total.shape))
        y = graph.add(ops.Elementwise("Mul"), [whole(floats), spread], total.shape, dt.F32)
        graph.add(ops.Output("y"), [whole(y)], y.shape, dt.F32)
    return graph
