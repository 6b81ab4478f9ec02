"""Random small graphs that a rule library is tried on: the matmuls, rows, views and lookups that rules meet in models.

Extents are small and often 1, strides contiguous, broadcast, transposed, sliced, grouped and padded, so that a rule
that asks for too little fires where it should not. The same seed gives the same graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import numpy as np

from workbench.ir import dtype as dt
from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir import ops
from workbench.ir.dtype import DType
from workbench.ir.expr import ZERO, Expr, Z, const
from workbench.ir.hlir import Graph, Node, Operand
from workbench.ir.layout import Layout, Shape

MATMUL_DTYPES = (dt.F32,) * 8 + (dt.F64, dt.I64, dt.I32, dt.I8) + (dt.F16, dt.BF16) * 2
DTYPES = (dt.F32,) * 6 + (dt.F64, dt.I64, dt.F16, dt.BF16, dt.U8, dt.I16)
THROUGH = (dt.F16, dt.BF16, dt.F32, dt.I32, dt.U8)
"""What values are converted to and back."""


def graphs(seed: int) -> Iterator[Graph]:
    """Graphs without end, of one family after the other."""
    rng = Random(seed)
    while True:
        for family in FAMILIES:
            yield family(rng)


def random_inputs(graph: Graph, seed: int) -> dict[int, np.ndarray]:
    """Flat values of the inputs and constants, by node id; integers are from 1 to 3."""
    rng = np.random.default_rng(seed)
    values: dict[int, np.ndarray] = {}
    for node in graph:
        if isinstance(node.op, ops.Input):
            size = int(ex.evaluate(lay.numel(node.shape), graph.dims))
            made = rng.standard_normal(size) if node.dtype.is_float else rng.integers(1, 4, size)
            values[node.id] = made.astype(node.dtype.numpy)
        elif isinstance(node.op, ops.Constant):
            values[node.id] = np.asarray(graph.constants[node.id]).reshape(-1)
    return values


class _Maker:
    """A graph that grows."""

    def __init__(self, rng: Random, name: str) -> None:
        self.rng, self.graph = rng, Graph(name)
        self.inputs = 0

    def input(self, shape: Shape, dtype: DType) -> Node:
        self.inputs += 1
        return self.graph.add(ops.Input(f"x{self.inputs}"), [], shape, dtype)

    def apply(self, name: str, *operands: Operand) -> Node:
        view = operands[0].layout
        sources = [self.graph[o.source].dtype for o in operands]
        result = ops.ELEMENTWISE[name].result or sources[-1]
        return self.graph.add(ops.Elementwise(name), list(operands), view.shape, result)

    def reduce(self, name: str, operand: Operand) -> Node:
        shape = operand.layout.shape[:-1]
        return self.graph.add(ops.Reduce(name), [operand], shape, self.graph[operand.source].dtype)

    def scalar(self, value: float, shape: Shape, dtype: DType) -> Operand:
        made = self.graph.add(ops.Constant(), [], (), dtype)
        self.graph.constants[made.id] = np.asarray(value).astype(dtype.numpy)
        return Operand(made.id, lay.expand(lay.contiguous(()), shape))

    def ended(self, *nodes: Node) -> Graph:
        for place, node in enumerate(nodes):
            self.graph.add(ops.Output(f"y{place}"), [whole(node)], node.shape, node.dtype)
        return self.graph

    def extents(self, most_axes: int, least_axes: int = 0) -> Shape:
        return tuple(self.rng.choice((1, 2, 3, 3, 4)) for _ in range(self.rng.randint(least_axes, most_axes)))


def whole(node: Node) -> Operand:
    """A node's buffer in its own order."""
    return Operand(node.id, lay.contiguous(node.shape))


# Matmuls


