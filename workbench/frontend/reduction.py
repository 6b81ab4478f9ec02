"""Reductions over axes, and what is built of them: arg-extrema, running sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend.builder import Builder
from workbench.frontend.movement import concat, pad_axes
from workbench.frontend.registry import operator
from workbench.frontend.values import (
    NotLoweredError,
    Value,
    as_ints,
    dims_array,
    dtype_of,
    fixed,
    is_float,
    normalize_axis,
    rank_of,
    shape_of,
)
from workbench.ir import layout as lay
from workbench.ir.expr import Expr, Z

OverAxes = Callable[[Builder, Value, Sequence[int]], Value]


def total(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    """The sum over `axes`, which vanish."""
    return b.reduce("SumReduce", x, axes)


def mean(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    """The mean over `axes` of floats."""
    count = lay.numel([shape_of(x)[a] for a in axes])
    if not is_float(x):
        raise NotLoweredError("a mean of integers")
    if isinstance(count, Expr):
        return b.mul(total(b, x, axes), ar.recip(b, b.cast(dims_array([count]).reshape(()), dtype_of(x))))
    return b.mul(total(b, x, axes), 1 / count)


def greatest(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    """The maximum over `axes`."""
    if dtype_of(x) == np.bool_:
        return b.less(np.asarray(0, np.int32), greatest(b, b.cast(x, np.int32), axes))
    return b.reduce("MaxReduce", x, axes)


def least(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    """The minimum over `axes`: of floats -max(-x), of integers -1-max(-1-x), which cannot overflow."""
    if dtype_of(x) == np.bool_:
        return b.less(np.asarray(0, np.int32), least(b, b.cast(x, np.int32), axes))
    if is_float(x):
        return ar.neg(b, b.reduce("MaxReduce", ar.neg(b, x), axes))
    return ar.sub(b, -1, b.reduce("MaxReduce", ar.sub(b, -1, x), axes))


def product(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    """The product over `axes`: halves by halves, those left over filled up with 1."""
    kept = [a for a in range(rank_of(x)) if a not in axes]
    shape = [shape_of(x)[a] for a in kept]
    count = fixed(lay.numel([shape_of(x)[a] for a in axes]), "the number of factors")
    rows = b.reshape(b.transpose(x, [*axes, *kept]), (count, *shape))
    if not count:
        return b.expand(b.like(1, x), tuple(shape))
    while count > 1:
        half = count // 2
        pairs = b.mul(b.slice(rows, 0, 0, 1, half), b.slice(rows, 0, half, 1, half))
        if count % 2:
            last = b.slice(rows, 0, count - 1, 1, 1)
            first = b.mul(b.slice(pairs, 0, 0, 1, 1), last)
            pairs = first if half == 1 else concat(b, first, b.slice(pairs, 0, 1, 1, half - 1), axis=0)
        rows, count = pairs, half
    return b.reshape(rows, shape)


def _sum_square(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    return total(b, b.mul(x, x), axes)


def _l1(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    return total(b, ar.absolute(b, x), axes)


def _in_floats(over: OverAxes) -> OverAxes:
    """`over` for integers as well: computed as of float64, and cut off."""

    def of_any(b: Builder, x: Value, axes: Sequence[int]) -> Value:
        return over(b, x, axes) if is_float(x) else b.cast(over(b, b.cast(x, np.float64), axes), dtype_of(x))

    return of_any


@_in_floats
def _l2(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    return b.unary("Sqrt", _sum_square(b, x, axes))


@_in_floats
def _log_sum(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    return ar.log(b, total(b, x, axes))


@_in_floats
def _log_sum_exp(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    peak = greatest(b, x, axes)
    shape = tuple(1 if a in axes else d for a, d in enumerate(shape_of(x)))
    finite = b.select(ar.logical_and(b, b.less(peak, np.inf), b.less(b.like(-np.inf, peak), peak)), peak, 0)
    shifted = ar.sub(b, x, b.reshape(finite, shape))
    return b.add(ar.log(b, total(b, ar.exp(b, shifted), axes)), finite)


def reduced(
    b: Builder, x: Value, axes: Sequence[int] | None, keepdims: int, over: OverAxes, noop_when_empty: int = 0
) -> Value:
    """`over` applied to `axes` (all of them when none are given)."""
    rank = rank_of(x)
    if not axes:
        if noop_when_empty and axes is not None:
            return over(b, b.unsqueeze(x, [rank]), [rank]) if over not in (total, mean, greatest, least) else x
        axes = range(rank)
    gone = sorted({normalize_axis(a, rank) for a in axes})
    result = over(b, x, gone) if gone else x
    return b.reshape(result, [1 if a in gone else d for a, d in enumerate(shape_of(x))]) if keepdims else result


def _register(name: str, over: OverAxes, axes_input_since: int) -> None:
    @operator(name)
    def by_attribute(b: Builder, x: Value, *, axes: list[int] | None = None, keepdims: int = 1) -> Value:
        return reduced(b, x, axes, keepdims, over)

    @operator(name, since=axes_input_since)
    def by_input(
        b: Builder, x: Value, axes: Value | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Value:
        given = [] if axes is None else as_ints(axes, "the axes")
        return reduced(b, x, given, keepdims, over, noop_with_empty_axes)


for _name, _over in (
    ("ReduceMean", mean),
    ("ReduceMax", greatest),
    ("ReduceMin", least),
    ("ReduceProd", product),
    ("ReduceSumSquare", _sum_square),
    ("ReduceL1", _l1),
    ("ReduceL2", _l2),
    ("ReduceLogSum", _log_sum),
    ("ReduceLogSumExp", _log_sum_exp),
):
    _register(_name, _over, 18)
_register("ReduceSum", total, 13)


@operator("ArgMax")
def arg_max(b: Builder, x: Value, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Value:
    axis = normalize_axis(axis, rank_of(x))
    peak = b.unsqueeze(greatest(b, x, [axis]), [axis])
    return _place_of(b, ar.less_or_equal(b, peak, x), axis, keepdims, select_last_index)


@operator("ArgMin")
def arg_min(b: Builder, x: Value, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Value:
    axis = normalize_axis(axis, rank_of(x))
    low = b.unsqueeze(least(b, x, [axis]), [axis])
    return _place_of(b, ar.less_or_equal(b, x, low), axis, keepdims, select_last_index)


def _place_of(b: Builder, hit: Value, axis: int, keepdims: int, last: int) -> Value:
    """The first (or last) position along `axis` where `hit` holds."""
    extent = shape_of(hit)[axis]
    shape = tuple(extent if a == axis else 1 for a in range(rank_of(hit)))
    place = b.iota(Z, shape, np.int64)
    if last:
        found = b.reduce("MaxReduce", b.select(hit, place, -1), [axis])
    else:
        found = least(b, b.select(hit, place, b.lift(dims_array([extent]).reshape(()))), [axis])
    return b.unsqueeze(found, [axis]) if keepdims else found


@operator("CumSum", since=11)
def cumulative_sum(b: Builder, x: Value, axis: Value, *, exclusive: int = 0, reverse: int = 0) -> Value:
    along = normalize_axis(as_ints(axis, "the axis")[0], rank_of(x))
    array = b.known(x)
    if array is not None and array.dtype != object and not exclusive and not reverse:
        return np.cumsum(array, along, dtype=array.dtype)
    extent = shape_of(x)[along]
    to = b.iota(Z, (extent, 1), np.int64)
    of = b.iota(Z, (1, extent), np.int64)
    low, high = (to, of) if reverse else (of, to)
    taken = b.less(low, high) if exclusive else ar.less_or_equal(b, low, high)
    rest = [a for a in range(rank_of(x)) if a != along]
    rows = b.unsqueeze(b.transpose(x, [*rest, along]), [len(rest)])
    summed = b.reduce("SumReduce", b.select(taken, rows, 0), [len(rest) + 1])
    return b.transpose(summed, list(np.argsort([*rest, along])))


@operator("CumProd", since=26)
def cumulative_product(b: Builder, x: Value, axis: Value, *, exclusive: int = 0, reverse: int = 0) -> Value:
    """Each element times the one before it, then times the one two before, and so on by doubling."""
    along = normalize_axis(as_ints(axis, "the axis")[0], rank_of(x))
    count = fixed(shape_of(x)[along], "the number of factors")

    def moved(y: Value, by: int) -> Value:
        """`y` shifted by so many places, 1 where nothing comes from."""
        place = [(-by if reverse else by) if a == along else 0 for a in range(rank_of(x))]
        return pad_axes(b, y, place, [-p for p in place], "constant", b.like(1, x))

    y = moved(x, 1) if exclusive else x
    step = 1
    while step < count:
        y = b.mul(y, moved(y, step))
        step *= 2
    return y
