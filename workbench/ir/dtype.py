"""Element types: one row per dtype, with its NumPy type and the name egglog rules know it by."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type. `name` is the short form users see (`f32`), `term` its egglog constructor (`F32`).

    There is one object per type, so equality is identity."""

    name: str
    term: str
    numpy: np.dtype
    is_float: bool

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.numpy.itemsize

    @property
    def is_half(self) -> bool:
        """Whether it is a float of two bytes, which is stored so and computed with in f32."""
        return self.is_float and self.itemsize == 2

    @property
    def is_signed(self) -> bool:
        """Whether it holds negative numbers."""
        return self.is_float or self.numpy.kind == "i"

    def __str__(self) -> str:
        return self.name


F64 = DType("f64", "F64", np.dtype(np.float64), True)
F32 = DType("f32", "F32", np.dtype(np.float32), True)
F16 = DType("f16", "F16", np.dtype(np.float16), True)
BF16 = DType("bf16", "BF16", np.dtype(ml_dtypes.bfloat16), True)
I64 = DType("i64", "I64", np.dtype(np.int64), False)
I32 = DType("i32", "I32", np.dtype(np.int32), False)
I16 = DType("i16", "I16", np.dtype(np.int16), False)
I8 = DType("i8", "I8", np.dtype(np.int8), False)
U64 = DType("u64", "U64", np.dtype(np.uint64), False)
U32 = DType("u32", "U32", np.dtype(np.uint32), False)
U16 = DType("u16", "U16", np.dtype(np.uint16), False)
U8 = DType("u8", "U8", np.dtype(np.uint8), False)
BOOL = DType("bool", "Bool", np.dtype(np.bool_), False)

DTYPES = (F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, BOOL)
BY_NAME = {d.name: d for d in DTYPES}
BY_TERM = {d.term: d for d in DTYPES}
_BY_NUMPY = {d.numpy: d for d in DTYPES}


def from_numpy(dtype: np.dtype | type) -> DType | None:
    """The DType of a NumPy dtype, or None when the workbench has no such type."""
    return _BY_NUMPY.get(np.dtype(dtype))


def is_float(dtype: np.dtype | type) -> bool:
    """Whether a NumPy dtype is one of the floats here. NumPy's own kinds do not tell: bf16 is of none of them."""
    found = from_numpy(dtype)
    return found is not None and found.is_float


def unit_roundoff(dtype: DType) -> float:
    """The largest relative error of rounding a number to the float `dtype`: half the distance from 1 to the next."""
    one = np.ones((), dtype.numpy)
    return (float(np.nextafter(one, one + one)) - 1) / 2


def least(dtype: DType) -> float | int | bool:
    """What a maximum over no elements is: -inf, False, or the least integer."""
    if dtype.is_float:
        return -np.inf
    return False if dtype is BOOL else int(np.iinfo(dtype.numpy).min)


def convert(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`array` as `dtype`, as Cast means it: floats round to nearest even among floats, and on the way to integers
    truncate toward zero and saturate (NaN is 0; ONNX leaves that open, and processors differ); integers wrap; anything
    but 0 is true."""
    target = from_numpy(dtype)
    if target is None or target.is_float or target is BOOL or not is_float(array.dtype):
        with np.errstate(all="ignore"):
            return array.astype(dtype, copy=False)
    wide = np.trunc(np.where(np.isnan(array), 0, array).astype(np.float64))
    limits = np.iinfo(dtype)
    low, high = wide <= float(limits.min), wide >= float(limits.max)
    inside = np.where(low | high, 0, wide).astype(dtype)
    return np.where(low, limits.min, np.where(high, limits.max, inside)).astype(dtype, copy=False)
