"""Operators that read or write at computed positions."""

from __future__ import annotations

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend.builder import Builder
from workbench.frontend.registry import operator
from workbench.frontend.values import (
    NotLoweredError,
    Value,
    as_dims,
    dims_array,
    dtype_of,
    normalize_axis,
    plain,
    rank_of,
    shape_of,
)
from workbench.ir import layout as lay
from workbench.ir import ops
from workbench.ir.expr import ONE, Expr, Z
from workbench.ir.layout import Dim


def from_front(b: Builder, index: Value, extent: Dim) -> Value:
    """`index` with negative positions counted from the end of an axis of `extent`.

    Raises IndexError when a known position is outside."""
    array = b.known(index)
    if array is None:
        return wrap_negative(b, index, extent)
    if array.dtype == object or isinstance(extent, Expr):
        moved = [e if isinstance(e, Expr) or e >= 0 else extent + int(e) for e in array.reshape(-1).tolist()]
        return dims_array(moved).reshape(array.shape)
    if array.size and (array.min() < -extent or array.max() >= extent):
        raise IndexError(f"position {int(array.min())} or {int(array.max())} on an axis of {extent}")
    return np.where(array < 0, array + extent, array)


@operator("Gather")
def gather(b: Builder, x: Value, index: Value, *, axis: int = 0) -> Value:
    shape = shape_of(x)
    axis = normalize_axis(axis, len(shape))
    at = from_front(b, index, shape[axis])
    if isinstance(at, np.ndarray) and at.dtype == object:
        return _gather_symbolic(b, x, at, axis)
    flat = b.reshape(at, (lay.numel(shape_of(at)),))
    return b.reshape(b.take(x, flat, axis), (*shape[:axis], *shape_of(at), *shape[axis + 1 :]))


def _gather_symbolic(b: Builder, x: Value, at: np.ndarray, axis: int) -> Value:
    """A position that depends on a dimension, such as the last row."""
    if at.size != 1:
        raise NotLoweredError("positions that depend on dimensions")
    shape = shape_of(x)
    return b.reshape(b.slice(x, axis, at.reshape(-1)[0], 1, 1), (*shape[:axis], *at.shape, *shape[axis + 1 :]))


@operator("GatherElements", since=11)
def gather_elements(b: Builder, x: Value, index: Value, *, axis: int = 0) -> Value:
    axis = normalize_axis(axis, rank_of(x))
    at = from_front(b, index, shape_of(x)[axis])
    shape = shape_of(at)
    arrays = b.all_known([x, at])
    for other, (n, m) in enumerate(zip(shape, shape_of(x), strict=True)):
        if other != axis and n != m:
            x = b.slice(x, other, 0, 1, n)
    if arrays is not None and not any(a.dtype == object for a in arrays):
        return np.take_along_axis(b.known(x), arrays[1], axis)
    data, places = b.lift(x), b.lift(at)
    return b.node(ops.Gather(axis), [places, data], shape, data.dtype)


@operator("GatherND", since=11)
def gather_nd(b: Builder, x: Value, index: Value, *, batch_dims: int = 0) -> Value:
    depth = shape_of(index)[-1]
    if isinstance(depth, Expr):
        raise NotLoweredError("an index tuple whose length is a dimension")
    flat, rest = flat_index(b, index, shape_of(x), batch_dims, depth)
    rows = b.reshape(x, (lay.numel(shape_of(x)[: batch_dims + depth]), *rest))
    taken = b.take(rows, b.reshape(flat, (lay.numel(shape_of(flat)),)), 0)
    return b.reshape(taken, (*shape_of(flat), *rest))