def matmul(rng: Random) -> Graph:
    """A product summed over its last axis: 0 to 3 batch axes, operands of every layout, and sometimes what follows."""
    make = _Maker(rng, "matmul")
    dtype = rng.choice(MATMUL_DTYPES)
    batch = make.extents(3)
    m, n, k = (rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 5)) for _ in range(3))
    shape = (*batch, m, n, k)
    make_matrix = _usual_matrix if rng.random() < 0.6 else _matrix
    a_batch, a_m, a_k = make_matrix(rng, batch, m, k)
    b_batch, b_k, b_n = make_matrix(rng, batch, k, n)
    if rng.random() < 0.1:
        a_m, b_n = a_k, b_k  # not what it looks like
    a = _strided(make, shape, (*a_batch, a_m, ZERO, a_k), dtype)
    b = _strided(make, shape, (*b_batch, ZERO, b_n, b_k), dtype)
    if rng.random() < 0.1:
        a, b = b, a
    half = dtype if dtype.is_half and rng.random() < 0.5 else None
    if half is not None:
        a, b, dtype = _wide(make, a), _wide(make, b), dt.F32
    multiplied = make.apply("Mul", a, b)
    view = lay.contiguous(shape)
    if rng.random() < 0.1 and m > 1:  # the sum of a part
        view = lay.slice_axis(view, len(batch), rng.choice((0, 1)), 1, m - 1)
    total = make.reduce("SumReduce", Operand(multiplied.id, view))
    if half is not None:
        dtype = half
        total = make.graph.add(ops.Cast(half), [whole(total)], total.shape, half)
    return make.ended(total) if rng.random() < 0.5 else make.ended(*_behind(make, total, dtype))


def _wide(make: _Maker, operand: Operand) -> Operand:
    """An operand in half precision as f32: its buffer converted, and read as before."""
    source = make.graph[operand.source]
    return Operand(make.graph.add(ops.Cast(dt.F32), [whole(source)], source.shape, dt.F32).id, operand.layout)


def _usual_matrix(rng: Random, batch: Shape, rows: int, columns: int) -> tuple[list[Expr], Expr, Expr]:
    """Strides as models have them: matrices one after the other, or the same for all; sometimes transposed."""
    sizes = [rows * columns * _product(batch[axis + 1 :]) for axis in range(len(batch))]
    steps = [Z * size for size in sizes] if rng.random() < 0.6 else [ZERO] * len(batch)
    return (steps, Z * columns, Z) if rng.random() < 0.8 else (steps, Z, Z * rows)


def _matrix(rng: Random, batch: Shape, rows: int, columns: int) -> tuple[list[Expr], Expr, Expr]:
    """Strides of the batch axes, of the rows and of the columns of one operand."""
    pad = rng.choice((0, 0, 0, 1, 2))
    row, column = (columns + pad, 1) if rng.random() < 0.5 else (1, rows + pad)
    match rng.randrange(12):
        case 0:
            row, column = row * 2, column * 2
        case 1:
            row = 0
        case 2:
            column = 0
        case _:
            pass
    step = rng.choice((rows * columns, max(1, rows * max(row, 1) + columns * max(column, 1))))
    order = list(range(len(batch)))
    if rng.random() < 0.2:
        rng.shuffle(order)
    steps: list[Expr] = [ZERO] * len(batch)
    if rng.random() < 0.7:
        for axis in reversed(order):
            kind = rng.choice(("step", "step", "step", "step", "broadcast", "grouped"))
            if kind != "broadcast":
                steps[axis] = Z * step if kind == "step" else Z // 2 * step
                step *= _product(batch[axis : axis + 1])
    return steps, Z * row, Z * column


def _product(extents: Shape) -> int:
    return int(ex.evaluate(lay.numel(extents), {}))


def _strided(make: _Maker, shape: Shape, strides: tuple[Expr, ...], dtype: DType) -> Operand:
    """An input just large enough to be read through `strides`, which grow along their axes."""
    strides = tuple(ZERO if d == 1 else s for d, s in zip(shape, strides, strict=True))
    offset = make.rng.choice((0, 0, 0, 1, 3))
    last = (ex.evaluate(s, {"z": ex.evaluate(d, {}) - 1}) for d, s in zip(shape, strides, strict=True))
    reach = offset + 1 + sum(map(int, last))
    return Operand(make.input((reach,), dtype).id, Layout(shape, strides, const(offset)))


def _behind(make: _Maker, total: Node, dtype: DType) -> list[Node]:
    """What stands behind a matmul: a bias, a residual, an activation; read in order or not."""
    rng, shape = make.rng, total.shape
    view = lay.contiguous(shape)
    if len(shape) > 1 and rng.random() < 0.2:
        view = lay.permute(view, [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2])
    partner = make.input(view.shape[-1:], dtype) if rng.random() < 0.6 else make.input(view.shape, dtype)
    other = Operand(partner.id, lay.expand(lay.contiguous(partner.shape), view.shape))
    made = make.apply(rng.choice(("Add", "Mul")), Operand(total.id, view), other)
    if dtype.is_float and rng.random() < 0.5:
        made = make.apply(rng.choice(("Exp2", "Sin", "Erf")), whole(made))
    return [made, total] if rng.random() < 0.3 else [made]


