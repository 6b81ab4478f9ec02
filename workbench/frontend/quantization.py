"""Quantized tensors: integers that stand for (integer - zero point) * scale, and exact sums of products of them.

The integers of a model stay as narrow in memory as the model has them; what is made of them is made where it is used.
"""

from __future__ import annotations

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend.builder import Builder
from workbench.frontend.contraction import matmul
from workbench.frontend.convolution import conv
from workbench.frontend.reduction import greatest, least
from workbench.frontend.registry import operator
from workbench.frontend.values import (
    NotLoweredError,
    Value,
    View,
    dtype_of,
    graph_dtype,
    normalize_axis,
    rank_of,
    shape_of,
)
from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir import ops
from workbench.ir.expr import Expr, Z
from workbench.ir.layout import Dim, Shape


@operator("QuantizeLinear", since=10)
def quantize_linear(
    b: Builder,
    x: Value,
    scale: Value,
    zero_point: Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Value:
    """Of the rounding, the type of the scale (or `precision`) says how precise the quotient is that is rounded."""
    target = _quantized_type(zero_point, output_dtype)
    computed = _numpy_type(precision) if precision else dtype_of(scale)
    scale = _aligned(b, b.cast(scale, computed), shape_of(x), axis, block_size)
    shift = None if zero_point is None else _aligned(b, zero_point, shape_of(x), axis, block_size)
    return _quantized(b, ar.exact_quotient(b, b.cast(x, computed), scale), shift, target)


@operator("DequantizeLinear", since=10)
def dequantize_linear(
    b: Builder,
    x: Value,
    scale: Value,
    zero_point: Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Value:
    """The differences and products are of float32; the result is rounded to its type once."""
    _check_integer(dtype_of(x))
    result = _numpy_type(output_dtype) if output_dtype else dtype_of(scale)
    shape = shape_of(x)
    scale = _aligned(b, b.cast(scale, np.float32), shape, axis, block_size)
    shift = None if zero_point is None else _aligned(b, zero_point, shape, axis, block_size)
    exact = dtype_of(x).itemsize > 2  # float32 does not hold every difference
    steps = b.cast(_unshifted(b, x, shift, np.int32), np.float32) if exact else _unshifted(b, x, shift, np.float32)
    return b.cast(b.mul(steps, scale), result)


@operator("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """ONNX's own definition, but for its quotients: they are rounded once, since a symmetric range puts the zero point
    half way between two integers."""
    axes = list(range(rank_of(x)))
    zero = b.like(0.0, x)
    low, high = ar.minimum(b, least(b, x, axes), zero), ar.maximum(b, greatest(b, x, axes), zero)
    scale = ar.exact_quotient(b, ar.sub(b, high, low), b.like(255.0, x))
    zero_point = b.cast(b.unary("Round", ar.neg(b, ar.exact_quotient(b, low, scale))), np.uint8)
    return _quantized(b, ar.exact_quotient(b, x, scale), zero_point, np.dtype(np.uint8)), scale, zero_point


@operator("MatMulInteger", since=10)
def matmul_integer(
    b: Builder, x: Value, y: Value, x_zero_point: Value | None = None, y_zero_point: Value | None = None
) -> Value:
    rows = _unshifted(b, x, _per_row(b, x_zero_point, x), np.int32)
    return matmul(b, rows, _unshifted(b, y, _scalar(b, y_zero_point), np.int32))


@operator("QLinearMatMul", since=10)
def qlinear_matmul(
    b: Builder,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    y: Value,
    y_scale: Value,
    y_zero_point: Value,
    scale: Value,
    zero_point: Value,
) -> Value:
    total = matmul_integer(b, x, y, x_zero_point, y_zero_point)
    factor = _factor(b, _per_row(b, x_scale, x), _scalar(b, y_scale), _per_row(b, scale, x))
    return _requantized(b, total, factor, _per_row(b, zero_point, x))


@operator("ConvInteger", since=10)
def conv_integer(
    b: Builder,
    x: Value,
    weight: Value,
    x_zero_point: Value | None = None,
    weight_zero_point: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """What is padded are zero points, and those are 0 once they are subtracted."""
    integers = _unshifted(b, x, _scalar(b, x_zero_point), np.int32)
    kernel = _unshifted(b, weight, _per_channel(b, weight_zero_point, rank_of(weight), 0), np.int32)
    return conv(
        b, integers, kernel, auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides
    )


@operator("QLinearConv", since=10)
def qlinear_conv(
    b: Builder,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    weight: Value,
    weight_scale: Value,
    weight_zero_point: Value,
    scale: Value,
    zero_point: Value,
    bias: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """The bias counts in steps of the product of the operands' scales, as their sum does."""
    total = conv_integer(
        b, x, weight, x_zero_point, weight_zero_point,
        auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides,
    )  # fmt: skip
    if bias is not None:
        total = b.add(total, _per_channel(b, bias, rank_of(x), 1))
    factor = _factor(b, _scalar(b, x_scale), _per_channel(b, weight_scale, rank_of(x), 1), _scalar(b, scale))
    return _requantized(b, total, factor, _scalar(b, zero_point))


def _factor(b: Builder, left: Value, right: Value, result: Value) -> Value:
    """What turns a sum of products of the operands' integers into steps of the result, in float32."""
    left, right, result = (b.cast(s, np.float32) for s in (left, right, result))
    return ar.exact_quotient(b, b.mul(left, right), result)


def _requantized(b: Builder, total: Value, factor: Value, zero_point: Value) -> Value:
    return _quantized(b, b.mul(b.cast(total, np.float32), factor), zero_point, dtype_of(zero_point))


def _quantized(b: Builder, steps: Value, zero_point: Value | None, target: np.dtype) -> Value:
    """`steps` rounded to integers (ties to even), then shifted; what is out of the range of `target` becomes its end,
    which is how floats are cast."""
    rounded = b.cast(b.unary("Round", steps), np.float32)  # where the sum with a zero point is exact
    if zero_point is not None and not _is_zero(b, zero_point):
        rounded = b.add(rounded, b.cast(zero_point, np.float32))
    return b.cast(rounded, target)


def _unshifted(b: Builder, x: Value, zero_point: Value | None, computed: type) -> Value:
    """`x` less its zero point, in the type `computed`. A tensor of the model is not widened in memory."""
    _check_integer(dtype_of(x))
    held = graph_dtype(np.dtype(computed))
    assert held is not None
    if isinstance(x, View) and x.source in b.constants and x.dtype is not held:
        x = b.node(ops.Cast(held), [x], x.shape, held)
    x = b.cast(x, computed)
    if zero_point is None or _is_zero(b, zero_point):
        return x
    return ar.sub(b, x, b.cast(zero_point, computed))


def _is_zero(b: Builder, x: Value) -> bool:
    array = b.known(x)
    return array is not None and array.dtype != object and not array.any()


def _check_integer(dtype: np.dtype) -> None:
    if dtype.kind not in "iu":
        raise NotLoweredError(f"quantized values of {dtype}")


def _numpy_type(element: int) -> np.dtype:
    from onnx import helper

    found: np.dtype = np.dtype(helper.tensor_dtype_to_np_dtype(element))
    return found


def _quantized_type(zero_point: Value | None, output_dtype: int) -> np.dtype:
    """The type that a quantization yields: that of the zero point, where there is one."""
    if zero_point is not None:
        found = dtype_of(zero_point)
        if output_dtype and _numpy_type(output_dtype) != found:
            raise ValueError(f"a zero point of {found} for {_numpy_type(output_dtype)}")
    else:
        found = _numpy_type(output_dtype) if output_dtype else np.dtype(np.uint8)
    _check_integer(found)
    return found


# Which elements a scale or a zero point is for


def _aligned(b: Builder, x: Value, shape: Shape, axis: int, block_size: int) -> Value:
    """`x` so that it meets elements of a tensor of `shape`: one for all, one per index of `axis`, or one per block of
    that many indices."""
    if lay.numel(shape_of(x)) == 1 and rank_of(x) <= 1:
        return b.reshape(x, ())
    axis = normalize_axis(axis, len(shape))
    extent = shape[axis]
    if not block_size:
        if rank_of(x) != 1 or shape_of(x)[0] != extent:
            raise ValueError(f"scales or zero points {lay.show(shape_of(x))} for axis {axis} of {lay.show(shape)}")
        return _per_channel(b, x, len(shape), axis)
    if rank_of(x) != len(shape) or block_size < 0 or not _covers(shape_of(x)[axis], block_size, extent):
        raise ValueError(f"blocks of {block_size} with scales or zero points {lay.show(shape_of(x))}")
    return b.remap(x, axis, Z // block_size, extent)


def _covers(blocks: Dim, size: int, extent: Dim) -> bool:
    """Whether `extent` is `blocks` blocks, the last of which may be shorter."""
    if isinstance(blocks, Expr) or isinstance(extent, Expr):
        return ex.as_dim(ex.as_expr(blocks) * size) == extent
    return (blocks - 1) * size < extent <= blocks * size


def _per_channel(b: Builder, x: Value | None, rank: int, axis: int) -> Value:
    """One for all, or one per index of `axis` of a tensor of `rank` axes; 0 where there is none."""
    x = _scalar(b, x)
    if not rank_of(x):
        return x
    if rank_of(x) != 1:
        raise ValueError(f"{lay.show(shape_of(x))} scales, zero points or biases of channels")
    return b.reshape(x, [shape_of(x)[0] if a == axis else 1 for a in range(rank)])


def _per_row(b: Builder, x: Value | None, matrix: Value) -> Value:
    """One for all, or one per row of `matrix`."""
    x = _scalar(b, x)
    return b.unsqueeze(x, [1]) if rank_of(x) == 1 and rank_of(matrix) > 1 else x


def _scalar(b: Builder, x: Value | None) -> Value:
    """`x` without axes where it has one element; 0 where there is none."""
    if x is None:
        return np.zeros((), np.int32)
    return b.reshape(x, ()) if lay.numel(shape_of(x)) == 1 else x
