"""Whether a result is numerically right."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from workbench.ir import dtype as dt
from workbench.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|got - expected| may be `atol_scale * max|expected| + rtol * |expected|`; `dtype` is the name of the one that
    explains it. `undecided` may come on top: what hangs on roundings to integers that are too close to call."""

    rtol: float
    atol_scale: float
    dtype: str
    undecided: float = 0.0

    def __str__(self) -> str:
        said = f"{self.atol_scale:.2g} relative, {self.dtype}" if self.atol_scale else f"none, {self.dtype}"
        return f"{said}; {self.undecided:.2g} where a rounding is close" if self.undecided else said


ROUNDINGS = 64
"""Operators after one another that each round to half precision: as many as a result is compared across. Independent
roundings add up like their square root (N. Higham and T. Mary, A new approach to probabilistic rounding error analysis,
2019)."""

_WIDE = {dt.F32: 1e-4, dt.F64: 1e-9}
"""Thousands of unit roundoffs: sums of many terms in another order, and polynomials, fit well within."""


def default_tolerance(dtype: DType) -> Tolerance:
    """The tolerance for results of `dtype`; integers and booleans must be exact."""
    if not dtype.is_float:
        return Tolerance(0.0, 0.0, dtype.name)
    allowed = _WIDE[dtype] if dtype in _WIDE else math.sqrt(ROUNDINGS) * dt.unit_roundoff(dtype)
    return Tolerance(allowed, allowed, dtype.name)


def compare(
    got: np.ndarray, expected: np.ndarray, rtol: float, atol_scale: float, undecided: float = 0.0
) -> tuple[bool, float, float]:
    """(whether `got` is right, max |got - expected|, that over max |expected|) of two arrays of one size; what may
    differ is as in Tolerance.

    Equal infinities and NaN where NaN is expected pass; any other NaN or infinity does not, and makes the error
    infinite. The scale is taken over finite expected values."""
    if got.size != expected.size:
        return False, float("inf"), float("inf")
    if got.size == 0:
        return True, 0.0, 0.0
    flat, want = got.reshape(-1), expected.reshape(-1)
    if not (_is_float(flat) or _is_float(want)):
        return _compare_integers(flat, want, rtol, atol_scale, undecided)
    a, b = flat.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    same = (np.isnan(a) & np.isnan(b)) | (~finite & (a == b))
    if not bool(np.all(same | (finite & np.isfinite(a)))):
        return False, float("inf"), float("inf")
    if not finite.any():
        return True, 0.0, 0.0
    return _within(np.abs(a[finite] - b[finite]), np.abs(b[finite]), rtol, atol_scale, undecided)


def _is_float(array: np.ndarray) -> bool:
    return dt.is_float(array.dtype)


def _compare_integers(
    a: np.ndarray, b: np.ndarray, rtol: float, atol_scale: float, undecided: float
) -> tuple[bool, float, float]:
    if np.array_equal(a, b):
        return True, 0.0, 0.0
    error = np.abs(a.astype(np.float64) - b.astype(np.float64))
    ok, worst, relative = _within(error, np.abs(b.astype(np.float64)), rtol, atol_scale, undecided)
    return ok and rtol + atol_scale + undecided > 0, max(worst, 1.0), relative


def _within(
    error: np.ndarray, size: np.ndarray, rtol: float, atol_scale: float, undecided: float
) -> tuple[bool, float, float]:
    scale, worst = float(size.max()), float(error.max())
    ok = bool(np.all(error <= atol_scale * scale + rtol * size + undecided))
    return ok, worst, worst / scale if scale > 0 else (0.0 if worst == 0 else float("inf"))