# Rows


def rows(rng: Random) -> Graph:
    """Reductions over a row with what comes before and behind: softmax, norms, a scaled sum, a maximum of sums."""
    make = _Maker(rng, "rows")
    dtype = rng.choice((dt.F32, dt.F32, dt.F32, dt.F64))
    shape = make.extents(3, 1)
    x = make.input(shape, dtype)
    value = make.apply(*rng.choice((("Sin", whole(x)), ("Add", whole(x), whole(x))))) if rng.random() < 0.5 else x
    match rng.randrange(4):
        case 0:
            result = _softmax(make, value)
        case 1:
            result = _norm(make, value, dtype)
        case 2:
            total = make.reduce(rng.choice(("SumReduce", "MaxReduce")), whole(value))
            result = make.apply("Add", whole(total), make.scalar(0.5, total.shape, dtype))
        case _:
            inner = make.reduce("SumReduce", whole(value))
            again = make.apply("Mul", whole(value), _over_rows(inner, shape))
            result = make.reduce("MaxReduce", whole(again))
    if rng.random() < 0.3 and len(result.shape) > 1:
        turned = lay.permute(lay.contiguous(result.shape), list(reversed(range(len(result.shape)))))
        result = make.apply("Mul", Operand(result.id, turned), Operand(result.id, turned))
    return make.ended(result)


def _over_rows(row: Node, shape: Shape) -> Operand:
    """A value per row, read along it."""
    return Operand(row.id, lay.expand(lay.insert_axis(lay.contiguous(row.shape), len(row.shape)), shape))


def _softmax(make: _Maker, x: Node) -> Node:
    shape, dtype = x.shape, x.dtype
    most = make.reduce("MaxReduce", whole(x))
    less = make.apply("Mul", whole(most), make.scalar(-1.0, most.shape, dtype))
    powers = make.apply("Exp2", whole(make.apply("Add", whole(x), _over_rows(less, shape))))
    share = make.apply("Recip", whole(make.reduce("SumReduce", whole(powers))))
    return make.apply("Mul", whole(powers), _over_rows(share, shape))


def _norm(make: _Maker, x: Node, dtype: DType) -> Node:
    shape = x.shape
    extent = 1 / max(1, int(ex.evaluate(shape[-1], {})))
    if make.rng.random() < 0.5:  # about the mean
        total = make.reduce("SumReduce", whole(x))
        mean = make.apply("Mul", whole(total), make.scalar(-extent, total.shape, dtype))
        x = make.apply("Add", whole(x), _over_rows(mean, shape))
    squares = make.reduce("SumReduce", whole(make.apply("Mul", whole(x), whole(x))))
    scaled = make.apply("Mul", whole(squares), make.scalar(extent, squares.shape, dtype))
    safe = make.apply("Add", whole(scaled), make.scalar(1e-3, squares.shape, dtype))
    factor = make.apply("Recip", whole(make.apply("Sqrt", whole(safe))))
    return make.apply("Mul", whole(x), _over_rows(factor, shape))


# Views


def views(rng: Random) -> Graph:
    """Values, views of values, reductions, lookups and positions in any mix."""
    make = _Maker(rng, "views")
    dtype = rng.choice(DTYPES)
    shape = make.extents(3, 1)
    values = [make.input(shape, dtype), make.input(shape, dtype)]
    for _ in range(rng.randint(2, 6)):
        values.append(_step(make, values, dtype))
    return make.ended(values[-1], rng.choice(values[2:]))


