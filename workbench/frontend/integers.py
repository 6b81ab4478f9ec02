"""Operators on the bits of integers, which HLIR sees as numbers: bits are told by remainders."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend.builder import Builder
from workbench.frontend.movement import concat
from workbench.frontend.registry import operator
from workbench.frontend.values import NotLoweredError, Value, broadcast, dtype_of, rank_of, shape_of
from workbench.ir import layout as lay


def _powers(dtype: np.dtype) -> np.ndarray:
    """What each bit of the integers counts, lowest first; of signed ones the last is the sign's."""
    if dtype.kind not in "iu":
        raise NotLoweredError(f"bits of {dtype}")
    return np.left_shift(np.ones((), dtype), np.arange(dtype.itemsize * 8, dtype=dtype))


def bits_of(b: Builder, x: Value) -> Value:
    """The bits of integers as bools along a new last axis, lowest first.

    Bit i is set where the remainder by 2^(i+1), which is never negative, reaches 2^i."""
    powers = _powers(dtype_of(x))
    wide = b.unsqueeze(x, [rank_of(x)])
    if dtype_of(x).kind == "u":
        low = ar.less_or_equal(b, powers[:-1], b.elementwise("Mod", wide, powers[1:]))
        return concat(b, low, ar.less_or_equal(b, powers[-1], wide), axis=rank_of(x))
    low = ar.less_or_equal(b, powers[:-2], b.elementwise("Mod", wide, powers[1:-1]))
    sign = b.less(wide, 0)
    second = ar.less_or_equal(b, b.select(sign, b.like(-int(powers[-2]), x), int(powers[-2])), wide)
    return concat(b, low, second, sign, axis=rank_of(x))


def from_bits(b: Builder, bits: Value, dtype: np.dtype) -> Value:
    """The integers whose bits, lowest first, are the last axis of `bits`."""
    return b.reduce("SumReduce", b.select(bits, _powers(dtype), 0), [rank_of(bits) - 1])


def _bitwise(b: Builder, x: Value, y: Value, join: Callable[[Builder, Value, Value], Value]) -> Value:
    shape = broadcast([shape_of(x), shape_of(y)])
    return from_bits(b, join(b, bits_of(b, b.expand(x, shape)), bits_of(b, b.expand(y, shape))), dtype_of(x))


@operator("BitwiseAnd", since=18, fold=np.bitwise_and)
def bitwise_and(b: Builder, x: Value, y: Value) -> Value:
    return _bitwise(b, x, y, ar.logical_and)


@operator("BitwiseOr", since=18, fold=np.bitwise_or)
def bitwise_or(b: Builder, x: Value, y: Value) -> Value:
    return _bitwise(b, x, y, ar.logical_or)


@operator("BitwiseXor", since=18, fold=np.bitwise_xor)
def bitwise_xor(b: Builder, x: Value, y: Value) -> Value:
    return _bitwise(b, x, y, lambda b, p, q: b.select(p, ar.logical_not(b, q), q))


@operator("BitwiseNot", since=18, fold=np.bitwise_not)
def bitwise_not(b: Builder, x: Value) -> Value:
    _powers(dtype_of(x))
    return ar.sub(b, -1, x)


def _taken(b: Builder, table: np.ndarray, place: Value) -> Value:
    """The elements of a vector at each `place`."""
    return b.reshape(b.take(table, b.reshape(place, (lay.numel(shape_of(place)),)), 0), shape_of(place))


@operator("BitShift", since=11)
def bit_shift(b: Builder, x: Value, by: Value, *, direction: str) -> Value:
    """A product with, or a quotient (rounded down) by a power of 2; what is shifted out altogether leaves the sign.

    A negative shift counts as one by the whole width."""
    powers = _powers(dtype_of(x))
    width = powers.size
    if dtype_of(x).kind == "u":
        within = b.less(by, width)
        power = _taken(b, powers, b.select(within, by, 0))
        shifted = b.mul(x, power) if direction == "LEFT" else ar.floor_quotient(b, x, power)
        return b.select(within, shifted, 0)
    within = ar.logical_and(b, b.less(b.like(-1, by), by), b.less(by, width - 1))
    power = _taken(b, powers, b.select(within, by, 0))
    if direction == "LEFT":
        last = b.mul(x, b.select(ar.equal(b, by, b.like(width - 1, by)), powers[-1], b.like(0, x)))
        return b.select(within, b.mul(x, power), last)
    return b.select(within, ar.floor_quotient(b, x, power), b.select(b.less(x, 0), b.like(-1, x), b.like(0, x)))


