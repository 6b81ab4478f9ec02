"""Matrix products: a Mul over [batch.., m, n, k] with broadcast layouts, then a sum over k."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench.frontend.builder import FOLD_LIMIT, SMALL, Builder
from workbench.frontend.registry import operator
from workbench.frontend.values import NotLoweredError, UnequalDimsError, Value, View, is_float, rank_of, shape_of
from workbench.ir import layout as lay
from workbench.ir.layout import Dim, Layout


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
    """Axes of one or two operands that share a letter are one; those that the result lacks are summed over."""
    if len(inputs) > 2:
        raise NotLoweredError(f"the equation '{equation}' of {len(inputs)} operands")
    terms, result = _letters(equation, [rank_of(x) for x in inputs])
    operands = [_diagonals(b, x, term) for x, term in zip(inputs, terms, strict=True)]
    extents: dict[str, Dim] = {}
    for x, term in operands:
        for letter, d in zip(term, shape_of(x), strict=True):
            held = extents.setdefault(letter, d)
            if held != d and held != 1 and (d != 1 or letter < _ELLIPSIS):
                raise UnequalDimsError(f"'{letter}' is both {held} and {d}", [(held, d)])
            extents[letter] = d if held == 1 else held
    if set(result) - extents.keys():
        raise ValueError(f"'{equation}' has letters in its result that no operand has")
    order = [*result, *(c for c in extents if c not in result)]
    placed = [_placed(b, x, term, order) for x, term in operands]
    product = placed[0] if len(placed) == 1 else b.mul(placed[0], placed[1])
    product = b.expand(product, tuple(extents[c] for c in order))
    summed = list(range(len(result), len(order)))
    return b.reduce("SumReduce", product, summed) if summed else product


_ELLIPSIS = chr(0x100)
"""The first of the letters that stand for the axes of an ellipsis, which equations have no use for."""


def _letters(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each operand's axes, and those of the result; axes of an ellipsis, counted from the last, have
    letters of their own. Raises ValueError for an equation that does not fit the operands."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"'{equation}' is of {len(terms)} operands, and there are {len(ranks)}")
    free = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    most = max((n for n, term in zip(free, terms, strict=True) if "..." in term), default=0)
    ellipsis = "".join(chr(ord(_ELLIPSIS) + i) for i in range(most))
    found = []
    for term, n in zip(terms, free, strict=True):
        if n < 0 or (n and "..." not in term):
            raise ValueError(f"'{term}' for a tensor of rank {n + len(term.replace('...', ''))}")
        found.append(term.replace("...", ellipsis[most - n :]))
    letters = "".join(found)
    once = "".join(sorted(c for c in set(letters) if letters.count(c) == 1 and c < _ELLIPSIS))
    result = right.replace("...", ellipsis) if arrow else ellipsis + once
    if not all(c.isalpha() for c in letters + result) or len(set(result)) != len(result):
        raise ValueError(f"'{equation}' is no equation of letters")
    return found, result


def _diagonals(b: Builder, x: Value, term: str) -> tuple[Value, str]:
    """`x` with one axis for each letter: where one is repeated, the elements whose indices there are equal."""
    while len(set(term)) < len(term):
        second = next(i for i, c in enumerate(term) if c in term[:i])
        first = term.index(term[second])
        view = b.lift(x)
        shape, strides = list(view.shape), list(view.layout.strides)
        if shape[first] != shape[second]:
            pair = (shape[first], shape[second])
            raise UnequalDimsError(f"'{term[first]}' is both {pair[0]} and {pair[1]}", [pair])
        strides[first] = strides[first] + strides[second]
        del shape[second], strides[second]
        x = View(view.source, Layout(tuple(shape), tuple(strides), view.layout.offset), view.dtype)
        term = term[:second] + term[second + 1 :]
    return x, term


def _placed(b: Builder, x: Value, term: str, order: list[str]) -> Value:
    """`x` with its axes in `order` and extents of 1 for the letters it lacks."""
    extents = dict(zip(term, shape_of(x), strict=True))
    y = b.transpose(x, [term.index(c) for c in order if c in term])
    return b.reshape(y, [extents.get(c, 1) for c in order])
