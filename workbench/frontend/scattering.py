"""Operators that write at computed positions; where several writes meet, they are combined by a reduction."""

from __future__ import annotations

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend.builder import Builder
from workbench.frontend.indexing import flat_index, from_front, scalar, scattered
from workbench.frontend.movement import pad_axes
from workbench.frontend.reduction import greatest, least, product, total
from workbench.frontend.registry import operator
from workbench.frontend.values import NotLoweredError, Value, dtype_of, is_float, normalize_axis, rank_of, shape_of
from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir.expr import ONE, Expr, Z

_MOST_COMPARED = 1 << 26
"""Elements of the table of writes by positions up to which writes are combined through it."""


@operator("ScatterND", since=11)
def scatter_nd(b: Builder, x: Value, index: Value, update: Value, *, reduction: str = "none") -> Value:
    depth = shape_of(index)[-1]
    if isinstance(depth, Expr):
        raise NotLoweredError("an index tuple whose length is a dimension")
    rows, rest = flat_index(b, index, shape_of(x), 0, depth)
    width = lay.numel(rest)
    if reduction != "none":
        places, writes = lay.numel(shape_of(x)[:depth]), lay.numel(shape_of(rows))
        data = b.reshape(x, (places, width, 1))
        changes = b.transpose(b.reshape(update, (writes, width)), [1, 0])
        hit = ar.equal(b, b.reshape(rows, (1, 1, writes)), b.iota(Z, (places, 1, 1), np.int64))
        return b.reshape(_combined(b, data, hit, b.unsqueeze(changes, [0]), reduction), shape_of(x))
    within = b.iota(Z, (*(1 for _ in shape_of(rows)), *rest), np.int64)
    starts = b.reshape(b.mul(rows, scalar(b, ex.as_expr(width))), (*shape_of(rows), *(1 for _ in rest)))
    return scattered(b, x, b.add(starts, within), update)


def _combined(b: Builder, x: Value, hit: Value, update: Value, reduction: str) -> Value:
    """`x` [.., 1] combined with those of `update` [.., writes] that `hit` [.., writes]; the last axis vanishes."""
    size = lay.numel([*shape_of(x)[:-1], shape_of(update)[-1]])
    if isinstance(size, Expr) or size > _MOST_COMPARED:
        raise NotLoweredError(f"reduction='{reduction}' of too many writes")
    last = [rank_of(x) - 1]
    before = b.squeeze(x, last)

    def chosen(otherwise: float) -> Value:
        return b.select(hit, update, b.like(otherwise, x))

    def bound(sign: int) -> float:
        return sign * np.inf if is_float(x) else np.iinfo(dtype_of(x)).max if sign > 0 else np.iinfo(dtype_of(x)).min

    match reduction:
        case "add":
            return b.add(before, total(b, chosen(0), last))
        case "mul":
            return b.mul(before, product(b, chosen(1), last))
        case "max":
            return ar.maximum(b, before, greatest(b, chosen(bound(-1)), last))
        case "min":
            return ar.minimum(b, before, least(b, chosen(bound(1)), last))
    raise NotLoweredError(f"reduction='{reduction}'")


@operator("ScatterElements", "Scatter", since=9)
def scatter_elements(
    b: Builder, x: Value, index: Value, update: Value, *, axis: int = 0, reduction: str = "none"
) -> Value:
    axis = normalize_axis(axis, rank_of(x))
    at = b.cast(from_front(b, index, shape_of(x)[axis]), np.int64)
    if reduction != "none":
        return _combined_elements(b, x, at, update, axis, reduction)
    shape = shape_of(index)
    flat: Value = np.zeros((), np.int64)
    step = ONE
    for a in reversed(range(rank_of(x))):
        place = at if a == axis else b.iota(Z, tuple(d if a == i else 1 for i, d in enumerate(shape)), np.int64)
        flat = b.add(flat, b.mul(place, scalar(b, step)))
        step = step * shape_of(x)[a]
    return scattered(b, x, flat, update)


def _combined_elements(b: Builder, x: Value, at: Value, update: Value, axis: int, reduction: str) -> Value:
    """Writes meet along `axis` alone; along the others those that are not there hit nothing."""
    extents = shape_of(x)
    missing = [ex.as_dim(ex.as_expr(d) - m) for d, m in zip(extents, shape_of(at), strict=True)]
    missing[axis] = 0
    if any(isinstance(m, Expr) for m in missing):
        raise NotLoweredError(f"reduction='{reduction}' of writes along a dimension")
    after = [int(str(m)) for m in missing]
    nowhere = [0] * rank_of(x)
    at = pad_axes(b, at, nowhere, after, "constant", b.like(-1, at))
    update = pad_axes(b, update, nowhere, after)
    order = [a for a in range(rank_of(x)) if a != axis]
    rows, writes, changes = (b.transpose(v, [*order, axis]) for v in (x, at, update))
    last = rank_of(x) - 1
    hit = ar.equal(b, b.unsqueeze(writes, [last]), b.iota(Z, (extents[axis], 1), np.int64))
    result = _combined(b, b.unsqueeze(rows, [last + 1]), hit, b.unsqueeze(changes, [last]), reduction)
    return b.transpose(result, [int(a) for a in np.argsort([*order, axis])])


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
