"""Operators that order elements or pick them out, without a sort: ranks are counts of comparisons."""

from __future__ import annotations

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend.builder import Builder
from workbench.frontend.indexing import picked
from workbench.frontend.registry import operator
from workbench.frontend.values import (
    NotLoweredError,
    Value,
    as_ints,
    fixed,
    known_array,
    normalize_axis,
    rank_of,
    shape_of,
)
from workbench.ir import layout as lay
from workbench.ir.expr import Z

_MOST_RANKED = 4096
"""Elements along an axis up to which each is compared with each other."""


@operator("TopK")
def top_k_by_attribute(b: Builder, x: Value, *, k: int, axis: int = -1) -> tuple[Value, Value]:
    return _top(b, x, k, axis, True)


@operator("TopK", since=10)
def top_k(
    b: Builder, x: Value, k: Value, *, axis: int = -1, largest: int = 1, sorted: int = 1  # noqa: A002
) -> tuple[Value, Value]:
    return _top(b, x, as_ints(k, "the number of elements")[0], axis, bool(largest))


def _top(b: Builder, x: Value, k: int, axis: int, largest: bool) -> tuple[Value, Value]:
    """The first `k` along `axis` in order, and where each was; of equals the earlier one comes first."""
    axis = normalize_axis(axis, rank_of(x))
    count = fixed(shape_of(x)[axis], "the number of elements to choose from")
    if not 0 <= k <= count:
        raise ValueError(f"{k} of {count} elements")
    if count > _MOST_RANKED:
        raise NotLoweredError(f"the order of more than {_MOST_RANKED} elements")
    order = [a for a in range(rank_of(x)) if a != axis]
    rows = b.transpose(x, [*order, axis])
    last = rank_of(x) - 1
    own, other = b.unsqueeze(rows, [last + 1]), b.unsqueeze(rows, [last])
    ahead, behind = (b.less(own, other), b.less(other, own)) if largest else (b.less(other, own), b.less(own, other))
    earlier = b.less(b.iota(Z, (1, count), np.int64), b.iota(Z, (count, 1), np.int64))
    before = b.select(ahead, np.asarray(True), b.select(behind, np.asarray(False), earlier))
    rank = b.reduce("SumReduce", b.cast(before, np.int64), [last + 1])
    hit = ar.equal(b, b.unsqueeze(rank, [last]), b.iota(Z, (k, 1), np.int64))
    place = b.reduce("SumReduce", b.select(hit, b.iota(Z, (count,), np.int64), 0), [last + 1])
    back = [int(a) for a in np.argsort([*order, axis])]
    return b.transpose(picked(b, rows, place, last), back), b.transpose(place, back)


@operator("Compress", since=9)
def compress(b: Builder, x: Value, condition: Value, *, axis: int | None = None) -> Value:
    kept = np.flatnonzero(known_array(condition, "which elements are kept"))
    if axis is None:
        return b.take(b.reshape(x, (lay.numel(shape_of(x)),)), kept, 0)
    return b.take(x, kept, normalize_axis(axis, rank_of(x)))


@operator("NonZero", since=9)
def non_zero(b: Builder, x: Value) -> Value:
    array = b.known(x)
    if array is None or array.dtype == object:
        raise NotLoweredError("the shape of the result depends on data that is only known at run time")
    return np.stack(np.nonzero(array)) if array.ndim else np.zeros((0, int(bool(array))), np.int64)
