"""Functions composed of primitives: what HLIR has no node for, right for NaN and infinities too."""

from __future__ import annotations

import math

import numpy as np

from workbench.frontend import symbolic
from workbench.frontend.builder import Arg, Builder, fold
from workbench.frontend.values import (
    Value,
    broadcast,
    dtype_of,
    is_float,
    is_symbolic,
    plain,
    shape_of,
)

LOG2_E = math.log2(math.e)


def neg(b: Builder, x: Value) -> Value:
    """-x."""
    return b.mul(x, -1)


def sub(b: Builder, x: Arg, y: Value) -> Value:
    """x - y."""
    return b.add(neg(b, y), x) if isinstance(x, int | float) else b.add(x, neg(b, y))


def recip(b: Builder, x: Value) -> Value:
    """1 / x, of floats."""
    return b.unary("Recip", x)


def div(b: Builder, x: Arg, y: Arg) -> Value:
    """x / y, of integers rounded toward zero."""
    if isinstance(y, int | float):
        assert not isinstance(x, int | float)
        return b.mul(x, 1.0 / y)
    x = b.like(x, y)
    if is_float(x):
        return recip(b, y) if _is_one(x) else b.mul(x, recip(b, y))
    arrays = b.all_known([x, y])
    if arrays is None:
        return truncated_quotient(b, x, y)
    if any(a.dtype == object for a in arrays):
        return plain(symbolic.divide_arrays(*arrays))
    if (arrays[1] == 0).any():
        raise ValueError("integer division by zero")
    return fold(lambda p, q: _truncated(p, q), *arrays)


def exact_quotient(b: Builder, x: Value, y: Value) -> Value:
    """x / y of floats of at most 24 bits, rounded once, as a division is: `div` rounds twice, and what is rounded to an
    integer next may depend on it.

    A quotient of two such floats is at least 2^-49 of itself away from the middle between two others; the product in
    f64 is off by at most 2^-52."""
    inverse = recip(b, b.cast(y, np.float64))
    return b.cast(b.mul(b.cast(x, np.float64), inverse), dtype_of(x))


def _is_one(x: Value) -> bool:
    """Whether `x` is the scalar 1, in which case a quotient needs no product."""
    return isinstance(x, np.ndarray) and x.ndim == 0 and x.dtype != object and bool(x == 1)


