"""Whether a result is numerically right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.ir import dtype as dt
from workbench.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|got - expected| may be `atol_scale * max|expected| + rtol * |expected|`."""

    rtol: float
    atol_scale: float


DEFAULT_TOLERANCE = {
    dt.F32: Tolerance(1e-4, 1e-4),
    dt.F64: Tolerance(1e-9, 1e-9),
    dt.F16: Tolerance(4e-3, 4e-3),
    dt.BF16: Tolerance(3e-2, 3e-2),
    dt.I64: Tolerance(0.0, 0.0),
    dt.I32: Tolerance(0.0, 0.0),
    dt.BOOL: Tolerance(0.0, 0.0),
}


def default_tolerance(dtype: DType) -> Tolerance:
    """The tolerance for results of `dtype`; integers and booleans must be exact."""
    return DEFAULT_TOLERANCE[dtype]


def compare(got: np.ndarray, expected: np.ndarray, rtol: float, atol_scale: float) -> tuple[bool, float, float]:
    """(whether `got` is right, max |got - expected|, that over max |expected|) of two arrays of one size.

    Equal infinities and NaN where NaN is expected pass; any other NaN or infinity does not, and makes the error
    infinite. The scale is taken over finite expected values."""
    if got.size != expected.size:
        return False, float("inf"), float("inf")
    if got.size == 0:
        return True, 0.0, 0.0
    flat, want = got.reshape(-1), expected.reshape(-1)
    if not (_is_float(flat) or _is_float(want)):
        return _compare_integers(flat, want, rtol, atol_scale)
    a, b = flat.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    same = (np.isnan(a) & np.isnan(b)) | (~finite & (a == b))
    if not bool(np.all(same | (finite & np.isfinite(a)))):
        return False, float("inf"), float("inf")
    if not finite.any():
        return True, 0.0, 0.0
    return _within(np.abs(a[finite] - b[finite]), np.abs(b[finite]), rtol, atol_scale)


def _is_float(array: np.ndarray) -> bool:
    dtype = dt.from_numpy(array.dtype)  # NumPy's own kind of bf16 is no float
    return array.dtype.kind == "f" or (dtype is not None and dtype.is_float)


def _compare_integers(a: np.ndarray, b: np.ndarray, rtol: float, atol_scale: float) -> tuple[bool, float, float]:
    if np.array_equal(a, b):
        return True, 0.0, 0.0
    error = np.abs(a.astype(np.float64) - b.astype(np.float64))
    ok, worst, relative = _within(error, np.abs(b.astype(np.float64)), rtol, atol_scale)
    return ok and rtol + atol_scale > 0, max(worst, 1.0), relative


def _within(error: np.ndarray, size: np.ndarray, rtol: float, atol_scale: float) -> tuple[bool, float, float]:
    scale, worst = float(size.max()), float(error.max())
    ok = bool(np.all(error <= atol_scale * scale + rtol * size))
    return ok, worst, worst / scale if scale > 0 else (0.0 if worst == 0 else float("inf"))
