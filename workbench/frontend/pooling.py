"""Pooling: reductions over windows, which are a layout of the padded tensor; and what undoes it."""

from __future__ import annotations

import math

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend.builder import FOLD_LIMIT, Builder
from workbench.frontend.convolution import window_pads, windows
from workbench.frontend.indexing import scattered
from workbench.frontend.movement import pad_axes
from workbench.frontend.reduction import arg_max, greatest, mean, total
from workbench.frontend.registry import operator
from workbench.frontend.values import (
    NotLoweredError,
    Value,
    View,
    as_ints,
    dtype_of,
    fixed,
    is_float,
    rank_of,
    shape_of,
)
from workbench.ir import layout as lay
from workbench.ir.expr import Z


def _pool_windows(
    b: Builder,
    x: Value,
    kernel: list[int],
    strides: list[int] | None,
    dilations: list[int] | None,
    pads: list[int] | None,
    auto_pad: str,
    ceil_mode: int,
    fill: float,
) -> tuple[View, list[int]]:
    """The windows of a pooling, and the axes of the window itself."""
    spatial = len(kernel)
    strides, dilations = strides or [1] * spatial, dilations or [1] * spatial
    extents = shape_of(x)[2:]
    before, after = window_pads(auto_pad, pads, extents, kernel, strides, dilations)
    if ceil_mode:
        for i, (n, k, stride, dilation) in enumerate(zip(extents, kernel, strides, dilations, strict=True)):
            extent = fixed(n, "the extent of a pooling")
            after[i] += _ceil_extra(extent, before[i], after[i], (k - 1) * dilation + 1, stride)
    view = windows(b, x, range(2, 2 + spatial), kernel, strides, dilations, before, after, fill)
    return view, list(range(2 + spatial, 2 + 2 * spatial))


def _ceil_extra(n: int, before: int, after: int, reach: int, stride: int) -> int:
    """Elements to add at the end so that a last, partial window counts; one that starts in the end padding does not."""
    count = math.ceil((n + before + after - reach) / stride) + 1
    if (count - 1) * stride >= n + before:
        return (count - 2) * stride + reach - (n + before + after)
    return max(0, (count - 1) * stride + reach - (n + before + after))