def flat_index(
    b: Builder, index: Value, shape: lay.Shape, batch_dims: int, depth: int
) -> tuple[Value, tuple[Dim, ...]]:
    """Row-major positions over the leading axes that `index` names (after the batch axes), and the axes left."""
    outer = shape_of(index)[:-1]
    indexed = shape[: batch_dims + depth]
    steps: list[Expr] = []
    step = ONE
    for d in reversed(indexed):
        steps.insert(0, step)
        step = step * d
    flat: Value = np.zeros(() if not outer else [1] * len(outer), np.int64)
    for axis in range(batch_dims):
        place = b.iota(Z, tuple(d if a == axis else 1 for a, d in enumerate(outer)), np.int64)
        flat = b.add(flat, b.mul(place, scalar(b, steps[axis])))
    for position in range(depth):
        one = b.reshape(b.slice(index, rank_of(index) - 1, position, 1, 1), outer)
        at = b.cast(from_front(b, one, indexed[batch_dims + position]), np.int64)
        flat = b.add(flat, b.mul(at, scalar(b, steps[batch_dims + position])))
    return flat, shape[batch_dims + depth :]


def scalar(b: Builder, value: Expr) -> Value:
    return plain(np.asarray(value, object))


@operator("OneHot", since=9)
def one_hot(b: Builder, index: Value, depth: Value, values: Value, *, axis: int = -1) -> Value:
    count = as_dims(depth, "the depth")[0]
    place = normalize_axis(axis, rank_of(index) + 1)
    at = b.unsqueeze(wrap_negative(b, b.cast(index, np.int64), count), [place])
    shape = tuple(count if a == place else 1 for a in range(rank_of(at)))
    hit = ar.equal(b, at, b.iota(Z, shape, np.int64))
    off, on = (b.reshape(b.slice(values, 0, i, 1, 1), ()) for i in range(2))
    return b.select(hit, on, off)


@operator("ReverseSequence", since=10)
def reverse_sequence(b: Builder, x: Value, lengths: Value, *, batch_axis: int = 1, time_axis: int = 0) -> Value:
    shape = shape_of(x)
    time_axis, batch_axis = normalize_axis(time_axis, len(shape)), normalize_axis(batch_axis, len(shape))
    if len(shape) < 2 or time_axis == batch_axis:
        raise ValueError(f"axes {batch_axis} and {time_axis} of {lay.show(shape)}")
    time = b.iota(Z, tuple(d if a == time_axis else 1 for a, d in enumerate(shape)), np.int64)
    length = b.reshape(b.cast(lengths, np.int64), [d if a == batch_axis else 1 for a, d in enumerate(shape)])
    turned = b.add(ar.sub(b, length, time), -1)
    return picked(b, x, b.select(b.less(time, length), turned, time), time_axis)


def picked(b: Builder, x: Value, index: Value, axis: int) -> Value:
    """x[.., index[.., i, ..], ..]: `index` broadcasts to the shape of `x` but for `axis`."""
    view = b.lift(x)
    shape = tuple(shape_of(index)[axis] if a == axis else d for a, d in enumerate(view.shape))
    return b.node(ops.Gather(axis), [b.lift(b.expand(index, shape)), view], shape, view.dtype)


def scattered(b: Builder, x: Value, index: Value, update: Value, mode: str = "none") -> Value:
    """A copy of `x` in which element `index` (row-major position) is combined with `update` as `mode` (a key of
    SCATTER_MODES) says, one after the other.

    Raises NotLoweredError for an unknown mode."""
    if mode not in ops.SCATTER_MODES:
        raise NotLoweredError(f"reduction='{mode}'")
    places = b.cast(b.expand(index, shape_of(update)), np.int64)
    arrays = b.all_known([x, places, update])
    if arrays is not None and not any(a.dtype == object for a in arrays):
        data, at, changes = arrays
        return ops.scatter(data, at, changes.astype(data.dtype, copy=False), mode).reshape(data.shape)
    data_view, changes_view = b.lift(x), b.lift(update)
    if changes_view.dtype is not data_view.dtype:
        raise ValueError(f"{changes_view.dtype} is written into {data_view.dtype}")
    return b.node(
        ops.Scatter(mode), [data_view, b.lift(places), changes_view], data_view.shape, data_view.dtype
    )


def wrap_negative(b: Builder, index: Value, extent: Dim) -> Value:
    """As `from_front`, for positions that may lie outside."""
    length = b.cast(dims_array([extent]).reshape(()), dtype_of(index))
    return b.select(b.less(index, 0), b.add(index, length), index)
