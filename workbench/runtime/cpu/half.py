"""f16 and bf16 between memory and registers: 16 bits there, an f32 here. Rounding is to nearest even.

Processors convert f16 by an instruction (F16C on x86-64, all of AArch64). Where there is none, LLVM would call a
function that need not be there: then, and for bf16 everywhere, the bits are worked out, in vectors as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.ir import dtype as dt
from workbench.ir.dtype import DType

if TYPE_CHECKING:
    from workbench.runtime.cpu.builder import Builder, Value

_QUIET = {dt.F16: 0x7E00, dt.BF16: 0x7FC0}
"""NaN as it is stored."""


def widened(b: Builder, dtype: DType, raw: Value) -> Value:
    """The bits `raw` (i16) as an f32."""
    if dtype is dt.BF16:
        wide = b.convert("zext", raw, "i32")
        return b.convert("bitcast", b.binary("shl", wide, b.like(wide, 16)), "float")
    if b.converts_f16:
        return b.convert("fpext", b.convert("bitcast", raw, "half"), "float")
    return _widened_f16(b, raw)


def narrowed(b: Builder, dtype: DType, value: Value) -> Value:
    """The bits (i16) of the f32 `value` rounded to `dtype`."""
    if dtype is dt.BF16:
        return _narrowed_bf16(b, value)
    if b.converts_f16:
        return b.convert("bitcast", b.convert("fptrunc", value, "half"), "i16")
    return _narrowed_f16(b, value)


def _narrowed_bf16(b: Builder, value: Value) -> Value:
    """The upper half of the f32, one more where the lower half is more than a half, or a half and the upper is odd."""
    bits = b.convert("bitcast", value, "i32")
    odd = b.binary("and", b.binary("lshr", bits, b.like(bits, 16)), b.like(bits, 1))
    up = b.binary("add", b.binary("add", bits, b.like(bits, 0x7FFF)), odd)
    upper = b.binary("lshr", up, b.like(bits, 16))
    known = b.select(b.compare("uno", value, value), b.like(bits, _QUIET[dt.BF16]), upper)
    return b.convert("trunc", known, "i16")


def _widened_f16(b: Builder, raw: Value) -> Value:
    """The 15 bits below the sign, put in their places of an f32, are the number times 2^-112, subnormal or not; only
    infinities and NaN are apart."""
    wide = b.convert("zext", raw, "i32")
    size = b.binary("shl", b.binary("and", wide, b.like(wide, 0x7FFF)), b.like(wide, 13))
    scaled = b.binary("fmul", b.convert("bitcast", size, "float"), b.constant("float", 2.0**112, raw.width))
    special = b.binary("or", size, b.like(size, 0x7F800000))
    is_special = b.compare("uge", size, b.like(size, 0x7C00 << 13))
    magnitude = b.select(is_special, special, b.convert("bitcast", scaled, "i32"))
    sign = b.binary("shl", b.binary("and", wide, b.like(wide, 0x8000)), b.like(wide, 16))
    return b.convert("bitcast", b.binary("or", magnitude, sign), "float")


def _narrowed_f16(b: Builder, value: Value) -> Value:
    """In the normal range as bf16 above, 13 bits being dropped and the exponent moved by 112. A subnormal f16 is a
    multiple of 2^-24, which adding 0.5 rounds an f32 to. 2^16 and more is infinite (what lies below it and rounds to
    it gets there by itself)."""
    bits = b.convert("bitcast", value, "i32")
    sign = b.binary("and", b.binary("lshr", bits, b.like(bits, 16)), b.like(bits, 0x8000))
    size = b.binary("and", bits, b.like(bits, 0x7FFFFFFF))
    odd = b.binary("and", b.binary("lshr", size, b.like(size, 13)), b.like(size, 1))
    moved = b.binary("add", b.binary("add", size, b.like(size, 0xFFF - (112 << 23))), odd)
    normal = b.binary("lshr", moved, b.like(size, 13))
    shifted = b.binary("fadd", b.convert("bitcast", size, "float"), b.constant("float", 0.5, value.width))
    tiny = b.binary("sub", b.convert("bitcast", shifted, "i32"), b.like(size, 126 << 23))
    finite = b.select(b.compare("ult", size, b.like(size, 113 << 23)), tiny, normal)
    infinite = b.select(b.compare("uge", size, b.like(size, 143 << 23)), b.like(size, 0x7C00), finite)
    known = b.select(b.compare("uno", value, value), b.like(size, _QUIET[dt.F16]), infinite)
    return b.convert("trunc", b.binary("or", known, sign), "i16")