@operator("MaxPool")
def max_pool(
    b: Builder,
    x: Value,
    *,
    outputs: int,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    storage_order: int = 0,
    strides: list[int] | None = None,
) -> Value | tuple[Value, Value]:
    least = -math.inf if is_float(x) else int(np.iinfo(dtype_of(x)).min)
    how = (kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    view, axes = _pool_windows(b, x, *how, least)
    y = greatest(b, view, axes)
    if outputs == 1:
        return y
    spatial = [fixed(d, "the extent of a pooling with places") for d in shape_of(x)[2:]]
    if math.prod(spatial) > FOLD_LIMIT:
        raise NotLoweredError(f"places among more than {FOLD_LIMIT} elements")
    places = np.arange(math.prod(spatial)).reshape((1, 1, *spatial), order="F" if storage_order else "C")
    within, _ = _pool_windows(b, places, *how, -1)
    return y, _places_of_greatest(b, view, within, len(axes), math.prod(spatial))


def _places_of_greatest(b: Builder, view: View, places: View, spatial: int, size: int) -> Value:
    """Where in the whole tensor each window has its first greatest element."""
    counts = lay.numel(view.shape[-spatial:])
    values, at = (b.reshape(v, (*v.shape[:-spatial], counts)) for v in (view, places))
    first = arg_max(b, values, axis=-1)
    hit = ar.equal(b, b.iota(Z, (counts,), np.int64), first)
    found = b.reduce("MaxReduce", b.select(hit, b.expand(at, shape_of(hit)), -1), [rank_of(hit) - 1])
    start = b.iota(Z * size, (*view.shape[:2], *(1 for _ in range(spatial))), np.int64)
    return b.add(found, start)


@operator("AveragePool")
def average_pool(
    b: Builder,
    x: Value,
    *,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    view, axes = _pool_windows(b, x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode, 0.0)
    summed = total(b, view, axes)
    counts = np.ones((), np.int64)
    steps, gaps = strides or [1] * len(axes), dilations or [1] * len(axes)
    extents = [fixed(d, "the extent of a pooling") for d in shape_of(x)[2:]]
    before, after = window_pads(auto_pad, pads, extents, kernel_shape, steps, gaps)
    for i, (n, k, places) in enumerate(zip(extents, kernel_shape, view.shape[2 : 2 + len(axes)], strict=True)):
        if fixed(places, "the extent of a pooling") * k > 16 * FOLD_LIMIT:
            raise NotLoweredError(f"a mean of {k} elements at {places} places")
        starts = np.arange(fixed(places, "the extent of a pooling")) * steps[i] - before[i]
        at = starts[:, None] + np.arange(k) * gaps[i]
        low, high = (-before[i], n + after[i]) if count_include_pad else (0, n)
        counts = counts[..., None] * ((at >= low) & (at < high)).sum(1)
    uniform = counts.reshape(-1)[0] if (counts == counts.reshape(-1)[0]).all() else counts
    return b.mul(summed, np.asarray(1 / uniform, dtype_of(x)))


@operator("GlobalAveragePool")
def global_average_pool(b: Builder, x: Value) -> Value:
    axes = list(range(2, rank_of(x)))
    return b.unsqueeze(mean(b, x, axes), axes)


@operator("GlobalMaxPool")
def global_max_pool(b: Builder, x: Value) -> Value:
    axes = list(range(2, rank_of(x)))
    return b.unsqueeze(greatest(b, x, axes), axes)


@operator("LpPool", since=2)
def lp_pool(
    b: Builder,
    x: Value,
    *,
    kernel_shape: list[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    p: int = 2,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    view, axes = _pool_windows(b, x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode, 0.0)
    return _norm(b, view, axes, p)


def _norm(b: Builder, x: Value, axes: list[int], p: int) -> Value:
    raised = ar.power(b, ar.absolute(b, x), np.asarray(p, dtype_of(x)))
    return ar.power(b, total(b, raised, axes), np.asarray(1 / p, dtype_of(x)))


@operator("GlobalLpPool", since=2)
def global_lp_pool(b: Builder, x: Value, *, p: int = 2) -> Value:
    axes = list(range(2, rank_of(x)))
    return b.unsqueeze(_norm(b, x, axes, p), axes)


@operator("MaxUnpool", since=9)
def max_unpool(
    b: Builder,
    x: Value,
    places: Value,
    output_shape: Value | None = None,
    *,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """Zeros, and the values at their places; a larger output shape adds zeros behind."""
    spatial = len(kernel_shape)
    steps, taken = strides or [1] * spatial, pads or [0] * (2 * spatial)
    extents = [fixed(d, "the extent of an unpooling") for d in shape_of(x)[2:]]
    shape = (
        *shape_of(x)[:2],
        *(
            (n - 1) * step - taken[i] - taken[spatial + i] + k
            for i, (n, step, k) in enumerate(zip(extents, steps, kernel_shape, strict=True))
        ),
    )
    y = scattered(b, b.expand(b.like(0, x), shape), places, x)
    if output_shape is None:
        return y
    wanted = as_ints(output_shape, "the output's shape")
    after = [w - fixed(d, "the output's shape") for w, d in zip(wanted, shape, strict=True)]
    return pad_axes(b, y, [0] * rank_of(x), after)


@operator("Col2Im", since=18)
def column_to_image(
    b: Builder,
    x: Value,
    image_shape: Value,
    block_shape: Value,
    *,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """Each pixel is the sum of the elements that its blocks hold for it: their places are known."""
    image, block = as_ints(image_shape, "the image's shape"), as_ints(block_shape, "the block's shape")
    spatial = len(image)
    ones = [1] * spatial
    table = _contributors(image, block, dilations or ones, pads or [0] * (2 * spatial), strides or ones)
    n, channels, count = shape_of(x)
    size = math.prod(block)
    depth = fixed(channels, "the number of channels") // size
    flat = b.reshape(x, (n, depth, fixed(count, "the number of blocks") * size))
    taken = b.reshape(b.take(flat, np.maximum(table, 0).reshape(-1), 2), (n, depth, *table.shape))
    return b.reshape(total(b, b.select(table >= 0, taken, 0), [3]), (n, depth, *image))


def _contributors(
    image: list[int], block: list[int], dilations: list[int], pads: list[int], strides: list[int]
) -> np.ndarray:
    """For each pixel [pixels, most per pixel] the places of its elements among [block, position], -1 for none."""
    axes = range(len(image))
    reach = [(block[a] - 1) * dilations[a] + 1 for a in axes]
    counts = [(image[a] + pads[a] + pads[a + len(image)] - reach[a]) // strides[a] + 1 for a in axes]
    if min((*counts, *image, *block), default=0) < 1 or math.prod(counts) * math.prod(block) > FOLD_LIMIT:
        raise NotLoweredError("an image of no blocks, or of more than a million elements in blocks")
    inside, pixel = np.asarray(True), np.asarray(0)
    for a in axes:
        place = (np.arange(counts[a]) * strides[a] - pads[a])[None, :] + (np.arange(block[a]) * dilations[a])[:, None]
        shape = [1] * (2 * len(image))
        shape[a], shape[len(image) + a] = place.shape
        place = place.reshape(shape)
        inside = inside & (place >= 0) & (place < image[a])
        pixel = pixel * image[a] + place
    source = np.flatnonzero(inside)
    owner = pixel.reshape(-1)[source]
    order = np.argsort(owner, kind="stable")
    owner, source = owner[order], source[order]
    each = np.bincount(owner, minlength=math.prod(image))
    table = np.full((math.prod(image), max(1, int(each.max(initial=0)))), -1)
    table[owner, np.arange(owner.size) - (np.cumsum(each) - each)[owner]] = source
    return table
