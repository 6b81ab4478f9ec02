"""Fourier transforms, as products with matrices of sines and cosines, and what belongs to spectra."""

from __future__ import annotations

import math

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend.builder import FOLD_LIMIT, Builder
from workbench.frontend.contraction import contract
from workbench.frontend.convolution import windows
from workbench.frontend.movement import concat, pad_axes
from workbench.frontend.registry import operator
from workbench.frontend.values import (
    NotLoweredError,
    Value,
    as_ints,
    dtype_of,
    fixed,
    known_array,
    normalize_axis,
    rank_of,
    shape_of,
)


@operator("DFT", since=17)
def dft_by_attribute(
    b: Builder, x: Value, length: Value | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Value:
    return _dft(b, x, length, axis, bool(inverse), bool(onesided))


@operator("DFT", since=20)
def dft(
    b: Builder,
    x: Value,
    length: Value | None = None,
    axis: Value | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Value:
    along = -2 if axis is None else as_ints(axis, "the axis")[0]
    return _dft(b, x, length, along, bool(inverse), bool(onesided))


def _dft(b: Builder, x: Value, length: Value | None, axis: int, inverse: bool, onesided: bool) -> Value:
    rank = rank_of(x)
    axis = normalize_axis(axis, rank)
    if axis == rank - 1:
        raise ValueError("a transform along the axis of real and imaginary part")
    given = fixed(shape_of(x)[axis], "the length of a transform")
    to_real = inverse and onesided
    natural = 2 * (given - 1) if to_real else given
    count = natural if length is None else as_ints(length, "the length of a transform")[0]
    if count < 1:
        raise ValueError(f"a transform of length {count}")
    used = count // 2 + 1 if to_real else count
    x = pad_axes(b, x, [0] * rank, [used - given if a == axis else 0 for a in range(rank)])
    order = [*(a for a in range(rank - 1) if a != axis), axis]
    parts = [b.transpose(p, order) for p in _parts(b, x)]
    results = [_real_inverse(b, parts, count)] if to_real else transformed(b, parts, count, inverse, onesided)
    back = [int(a) for a in np.argsort(order)]
    return concat(b, *(b.unsqueeze(b.transpose(p, back), [rank - 1]) for p in results), axis=rank - 1)


def _parts(b: Builder, x: Value) -> list[Value]:
    """The real part, and the imaginary one where there is one: the last axis taken apart."""
    last = rank_of(x) - 1
    count = fixed(shape_of(x)[last], "the number of parts")
    return [b.squeeze(b.slice(x, last, part, 1, 1), [last]) for part in range(count)]


def _waves(rows: int, columns: int, period: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of 2 pi r c / period."""
    if rows * columns > 16 * FOLD_LIMIT:
        raise NotLoweredError(f"a transform of length {period}")
    angle = 2 * np.pi / period * (np.outer(np.arange(rows), np.arange(columns)) % period)
    return np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)


def transformed(b: Builder, parts: list[Value], count: int, inverse: bool, onesided: bool) -> list[Value]:
    """Real and imaginary part of the transform of `parts` along their last axis, whose extent is `count`."""
    bins = count // 2 + 1 if onesided else count
    cos, sin = _waves(bins, count, count, dtype_of(parts[0]))
    if inverse:
        cos, sin = cos / count, -sin / count
    cos, sin = cos.astype(dtype_of(parts[0])), sin.astype(dtype_of(parts[0]))
    real, imaginary = contract(b, parts[0], cos), ar.neg(b, contract(b, parts[0], sin))
    if len(parts) == 1:
        return [real, imaginary]
    return [b.add(real, contract(b, parts[1], sin)), b.add(imaginary, contract(b, parts[1], cos))]


def _real_inverse(b: Builder, parts: list[Value], count: int) -> Value:
    """The real signal of `count` elements whose spectrum begins with `parts`; the rest of it mirrors them."""
    bins = count // 2 + 1
    cos, sin = _waves(count, bins, count, np.dtype(np.float64))
    twice = np.full(bins, 2.0)
    twice[0] = 1.0
    if count % 2 == 0:
        twice[-1] = 1.0
    dtype = dtype_of(parts[0])
    y = contract(b, parts[0], (cos * twice / count).astype(dtype))
    return y if len(parts) == 1 else ar.sub(b, y, contract(b, parts[1], (sin * twice / count).astype(dtype)))


@operator("STFT", since=17)
def short_time_fourier_transform(
    b: Builder,
    signal: Value,
    frame_step: Value,
    window: Value | None = None,
    frame_length: Value | None = None,
    *,
    onesided: int = 1,
) -> Value:
    step = as_ints(frame_step, "the step of the frames")[0]
    if frame_length is not None:
        count = as_ints(frame_length, "the length of a frame")[0]
    else:
        count = fixed(shape_of(signal)[1] if window is None else shape_of(window)[0], "the length of a frame")
    if step < 1 or count < 1:
        raise ValueError(f"frames of {count} elements, {step} apart")
    if rank_of(signal) == 2:
        signal = b.unsqueeze(signal, [2])
    frames = windows(b, signal, [1], [count], [step], [1], [0], [0], 0.0)
    parts = [p if window is None else b.mul(p, window) for p in _parts(b, b.transpose(frames, [0, 1, 3, 2]))]
    spectrum = transformed(b, parts, count, False, bool(onesided))
    return concat(b, *(b.unsqueeze(p, [3]) for p in spectrum), axis=3)


@operator("MelWeightMatrix", since=17)
def mel_weight_matrix(
    b: Builder,
    bins: Value,
    length: Value,
    rate: Value,
    lowest: Value,
    highest: Value,
    *,
    output_datatype: int = 1,
) -> Value:
    """Triangles over the bins of a spectrum, their corners evenly spaced in mel (2595 log10(1 + f/700))."""
    from onnx import helper

    given = [known_array(v, "a mel matrix's size").reshape(-1)[0] for v in (bins, length, rate, lowest, highest)]
    count, size, sampled = (int(v) for v in given[:3])
    rows = size // 2 + 1
    if min(count, size, sampled) < 1 or rows * count > FOLD_LIMIT:
        raise ValueError(f"a mel matrix of {rows} x {count}")
    low, high = (2595 * math.log10(1 + float(f) / 700) for f in given[3:])
    corners = low + np.arange(count + 2) * ((high - low) / (count + 2))
    at = np.floor((size + 1) * (700 * (10 ** (corners / 2595) - 1)) / sampled).astype(np.int64)
    place = np.arange(rows)[:, None]
    first, middle, last = at[:-2], at[1:-1], at[2:]
    rising = np.where(middle == first, place == middle, (place - first) / np.maximum(middle - first, 1))
    falling = (last - place) / np.maximum(last - middle, 1)
    weights = np.where((place >= first) & (place <= middle), rising, 0)
    weights = np.where((place >= middle) & (place < last), falling, weights)
    return weights.astype(helper.tensor_dtype_to_np_dtype(output_datatype))
