"""Convolution and pooling: windows over a padded tensor are a layout; a convolution is a contraction of their copy."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.frontend import symbolic
from workbench.frontend.builder import Builder
from workbench.frontend.contraction import contract
from workbench.frontend.movement import pad_axes
from workbench.frontend.registry import operator
from workbench.frontend.values import NotLoweredError, Value, View, fixed, rank_of, shape_of
from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir.expr import ITER, ZERO, Expr, Z
from workbench.ir.layout import Dim, Layout


def windows(
    b: Builder,
    x: Value,
    axes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
    fill: float,
) -> View:
    """`x` with each of `axes` replaced by the window positions along it, and the window's own axes appended."""
    rank = rank_of(x)
    low, high = [0] * rank, [0] * rank
    for axis, p, q in zip(axes, before, after, strict=True):
        low[axis], high[axis] = p, q
    view = b.lift(pad_axes(b, x, low, high, "constant", b.like(fill, x)))
    if any(ex.coefficient_of(view.layout.strides[a], ITER) is None and view.shape[a] != 1 for a in axes):
        view = b.copy(view)
    shape, steps = list(view.shape), list(view.layout.strides)
    for axis, k, stride, dilation in zip(axes, kernel, strides, dilations, strict=True):
        extent, step = view.shape[axis], view.layout.strides[axis]
        room = ex.as_expr(extent) - ((k - 1) * dilation + 1)
        count = ex.as_dim(room // stride + 1)
        if isinstance(count, Expr):
            symbolic.assume(room, 0)
        elif count < 1:
            raise ValueError(f"a window of {(k - 1) * dilation + 1} in {extent}")
        shape[axis] = count
        steps[axis] = ZERO if count == 1 else ex.substitute(step, {ITER: Z * stride})
        shape.append(k)
        steps.append(ZERO if k == 1 else ex.substitute(step, {ITER: Z * dilation}))
    return View(view.source, Layout(tuple(shape), tuple(steps), view.layout.offset), view.dtype)


def window_pads(
    auto_pad: str,
    pads: Sequence[int] | None,
    extents: Sequence[Dim],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[list[int], list[int]]:
    """Elements added before and after each spatial axis."""
    count = len(kernel)
    if auto_pad in ("NOTSET", "VALID"):
        given = [0] * (2 * count) if pads is None or auto_pad == "VALID" else list(pads)
        return given[:count], given[count:]
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise NotLoweredError(f"auto_pad='{auto_pad}'")
    before, after = [], []
    for n, k, stride, dilation in zip(extents, kernel, strides, dilations, strict=True):
        if isinstance(n, Expr) and stride != 1:
            raise NotLoweredError("padding to the same size of a dimension without a fixed extent")
        missing = (
            (k - 1) * dilation if isinstance(n, Expr) else (-(-n // stride) - 1) * stride + (k - 1) * dilation + 1 - n
        )
        missing = max(0, missing)
        small = missing // 2
        before.append(small if auto_pad == "SAME_UPPER" else missing - small)
        after.append(missing - before[-1])
    return before, after


@operator("Conv")
def conv(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    weight = b.dense(weight)
    n, channels, *extents = shape_of(x)
    outputs, depth, *kernel_dims = shape_of(weight)
    kernel = [fixed(k, "the extent of a kernel") for k in kernel_dims]
    spatial = len(kernel)
    strides, dilations = strides or [1] * spatial, dilations or [1] * spatial
    if len(extents) != spatial or ex.as_dim(ex.as_expr(depth) * group) != channels:
        raise ValueError(f"a convolution of {lay.show(shape_of(x))} with weights {lay.show(shape_of(weight))}")
    before, after = window_pads(auto_pad, pads, extents, kernel, strides, dilations)
    view = windows(b, x, range(2, 2 + spatial), kernel, strides, dilations, before, after, 0.0)
    places = view.shape[2 : 2 + spatial]
    rows = _im2col(b, view, group, spatial)
    per_group = ex.as_dim(ex.as_expr(outputs) // group)
    size = lay.numel([depth, *kernel])
    matrix = b.reshape(weight, (outputs, size) if group == 1 else (group, per_group, size))
    product = contract(b, rows, matrix)
    if bias is not None:
        product = b.add(product, bias if group == 1 else b.reshape(bias, (group, 1, per_group)))
    return b.reshape(b.swap_last(product), (n, outputs, *places))


def _im2col(b: Builder, view: View, group: int, spatial: int) -> Value:
    """Windows [n, c, places.., kernel..] as a matrix [n, (group,) places, c/group * kernel], copied where need be."""
    n, channels, *rest = view.shape
    split = b.reshape(view, (n, group, ex.as_dim(ex.as_expr(channels) // group), *rest))
    places = list(range(3, 3 + spatial))
    moved = b.transpose(split, [0, 1, *places, 2, *(p + spatial for p in places)])
    shape = shape_of(moved)
    head = (n,) if group == 1 else (n, group)
    target = (*head, lay.numel(shape[2 : 2 + spatial]), lay.numel(shape[2 + spatial :]))
    rows = b.lift(b.reshape(moved, target))
    affine = all(
        ex.coefficient_of(s, ITER) is not None for d, s in zip(rows.shape, rows.layout.strides, strict=True) if d != 1
    )
    return rows if affine else b.copy(rows)


@operator("ConvTranspose")
def conv_transpose(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    output_padding: list[int] | None = None,
    output_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """The convolution of `x`, spread out by the strides, with the kernel turned around."""
    kernel = [fixed(k, "the extent of a kernel") for k in shape_of(weight)[2:]]
    spatial = len(kernel)
    strides, dilations = strides or [1] * spatial, dilations or [1] * spatial
    extra = output_padding or [0] * spatial
    reach = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    given = [0] * (2 * spatial) if pads is None or auto_pad == "VALID" else pads
    if output_shape is not None or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        extents = [fixed(d, "the extent of a transposed convolution") for d in shape_of(x)[2:]]
        wanted = [n * s for n, s in zip(extents, strides, strict=True)] if output_shape is None else output_shape
        full = [(n - 1) * s + e + r + 1 for n, s, e, r in zip(extents, strides, extra, reach, strict=True)]
        given = _pads_for(full, wanted[-spatial:], auto_pad == "SAME_UPPER")
    for axis, stride in enumerate(strides, 2):
        if stride > 1:
            x = spread(b, x, axis, stride)
    before = [r - p for r, p in zip(reach, given[:spatial], strict=True)]
    after = [r - p + e for r, p, e in zip(reach, given[spatial:], extra, strict=True)]
    inputs, per_group = shape_of(weight)[:2]
    grouped = b.reshape(weight, (group, ex.as_dim(ex.as_expr(inputs) // group), per_group, *kernel))
    turned = b.transpose(grouped, [0, 2, 1, *range(3, 3 + spatial)])
    turned = b.reshape(turned, (ex.as_dim(ex.as_expr(per_group) * group), shape_of(turned)[2], *kernel))
    for axis, k in enumerate(kernel, 2):
        turned = b.slice(turned, axis, k - 1, -1, k)
    x = pad_axes(b, x, [0, 0, *before], [0, 0, *after])
    return conv(b, x, turned, bias, dilations=dilations, group=group)


def _pads_for(full: Sequence[int], wanted: Sequence[int], more_after: bool) -> list[int]:
    """What to take off before each axis and then after each, so that `wanted` of `full` elements are left."""
    total = [n - w for n, w in zip(full, wanted, strict=True)]
    small = [t // 2 for t in total]
    large = [t - s for t, s in zip(total, small, strict=True)]
    return [*small, *large] if more_after else [*large, *small]


def spread(b: Builder, x: Value, axis: int, stride: int) -> Value:
    """`stride - 1` zeros between the elements of `axis`."""
    shape = list(shape_of(x))
    low = [0] * (len(shape) + 1)
    high = list(low)
    high[axis + 1] = stride - 1
    padded = pad_axes(b, b.unsqueeze(x, [axis + 1]), low, high)
    wide = ex.as_dim(ex.as_expr(shape[axis]) * stride)
    merged = b.reshape(padded, (*shape[:axis], wide, *shape[axis + 1 :]))
    return b.slice(merged, axis, 0, 1, ex.as_dim(ex.as_expr(wide) - (stride - 1)))