def _truncated(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    quotient = np.abs(p) // np.abs(q)
    return np.where((p < 0) != (q < 0), -quotient, quotient).astype(p.dtype)


def floor_quotient(b: Builder, x: Value, y: Value) -> Value:
    """x / y of integers, rounded down."""
    return _exact_quotient(b, sub(b, x, b.elementwise("Mod", x, y)), y)


def truncated_quotient(b: Builder, x: Value, y: Value) -> Value:
    """x / y of integers, rounded toward zero."""
    rest = b.elementwise("Mod", x, y)
    zero = b.like(0, rest)
    apart = logical_not(b, equal(b, b.less(rest, 0), b.less(x, 0)))
    turned = logical_and(b, apart, logical_not(b, equal(b, rest, zero)))
    return _exact_quotient(b, sub(b, x, b.select(turned, sub(b, rest, y), rest)), y)


def _exact_quotient(b: Builder, x: Value, y: Value) -> Value:
    """x / y of integers that leave no remainder: rounded in f64, and what that misses of a large one added."""
    inverse = recip(b, b.cast(y, np.float64))

    def rounded(part: Value) -> Value:
        exact = b.unary("Floor", b.add(b.mul(b.cast(part, np.float64), inverse), 0.5))
        narrow = dtype_of(part).itemsize < 4  # where -128 / -1 wraps; the cast of a float would saturate
        return b.cast(b.cast(exact, np.int32) if narrow else exact, dtype_of(part))

    quotient = rounded(x)
    if dtype_of(x).itemsize < 8:
        return quotient
    missed = b.cast(sub(b, x, b.mul(quotient, y)), np.int64)  # may be negative where x is unsigned
    return b.add(quotient, b.cast(rounded(missed), dtype_of(x)))


def exp(b: Builder, x: Value) -> Value:
    """e to the x."""
    return b.unary("Exp2", b.mul(x, LOG2_E))


def log(b: Builder, x: Value) -> Value:
    """The natural logarithm."""
    return b.mul(b.unary("Log2", x), math.log(2))


def log1p(b: Builder, x: Value) -> Value:
    """log(1 + x) to the digits of a small x (W. Kahan's way: what 1 + x loses, the quotient gives back)."""
    near = b.add(x, 1.0)
    lost = b.add(near, -1.0)
    same = equal(b, lost, b.like(0.0, lost))
    scaled = b.mul(log(b, near), b.mul(x, recip(b, b.select(same, 1.0, lost))))
    return b.select(same, x, b.select(b.less(near, math.inf), scaled, near))


def cos(b: Builder, x: Value) -> Value:
    """cos x = 1 - 2 sin²(x/2); adding pi/2 instead would round away digits of a large x."""
    half = b.unary("Sin", b.mul(x, 0.5))
    return b.add(b.mul(b.mul(half, half), -2.0), 1.0)


def sigmoid(b: Builder, x: Value) -> Value:
    """1 / (1 + exp(-x))."""
    return recip(b, b.add(b.unary("Exp2", b.mul(x, -LOG2_E)), 1.0))


def tanh(b: Builder, x: Value) -> Value:
    """1 - 2/(exp(2x)+1), and near 0, where that cancels, the first terms of the series."""
    square = b.mul(x, x)
    series = b.add(b.mul(square, -17 / 315), 2 / 15)
    series = b.add(b.mul(series, square), -1 / 3)
    series = b.add(b.mul(series, square), 1.0)
    far = b.add(b.mul(recip(b, b.add(b.unary("Exp2", b.mul(x, 2 * LOG2_E)), 1.0)), -2.0), 1.0)
    return b.select(b.less(square, 1 / 16), b.mul(series, x), far)


def logical_not(b: Builder, p: Value) -> Value:
    """not p."""
    return b.select(p, np.asarray(False), True)


def logical_and(b: Builder, p: Value, q: Value) -> Value:
    """p and q."""
    return b.select(p, q, False)


def logical_or(b: Builder, p: Value, q: Value) -> Value:
    """p or q."""
    return b.select(p, True, q)


def may_be_nan(b: Builder, x: Value) -> bool:
    """Whether `x` cannot be shown to hold numbers only."""
    if not is_float(x):
        return False
    array = b.known(x)
    return array is None or bool(np.isnan(array).any())


def is_number(b: Builder, x: Value) -> Value:
    """Whether x is not NaN: a number is below inf or above -inf."""
    return logical_or(b, b.less(x, math.inf), b.less(b.like(-math.inf, x), x))


def equal(b: Builder, x: Value, y: Value) -> Value:
    """x == y (False where either is NaN)."""
    if is_symbolic(x) or is_symbolic(y):
        arrays = b.all_known([x, y])
        if arrays is not None:
            return np.asarray(symbolic.equal_arrays(*arrays)).astype(bool)
    if dtype_of(x) == np.bool_:
        return b.select(x, y, logical_not(b, y))
    apart = logical_or(b, b.less(x, y), b.less(y, x))
    return _and_numbers(b, logical_not(b, apart), x, y)


def less_or_equal(b: Builder, x: Value, y: Value) -> Value:
    """x <= y (False where either is NaN)."""
    return _and_numbers(b, logical_not(b, b.less(y, x)), x, y)


def _and_numbers(b: Builder, p: Value, *operands: Value) -> Value:
    for x in operands:
        if may_be_nan(b, x):
            p = logical_and(b, p, is_number(b, x))
    return p


def maximum(b: Builder, x: Value, y: Value) -> Value:
    """The greater of x and y; NaN where either is."""
    if may_be_nan(b, x) and not may_be_nan(b, y):
        return b.select(b.less(x, y), y, x)  # a NaN compares false, so x must be what is kept then
    greater = b.select(b.less(y, x), x, y)
    return b.select(is_number(b, x), greater, x) if may_be_nan(b, x) else greater


def minimum(b: Builder, x: Value, y: Value) -> Value:
    """The lesser of x and y; NaN where either is."""
    if may_be_nan(b, x) and not may_be_nan(b, y):
        return b.select(b.less(y, x), y, x)
    lesser = b.select(b.less(x, y), x, y)
    return b.select(is_number(b, x), lesser, x) if may_be_nan(b, x) else lesser


def absolute(b: Builder, x: Value) -> Value:
    """The magnitude of x."""
    if dtype_of(x).kind == "u":
        return x
    return b.select(b.less(x, 0), neg(b, x), x)


def power(b: Builder, x: Value, exponent: Value) -> Value:
    """x to the power of `exponent`; a known uniform exponent becomes products and roots where it can."""
    array = b.known(exponent)
    if array is not None and array.size and array.dtype != object and (array == array.reshape(-1)[0]).all():
        fixed = _fixed_power(b, x, float(array.reshape(-1)[0]))
        if fixed is not None:
            return b.expand(fixed, broadcast([shape_of(fixed), array.shape]))
    if not is_float(x):
        raised = power(b, b.cast(x, np.float64), b.cast(exponent, np.float64))
        return b.cast(b.unary("Floor", b.add(raised, 0.5)), dtype_of(x))
    y = b.cast(exponent, dtype_of(x))
    if array is not None and not np.any(array != np.floor(array)):
        magnitude = _power_of_magnitude(b, absolute(b, x), y)
        return b.select(logical_and(b, b.less(x, 0), np.asarray(array % 2 == 1)), neg(b, magnitude), magnitude)
    base = b.known(x)
    if base is not None and (base > 0).all():
        return b.unary("Exp2", b.mul(y, fold(np.log2, base)))
    if array is not None:
        return _power_of_magnitude(b, x, y)
    return _general_power(b, x, y)


def _fixed_power(b: Builder, x: Value, exponent: float) -> Value | None:
    if exponent == 0.5 and is_float(x):
        return b.unary("Sqrt", x)
    if exponent == -0.5 and is_float(x):
        return recip(b, b.unary("Sqrt", x))
    if exponent != int(exponent) or abs(exponent) > 16 or (exponent < 0 and not is_float(x)):
        return None
    count = abs(int(exponent))
    if count == 0:
        return b.select(np.asarray(True), b.like(1, x), x)
    result: Value | None = None
    square = x
    while count:
        if count & 1:
            result = square if result is None else b.mul(result, square)
        count >>= 1
        if count:
            square = b.mul(square, square)
    assert result is not None
    return recip(b, result) if exponent < 0 else result


def _power_of_magnitude(b: Builder, x: Value, y: Value) -> Value:
    """x^y for x >= 0 (NaN for x < 0): exp2(y*log2(x)), but 1 where y is 0 or x is 1."""
    raised = b.unary("Exp2", b.mul(y, b.unary("Log2", x)))
    return b.select(equal(b, y, b.like(0.0, y)), 1.0, raised)


def _general_power(b: Builder, x: Value, y: Value) -> Value:
    magnitude = _power_of_magnitude(b, absolute(b, x), y)
    half = b.mul(y, 0.5)
    whole = equal(b, b.unary("Floor", y), y)
    odd = logical_and(b, whole, logical_not(b, equal(b, b.unary("Floor", half), half)))
    signed = b.select(odd, neg(b, magnitude), b.select(whole, magnitude, math.nan))
    return b.select(b.less(x, 0), signed, magnitude)
