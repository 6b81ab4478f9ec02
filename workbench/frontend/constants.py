"""Operators that make values out of attributes and shapes."""

from __future__ import annotations

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend.builder import IOTA_LIMIT, Builder
from workbench.frontend.registry import operator
from workbench.frontend.values import (
    NotKnownError,
    NotLoweredError,
    Value,
    as_dims,
    dims_array,
    dtype_of,
    is_float,
    shape_of,
)
from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir import ops
from workbench.ir.expr import Expr, Z
from workbench.ir.hlir import Operand
from workbench.ir.layout import Dim


@operator("Constant")
def constant(
    b: Builder,
    *,
    value: np.ndarray | None = None,
    value_float: float | None = None,
    value_floats: list[float] | None = None,
    value_int: int | None = None,
    value_ints: list[int] | None = None,
) -> Value:
    if value is not None:
        return value
    if value_float is not None or value_floats is not None:
        return np.asarray(value_float if value_floats is None else value_floats, np.float32)
    if value_int is None and value_ints is None:
        raise NotLoweredError("a constant without a numeric value")
    return np.asarray(value_int if value_ints is None else value_ints, np.int64)


@operator("ConstantOfShape", since=9)
def constant_of_shape(b: Builder, shape: Value, *, value: np.ndarray | None = None) -> Value:
    scalar = np.zeros((), np.float32) if value is None else value.reshape(-1)[0:1].reshape(())
    return b.expand(scalar, checked_shape(shape))


def checked_shape(shape: Value) -> tuple[Dim, ...]:
    """The extents in a known shape tensor.

    Raises ValueError for negative ones."""
    dims = as_dims(shape, "the shape")
    if any(not isinstance(d, Expr) and d < 0 for d in dims):
        raise ValueError(f"negative extent in the shape {lay.show(dims)}")
    return tuple(dims)


@operator("Shape")
def shape_op(b: Builder, x: Value, *, start: int = 0, end: int | None = None) -> Value:
    return dims_array(shape_of(x)[start:end])


@operator("Size")
def size(b: Builder, x: Value) -> Value:
    return dims_array([lay.numel(shape_of(x))]).reshape(())


@operator("Range", since=11)
def value_range(b: Builder, start: Value, limit: Value, delta: Value) -> Value:
    for x in (start, limit, delta):
        if not isinstance(x, np.ndarray):
            raise NotKnownError("a range whose bounds are computed from the model's inputs", x)
        if x.size != 1:
            raise ValueError(f"a range whose bound is {lay.show(x.shape)}")
    first, last, step = (x.reshape(-1)[0] for x in (start, limit, delta) if isinstance(x, np.ndarray))
    if not isinstance(step, Expr) and step == 0:
        raise ValueError("a range with step 0")
    if is_float(start):
        count = max(0, int(np.ceil((float(last) - float(first)) / float(step))))
        if count <= IOTA_LIMIT:
            return np.asarray(first + np.arange(count) * step, dtype_of(start))
        return b.add(b.mul(b.iota(Z, (count,), dtype_of(start)), step), first)
    first, last, step = (ex.as_expr(v) for v in (first, last, step))
    length = ex.as_dim((last - first + step - 1) // step if _positive(step) else (first - last - step - 1) // -step)
    if not isinstance(length, Expr):
        length = max(0, length)
    return b.iota(first + Z * step, (length,), dtype_of(start))


def _positive(step: Expr) -> bool:
    return step.constant is None or step.constant > 0


@operator("EyeLike", since=9)
def eye_like(b: Builder, x: Value, *, dtype: int = 0, k: int = 0) -> Value:
    from onnx import helper

    rows, columns = shape_of(x)
    across = b.iota(Z, (1, columns), np.int64)
    down = b.iota(Z + k, (rows, 1), np.int64)
    target = np.dtype(helper.tensor_dtype_to_np_dtype(dtype)) if dtype else dtype_of(x)
    return b.cast(ar.equal(b, across, down), target)


@operator("Trilu", since=14)
def trilu(b: Builder, x: Value, k: Value | None = None, *, upper: int = 1) -> Value:
    shift = 0 if k is None else int(np.asarray(as_dims(k, "the diagonal")).reshape(-1)[0])
    rows, columns = shape_of(x)[-2:]
    across = b.iota(Z, (1, columns), np.int64)
    down = b.iota(Z + shift, (rows, 1), np.int64)
    kept = ar.less_or_equal(b, down, across) if upper else ar.less_or_equal(b, across, down)
    return b.select(kept, x, b.like(0, x))


@operator("GraphBreak", domain="luminal")
def graph_break(b: Builder, x: Value) -> Value:
    view = b.contiguous(x)
    return b.unique_node(ops.GraphBreak(), (Operand(view.source, view.layout),), view.shape, view.dtype)
