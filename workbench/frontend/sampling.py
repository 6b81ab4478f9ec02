"""Reading a tensor at fractional positions that are computed: grid sampling, region pooling, deformed convolution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend.builder import FOLD_LIMIT, Builder
from workbench.frontend.contraction import contract
from workbench.frontend.elementwise import clip, round_half_even
from workbench.frontend.indexing import picked
from workbench.frontend.movement import concat
from workbench.frontend.reduction import greatest, mean
from workbench.frontend.registry import operator
from workbench.frontend.values import NotLoweredError, Value, dtype_of, fixed, known_array, rank_of, shape_of
from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir.expr import Z

Tap = tuple[Value, Value | None]
"""A whole position along an axis, as a float, and its weight (None: 1)."""
Outside = Callable[[Builder, Value, int], Value]
"""Where along an axis of so many elements a position outside it reads instead."""

_CUBIC = -0.75
_MOST_AXES = 3


def linear_taps(b: Builder, at: Value) -> list[Tap]:
    """The two neighbours of a position, weighted by nearness."""
    low = b.unary("Floor", at)
    part = ar.sub(b, at, low)
    return [(low, ar.sub(b, 1.0, part)), (b.add(low, 1.0), part)]


def nearest_tap(b: Builder, at: Value) -> list[Tap]:
    """The nearest whole position, the even one of two."""
    return [(round_half_even(b, at), None)]


def cubic_taps(b: Builder, at: Value) -> list[Tap]:
    """Four neighbours, weighted by Keys' cubic convolution kernel."""
    low = b.unary("Floor", at)
    part = ar.sub(b, at, low)
    a = _CUBIC
    taps: list[Tap] = []
    for k in (-1, 0, 1, 2):
        d = b.add(part, 1.0) if k == -1 else part if k == 0 else ar.sub(b, float(k), part)
        far = (a, -5 * a, 8 * a, -4 * a) if k in (-1, 2) else (a + 2, -(a + 3), 0.0, 1.0)
        weight: Value = b.like(far[0], d)
        for coefficient in far[1:]:
            weight = b.add(b.mul(weight, d), coefficient)
        taps.append((b.add(low, float(k)), weight))
    return taps


def contributions(b: Builder, x: Value, taps: Sequence[Sequence[Tap]], outside: Outside | None) -> list[Value]:
    """For `x` [n, channels, spatial..] and, per spatial axis, taps whose values are [n, places]: what each combination
    of taps gives, weighted, as [n, channels, places]. Without `outside`, what is read there is 0."""
    n, channels, *spatial = shape_of(x)
    if len(spatial) > _MOST_AXES:
        raise NotLoweredError(f"sampling along {len(spatial)} axes")
    extents = [fixed(d, "the extent of what is sampled") for d in spatial]
    flat = b.reshape(x, (n, channels, math.prod(extents)))
    found: list[Value] = []
    for combination in product(*taps):
        place: Value = np.zeros((), np.int64)
        weights: list[Value] = []
        inside: list[Value] = []
        for (at, weight), extent in zip(combination, extents, strict=True):
            if outside is None:
                inside.append(ar.logical_and(b, b.less(b.like(-0.5, at), at), b.less(at, extent - 0.5)))
            else:
                at = outside(b, at, extent)
            index = b.cast(clip(b, at, b.like(0, at), b.like(extent - 1, at)), np.int64)
            place = b.add(b.mul(place, extent), index)
            weights += [] if weight is None else [weight]
        value = picked(b, flat, b.unsqueeze(place, [1]), 2)
        if weights:
            value = b.mul(value, b.unsqueeze(b.cast(reduce(b.mul, weights), dtype_of(x)), [1]))
        if inside:
            value = b.select(b.unsqueeze(reduce(lambda p, q: ar.logical_and(b, p, q), inside), [1]), value, 0)
        found.append(value)
    return found


def _added(b: Builder, values: Sequence[Value]) -> Value:
    return reduce(b.add, values)


def _nearest_inside(b: Builder, at: Value, extent: int) -> Value:
    return clip(b, at, b.like(0, at), b.like(extent - 1, at))


def _mirrored(low: float, high: Callable[[int], float]) -> Outside:
    """Positions outside [low, high(extent)] mirrored at the ends as often as it takes."""

    def mirror(b: Builder, at: Value, extent: int) -> Value:
        span = high(extent) - low
        if span <= 0:
            return b.mul(at, 0.0)
        away = b.elementwise("Mod", ar.absolute(b, b.add(at, -low)), b.like(2 * span, at))
        folded = b.select(b.less(b.like(span, away), away), ar.sub(b, 2 * span, away), away)
        return b.add(folded, low)

    return mirror


