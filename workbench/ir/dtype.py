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

    def __str__(self) -> str:
        return self.name


F64 = DType("f64", "F64", np.dtype(np.float64), True)
F32 = DType("f32", "F32", np.dtype(np.float32), True)
F16 = DType("f16", "F16", np.dtype(np.float16), True)
BF16 = DType("bf16", "BF16", np.dtype(ml_dtypes.bfloat16), True)
I64 = DType("i64", "I64", np.dtype(np.int64), False)
I32 = DType("i32", "I32", np.dtype(np.int32), False)
BOOL = DType("bool", "Bool", np.dtype(np.bool_), False)

DTYPES = (F64, F32, F16, BF16, I64, I32, BOOL)
BY_NAME = {d.name: d for d in DTYPES}
BY_TERM = {d.term: d for d in DTYPES}
_BY_NUMPY = {d.numpy: d for d in DTYPES}


def from_numpy(dtype: np.dtype | type) -> DType | None:
    """The DType of a NumPy dtype, or None when the workbench has no such type."""
    return _BY_NUMPY.get(np.dtype(dtype))
