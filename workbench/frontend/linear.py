"""Linear algebra beyond products."""

from __future__ import annotations

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend.builder import Builder
from workbench.frontend.reduction import arg_max, total
from workbench.frontend.registry import operator
from workbench.frontend.values import NotLoweredError, Value, fixed, rank_of, shape_of
from workbench.ir.expr import Z

_MOST_ROWS = 64


@operator("Det", since=11)
def determinant(b: Builder, x: Value) -> Value:
    """The product of the pivots of Gaussian elimination, of which each is its column's largest element."""
    rows, columns = (fixed(d, "the size of a matrix") for d in shape_of(x)[-2:])
    if rows != columns:
        raise ValueError(f"the determinant of {rows} rows and {columns} columns")
    if rows > _MOST_ROWS:
        raise NotLoweredError(f"the determinant of more than {_MOST_ROWS} rows")
    result: Value = b.expand(b.like(1, x), shape_of(x)[:-2])
    for size in range(rows, 0, -1):
        pivot, x = _eliminated(b, x, size)
        result = b.mul(result, pivot)
    return result


def _eliminated(b: Builder, x: Value, size: int) -> tuple[Value, Value]:
    """The pivot of the first column, negative for a swap of rows, and what is left of the rows and columns below."""
    axis = rank_of(x) - 2
    column = b.reshape(b.slice(x, axis + 1, 0, 1, 1), shape_of(x)[:-1])
    place = arg_max(b, ar.absolute(b, column), axis=-1)
    hit = b.unsqueeze(ar.equal(b, b.iota(Z, (size,), np.int64), place), [axis + 1])
    chosen = b.unsqueeze(total(b, b.select(hit, x, 0), [axis]), [axis])
    swapped = b.slice(b.select(hit, b.slice(x, axis, 0, 1, 1), x), axis, 1, 1, size - 1)
    pivot = b.slice(chosen, axis + 1, 0, 1, 1)
    none = ar.equal(b, pivot, b.like(0, pivot))
    factor = ar.div(b, b.slice(swapped, axis + 1, 0, 1, 1), b.select(none, 1, pivot))
    rest = b.slice(chosen, axis + 1, 1, 1, size - 1)
    left = ar.sub(b, b.slice(swapped, axis + 1, 1, 1, size - 1), b.mul(factor, rest))
    shape = shape_of(x)[:-2]
    signed = b.reshape(pivot, shape)
    return b.select(b.less(b.reshape(place, shape), 1), signed, ar.neg(b, signed)), left