_FORMATS = (
    (np.dtype(np.int32), np.dtype(np.float32), 23, 127),
    (np.dtype(np.int64), np.dtype(np.float64), 52, 1023),
)
"""Integer and float type of one width, the bits of the mantissa, the bias of the exponent."""


@operator("BitCast", since=26)
def bit_cast(b: Builder, x: Value, *, to: int) -> Value:
    from onnx import helper

    source, target = dtype_of(x), np.dtype(helper.tensor_dtype_to_np_dtype(to))
    if isinstance(x, np.ndarray) and x.dtype != object and source.itemsize == target.itemsize:
        return np.asarray(x.view(target))
    if source == target:
        return x
    if source.itemsize == target.itemsize and source.kind in "iub" and target.kind in "iu":
        return b.cast(x, target)  # which wraps, and so keeps the bits
    for integer, floating, mantissa, bias in _FORMATS:
        if (source, target) == (integer, floating):
            return _float_of_bits(b, x, floating, mantissa, bias)
        if (source, target) == (floating, integer):
            return _bits_of_float(b, x, integer, mantissa, bias)
    raise NotLoweredError(f"the bits of {source} as {target}")


def _float_of_bits(b: Builder, x: Value, floating: np.dtype, mantissa: int, bias: int) -> Value:
    """The sign times mantissa times a power of 2 out of a table, which is exact."""
    integer = dtype_of(x)
    sign = b.less(x, 0)
    rest = b.select(sign, b.add(x, np.iinfo(integer).min), x)
    part = b.elementwise("Mod", rest, np.asarray(1 << mantissa, integer))
    exponent = ar.floor_quotient(b, rest, np.asarray(1 << mantissa, integer))
    scale = np.ldexp(np.ones((), np.longdouble), np.maximum(np.arange(2 * bias + 2), 1) - bias - mantissa)
    whole = b.select(ar.equal(b, exponent, b.like(0, exponent)), part, b.add(part, 1 << mantissa))
    at = b.reshape(exponent, (lay.numel(shape_of(x)),))
    size = b.mul(b.cast(whole, floating), b.reshape(b.take(scale.astype(floating), at, 0), shape_of(x)))
    special = b.select(ar.equal(b, part, b.like(0, part)), b.like(np.inf, size), np.nan)
    size = b.select(ar.equal(b, exponent, b.like(2 * bias + 1, exponent)), special, size)
    return b.select(sign, ar.neg(b, size), size)


def _bits_of_float(b: Builder, x: Value, integer: np.dtype, mantissa: int, bias: int) -> Value:
    """The exponent is how many powers of 2 the magnitude reaches; scaled by it, the mantissa is an integer."""
    size, floating = ar.absolute(b, x), dtype_of(x)
    powers = np.ldexp(np.ones((), floating), np.arange(1 - bias, bias + 1))
    reached = ar.less_or_equal(b, powers, b.unsqueeze(size, [rank_of(x)]))
    exponent = b.reduce("SumReduce", b.cast(reached, integer), [rank_of(x)])
    at = b.reshape(exponent, (lay.numel(shape_of(x)),))
    up = bias + mantissa - np.maximum(np.arange(2 * bias + 1), 1)
    whole = size
    for half in (up // 2, up - up // 2):  # the whole power may be more than a float can hold
        whole = b.mul(whole, b.reshape(b.take(np.ldexp(np.ones((), floating), half), at, 0), shape_of(x)))
    before = b.select(b.less(b.like(0, exponent), exponent), b.add(exponent, -1), 0)
    bits = b.add(b.mul(before, 1 << mantissa), b.cast(whole, integer))
    top = (2 * bias + 1) << mantissa
    special = b.select(ar.is_number(b, x), b.like(top, bits), top + (1 << mantissa - 1))
    bits = b.select(b.less(size, np.inf), bits, special)
    negative = b.less(b.select(ar.equal(b, x, b.like(0.0, x)), ar.recip(b, x), x), 0)
    return b.select(negative, b.add(bits, np.iinfo(integer).min), bits)