def _step(make: _Maker, values: list[Node], dtype: DType) -> Node:
    rng, graph = make.rng, make.graph
    source = rng.choice(values)
    view = _view(rng, source)
    operand = Operand(source.id, view)
    match rng.choice(("two", "two", "copy", "sum", "max", "gather", "select", "function", "iota", "mod")):
        case "two":
            return make.apply(rng.choice(("Add", "Mul")), operand, _partner(rng, values, operand))
        case "copy":
            if rng.random() < 0.5:
                between = rng.choice(THROUGH)
                operand = whole(graph.add(ops.Cast(between), [operand], view.shape, between))
            return graph.add(ops.Cast(dtype), [operand], view.shape, dtype)
        case "sum" | "max" as kind if view.rank > 0:
            return make.reduce({"sum": "SumReduce", "max": "MaxReduce"}[kind], operand)
        case "gather" if view.rank > 0:
            axis = rng.randrange(view.rank)
            index = graph.add(ops.Iota(rng.choice((Z, Z // 2, Z * 3, Z % 3))), [], view.shape, dt.I64)
            return graph.add(ops.Gather(axis), [whole(index), operand], view.shape, dtype)
        case "select":
            asked = make.apply("LessThan", operand, _partner(rng, values, operand))
            return make.apply("Select", whole(asked), operand, _partner(rng, values, operand))
        case "iota":
            at = graph.add(ops.Iota(rng.choice((Z, Z * 2, Z // 2, Z % 3, Z + 1))), [], view.shape, dtype)
            return make.apply("Add", operand, whole(at))
        case "mod":
            return make.apply("Mod", operand, make.scalar(3, view.shape, dtype))
        case _ if dtype.is_float:
            small = make.apply("Sin", operand)
            return make.apply(rng.choice(("Exp2", "Erf", "Floor", "Sin")), whole(small))
        case _:
            return make.apply("Add", operand, operand)


def writes(rng: Random) -> Graph:
    """Values written at computed positions, which meet and lie outside at times, into what is read again or not."""
    make = _Maker(rng, "writes")
    graph, dtype, mode = make.graph, rng.choice(DTYPES), rng.choice(list(ops.SCATTER_MODES))
    shape, count = make.extents(3, 1), make.extents(2)
    x = make.input(shape, dtype)
    data = make.apply("Add", whole(x), whole(x)) if rng.random() < 0.7 else x
    view = _view(rng, data) if rng.random() < 0.3 else lay.contiguous(shape)
    index = graph.add(ops.Iota(rng.choice((Z, Z // 2, Z * 3 + -1, Z % 3))), [], count, dt.I64)
    update = make.apply("Mul", whole(y := make.input(count, dtype)), whole(y))
    operands = [Operand(data.id, view), whole(index), whole(update)]
    made = graph.add(ops.Scatter(mode), operands, view.shape, dtype)
    if rng.random() < 0.4:  # another write into the same
        operands = [whole(made), whole(make.input(count, dt.I64)), whole(update)]
        made = graph.add(ops.Scatter(rng.choice(list(ops.SCATTER_MODES))), operands, view.shape, dtype)
    return make.ended(made, data) if rng.random() < 0.3 and data is not x else make.ended(made)


def _partner(rng: Random, values: list[Node], operand: Operand) -> Operand:
    """Another value with as many elements, in the operand's shape; else the operand itself."""
    count = lay.numel(operand.layout.shape)
    fits = [v for v in values if lay.numel(v.shape) == count]
    if not fits:
        return operand
    chosen = rng.choice(fits)
    view = lay.reshape(lay.contiguous(chosen.shape), operand.layout.shape)
    return operand if view is None else Operand(chosen.id, view)


def _view(rng: Random, node: Node) -> Layout:
    """A view of a node: reshaped, reordered, sliced, reversed, repeated."""
    view = lay.contiguous(node.shape)
    for _ in range(rng.randint(0, 3)):
        axis = rng.randrange(max(1, view.rank))
        match rng.choice(("flat", "turn", "slice", "back", "spread", "one")):
            case "flat":
                view = lay.reshape(view, (lay.numel(view.shape),)) or view
            case "turn":
                view = lay.permute(view, rng.sample(range(view.rank), view.rank))
            case "slice" if view.rank and int(ex.evaluate(view.shape[axis], {})) > 1:
                extent = int(ex.evaluate(view.shape[axis], {}))
                start = rng.randrange(extent)
                view = lay.slice_axis(view, axis, start, 1, extent - start)
            case "back" if view.rank:
                extent = int(ex.evaluate(view.shape[axis], {}))
                view = lay.slice_axis(view, axis, extent - 1, -1, extent)
            case "spread" if view.rank < 4:
                view = lay.insert_axis(view, axis, 2)
            case "one" if view.rank < 4:
                view = lay.insert_axis(view, axis)
            case _:
                pass
    return view if view.rank else lay.insert_axis(view, 0)


FAMILIES: tuple[Callable[[Random], Graph], ...] = (matmul, rows, matmul, views, matmul, writes)
