"""Operators that move elements: layouts where an expression can say it, selects and copies where not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench.frontend import symbolic
from workbench.frontend.builder import FOLD_LIMIT, Builder
from workbench.frontend.constants import checked_shape
from workbench.frontend.registry import operator
from workbench.frontend.values import (
    NotLoweredError,
    UnequalDimsError,
    Value,
    as_dims,
    as_ints,
    broadcast,
    dtype_of,
    is_symbolic,
    normalize_axis,
    plain,
    rank_of,
    shape_of,
)
from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir.expr import Expr, Z
from workbench.ir.layout import Dim


@operator("Reshape", since=5)
def reshape(b: Builder, x: Value, shape: Value, *, allowzero: int = 0) -> Value:
    source = shape_of(x)
    wanted = as_dims(shape, "the shape")
    dims: list[Dim] = [source[i] if d == 0 and not allowzero else d for i, d in enumerate(wanted)]
    unknown = [i for i, d in enumerate(dims) if d == -1]
    if len(unknown) > 1 or any(not isinstance(d, Expr) and d < -1 for d in dims):
        raise ValueError(f"the shape {lay.show(wanted)} is none")
    if unknown:
        rest = lay.numel([d for d in dims if d != -1])
        total = lay.numel(source)
        if rest == 0:
            raise ValueError("-1 beside an extent of 0")
        if ex.mod(ex.as_expr(total), ex.as_expr(rest)) is not ex.ZERO:
            raise UnequalDimsError(
                f"cannot reshape {lay.show(source)} to {lay.show(wanted)}: the element counts differ", [(total, rest)]
            )
        dims[unknown[0]] = ex.as_dim(ex.floordiv(ex.as_expr(total), ex.as_expr(rest)))
    return b.reshape(x, dims)


@operator("Flatten")
def flatten(b: Builder, x: Value, *, axis: int = 1) -> Value:
    shape = shape_of(x)
    if not -len(shape) <= axis <= len(shape):
        raise ValueError(f"axis {axis} of a tensor of rank {len(shape)}")
    cut = axis % len(shape) if axis < 0 else axis
    return b.reshape(x, (lay.numel(shape[:cut]), lay.numel(shape[cut:])))


@operator("Squeeze")
def squeeze_attribute(b: Builder, x: Value, *, axes: list[int] | None = None) -> Value:
    shape = shape_of(x)
    gone = [i for i, d in enumerate(shape) if d == 1] if axes is None else _axes(axes, len(shape))
    for axis in gone:
        if shape[axis] != 1:
            raise ValueError(f"cannot squeeze axis {axis} of {lay.show(shape)}")
    return b.squeeze(x, gone)


@operator("Squeeze", since=13)
def squeeze(b: Builder, x: Value, axes: Value | None = None) -> Value:
    return squeeze_attribute(b, x, axes=None if axes is None else as_ints(axes, "the axes"))


@operator("Unsqueeze")
def unsqueeze_attribute(b: Builder, x: Value, *, axes: list[int]) -> Value:
    return b.unsqueeze(x, _axes(axes, rank_of(x) + len(axes)))


@operator("Unsqueeze", since=13)
def unsqueeze(b: Builder, x: Value, axes: Value) -> Value:
    return unsqueeze_attribute(b, x, axes=as_ints(axes, "the axes"))


def _axes(axes: Sequence[int], rank: int) -> list[int]:
    found = [normalize_axis(a, rank) for a in axes]
    if len(set(found)) != len(found):
        raise ValueError(f"axes {list(axes)} repeat")
    return found


@operator("Transpose")
def transpose(b: Builder, x: Value, *, perm: list[int] | None = None) -> Value:
    return b.transpose(x, list(reversed(range(rank_of(x)))) if perm is None else perm)


@operator("Expand", since=8)
def expand(b: Builder, x: Value, shape: Value) -> Value:
    return b.expand(x, broadcast([shape_of(x), checked_shape(shape)]))


@operator("Tile", since=6)
def tile(b: Builder, x: Value, repeats: Value) -> Value:
    counts = as_dims(repeats, "the repeats")
    if len(counts) != rank_of(x):
        raise ValueError(f"{len(counts)} repeats of {lay.show(shape_of(x))}")
    for axis, count in enumerate(counts):
        n = shape_of(x)[axis]
        if count == 1:
            continue
        x = (
            b.expand(x, (*shape_of(x)[:axis], count, *shape_of(x)[axis + 1 :]))
            if n == 1
            else b.remap(x, axis, Z % n, ex.as_dim(ex.as_expr(count) * n))
        )
    return x


@operator("Slice")
def slice_attributes(
    b: Builder, x: Value, *, starts: list[int], ends: list[int], axes: list[int] | None = None
) -> Value:
    return _slice(b, x, starts, ends, list(range(len(starts))) if axes is None else axes, [1] * len(starts))


@operator("Slice", since=10)
def slice_inputs(
    b: Builder, x: Value, starts: Value, ends: Value, axes: Value | None = None, steps: Value | None = None
) -> Value:
    first = as_dims(starts, "where a slice starts")
    return _slice(
        b,
        x,
        first,
        as_dims(ends, "where a slice ends"),
        list(range(len(first))) if axes is None else as_ints(axes, "the axes"),
        [1] * len(first) if steps is None else as_ints(steps, "the steps"),
    )


def _slice(
    b: Builder, x: Value, starts: Sequence[Dim], ends: Sequence[Dim], axes: Sequence[int], steps: Sequence[int]
) -> Value:
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ValueError("starts, ends, axes and steps differ in length")
    for start, end, axis, step in zip(starts, ends, _axes(axes, rank_of(x)), steps, strict=True):
        if step == 0:
            raise ValueError("a slice with step 0")
        extent = shape_of(x)[axis]
        first, count = _span(start, end, step, extent)
        x = b.slice(x, axis, first, step, count)
    return x


def _span(start: Dim, end: Dim, step: int, extent: Dim) -> tuple[Dim, Dim]:
    """First index and number of elements of a slice, by NumPy's rules."""
    if not any(isinstance(v, Expr) for v in (start, end, extent)):
        span = range(int(str(extent)))[slice(int(str(start)), int(str(end)), step)]
        return (span.start if len(span) else 0), len(span)
    low, high = (0, extent) if step > 0 else (-1, ex.as_dim(ex.as_expr(extent) - 1))
    first, last = (_clamped(v, extent, low, high) for v in (start, end))
    distance = ex.as_expr(last) - first if step > 0 else ex.as_expr(first) - last
    count = ex.as_dim((distance + (abs(step) - 1)) // abs(step))
    return first, max(0, count) if not isinstance(count, Expr) else count


def _clamped(v: Dim, extent: Dim, low: Dim, high: Dim) -> Dim:
    if not isinstance(v, Expr) and v < 0:
        if v <= -(1 << 31) + 1:
            return low
        back = ex.as_dim(ex.as_expr(extent) + v)
        return low if symbolic.smaller(0, back) != 0 else back
    if not isinstance(v, Expr) and v >= (1 << 31) - 1:
        return high
    if isinstance(v, Expr) and not isinstance(extent, Expr):
        return v  # a dimension that names part of a table is taken to fit it
    return symbolic.smaller(v, high)


@operator("Split", since=2)
def split_attribute(
    b: Builder, x: Value, *, outputs: int, axis: int = 0, split: list[int] | None = None
) -> tuple[Value, ...]:
    return _split(b, x, axis, _even(shape_of(x), axis, outputs) if split is None else list(split))


@operator("Split", since=13)
def split_input(
    b: Builder,
    x: Value,
    split: Value | None = None,
    *,
    outputs: int,
    axis: int = 0,
    num_outputs: int | None = None,
) -> tuple[Value, ...]:
    count = num_outputs or outputs
    if count != outputs:
        raise ValueError(f"{count} parts for {outputs} outputs")
    sizes = _even(shape_of(x), axis, count) if split is None else as_dims(split, "the sizes of a split")
    return _split(b, x, axis, sizes)


def _even(shape: Sequence[Dim], axis: int, count: int) -> list[Dim]:
    extent = shape[axis]
    if isinstance(extent, Expr):
        return [ex.as_dim(extent // count)] * count
    size = -(-extent // count)
    return [*([size] * (count - 1)), extent - size * (count - 1)]


def _split(b: Builder, x: Value, axis: int, sizes: Sequence[Dim]) -> tuple[Value, ...]:
    axis = normalize_axis(axis, rank_of(x))
    total = ex.as_dim(sum((ex.as_expr(s) for s in sizes), ex.ZERO))
    if total != shape_of(x)[axis] or any(not isinstance(s, Expr) and s < 0 for s in sizes):
        raise ValueError(f"sizes {lay.show(sizes)} of an axis of {shape_of(x)[axis]}")
    parts: list[Value] = []
    start: Dim = 0
    for size in sizes:
        parts.append(b.slice(x, axis, start, 1, size))
        start = ex.as_dim(ex.as_expr(start) + size)
    return tuple(parts)


@operator("Concat", since=4)
def concat(b: Builder, *inputs: Value, axis: int) -> Value:
    axis = normalize_axis(axis, rank_of(inputs[0]))
    parts = [x for x in inputs if shape_of(x)[axis] != 0] or list(inputs[:1])
    first = shape_of(parts[0])
    for x in parts:
        shape = shape_of(x)
        beside = [(p, q) for i, (p, q) in enumerate(zip(shape, first, strict=False)) if i != axis]
        if len(shape) != len(first) or any(p != q for p, q in beside):
            raise UnequalDimsError("cannot join " + " and ".join(lay.show(shape_of(p)) for p in parts), beside)
        if dtype_of(x) != dtype_of(parts[0]) and not any(is_symbolic(p) for p in parts):
            raise ValueError(f"cannot join {dtype_of(x)} and {dtype_of(parts[0])}")
    if len(parts) == 1:
        return parts[0]
    arrays = b.all_known(parts)
    if arrays is not None and sum(a.size for a in arrays) <= FOLD_LIMIT:
        return plain(np.concatenate(arrays, axis))
    return _join(b, parts, axis)


def _join(b: Builder, parts: Sequence[Value], axis: int) -> Value:
    """Halves joined by halves, so that many parts cost a logarithm of passes and not a pass each."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2 if len(parts) > 3 else len(parts) - 1
    left, right = _join(b, parts[:middle], axis), _join(b, parts[middle:], axis)
    return join_two(b, left, right, axis)


def join_two(b: Builder, left: Value, right: Value, axis: int) -> Value:
    """`right` after `left`. Each is read around its own extent, so that no read is out of bounds."""
    n, m = ex.as_expr(shape_of(left)[axis]), ex.as_expr(shape_of(right)[axis])
    total = ex.as_dim(n + m)
    place = along(rank_of(left), axis, total)
    is_left = b.less(b.iota(Z, place, np.int64), plain(np.asarray(n, object)))
    return b.select(is_left, placed_at(b, left, axis, ex.ZERO, total), placed_at(b, right, axis, n, total))


def along(rank: int, axis: int, extent: Dim) -> tuple[Dim, ...]:
    """The shape with `extent` on `axis` and 1 elsewhere."""
    return tuple(extent if a == axis else 1 for a in range(rank))


def placed_at(b: Builder, x: Value, axis: int, start: Expr, total: Dim) -> Value:
    """`total` elements along `axis`, those of `x` from `start` on; before and after them any of its elements."""
    n = ex.as_expr(shape_of(x)[axis])
    if start is ex.ZERO:
        return b.remap(x, axis, Z % n, total)
    if n.constant is None:  # no remainder of a named extent is shown to have a numerator that is never negative
        return b.take(x, b.iota(Z - start, (total,), np.int64), axis)
    known = start.constant
    shift = start * (n - 1) if known is None else ex.const(-known % n.constant)
    return b.remap(x, axis, (Z + shift) % n, total)


@operator("Pad", since=2)
def pad_attributes(b: Builder, x: Value, *, pads: list[int], mode: str = "constant", value: float = 0.0) -> Value:
    rank = rank_of(x)
    return pad_axes(b, x, pads[:rank], pads[rank:], mode, b.like(value, x))


@operator("Pad", since=11)
def pad_inputs(
    b: Builder,
    x: Value,
    pads: Value,
    fill: Value | None = None,
    axes: Value | None = None,
    *,
    mode: str = "constant",
) -> Value:
    rank = rank_of(x)
    given = as_ints(pads, "the pads")
    where = list(range(rank)) if axes is None else _axes(as_ints(axes, "the axes"), rank)
    before, after = [0] * rank, [0] * rank
    for position, axis in enumerate(where):
        before[axis], after[axis] = given[position], given[position + len(where)]
    return pad_axes(b, x, before, after, mode, b.like(0, x) if fill is None else b.reshape(fill, ()))


def pad_axes(
    b: Builder, x: Value, before: Sequence[int], after: Sequence[int], mode: str = "constant", fill: Value | None = None
) -> Value:
    """`x` with elements added around each axis; negative counts take away."""
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        if low < 0 or high < 0:
            kept = ex.as_dim(ex.as_expr(shape_of(x)[axis]) + min(low, 0) + min(high, 0))
            x = b.slice(x, axis, max(0, -low), 1, kept)
    before, after = [max(0, p) for p in before], [max(0, p) for p in after]
    if not any(before) and not any(after):
        return x
    if mode == "constant":
        return _pad_constant(b, x, before, after, b.like(0, x) if fill is None else fill)
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        if low or high:
            x = b.take(x, _reflected(mode, shape_of(x)[axis], low, high), axis)
    return x


def _reflected(mode: str, extent: Dim, low: int, high: int) -> np.ndarray:
    if isinstance(extent, Expr):
        raise NotLoweredError(f"padding by '{mode}' of a dimension without a fixed extent")
    if low + extent + high > FOLD_LIMIT:
        raise NotLoweredError("padding of more than a million elements")
    at = np.arange(-low, extent + high)
    if mode == "edge":
        return np.clip(at, 0, extent - 1)
    if mode == "wrap":
        return at % extent
    if mode != "reflect":
        raise NotLoweredError(f"padding mode '{mode}'")
    period = max(1, 2 * extent - 2)
    at = at % period
    return np.where(at < extent, at, period - at)


def _pad_constant(b: Builder, x: Value, before: Sequence[int], after: Sequence[int], fill: Value) -> Value:
    rank = rank_of(x)
    inside: Value = np.asarray(True)
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        if not low and not high:
            continue
        n = ex.as_expr(shape_of(x)[axis])
        total = ex.as_dim(n + low + high)
        at = b.iota(Z, along(rank, axis, total), np.int64)
        end: Value = np.asarray(n + low, object) if n.constant is None else np.asarray(n.constant + low)
        for kept in (b.less(b.like(low - 1, at), at) if low else None, b.less(at, end) if high else None):
            if kept is not None:
                inside = b.select(inside, kept, False)
        x = placed_at(b, x, axis, ex.const(low), total)
    return b.select(inside, x, fill)


@operator("DepthToSpace")
def depth_to_space(b: Builder, x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    n, c, h, w = shape_of(x)
    s = blocksize
    depth = ex.as_dim(ex.as_expr(c) // (s * s))
    if mode == "DCR":
        y = b.transpose(b.reshape(x, (n, s, s, depth, h, w)), [0, 3, 4, 1, 5, 2])
    else:
        y = b.transpose(b.reshape(x, (n, depth, s, s, h, w)), [0, 1, 4, 2, 5, 3])
    return b.reshape(y, (n, depth, h * s, w * s))


@operator("SpaceToDepth")
def space_to_depth(b: Builder, x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    n, c, h, w = shape_of(x)
    s = blocksize
    down, across = (ex.as_dim(ex.as_expr(d) // s) for d in (h, w))
    order = [0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4]
    y = b.transpose(b.reshape(x, (n, c, down, s, across, s)), order)
    return b.reshape(y, (n, c * s * s, down, across))
