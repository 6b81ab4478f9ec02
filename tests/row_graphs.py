"""Graphs that end as one kernel, most of them by the frontend's own lowering."""

from __future__ import annotations

import numpy as np

from tests.small_graphs import linear, whole
from workbench.frontend import arithmetic as ar
from workbench.frontend.builder import Builder
from workbench.frontend.normalization import softmax_over, standardized
from workbench.frontend.reduction import mean, total
from workbench.frontend.values import Value, View
from workbench.ir import dtype as dt
from workbench.ir import layout as lay
from workbench.ir import ops
from workbench.ir.dtype import DType
from workbench.ir.hlir import Graph, Operand
from workbench.ir.layout import Shape


class Model:
    """A graph in the making, by the frontend's own lowering."""

    def __init__(self, dtype: DType = dt.F32) -> None:
        self.b, self.dtype = Builder(), dtype

    def input(self, name: str, *shape: lay.Dim) -> View:
        return self.b.node(ops.Input(name), [], shape, self.dtype)

    def ended(self, *outputs: Value, **dims: int) -> Graph:
        graph = self.b.finish("model", [(f"y{i}", self.b.lift(y)) for i, y in enumerate(outputs)])
        graph.dims.update(dims)
        return graph


def softmax(shape: Shape = (3, 5, 37), dtype: DType = dt.F32) -> Graph:
    m = Model(dtype)
    return m.ended(softmax_over(m.b, m.input("x", *shape), len(shape) - 1))


def masked_softmax() -> Graph:
    """Of scaled scores, where they may be seen."""
    m = Model()
    x = m.input("x", 2, 9, 9)
    seen = m.b.node(ops.Input("seen"), [], (9, 9), dt.BOOL)
    return m.ended(softmax_over(m.b, m.b.select(seen, m.b.mul(x, 0.25), -1e9), 2))


def layer_norm(shape: Shape = (2, 7, 33), dtype: DType = dt.F32) -> Graph:
    m = Model(dtype)
    x, scale, bias = m.input("x", *shape), m.input("scale", shape[-1]), m.input("bias", shape[-1])
    y, _, _ = standardized(m.b, x, [len(shape) - 1], 1e-5)
    return m.ended(m.b.add(m.b.mul(y, scale), bias))


def rms_norm(shape: Shape = (9, 20), dtype: DType = dt.F32) -> Graph:
    m = Model(dtype)
    x, scale = m.input("x", *shape), m.input("scale", shape[-1])
    axis = len(shape) - 1
    square = m.b.unsqueeze(mean(m.b, m.b.mul(x, x), [axis]), [axis])
    inverse = ar.recip(m.b, m.b.unary("Sqrt", m.b.add(square, 1e-5)))
    return m.ended(m.b.mul(m.b.mul(x, inverse), scale))


def instance_norm() -> Graph:
    """Over two axes at once, with a scale for each channel."""
    m = Model()
    x, scale = m.input("x", 2, 3, 4, 6), m.input("scale", 3, 1, 1)
    return m.ended(m.b.mul(standardized(m.b, x, [2, 3], 1e-5)[0], scale))


def scaled_sum() -> Graph:
    """A scale before a sum, and a square root behind it."""
    m = Model()
    x = m.input("x", 6, 30)
    return m.ended(m.b.unary("Sqrt", total(m.b, m.b.mul(m.b.mul(x, x), 0.5), [1])))


def of_everything() -> Graph:
    """x over the sum of all of x."""
    m = Model()
    x = m.input("x", 40)
    return m.ended(m.b.mul(x, ar.recip(m.b, m.b.unsqueeze(total(m.b, m.b.mul(x, x), [0]), [0]))))


def bias_gelu(rows: int = 6, outputs: int = 1, residual: bool = False) -> Graph:
    """gelu(x w + b) by erf, plus a residual; with more outputs, the product itself."""
    graph = Graph("bias_gelu")
    x, weight = graph.add(ops.Input("x"), [], (1, rows, 8), dt.F32), graph.add(ops.Input("w"), [], (8, 20), dt.F32)
    bias, other = graph.add(ops.Input("b"), [], (20,), dt.F32), graph.add(ops.Input("r"), [], (1, rows, 20), dt.F32)
    product = linear(graph, x, weight)
    shape = product.shape

    def node(name: str, *operands: Operand) -> Operand:
        return whole(graph.add(ops.Elementwise(name), operands, shape, dt.F32))

    def number(value: float) -> Operand:
        scalar = graph.add(ops.Constant(), [], (), dt.F32)
        graph.constants[scalar.id] = np.array(value, np.float32)
        return Operand(scalar.id, lay.expand(lay.contiguous(()), shape))

    moved = node("Add", whole(product), Operand(bias.id, lay.expand(lay.contiguous((20,)), shape)))
    bent = node("Add", node("Erf", node("Mul", moved, number(0.5**0.5))), number(1.0))
    result = node("Mul", node("Mul", moved, number(0.5)), bent)
    if residual:
        result = node("Add", result, whole(other))
    graph.add(ops.Output("y"), [result], shape, dt.F32)
    if outputs == 2:
        graph.add(ops.Output("p"), [whole(product)], shape, dt.F32)
    return graph
