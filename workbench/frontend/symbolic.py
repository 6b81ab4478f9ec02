"""Comparisons of named dimensions, decided from the fact that each is at least 1. A run may have an extent of 0: what
would not hold then is noted, and checked for each run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from workbench.errors import ModelError
from workbench.ir import expr as ex
from workbench.ir.expr import Expr, Var
from workbench.ir.layout import Dim

Assumed = dict[tuple[Expr, int], None]
"""Expressions and what they are at least, in the order in which that was taken for granted."""

_noted: ContextVar[Assumed | None] = ContextVar("noted", default=None)


@contextmanager
def noting() -> Iterator[Assumed]:
    """What the comparisons inside took for granted that an extent of 0 would make untrue."""
    noted: Assumed = {}
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)


def assume(a: Expr, least: int) -> None:
    """Note that the model means something for `a >= least` alone."""
    noted = _noted.get()
    if noted is not None:
        noted[a, least] = None


def at_least(a: Dim, least: int) -> bool:
    """Whether `a >= least` for every value of its dimensions from 1 on can be shown."""
    if not isinstance(a, Expr):
        return a >= least
    floor = bottom = 0
    for product, coefficient in a.terms:
        if not product:
            floor += coefficient
            bottom = coefficient
        elif coefficient < 0:
            return False
        elif all(isinstance(atom, Var) for atom in product):
            floor += coefficient
    if bottom < least <= floor:
        assume(a, least)
    return floor >= least


def less(a: Dim, b: Dim) -> bool:
    """Whether `a < b`.

    Raises ModelError when that depends on the dimensions' values."""
    if at_least(ex.as_dim(ex.as_expr(b) - a), 1):
        return True
    if at_least(ex.as_dim(ex.as_expr(a) - b), 0):
        return False
    raise _undecided(a, "<", b)


def equal(a: Dim, b: Dim) -> bool:
    """Whether `a == b`.

    Raises ModelError when that depends on the dimensions' values."""
    difference = ex.as_dim(ex.as_expr(a) - b)
    if not isinstance(difference, Expr):
        return difference == 0
    if at_least(difference, 1) or at_least(ex.as_dim(-difference), 1):
        return False
    raise _undecided(a, "==", b)


def smaller(a: Dim, b: Dim) -> Dim:
    """The lesser of the two.

    Raises ModelError when that depends on the dimensions' values."""
    if at_least(ex.as_dim(ex.as_expr(b) - a), 0):
        return a
    if at_least(ex.as_dim(ex.as_expr(a) - b), 0):
        return b
    raise _undecided(a, "<=", b)


def _undecided(a: Dim, sign: str, b: Dim) -> ModelError:
    return ModelError(f"the model's structure depends on whether {a} {sign} {b}", "export it with that dimension fixed")


def _divide(a: Any, b: Any) -> Any:
    return a // b


less_arrays = np.frompyfunc(less, 2, 1)
equal_arrays = np.frompyfunc(equal, 2, 1)
divide_arrays = np.frompyfunc(_divide, 2, 1)
