"""Resize and Upsample: along each axis a weighted sum of a few positions that are known at import.

Coordinates and weights follow the operator's specification (onnx.ai/onnx/operators/onnx__Resize.html)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from workbench.frontend.builder import FOLD_LIMIT, Builder
from workbench.frontend.registry import operator
from workbench.frontend.values import (
    NotLoweredError,
    Value,
    as_ints,
    dtype_of,
    known_array,
    normalize_axis,
    rank_of,
    shape_of,
)
from workbench.ir.expr import Expr, Z

_MOST_REACH = 512
"""Elements to each side that a filter against aliasing may reach."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How positions of the result map to positions of the input, and which neighbours count."""

    coordinates: str
    mode: str
    nearest: str
    cubic: float
    exclude_outside: bool
    antialias: bool
    extrapolation: float


def _source_positions(how: Sampling, n: int, count: int, scale: float, roi: tuple[float, float]) -> np.ndarray:
    """The fractional input position of each of `count` results along an axis of `n` elements."""
    at = np.arange(count, dtype=np.float64)
    match how.coordinates:
        case "half_pixel":
            return (at + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (at + 0.5) / scale - 0.5 if count > 1 else np.zeros(1)
        case "half_pixel_symmetric":
            adjustment = count / (scale * n)
            return n / 2 * (1 - adjustment) + (at + 0.5) / scale - 0.5
        case "align_corners":
            return at * (n - 1) / (scale * n - 1) if count > 1 else np.zeros(1)
        case "asymmetric":
            return at / scale
        case "tf_crop_and_resize":
            start, end = roi
            if count > 1:
                return start * (n - 1) + at * (end - start) * (n - 1) / (count - 1)
            return np.full(1, 0.5 * (start + end) * (n - 1))
    raise NotLoweredError(f"coordinate_transformation_mode='{how.coordinates}'")


def _nearest(how: Sampling, position: np.ndarray) -> np.ndarray:
    match how.nearest:
        case "round_prefer_floor":
            return np.ceil(position - 0.5)
        case "round_prefer_ceil":
            return np.floor(position + 0.5)
        case "floor":
            return np.floor(position)
        case "ceil":
            return np.ceil(position)
    raise NotLoweredError(f"nearest_mode='{how.nearest}'")


def _taps(how: Sampling, position: np.ndarray, n: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Positions [taps, count] within the axis and their weights.

    Against aliasing, a filter for fewer elements than there are is stretched by as much."""
    base = np.floor(position)
    part = position - base
    if how.mode == "nearest":
        near = _nearest(how, position)
        return np.clip(near, 0, n - 1)[None], np.ones((1, position.size))
    if how.mode not in ("linear", "cubic"):
        raise NotLoweredError(f"mode='{how.mode}'")
    narrowing = min(scale, 1.0) if how.antialias else 1.0
    reach = math.ceil((1 if how.mode == "linear" else 2) / narrowing)
    if reach > _MOST_REACH:
        raise NotLoweredError(f"antialiasing over {2 * reach} elements")
    steps = range(1 - reach, reach + 1)
    at = np.stack([base + k for k in steps])
    distance = np.stack([np.abs(part - k) for k in steps]) * narrowing
    weights = np.maximum(0, 1 - distance) if how.mode == "linear" else _cubic(distance, how.cubic)
    if narrowing < 1:
        weights = weights / weights.sum(0)
    if how.exclude_outside:
        weights = np.where((at >= 0) & (at < n), weights, 0)
        weights = weights / weights.sum(0)
    return np.clip(at, 0, n - 1), weights


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution kernel."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


def _resize_axis(
    b: Builder, x: Value, axis: int, count: int, scale: float, roi: tuple[float, float], how: Sampling
) -> Value:
    n = shape_of(x)[axis]
    if isinstance(n, Expr):
        raise NotLoweredError(f"resizing an axis of the dimension {n}")
    if count > FOLD_LIMIT:
        raise ValueError(f"a result of {count} elements along axis {axis}")
    position = _source_positions(how, n, count, scale, roi)
    at, weights = _taps(how, position, n, scale)
    place = tuple(count if a == axis else 1 for a in range(rank_of(x)))
    if how.mode == "nearest":
        result = _picked(b, x, axis, at[0].astype(np.int64))
    else:
        result = b.take(x, at[0].astype(np.int64), axis)
        result = b.mul(result, weights[0].astype(dtype_of(x)).reshape(place))
        for positions, weight in zip(at[1:], weights[1:], strict=True):
            one = b.take(x, positions.astype(np.int64), axis)
            result = b.add(result, b.mul(one, weight.astype(dtype_of(x)).reshape(place)))
    if how.coordinates != "tf_crop_and_resize":
        return result
    inside = ((position >= 0) & (position <= n - 1)).reshape(place)
    return b.select(inside, result, how.extrapolation)


def _picked(b: Builder, x: Value, axis: int, at: np.ndarray) -> Value:
    """`x` at known positions; each repeated equally often is a layout."""
    n = shape_of(x)[axis]
    assert not isinstance(n, Expr)
    times = at.size // max(1, n)
    if at.size == times * n and times > 1 and (at == np.arange(at.size) // times).all():
        return b.remap(x, axis, Z // times, at.size)
    return b.take(x, at, axis)


@operator("Resize", since=11)
def resize(
    b: Builder,
    x: Value,
    roi: Value | None = None,
    scales: Value | None = None,
    sizes: Value | None = None,
    *,
    antialias: int = 0,
    axes: list[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Value:
    how = Sampling(
        coordinate_transformation_mode,
        mode,
        nearest_mode,
        cubic_coeff_a,
        bool(exclude_outside),
        bool(antialias),
        extrapolation_value,
    )
    which = list(range(rank_of(x))) if axes is None else [normalize_axis(a, rank_of(x)) for a in axes]
    factors, counts = _targets(x, scales, sizes, which, keep_aspect_ratio_policy)
    cropped = roi is not None and how.coordinates == "tf_crop_and_resize"
    bounds = known_array(roi, "the region").astype(np.float64) if roi is not None and cropped else None
    for position, axis in enumerate(which):
        span = (0.0, 1.0) if bounds is None else (float(bounds[position]), float(bounds[position + len(which)]))
        same = factors[position] == 1 and counts[position] in (0, shape_of(x)[axis])
        if not same or how.coordinates == "tf_crop_and_resize":
            x = _resize_axis(b, x, axis, counts[position], factors[position], span, how)
    return x


def _targets(
    x: Value, scales: Value | None, sizes: Value | None, axes: list[int], policy: str
) -> tuple[list[float], list[int]]:
    """Scale and resulting extent of each of `axes`."""
    extents: list[int] = []
    for axis in axes:
        n = shape_of(x)[axis]
        if isinstance(n, Expr):
            if not isinstance(scales, np.ndarray) or scales.size != len(axes) or scales[len(extents)] != 1:
                raise NotLoweredError(f"resizing an axis of the dimension {n}")
            n = 0  # kept as it is
        extents.append(n)
    if sizes is not None and shape_of(sizes) != (0,):
        wanted = as_ints(sizes, "the sizes")
        factors = [s / n for s, n in zip(wanted, extents, strict=True)]
        if policy == "stretch":
            return factors, wanted
        one = min(factors) if policy == "not_larger" else max(factors)
        return [one] * len(axes), [math.floor(one * n + 0.5) for n in extents]
    if scales is None or shape_of(scales) != (len(axes),):
        raise ValueError(f"neither sizes nor one scale for each of {len(axes)} axes")
    factors = [float(s) for s in known_array(scales, "the scales").reshape(-1)]
    return factors, [math.floor(np.float32(n) * np.float32(s)) for n, s in zip(extents, factors, strict=True)]


@operator("Resize", since=10)
@operator("Upsample", since=9)
def upsample(b: Builder, x: Value, scales: Value, *, mode: str = "nearest") -> Value:
    return resize(b, x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
