"""Trigonometric and hyperbolic functions and their inverses."""

from __future__ import annotations

import math

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend.builder import Builder
from workbench.frontend.registry import operator
from workbench.frontend.values import Value


@operator("Sin", fold=np.sin)
def sin(b: Builder, x: Value) -> Value:
    return b.unary("Sin", x)


@operator("Cos", fold=np.cos)
def cos(b: Builder, x: Value) -> Value:
    return ar.cos(b, x)


@operator("Tan", fold=np.tan)
def tan(b: Builder, x: Value) -> Value:
    return ar.div(b, b.unary("Sin", x), ar.cos(b, x))


@operator("Sinh", fold=np.sinh)
def sinh(b: Builder, x: Value) -> Value:
    return b.mul(ar.sub(b, ar.exp(b, x), ar.exp(b, ar.neg(b, x))), 0.5)


@operator("Cosh", fold=np.cosh)
def cosh(b: Builder, x: Value) -> Value:
    return b.mul(b.add(ar.exp(b, x), ar.exp(b, ar.neg(b, x))), 0.5)


def arc_tangent(b: Builder, x: Value) -> Value:
    """atan of |x| or of 1/|x|, whichever is at most 1, by the series of the eighth of that angle."""
    size = ar.absolute(b, x)
    large = b.less(b.like(1.0, size), size)
    t = b.select(large, ar.recip(b, size), size)
    for _ in range(3):  # atan t = 2 atan(t / (1 + sqrt(1 + t^2)))
        t = ar.div(b, t, b.add(b.unary("Sqrt", b.add(b.mul(t, t), 1.0)), 1.0))
    square = b.mul(t, t)
    series: Value = b.like(1 / 13, t)
    for odd in (11, 9, 7, 5, 3, 1):
        series = b.add(ar.neg(b, b.mul(series, square)), 1 / odd)
    angle = b.mul(b.mul(series, t), 8.0)
    angle = b.select(large, ar.sub(b, math.pi / 2, angle), angle)
    return b.select(b.less(x, 0), ar.neg(b, angle), angle)


@operator("Atan", fold=np.arctan)
def atan(b: Builder, x: Value) -> Value:
    return arc_tangent(b, x)


@operator("Asin", fold=np.arcsin)
def asin(b: Builder, x: Value) -> Value:
    """2 atan(x / (1 + sqrt(1 - x^2)))."""
    root = b.unary("Sqrt", b.mul(ar.sub(b, 1.0, x), b.add(x, 1.0)))
    return b.mul(arc_tangent(b, ar.div(b, x, b.add(root, 1.0))), 2.0)


@operator("Acos", fold=np.arccos)
def acos(b: Builder, x: Value) -> Value:
    """2 atan(sqrt((1 - x) / (1 + x)))."""
    return b.mul(arc_tangent(b, b.unary("Sqrt", ar.div(b, ar.sub(b, 1.0, x), b.add(x, 1.0)))), 2.0)


@operator("Asinh", fold=np.arcsinh)
def asinh(b: Builder, x: Value) -> Value:
    """log1p(|x| + x^2 / (1 + sqrt(1 + x^2))), and log 2|x| where the square would overflow."""
    size = ar.absolute(b, x)
    large = b.less(b.like(1e9, size), size)
    square = b.mul(size, b.select(large, 0.0, size))
    root = b.unary("Sqrt", b.add(square, 1.0))
    near = ar.log1p(b, b.add(size, ar.div(b, square, b.add(root, 1.0))))
    y = b.select(large, b.add(ar.log(b, size), math.log(2)), near)
    return b.select(b.less(x, 0), ar.neg(b, y), y)


@operator("Acosh", fold=np.arccosh)
def acosh(b: Builder, x: Value) -> Value:
    """log1p(t + sqrt(t) sqrt(t + 2)) of t = x - 1."""
    t = b.add(x, -1.0)
    return ar.log1p(b, b.add(t, b.mul(b.unary("Sqrt", t), b.unary("Sqrt", b.add(t, 2.0)))))


@operator("Atanh", fold=np.arctanh)
def atanh(b: Builder, x: Value) -> Value:
    """log1p(2x / (1 - x)) / 2."""
    return b.mul(ar.log1p(b, ar.div(b, b.mul(x, 2.0), ar.sub(b, 1.0, x))), 0.5)
