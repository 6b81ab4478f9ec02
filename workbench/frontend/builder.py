"""The builder: HLIR primitives and movement on values, computed in NumPy at once where every operand is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from workbench.errors import ModelError
from workbench.frontend import symbolic
from workbench.frontend.values import (
    SUPPORTED,
    UnequalDimsError,
    Value,
    View,
    broadcast,
    check_extents,
    dtype_of,
    graph_dtype,
    half_of,
    is_symbolic,
    plain,
    shape_of,
)
from workbench.ir import dtype as dt
from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir import ops
from workbench.ir.dtype import DType
from workbench.ir.expr import ITER, ZERO, Expr, Z
from workbench.ir.hlir import Graph, Node, Operand
from workbench.ir.layout import Dim, Layout, Shape
from workbench.ir.ops import Op
from workbench.ir.weights import ExternalData

SMALL = 4096
"""Elements up to which a tensor of the model counts as a known array rather than as a view of a constant."""
FOLD_LIMIT = 1 << 20
"""Elements up to which a result is computed at import."""
IOTA_LIMIT = 1 << 16
"""The same for what is made from nothing: a file of a few bytes may ask for many such tables, and each is kept."""
_INTERN_BYTES = 1 << 16

Number = int | float | bool
Arg = Value | Number

_SYMBOLIC: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Mul": np.multiply,
    "Mod": np.mod,
    "LessThan": symbolic.less_arrays,
    "Select": np.where,
}


@lru_cache(maxsize=16384)
def _reshape(layout: Layout, shape: Shape) -> Layout | None:
    return lay.reshape(layout, shape)


def _varying(array: np.ndarray) -> tuple[slice, ...]:
    """The index that keeps one element of each axis along which `array` merely repeats itself."""
    return tuple(
        slice(0, 1) if s == 0 and n > 1 else slice(None) for n, s in zip(array.shape, array.strides, strict=True)
    )


def _distinct(array: np.ndarray) -> int:
    """Number of elements of `array`, repetitions along broadcast axes not counted."""
    count = 1
    for n, s in zip(array.shape, array.strides, strict=True):
        count *= n if s or n == 0 else 1
    return count


def fold(compute: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """`compute` (elementwise) on `arrays` broadcast together; what repeats in all of them is computed once."""
    if all(a.size == _distinct(a) for a in arrays):
        return np.asarray(compute(*arrays))
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    return np.broadcast_to(np.asarray(compute(*(a[_varying(a)] for a in arrays))), shape)


class Builder:
    """The nodes made so far. `label` is the model's name for the operator being lowered."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[int, np.ndarray | ExternalData] = {}
        self.label = ""
        self._made: dict[tuple[Op, tuple[Operand, ...], Shape, DType], View] = {}
        self._interned: dict[tuple[str, Shape, bytes], View] = {}
        self._by_identity: dict[int, tuple[np.ndarray, View]] = {}

    # nodes

    def node(self, op: Op, operands: Sequence[View], shape: Shape, dtype: DType) -> View:
        """A node of this operation on these operands; an equal one that exists is used again."""
        edges = tuple([Operand(v.source, v.layout) for v in operands])
        key = (op, edges, shape, dtype)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self.unique_node(op, edges, shape, dtype)
        return found

    def unique_node(self, op: Op, edges: tuple[Operand, ...], shape: Shape, dtype: DType) -> View:
        """A new node, whether or not an equal one exists. Raises ValueError for a negative extent."""
        check_extents(shape)
        made = Node(len(self.nodes), op, edges, shape, dtype, self.label)
        self.nodes.append(made)
        return View(made.id, lay.contiguous(shape), dtype)

    def constant(self, data: np.ndarray | ExternalData, shape: Shape, dtype: DType, label: str) -> View:
        """A new Constant node with `data`."""
        view = self.unique_node(ops.Constant(), (), shape, dtype)
        self.constants[view.source] = data
        self.nodes[view.source] = Node(view.source, ops.Constant(), (), shape, dtype, label)
        return view

    def lift(self, x: Value, label: str | None = None) -> View:
        """`x` as a view: a known array becomes a Constant (called `label`), equal ones the same.

        Raises ModelError for element types that the graph cannot hold."""
        if isinstance(x, View):
            return x
        if x.dtype == object:
            return self._lift_symbolic(x)
        dtype = graph_dtype(x.dtype)
        if dtype is None:
            raise ModelError(f"{x.dtype} values are not supported", SUPPORTED)
        base = x[_varying(x)]
        if base.nbytes > _INTERN_BYTES:
            kept = self._by_identity.get(id(x))
            if kept is not None:
                return kept[1]
            held = self.constant(np.ascontiguousarray(base), base.shape, dtype, label or self.label)
            view = self._expanded(held, x.shape)
            self._by_identity[id(x)] = (x, view)
            return view
        key = (dtype.name, base.shape, base.tobytes())
        found = self._interned.get(key)
        if found is None:
            copied = np.array(base, order="C")
            found = self._interned[key] = self.constant(copied, base.shape, dtype, label or self.label)
        return self._expanded(found, x.shape)

    def _lift_symbolic(self, x: np.ndarray) -> View:
        """Shape arithmetic as data: each element an Iota of no position, joined by their places."""
        elements = [ex.as_expr(e) for e in x.reshape(-1)]
        place = self.iota(Z, (len(elements),), np.int64)
        total: View = self.node(ops.Iota(elements[-1]), (), (), dt.I64)
        for position, element in reversed(list(enumerate(elements[:-1]))):
            one = self.node(ops.Iota(element), (), (), dt.I64)
            total = self.lift(self.elementwise("Select", self.less(place, position + 1), one, total))
        return self.lift(self.reshape(self.expand(total, (len(elements),)), x.shape))

    @staticmethod
    def _expanded(view: View, shape: Shape) -> View:
        if view.layout.shape == shape:
            return view
        rank = len(view.layout.shape)
        if len(shape) >= rank:
            beside = zip(view.layout.shape, shape[len(shape) - rank :], strict=True)
            unequal = [(old, new) for old, new in beside if old not in (1, new)]
            if unequal:
                message = f"cannot broadcast {lay.show(view.layout.shape)} to {lay.show(shape)}"
                raise UnequalDimsError(message, unequal)
        return View(view.source, lay.expand(view.layout, shape), view.dtype)

    def dense(self, x: Value) -> Value:
        """A weight filled with one number as a constant with strides, as if each element were its own.

        The data stays one number until it is loaded."""
        if not isinstance(x, np.ndarray) or _distinct(x) == x.size:
            return x
        dtype = graph_dtype(x.dtype)
        return x if dtype is None else self.constant(x, x.shape, dtype, self.label)

    def known(self, x: Value) -> np.ndarray | None:
        """The elements of `x` when they are in memory and few enough to compute with now, else None."""
        if not isinstance(x, View):
            return x if x.dtype == object or _distinct(x) <= FOLD_LIMIT else None
        data = self.constants.get(x.source)
        if not isinstance(data, np.ndarray) or (data.size > FOLD_LIMIT and not data.flags.c_contiguous):
            return None
        count = lay.numel(x.layout.shape)
        if isinstance(count, Expr) or count > FOLD_LIMIT:
            return None
        return lay.read(data.reshape(-1), x.layout, {})

    def all_known(self, operands: Sequence[Value]) -> list[np.ndarray] | None:
        """`known` of each, or None when one is not known."""
        arrays: list[np.ndarray] = []
        for x in operands:
            array = self.known(x)
            if array is None:
                return None
            arrays.append(array)
        return arrays

    def like(self, value: Arg, x: Value) -> Value:
        """A Python number as a scalar of the dtype of `x`; a value as it is."""
        if isinstance(value, np.ndarray | View):
            return value
        dtype = dtype_of(x)
        return np.asarray(value).astype(dtype) if dtype.kind == "u" and value < 0 else np.asarray(value, dtype)

    # primitives

    def elementwise(self, name: str, *operands: Value) -> Value:
        """The ELEMENTWISE function `name` of operands broadcast together."""
        rule = ops.ELEMENTWISE[name]
        arrays = self.all_known(operands)
        if arrays is not None and self._fits(arrays):
            if not any(a.dtype == object for a in arrays):
                result = rule.result.numpy if rule.result else arrays[-1].dtype
                return fold(lambda *xs: np.asarray(rule.compute(*xs)).astype(result, copy=False), *arrays)
            if name in _SYMBOLIC:
                return (
                    plain(_SYMBOLIC[name](*arrays)).astype(bool)
                    if name == "LessThan"
                    else plain(_SYMBOLIC[name](*arrays))
                )
        views = [self.lift(x) for x in self._one_integer_type(operands)]
        shape = broadcast([v.layout.shape for v in views])
        dtype = views[-1].dtype
        for v in views[1:] if name == "Select" else views:
            if v.dtype is not dtype:
                raise ValueError(f"operands of different types, {v.dtype} and {dtype}")
        return self.node(ops.Elementwise(name), [self._expanded(v, shape) for v in views], shape, rule.result or dtype)

    def _one_integer_type(self, operands: Sequence[Value]) -> Sequence[Value]:
        """Shape arithmetic beside values of another integer type takes that type."""
        if not any(is_symbolic(x) for x in operands):
            return operands
        others = [dtype_of(x) for x in operands if not is_symbolic(x) and dtype_of(x) != np.bool_]
        wanted = others[-1] if others else np.dtype(np.int64)
        return [self.cast(x, wanted) if is_symbolic(x) else x for x in operands]

    @staticmethod
    def _fits(arrays: Sequence[np.ndarray]) -> bool:
        if sum(a.size for a in arrays) <= SMALL:
            return True
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        count = 1
        for axis, n in enumerate(shape, -len(shape)):
            if any(a.ndim >= -axis and a.shape[axis] > 1 and a.strides[axis] for a in arrays):
                count *= n
        return count <= FOLD_LIMIT

    def add(self, x: Value, y: Arg) -> Value:
        """x + y."""
        return self.elementwise("Add", x, self.like(y, x))

    def mul(self, x: Value, y: Arg) -> Value:
        """x * y."""
        return self.elementwise("Mul", x, self.like(y, x))

    def less(self, x: Value, y: Arg) -> Value:
        """x < y (False where either is NaN)."""
        return self.elementwise("LessThan", x, self.like(y, x))

    def select(self, condition: Value, yes: Arg, no: Arg) -> Value:
        """`yes` where `condition`, else `no`; at least one of them is a value."""
        if isinstance(yes, np.ndarray | View):
            return self.elementwise("Select", condition, yes, self.like(no, yes))
        assert isinstance(no, np.ndarray | View)
        return self.elementwise("Select", condition, self.like(yes, no), no)

    def unary(self, name: str, x: Value) -> Value:
        """The one-operand ELEMENTWISE function `name`."""
        return self.elementwise(name, x)

    def cast(self, x: Value, dtype: Any) -> Value:
        """`x` converted to the NumPy type `dtype`; to its own it is `x`.

        A weight in half precision is not converted here: the model keeps it as it is."""
        target = np.dtype(dtype)
        if dtype_of(x) == target:
            return x
        array = self.known(x)
        if array is not None and array.dtype != object and (half_of(x) is None or array.size <= SMALL):
            return fold(lambda a: dt.convert(a, target), array)
        view = self.lift(x)
        to = graph_dtype(target)
        if to is None:
            raise ModelError(f"{target} values are not supported", SUPPORTED)
        source = self.nodes[view.source]
        if _at_most(lay.numel(source.shape), lay.numel(view.shape)):
            # the whole buffer is converted, and read as before: views of it have one conversion, and none is a copy
            whole = View(source.id, lay.contiguous(source.shape), view.dtype)
            return View(self.node(ops.Cast(to), [whole], source.shape, to).source, view.layout, to)
        return self.node(ops.Cast(to), [view], view.shape, to)

    def copy(self, x: Value) -> View:
        """`x` in a buffer of its own, read contiguously."""
        array = self.known(x)
        if array is not None and array.dtype != object:
            return self.lift(np.array(array, order="C"))
        view = self.lift(x)
        return self.node(ops.Cast(view.dtype), [view], view.shape, view.dtype)

    def contiguous(self, x: Value) -> View:
        """`x` as a view that reads a whole buffer front to back, copied if need be."""
        view = self.lift(x)
        whole = lay.numel(self.nodes[view.source].shape) == lay.numel(view.shape)
        return view if whole and view.layout.is_contiguous else self.copy(view)

    def iota(self, value: Expr, shape: Shape, dtype: Any) -> Value:
        """Integers `value(z)` at row-major position z of `shape`."""
        count = lay.numel(shape)
        if not isinstance(count, Expr) and count <= IOTA_LIMIT and ex.variables(value) <= {ITER}:
            at = ex.evaluate(value, {ITER: np.arange(count, dtype=np.int64)})
            return (
                np.broadcast_to(np.asarray(at), (count,))
                .astype(dtype)
                .reshape([int(ex.evaluate(d, {})) for d in shape])
            )
        return self.cast(self.node(ops.Iota(value), (), shape, dt.I64), dtype)

    def reduce(self, name: str, x: Value, axes: Sequence[int]) -> Value:
        """`SumReduce` or `MaxReduce` over `axes` (counted from the front), which vanish."""
        kept = [a for a in range(len(shape_of(x))) if a not in axes]
        array = self.known(x)
        if array is not None and array.dtype != object and array.size <= FOLD_LIMIT and array.size:
            return _fold_reduce(name, array, tuple(axes))
        view = self.lift(x)
        shape = tuple(view.shape[a] for a in kept)
        moved = lay.permute(view.layout, [*kept, *axes])
        merged = _reshape(moved, (*shape, lay.numel([view.shape[a] for a in axes])))
        assert merged is not None, "axes can always be merged"
        return self.node(ops.Reduce(name), [View(view.source, merged, view.dtype)], shape, view.dtype)

    def take(self, x: Value, index: Value, axis: int) -> Value:
        """`x` at the positions of the 1-D `index` along `axis`; positions are not negative."""
        shape = shape_of(x)
        known = self.known(index)
        if known is not None and known.dtype == object:
            known = None
        if known is not None:
            count = known.size
            arrays = self.known(x)
            if arrays is not None and arrays.dtype == object:
                return plain(np.take(arrays, known, axis))
            if arrays is not None and arrays.size // max(1, int(arrays.shape[axis])) * count <= FOLD_LIMIT:
                return np.take(arrays, known, axis)
            step = int(known[1] - known[0]) if count > 1 else 1
            if count and step and (np.diff(known) == step).all():
                return self.slice(x, axis, int(known[0]), step, count)
            index = known
        view, at = self.lift(x), self.lift(index)
        out = (*shape[:axis], at.shape[0], *shape[axis + 1 :])
        column = lay.reshape(at.layout, (*(1 for _ in shape[:axis]), at.shape[0], *(1 for _ in shape[axis + 1 :])))
        assert column is not None, "axes of extent 1 can always be added"
        placed = View(at.source, lay.expand(column, out), at.dtype)
        return self.node(ops.Gather(axis), [placed, view], out, view.dtype)

    # movement

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        """The same elements in the same order under `shape`."""
        target = tuple(ex.as_dim(d) for d in shape)
        if shape_of(x) == target:
            return x
        if isinstance(x, np.ndarray) and x.size <= SMALL and not any(isinstance(d, Expr) for d in target):
            return x.reshape([int(ex.evaluate(d, {})) for d in target])
        view = self.lift(x)
        if view.layout == lay.contiguous(view.shape):
            if ex.as_expr(lay.numel(view.shape)) is not ex.as_expr(lay.numel(target)):
                raise UnequalDimsError(
                    f"cannot reshape {lay.show(view.shape)} to {lay.show(target)}",
                    [(lay.numel(view.shape), lay.numel(target))],
                )
            return View(view.source, lay.contiguous(target), view.dtype)
        moved = _reshape(view.layout, target)
        if moved is None:
            return View(self.copy(view).source, lay.contiguous(target), view.dtype)
        return View(view.source, moved, view.dtype)

    def transpose(self, x: Value, axes: Sequence[int]) -> Value:
        """Axes reordered: result axis i is source axis `axes[i]`."""
        if sorted(axes) != list(range(len(shape_of(x)))):
            raise ValueError(f"{list(axes)} is no order of the axes of {lay.show(shape_of(x))}")
        if isinstance(x, np.ndarray):
            return x.transpose(axes)
        return View(x.source, lay.permute(x.layout, axes), x.dtype)

    def swap_last(self, x: Value) -> Value:
        """The last two axes exchanged."""
        rank = len(shape_of(x))
        return self.transpose(x, [*range(rank - 2), rank - 1, rank - 2])

    def expand(self, x: Value, shape: Shape) -> Value:
        """`x` broadcast to exactly `shape`."""
        if shape_of(x) == shape:
            return x
        if isinstance(x, np.ndarray) and not any(isinstance(d, Expr) for d in shape):
            return np.broadcast_to(x, [int(ex.evaluate(d, {})) for d in shape])
        return self._expanded(self.lift(x), shape)

    def slice(self, x: Value, axis: int, start: Dim, step: int, count: Dim) -> Value:
        """`count` elements of `axis` from `start`, `step` apart."""
        if isinstance(x, np.ndarray) and not isinstance(start, Expr) and not isinstance(count, Expr):
            stop = start + step * count
            span = slice(start, stop if stop >= 0 else None, step) if count else slice(0, 0)
            return x[(*(slice(None) for _ in range(axis)), span)]
        view = self.lift(x)
        if start == 0 and step == 1 and count == view.shape[axis]:
            return view
        return View(view.source, lay.slice_axis(view.layout, axis, start, step, count), view.dtype)

    def remap(self, x: Value, axis: int, index: Expr, extent: Dim) -> View:
        """`extent` elements along `axis`, the z-th of which is element `index(z)` of `x`."""
        view = self.lift(x)
        shape, strides = list(view.shape), list(view.layout.strides)
        moved = ex.substitute(strides[axis], {ITER: index}, {ITER: extent})
        origin = ZERO
        if extent == 1 or ITER not in ex.variables(moved):
            origin, moved = ex.substitute(moved, {ITER: 0}), ZERO
        shape[axis], strides[axis] = ex.as_dim(extent), moved
        return View(view.source, Layout(tuple(shape), tuple(strides), view.layout.offset + origin), view.dtype)

    def squeeze(self, x: Value, axes: Sequence[int]) -> Value:
        """Axes of extent 1 removed."""
        return self.reshape(x, [d for a, d in enumerate(shape_of(x)) if a not in axes])

    def unsqueeze(self, x: Value, axes: Sequence[int]) -> Value:
        """Axes of extent 1 inserted at positions `axes` of the result."""
        rest = iter(shape_of(x))
        return self.reshape(x, [1 if a in axes else next(rest) for a in range(len(shape_of(x)) + len(axes))])

    # the end

    def finish(self, name: str, outputs: Sequence[tuple[str, View]]) -> Graph:
        """The graph of what `outputs` need; every input stays, everything else that is dead goes."""
        for output, view in outputs:
            self.label = output
            self.unique_node(ops.Output(output), (Operand(view.source, view.layout),), view.shape, view.dtype)
        live = self._live()
        graph = Graph(name)
        if len(live) == len(self.nodes):
            graph.adopt(self.nodes)
            graph.constants.update(self.constants)
            return graph
        renumbered: dict[int, int] = {}
        for node in self.nodes:
            if node.id not in live:
                continue
            edges = [Operand(renumbered[o.source], o.layout) for o in node.operands]
            made = graph.add(node.op, edges, node.shape, node.dtype, node.label)
            renumbered[node.id] = made.id
            if node.id in self.constants:
                graph.constants[made.id] = self.constants[node.id]
        return graph

    def _live(self) -> set[int]:
        live = {n.id for n in self.nodes if isinstance(n.op, ops.Input | ops.Output)}
        for node in reversed(self.nodes):
            if node.id in live:
                live.update(o.source for o in node.operands)
        return live


def _at_most(count: Dim, other: Dim) -> bool:
    """Whether `count` is known to be at most `other`."""
    if isinstance(count, int) and isinstance(other, int):
        return count <= other
    return ex.as_expr(count) is ex.as_expr(other)


def _fold_reduce(name: str, array: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    if name == "MaxReduce":
        return np.asarray(np.max(array, axis=axes))
    wide = np.float64 if dt.is_float(array.dtype) else np.int64
    return np.asarray(np.sum(array, axis=axes, dtype=wide)).astype(array.dtype)
