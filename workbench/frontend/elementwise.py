"""Arithmetic and activation operators: each element from the elements at the same place."""

from __future__ import annotations

import math

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend.builder import Builder
from workbench.frontend.registry import operator
from workbench.frontend.values import NotLoweredError, Value, dtype_of, is_float, is_symbolic, known_array


@operator("Add")
def add(b: Builder, x: Value, y: Value) -> Value:
    return b.add(x, y)


@operator("Sub")
def sub(b: Builder, x: Value, y: Value) -> Value:
    return ar.sub(b, x, y)


@operator("Mul")
def mul(b: Builder, x: Value, y: Value) -> Value:
    return b.mul(x, y)


@operator("Div")
def div(b: Builder, x: Value, y: Value) -> Value:
    arrays = b.all_known([x, y])
    if arrays is not None and is_float(x):
        return np.asarray(arrays[0] / arrays[1])
    return ar.div(b, x, y)


@operator("Mod")
def mod(b: Builder, x: Value, y: Value, *, fmod: int = 0) -> Value:
    if not fmod:
        return b.elementwise("Mod", x, y)
    magnitude = b.elementwise("Mod", ar.absolute(b, x), ar.absolute(b, y))
    return b.select(b.less(x, 0), ar.neg(b, magnitude), magnitude)


@operator("Pow", fold=lambda x, y: np.power(x, y).astype(x.dtype))
def power(b: Builder, x: Value, y: Value) -> Value:
    return ar.power(b, x, y)


@operator("Sum")
def sum_of(b: Builder, x: Value, *rest: Value) -> Value:
    for y in rest:
        x = b.add(x, y)
    return x


@operator("Mean")
def mean_of(b: Builder, x: Value, *rest: Value) -> Value:
    return b.mul(sum_of(b, x, *rest), 1 / (1 + len(rest)))


@operator("Max")
def maximum(b: Builder, x: Value, *rest: Value) -> Value:
    for y in rest:
        x = ar.maximum(b, x, y)
    return x


@operator("Min")
def minimum(b: Builder, x: Value, *rest: Value) -> Value:
    for y in rest:
        x = ar.minimum(b, x, y)
    return x


@operator("Clip")
def clip_by_attributes(b: Builder, x: Value, *, min: float = -math.inf, max: float = math.inf) -> Value:  # noqa: A002
    return clip(b, x, b.like(min, x) if min > -math.inf else None, b.like(max, x) if max < math.inf else None)


