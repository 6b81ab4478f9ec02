"""Comparisons of named dimensions, decided from the fact that each is at least 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.errors import ModelError
from workbench.ir import expr as ex
from workbench.ir.expr import Expr, Var
from workbench.ir.layout import Dim


def at_least(a: Dim, least: int) -> bool:
    """Whether `a >= least` for every value of its dimensions can be shown."""
    if not isinstance(a, Expr):
        return a >= least
    floor = 0
    for product, coefficient in a.terms:
        if not product:
            floor += coefficient
        elif coefficient < 0:
            return False
        elif all(isinstance(atom, Var) for atom in product):
            floor += coefficient
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