_TAPS = {
    "linear": linear_taps,
    "bilinear": linear_taps,
    "nearest": nearest_tap,
    "cubic": cubic_taps,
    "bicubic": cubic_taps,
}


@operator("GridSample", since=16)
def grid_sample(
    b: Builder,
    x: Value,
    grid: Value,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Value:
    if mode not in _TAPS or (mode.endswith("cubic") and rank_of(x) != 4):
        raise NotLoweredError(f"mode='{mode}' of rank {rank_of(x)}")
    mirror = _mirrored(0.0, lambda n: n - 1.0) if align_corners else _mirrored(-0.5, lambda n: n - 0.5)
    outside: dict[str, Outside | None] = {"zeros": None, "border": _nearest_inside, "reflection": mirror}
    if padding_mode not in outside:
        raise NotLoweredError(f"padding_mode='{padding_mode}'")
    pad = outside[padding_mode]
    extents = [fixed(d, "the extent of what is sampled") for d in shape_of(x)[2:]]
    n, *places, axes = shape_of(grid)
    if axes != len(extents):
        raise ValueError(f"positions of {axes} coordinates in {len(extents)} axes")
    flat = b.reshape(grid, (n, lay.numel(places), axes))
    taps = []
    for axis, extent in enumerate(extents):
        at = b.squeeze(b.slice(flat, 2, len(extents) - 1 - axis, 1, 1), [2])
        scale = (extent - 1) / 2 if align_corners else extent / 2
        at = b.add(b.mul(at, scale), (extent - 1) / 2)
        taps.append(_TAPS[mode](b, at if pad is None else pad(b, at, extent)))
    return b.reshape(_added(b, contributions(b, x, taps, pad)), (n, shape_of(x)[1], *places))


@operator("RoiAlign", since=16)
def roi_align(
    b: Builder,
    x: Value,
    regions: Value,
    batch: Value,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Value:
    """Each bin of each region is the mean (or the maximum) of samples on a grid inside it."""
    half = coordinate_transformation_mode == "half_pixel"
    count = fixed(shape_of(regions)[0], "the number of regions")
    sizes = (output_height, output_width)
    if sampling_ratio > 0:
        return _pooled(b, x, regions, batch, sizes, (sampling_ratio, sampling_ratio), spatial_scale, half, mode)
    bounds = known_array(regions, "regions with as many samples as they are large").astype(np.float64) * spatial_scale
    parts = []
    for region in range(count):
        span = [bounds[region, 3] - bounds[region, 1], bounds[region, 2] - bounds[region, 0]]
        span = span if half else [max(s, 1.0) for s in span]
        ratios = tuple(max(1, math.ceil(s / n)) for s, n in zip(span, sizes, strict=True))
        one = [b.slice(v, 0, region, 1, 1) for v in (regions, batch)]
        parts.append(_pooled(b, x, one[0], one[1], sizes, ratios, spatial_scale, half, mode))
    return concat(b, *parts, axis=0)


def _pooled(
    b: Builder,
    x: Value,
    regions: Value,
    batch: Value,
    sizes: Sequence[int],
    ratios: Sequence[int],
    scale: float,
    half: bool,
    mode: str,
) -> Value:
    count = shape_of(regions)[0]
    bounds = b.add(b.mul(regions, scale), -0.5 if half else 0.0)
    extents = [fixed(d, "the extent of what is pooled") for d in shape_of(x)[2:]]
    rows, columns = (n * r for n, r in zip(sizes, ratios, strict=True))
    if rows < 1 or columns < 1 or rows * columns > FOLD_LIMIT:
        raise NotLoweredError(f"regions of {rows} x {columns} samples")
    taps: list[list[Tap]] = []
    inside: list[Value] = []
    for axis, (extent, size, ratio) in enumerate(zip(extents, sizes, ratios, strict=True)):
        low, high = (b.slice(bounds, 1, place, 1, 1) for place in (1 - axis, 3 - axis))
        span = ar.sub(b, high, low)
        span = span if half else ar.maximum(b, span, b.like(1, span))
        step = np.asarray((np.arange(size * ratio) + 0.5) / (size * ratio), dtype_of(x))
        at = b.add(low, b.mul(span, step))
        within = ar.logical_and(b, ar.less_or_equal(b, b.like(-1, at), at), ar.less_or_equal(b, at, b.like(extent, at)))
        shape = (count, rows, 1) if axis == 0 else (count, 1, columns)
        inside.append(b.reshape(within, shape))
        at, whole = _nearest_inside(b, at, extent), (count, rows, columns)
        at = b.reshape(b.expand(b.reshape(at, shape), whole), (count, rows * columns))
        taps.append(linear_taps(b, at))
    seen = b.reshape(ar.logical_and(b, *inside), (count, 1, rows * columns))
    chosen = b.take(x, batch, 0)
    values = [b.select(seen, v, 0) for v in contributions(b, chosen, taps, _nearest_inside)]
    joined = _added(b, values) if mode == "avg" else reduce(lambda p, q: ar.maximum(b, p, q), values)
    channels = shape_of(x)[1]
    split = b.reshape(joined, (count, channels, sizes[0], ratios[0], sizes[1], ratios[1]))
    return mean(b, split, [3, 5]) if mode == "avg" else greatest(b, split, [3, 5])


@operator("DeformConv", since=19)
def deform_conv(
    b: Builder,
    x: Value,
    weight: Value,
    offset: Value,
    bias: Value | None = None,
    mask: Value | None = None,
    *,
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    offset_group: int = 1,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:
    """A convolution whose kernel reads at positions that are each moved by an offset of its own."""
    outputs, _, *kernel_dims = shape_of(weight)
    kernel = [fixed(k, "the extent of a kernel") for k in kernel_dims]
    n, _, *places = shape_of(offset)
    size, count, axes = math.prod(kernel), lay.numel(places), len(kernel)
    moved = b.reshape(offset, (n, offset_group, size, axes, *places))
    scaled = None if mask is None else b.reshape(mask, (n, offset_group, 1, size, count))
    channels = fixed(shape_of(x)[1], "the number of channels")
    if not 0 < offset_group <= channels or channels % offset_group or group < 1 or channels % group:
        raise ValueError(f"{channels} channels in {group} groups, their offsets in {offset_group}")
    if size > FOLD_LIMIT:
        raise NotLoweredError(f"a kernel of {size} elements")
    per_group = channels // offset_group
    parts = []
    for g in range(offset_group):
        taps = []
        for axis in range(axes):
            start = (pads or [0] * axes)[axis]
            own = b.reshape(b.slice(b.slice(moved, 1, g, 1, 1), 3, axis, 1, 1), (n, size, *places))
            step = np.arange(size) // math.prod(kernel[axis + 1 :]) % kernel[axis] * (dilations or [1] * axes)[axis]
            base = b.iota(
                Z * (strides or [1] * axes)[axis] - start,
                tuple(d if a == axis else 1 for a, d in enumerate(places)),
                np.int64,
            )
            at = b.add(base, step.reshape(size, *(1 for _ in places)))
            at = b.add(b.cast(at, dtype_of(x)), own)
            taps.append(linear_taps(b, b.reshape(at, (n, ex.as_dim(ex.as_expr(count) * size)))))
        read = _added(b, contributions(b, b.slice(x, 1, g * per_group, 1, per_group), taps, None))
        read = b.reshape(read, (n, per_group, size, count))
        if scaled is not None:
            read = b.mul(read, b.reshape(b.slice(scaled, 1, g, 1, 1), (n, 1, size, count)))
        parts.append(read)
    columns = b.reshape(concat(b, *parts, axis=1), (n, group, channels // group * size, count))
    filters = b.reshape(weight, (group, ex.as_dim(ex.as_expr(outputs) // group), channels // group * size))
    y = b.reshape(b.swap_last(contract(b, b.swap_last(columns), filters)), (n, outputs, *places))
    return y if bias is None else b.add(y, b.reshape(bias, (outputs, *(1 for _ in places))))


@operator("RoiAlign", since=10)
def roi_align_unshifted(
    b: Builder,
    x: Value,
    regions: Value,
    batch: Value,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Value:
    return roi_align(
        b,
        x,
        regions,
        batch,
        coordinate_transformation_mode="output_half_pixel",
        mode=mode,
        output_height=output_height,
        output_width=output_width,
        sampling_ratio=sampling_ratio,
        spatial_scale=spatial_scale,
    )