@operator("Clip", since=11)
def clip(b: Builder, x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    if low is not None:
        x = ar.maximum(b, x, low)
    return x if high is None else ar.minimum(b, x, high)


@operator("Neg", fold=np.negative)
def neg(b: Builder, x: Value) -> Value:
    return ar.neg(b, x)


@operator("Abs", fold=np.abs)
def absolute(b: Builder, x: Value) -> Value:
    return ar.absolute(b, x)


@operator("Sign", fold=np.sign)
def sign(b: Builder, x: Value) -> Value:
    return b.select(b.less(x, 0), -1, b.select(b.less(b.like(0, x), x), 1, b.mul(x, 1)))


@operator("Reciprocal", fold=np.reciprocal)
def reciprocal(b: Builder, x: Value) -> Value:
    return ar.recip(b, x)


@operator("Sqrt", fold=np.sqrt)
def sqrt(b: Builder, x: Value) -> Value:
    return b.unary("Sqrt", x)


@operator("Exp", fold=np.exp)
def exp(b: Builder, x: Value) -> Value:
    return ar.exp(b, x)


@operator("Log", fold=np.log)
def log(b: Builder, x: Value) -> Value:
    return ar.log(b, x)


@operator("Erf")
def erf(b: Builder, x: Value) -> Value:
    return b.unary("Erf", x)


@operator("Floor", fold=np.floor)
def floor(b: Builder, x: Value) -> Value:
    return b.unary("Floor", x)


@operator("Ceil", fold=np.ceil)
def ceil(b: Builder, x: Value) -> Value:
    return ar.neg(b, b.unary("Floor", ar.neg(b, x)))


@operator("Round", fold=np.rint)
def round_half_even(b: Builder, x: Value) -> Value:
    return b.unary("Round", x)


@operator("Relu", fold=lambda x: np.maximum(x, np.zeros((), x.dtype)))
def relu(b: Builder, x: Value) -> Value:
    return ar.maximum(b, x, b.like(0, x))


@operator("LeakyRelu")
def leaky_relu(b: Builder, x: Value, *, alpha: float = 0.01) -> Value:
    return b.select(b.less(x, 0), b.mul(x, alpha), x)


@operator("PRelu")
def prelu(b: Builder, x: Value, slope: Value) -> Value:
    return b.select(b.less(x, 0), b.mul(x, slope), x)


@operator("Elu")
def elu(b: Builder, x: Value, *, alpha: float = 1.0) -> Value:
    return b.select(b.less(x, 0), b.mul(b.add(ar.exp(b, x), -1.0), alpha), x)


@operator("Celu")
def celu(b: Builder, x: Value, *, alpha: float = 1.0) -> Value:
    return b.select(b.less(x, 0), b.mul(b.add(ar.exp(b, b.mul(x, 1 / alpha)), -1.0), alpha), x)


@operator("Selu")
def selu(b: Builder, x: Value, *, alpha: float = 1.67326319, gamma: float = 1.05070102) -> Value:
    return b.mul(elu(b, x, alpha=alpha), gamma)


@operator("ThresholdedRelu")
def thresholded_relu(b: Builder, x: Value, *, alpha: float = 1.0) -> Value:
    return b.select(b.less(b.like(alpha, x), x), x, 0)


@operator("Sigmoid")
def sigmoid(b: Builder, x: Value) -> Value:
    return ar.sigmoid(b, x)


@operator("HardSigmoid")
def hard_sigmoid(b: Builder, x: Value, *, alpha: float = 0.2, beta: float = 0.5) -> Value:
    return clip(b, b.add(b.mul(x, alpha), beta), b.like(0, x), b.like(1, x))


@operator("HardSwish", since=14)
def hard_swish(b: Builder, x: Value) -> Value:
    return b.mul(x, hard_sigmoid(b, x, alpha=1 / 6, beta=0.5))


@operator("Swish", since=24)
def swish(b: Builder, x: Value, *, alpha: float = 1.0) -> Value:
    return b.mul(x, ar.sigmoid(b, b.mul(x, alpha) if alpha != 1 else x))


@operator("Tanh", fold=np.tanh)
def tanh(b: Builder, x: Value) -> Value:
    return ar.tanh(b, x)


@operator("Softplus")
def softplus(b: Builder, x: Value) -> Value:
    """log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    rest = ar.log(b, b.add(ar.exp(b, ar.neg(b, ar.absolute(b, x))), 1.0))
    return b.add(ar.maximum(b, x, b.like(0, x)), rest)


@operator("Softsign")
def softsign(b: Builder, x: Value) -> Value:
    return ar.div(b, x, b.add(ar.absolute(b, x), 1.0))


@operator("Mish", since=18)
def mish(b: Builder, x: Value) -> Value:
    return b.mul(x, ar.tanh(b, softplus(b, x)))


@operator("Gelu", since=20)
def gelu(b: Builder, x: Value, *, approximate: str = "none") -> Value:
    if approximate == "none":
        gate = b.unary("Erf", b.mul(x, math.sqrt(0.5)))
    elif approximate == "tanh":
        cubic = b.mul(b.mul(b.mul(x, x), x), 0.044715)
        gate = ar.tanh(b, b.mul(b.add(x, cubic), math.sqrt(2 / math.pi)))
    else:
        raise NotLoweredError(f"approximate='{approximate}'")
    return b.mul(b.mul(x, 0.5), b.add(gate, 1.0))


@operator("Cast")
def cast(b: Builder, x: Value, *, to: int, saturate: int = 1, round_mode: str = "up") -> Value:
    from onnx import helper

    target = np.dtype(helper.tensor_dtype_to_np_dtype(to))
    if is_symbolic(x) and target in (np.int64, np.int32):  # shape arithmetic has one integer type
        return x
    return b.cast(x, target)


@operator("CastLike", since=15)
def cast_like(b: Builder, x: Value, like: Value, *, saturate: int = 1, round_mode: str = "up") -> Value:
    return b.cast(x, dtype_of(like))


@operator("Identity")
def identity(b: Builder, x: Value) -> Value:
    return x


@operator("Dropout")
def dropout(b: Builder, x: Value, *, ratio: float = 0.5, seed: int = 0) -> tuple[Value, Value]:
    return x, b.expand(np.asarray(True), x.shape)


@operator("Dropout", since=12)
def dropout_with_inputs(
    b: Builder, x: Value, ratio: Value | None = None, training: Value | None = None, *, seed: int = 0
) -> tuple[Value, Value]:
    trained = training is not None and known_array(training, "whether dropout is in training mode").any()
    if trained and (ratio is None or known_array(ratio, "the ratio of a dropout").any()):
        raise NotLoweredError("dropout in training mode, which is random")
    return dropout(b, x)
