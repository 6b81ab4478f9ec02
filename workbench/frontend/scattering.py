"""Operators that write at computed positions; where several writes meet, they are combined by a reduction."""

from __future__ import annotations

import numpy as np

from workbench.frontend.builder import Builder
from workbench.frontend.indexing import flat_index, from_front, scalar, scattered
from workbench.frontend.registry import operator
from workbench.frontend.values import NotLoweredError, Value, normalize_axis, rank_of, shape_of
from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir.expr import ONE, Expr, Z


@operator("ScatterND", since=11)
def scatter_nd(b: Builder, x: Value, index: Value, update: Value, *, reduction: str = "none") -> Value:
    depth = shape_of(index)[-1]
    if isinstance(depth, Expr):
        raise NotLoweredError("an index tuple whose length is a dimension")
    rows, rest = flat_index(b, index, shape_of(x), 0, depth)
    within = b.iota(Z, (*(1 for _ in shape_of(rows)), *rest), np.int64)
    starts = b.reshape(b.mul(rows, scalar(b, ex.as_expr(lay.numel(rest)))), (*shape_of(rows), *(1 for _ in rest)))
    return scattered(b, x, b.add(starts, within), update, reduction)


@operator("ScatterElements", "Scatter", since=9)
def scatter_elements(
    b: Builder, x: Value, index: Value, update: Value, *, axis: int = 0, reduction: str = "none"
) -> Value:
    axis = normalize_axis(axis, rank_of(x))
    at = b.cast(from_front(b, index, shape_of(x)[axis]), np.int64)
    shape = shape_of(index)
    flat: Value = np.zeros((), np.int64)
    step = ONE
    for a in reversed(range(rank_of(x))):
        place = at if a == axis else b.iota(Z, tuple(d if a == i else 1 for i, d in enumerate(shape)), np.int64)
        flat = b.add(flat, b.mul(place, scalar(b, step)))
        step = step * shape_of(x)[a]
    return scattered(b, x, flat, update, reduction)


@operator("TensorScatter", since=24)
def tensor_scatter(
    b: Builder, cache: Value, update: Value, start: Value | None = None, *, axis: int = -2, mode: str = "linear"
) -> Value:
    axis = normalize_axis(axis, rank_of(cache))
    shape = shape_of(update)
    step = b.iota(Z, tuple(d if a == axis else 1 for a, d in enumerate(shape)), np.int64)
    first = np.zeros(1, np.int64) if start is None else start
    at = b.add(step, b.reshape(first, (shape_of(first)[0], *(1 for _ in shape[1:]))))
    if mode == "circular":
        at = b.elementwise("Mod", at, scalar(b, ex.as_expr(shape_of(cache)[axis])))
    return scatter_elements(b, cache, b.expand(at, shape), update, axis=axis)
