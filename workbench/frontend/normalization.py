"""Softmax and the normalizations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend.builder import Builder
from workbench.frontend.convolution import windows
from workbench.frontend.reduction import arg_max, greatest, mean, total
from workbench.frontend.registry import operator
from workbench.frontend.values import Value, dtype_of, normalize_axis, rank_of, shape_of
from workbench.ir import layout as lay
from workbench.ir.expr import Z


def _shifted(b: Builder, x: Value, axis: int) -> Value:
    return ar.sub(b, x, b.unsqueeze(greatest(b, x, [axis]), [axis]))


def softmax_over(b: Builder, x: Value, axis: int) -> Value:
    """exp(x) over its sum along `axis` (counted from the front)."""
    raised = ar.exp(b, _shifted(b, x, axis))
    return b.mul(raised, ar.recip(b, b.unsqueeze(total(b, raised, [axis]), [axis])))


def _log_softmax(b: Builder, x: Value, axis: int) -> Value:
    shifted = _shifted(b, x, axis)
    return ar.sub(b, shifted, ar.log(b, b.unsqueeze(total(b, ar.exp(b, shifted), [axis]), [axis])))


def _hard_max(b: Builder, x: Value, axis: int) -> Value:
    shape = tuple(d if a == axis else 1 for a, d in enumerate(shape_of(x)))
    return b.cast(ar.equal(b, b.iota(Z, shape, np.int64), arg_max(b, x, axis=axis)), dtype_of(x))


def _register(name: str, over: Callable[[Builder, Value, int], Value]) -> None:
    @operator(name)
    def flattened(b: Builder, x: Value, *, axis: int = 1) -> Value:
        """Until opset 13 everything from `axis` on is one axis."""
        shape = shape_of(x)
        cut = normalize_axis(axis, len(shape))
        if cut == len(shape) - 1:
            return over(b, x, cut)
        rows = b.reshape(x, (lay.numel(shape[:cut]), lay.numel(shape[cut:])))
        return b.reshape(over(b, rows, 1), shape)

    @operator(name, since=13)
    def along_axis(b: Builder, x: Value, *, axis: int = -1) -> Value:
        return over(b, x, normalize_axis(axis, rank_of(x)))


_register("Softmax", softmax_over)
_register("LogSoftmax", _log_softmax)
_register("Hardmax", _hard_max)


def standardized(b: Builder, x: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value, Value]:
    """`x` with mean 0 and variance 1 over `axes`; then the mean and 1/deviation, with extents of 1 on `axes`."""
    center = b.unsqueeze(mean(b, x, axes), axes)
    moved = ar.sub(b, x, center)
    variance = b.unsqueeze(mean(b, b.mul(moved, moved), axes), axes)
    scale = ar.recip(b, b.unary("Sqrt", b.add(variance, epsilon)))
    return b.mul(moved, scale), center, scale


@operator("LayerNormalization", since=17)
def layer_normalization(
    b: Builder,
    x: Value,
    scale: Value,
    bias: Value | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Value, Value, Value]:
    rank = rank_of(x)
    y, center, inverse = standardized(b, x, range(normalize_axis(axis, rank), rank), epsilon)
    y = b.mul(y, scale)
    return (y if bias is None else b.add(y, bias)), center, inverse


@operator("RMSNormalization", since=23)
def rms_normalization(
    b: Builder, x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Value:
    rank = rank_of(x)
    axes = range(normalize_axis(axis, rank), rank)
    square = b.unsqueeze(mean(b, b.mul(x, x), axes), axes)
    return b.mul(b.mul(x, ar.recip(b, b.unary("Sqrt", b.add(square, epsilon)))), scale)


@operator("BatchNormalization", since=7)
def batch_normalization(
    b: Builder,
    x: Value,
    scale: Value,
    bias: Value,
    average: Value,
    variance: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    spatial: int = 1,
) -> tuple[Value, ...]:
    results: tuple[Value, ...] = ()
    if training_mode:
        axes = [a for a in range(rank_of(x)) if a != 1]
        seen = mean(b, x, axes)
        moved = ar.sub(b, x, per_channel(b, seen, rank_of(x)))
        spread = mean(b, b.mul(moved, moved), axes)
        results = tuple(
            b.add(b.mul(old, momentum), b.mul(new, 1 - momentum)) for old, new in ((average, seen), (variance, spread))
        )
        average, variance = seen, spread
    factor = b.mul(scale, ar.recip(b, b.unary("Sqrt", b.add(variance, epsilon))))
    rest = ar.sub(b, bias, b.mul(average, factor))
    return b.add(b.mul(x, per_channel(b, factor, rank_of(x))), per_channel(b, rest, rank_of(x))), *results


def per_channel(b: Builder, x: Value, rank: int) -> Value:
    """A vector placed along axis 1 of a tensor of `rank`."""
    return b.reshape(x, (shape_of(x)[0], *(1 for _ in range(rank - 2))))


@operator("InstanceNormalization")
def instance_normalization(b: Builder, x: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5) -> Value:
    rank = rank_of(x)
    y, _, _ = standardized(b, x, range(2, rank), epsilon)
    return b.add(b.mul(y, per_channel(b, scale, rank)), per_channel(b, bias, rank))


@operator("GroupNormalization", since=21)
def group_normalization(
    b: Builder, x: Value, scale: Value, bias: Value, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Value:
    shape = shape_of(x)
    rows = b.reshape(x, (shape[0], num_groups, lay.numel(shape[1:]) // num_groups))
    y = b.reshape(standardized(b, rows, [2], epsilon)[0], shape)
    return b.add(b.mul(y, per_channel(b, scale, len(shape))), per_channel(b, bias, len(shape)))


@operator("LRN")
def local_response_normalization(
    b: Builder, x: Value, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Value:
    before = (size - 1) // 2
    square = b.mul(x, x)
    near = windows(b, square, [1], [size], [1], [1], [before], [size - 1 - before], 0.0)
    summed = total(b, near, [rank_of(x)])
    base = b.add(b.mul(summed, alpha / size), bias)
    return b.mul(x, ar.power(b, base, np.asarray(-beta, dtype_of(x))))


@operator("LpNormalization")
def lp_normalization(b: Builder, x: Value, *, axis: int = -1, p: int = 2) -> Value:
    axis = normalize_axis(axis, rank_of(x))
    size = ar.absolute(b, x) if p == 1 else b.mul(x, x)
    norm = b.unsqueeze(total(b, size, [axis]), [axis])
    norm = norm if p == 1 else b.unary("Sqrt", norm)
    return ar.div(b, x, b.select(b.less(b.like(0, norm), norm), norm, 1))
