"""Comparison and logical operators, all from LessThan and Select."""

from __future__ import annotations

import math

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend.builder import Builder
from workbench.frontend.registry import operator
from workbench.frontend.values import Value


@operator("Less", fold=np.less)
def less(b: Builder, x: Value, y: Value) -> Value:
    return b.less(x, y)


@operator("Greater", fold=np.greater)
def greater(b: Builder, x: Value, y: Value) -> Value:
    return b.less(y, x)


@operator("LessOrEqual", since=12, fold=np.less_equal)
def less_or_equal(b: Builder, x: Value, y: Value) -> Value:
    return ar.less_or_equal(b, x, y)


@operator("GreaterOrEqual", since=12, fold=np.greater_equal)
def greater_or_equal(b: Builder, x: Value, y: Value) -> Value:
    return ar.less_or_equal(b, y, x)


@operator("Equal", fold=np.equal)
def equal(b: Builder, x: Value, y: Value) -> Value:
    return ar.equal(b, x, y)


@operator("Not", fold=np.logical_not)
def logical_not(b: Builder, p: Value) -> Value:
    return ar.logical_not(b, p)


@operator("And", fold=np.logical_and)
def logical_and(b: Builder, p: Value, q: Value) -> Value:
    return ar.logical_and(b, p, q)


@operator("Or", fold=np.logical_or)
def logical_or(b: Builder, p: Value, q: Value) -> Value:
    return ar.logical_or(b, p, q)


@operator("Xor", fold=np.logical_xor)
def logical_xor(b: Builder, p: Value, q: Value) -> Value:
    return b.select(p, ar.logical_not(b, q), q)


@operator("IsNaN", since=9, fold=np.isnan)
def is_nan(b: Builder, x: Value) -> Value:
    return ar.logical_not(b, ar.is_number(b, x))


@operator("IsInf", since=10)
def is_inf(b: Builder, x: Value, *, detect_negative: int = 1, detect_positive: int = 1) -> Value:
    found: Value = b.expand(np.asarray(False), x.shape)
    for wanted, limit in ((detect_positive, math.inf), (detect_negative, -math.inf)):
        if wanted:
            found = ar.logical_or(b, ar.equal(b, x, b.like(limit, x)), found)
    return found


@operator("Where", since=9)
def where(b: Builder, condition: Value, yes: Value, no: Value) -> Value:
    return b.select(condition, yes, no)
