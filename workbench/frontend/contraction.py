"""Matrix products: a Mul over [batch.., m, n, k] with broadcast layouts, then a sum over k."""

from __future__ import annotations

import numpy as np

from workbench.frontend.builder import FOLD_LIMIT, SMALL, Builder
from workbench.frontend.registry import operator
from workbench.frontend.values import NotLoweredError, UnequalDimsError, Value, is_float, rank_of, shape_of
from workbench.ir import layout as lay
from workbench.ir.layout import Dim


def contract(b: Builder, left: Value, right: Value) -> Value:
    """The sum over k of `left` [batch.., m, k] times `right` [batch.., n, k]: [batch.., m, n]."""
    if shape_of(left)[-1] != shape_of(right)[-1]:
        message = f"cannot contract {lay.show(shape_of(left))} with {lay.show(shape_of(right))}"
        raise UnequalDimsError(message, [(shape_of(left)[-1], shape_of(right)[-1])])
    rank = max(rank_of(left), rank_of(right)) + 1
    rows = b.unsqueeze(left, [rank_of(left) - 1])
    columns = b.unsqueeze(right, [rank_of(right) - 2])
    return b.reduce("SumReduce", b.mul(rows, columns), [rank - 1])


@operator("MatMul")
def matmul(b: Builder, x: Value, y: Value) -> Value:
    if not rank_of(x) or not rank_of(y):
        raise ValueError("a product with a scalar")
    folded = _known_product(b, x, y)
    if folded is not None:
        return folded
    x, y = b.dense(x), b.dense(y)
    left = b.unsqueeze(x, [0]) if rank_of(x) == 1 else x
    right = b.unsqueeze(y, [0]) if rank_of(y) == 1 else b.swap_last(y)
    product = contract(b, left, right)
    rank = rank_of(product)
    gone = ([rank - 2] if rank_of(x) == 1 else []) + ([rank - 1] if rank_of(y) == 1 else [])
    return b.squeeze(product, gone) if gone else product


def _known_product(b: Builder, x: Value, y: Value) -> Value | None:
    """The product when both operands are at hand and it is small."""
    arrays = b.all_known([x, y])
    if arrays is None or any(a.dtype == object for a in arrays):
        return None
    left, right = arrays
    if left.size > FOLD_LIMIT or right.size > FOLD_LIMIT or left.size * right.shape[-1] > FOLD_LIMIT * SMALL:
        return None
    wide = np.float64 if is_float(left) else np.int64
    return np.asarray(np.matmul(left.astype(wide), right.astype(wide))).astype(left.dtype)


@operator("Gemm", since=7)
def gemm(
    b: Builder,
    x: Value,
    y: Value,
    c: Value | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: int = 0,
    trans_b: int = 0,
) -> Value:
    if rank_of(x) != 2 or rank_of(y) != 2:
        raise ValueError(f"Gemm of {lay.show(shape_of(x))} and {lay.show(shape_of(y))}")
    x, y = b.dense(x), b.dense(y)
    product = contract(b, b.swap_last(x) if trans_a else x, y if trans_b else b.swap_last(y))
    if alpha != 1:
        product = b.mul(product, alpha)
    if c is None or beta == 0:
        return product
    return b.add(product, c if beta == 1 else b.mul(c, beta))


@operator("Einsum", since=12)
def einsum(b: Builder, *inputs: Value, equation: str) -> Value:
    """One or two operands whose letters each name one axis."""
    sides = equation.replace(" ", "").split("->")
    terms = sides[0].split(",")
    if "." in equation or len(terms) != len(inputs) or len(terms) > 2 or any(len(set(t)) != len(t) for t in terms):
        raise NotLoweredError(f"the equation '{equation}'")
    letters = "".join(terms)
    result = sides[1] if len(sides) > 1 else "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    extents: dict[str, Dim] = {}
    for term, x in zip(terms, inputs, strict=True):
        if len(term) != rank_of(x):
            raise ValueError(f"'{term}' for {lay.show(shape_of(x))}")
        for letter, d in zip(term, shape_of(x), strict=True):
            if extents.setdefault(letter, d) != d:
                raise ValueError(f"'{letter}' is both {extents[letter]} and {d}")
    order = [*result, *(c for c in extents if c not in result)]
    placed = [_placed(b, x, term, order, extents) for x, term in zip(inputs, terms, strict=True)]
    product = placed[0] if len(placed) == 1 else b.mul(placed[0], placed[1])
    product = b.expand(product, tuple(extents[c] for c in order))
    summed = list(range(len(result), len(order)))
    return b.reduce("SumReduce", product, summed) if summed else product


def _placed(b: Builder, x: Value, term: str, order: list[str], extents: dict[str, Dim]) -> Value:
    """`x` with its axes in `order` and extents of 1 for the letters it lacks."""
    mine = [c for c in order if c in term]
    y = b.transpose(x, [term.index(c) for c in mine])
    return b.reshape(y, [extents[c] if c in term else 1 for c in order])
