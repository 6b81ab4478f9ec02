"""Layouts: how an operand is read. A shape and, per axis, a stride expression in `z`, plus a constant offset.

The address of an element is `offset + sum over axes of stride[axis](index[axis])`, counted in elements of the
source's buffer. Every buffer is contiguous and row-major in its node's own shape. Movement operators (reshape,
permute, expand, slice) are functions on layouts; where no stride expression can say the result they return None and
the caller copies. Axes of extent 1 always have stride 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from workbench.ir import expr as ex
from workbench.ir.expr import ITER, ONE, ZERO, Expr, Z

Dim = int | Expr
Shape = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """`shape` in elements, one stride expression per axis, and the address of element (0, ..., 0)."""

    shape: Shape
    strides: tuple[Expr, ...]
    offset: Expr = ZERO

    def __str__(self) -> str:
        axes = ", ".join(f"{d}:{s}" for d, s in zip(self.shape, self.strides, strict=True))
        return f"[{axes}]" + ("" if self.offset is ZERO else f"+{self.offset}")

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether the layout reads a buffer of its own shape front to back."""
        return self == contiguous(self.shape)


def numel(shape: Sequence[Dim]) -> Dim:
    """Number of elements in `shape`."""
    total: Dim = 1
    for d in shape:
        total = total * d
    return ex.as_dim(total)


@lru_cache(maxsize=65536)
def contiguous(shape: Shape) -> Layout:
    """The row-major layout of `shape`."""
    strides: list[Expr] = []
    step: Expr = ONE
    for d in reversed(shape):
        strides.append(ZERO if d == 1 else ex.mul(Z, step))
        step = ex.mul(step, ex.as_expr(d))
    return Layout(shape, tuple(reversed(strides)))


def permute(layout: Layout, axes: Sequence[int]) -> Layout:
    """Axes reordered: result axis i is source axis `axes[i]`."""
    return Layout(tuple(layout.shape[a] for a in axes), tuple(layout.strides[a] for a in axes), layout.offset)


def expand(layout: Layout, shape: Shape) -> Layout:
    """Broadcast to `shape` by NumPy's rule (leading axes added, extent-1 axes stretched).

    Raises ValueError when an extent is neither equal nor 1."""
    lead = len(shape) - layout.rank
    if lead < 0:
        raise ValueError(f"cannot broadcast {show(layout.shape)} to {show(shape)}")
    strides: list[Expr] = [ZERO] * lead
    for old, new, stride in zip(layout.shape, shape[lead:], layout.strides, strict=True):
        if old == new:
            strides.append(stride)
        elif old == 1:
            strides.append(ZERO)
        else:
            raise ValueError(f"cannot broadcast {show(layout.shape)} to {show(shape)}")
    return Layout(shape, tuple(strides), layout.offset)


def slice_axis(layout: Layout, axis: int, start: Dim, step: int, count: Dim) -> Layout:
    """`count` elements of `axis` from `start`, `step` apart (negative steps allowed)."""
    old = layout.strides[axis]
    moved = ex.substitute(old, {ITER: ex.add(ex.as_expr(start), ex.mul(Z, ex.const(step)))}, {ITER: count})
    origin = ex.substitute(moved, {ITER: 0})
    stride = ZERO if count == 1 else ex.add(moved, ex.mul(origin, ex.MINUS_ONE))
    if ITER in ex.variables(moved) and ex.coefficient_of(stride, ITER) is None:
        origin, stride = ZERO, moved  # a quotient or remainder keeps its start inside
        if count == 1:
            origin, stride = ex.substitute(moved, {ITER: 0}), ZERO
    shape, strides = list(layout.shape), list(layout.strides)
    shape[axis], strides[axis] = ex.as_dim(count), stride
    return Layout(tuple(shape), tuple(strides), ex.add(layout.offset, origin))


def insert_axis(layout: Layout, axis: int, extent: Dim = 1) -> Layout:
    """A new broadcast axis of `extent` before position `axis`."""
    shape, strides = list(layout.shape), list(layout.strides)
    shape.insert(axis, extent)
    strides.insert(axis, ZERO)
    return Layout(tuple(shape), tuple(strides), layout.offset)


def merge_axes(shape: Sequence[Dim], strides: Sequence[Expr]) -> Expr:
    """The stride expression of the single axis that runs over all of `shape`, row-major."""
    total = ZERO
    inner: Expr = ONE
    extent = ex.as_expr(numel(shape))
    live = _coalesced(shape, strides)
    for position in range(len(live) - 1, -1, -1):
        d, s = live[position]
        index = ex.floordiv(Z, inner, {ITER: extent})
        if position:
            index = ex.mod(index, ex.as_expr(d), {ITER: extent})
        total = ex.add(total, ex.substitute(s, {ITER: index}, {ITER: extent}))
        inner = ex.mul(inner, ex.as_expr(d))
    return ex.substitute(total, {}, {ITER: extent})


def _coalesced(shape: Sequence[Dim], strides: Sequence[Expr]) -> list[tuple[Dim, Expr]]:
    """The axes, with neighbours that step evenly over both written as one."""
    axes: list[tuple[Dim, Expr]] = []
    for d, stride in zip(shape, strides, strict=True):
        step = ex.coefficient_of(stride, ITER)
        if axes and step is not None and ex.coefficient_of(axes[-1][1], ITER) is ex.mul(step, ex.as_expr(d)):
            axes[-1] = (ex.as_dim(ex.mul(ex.as_expr(axes[-1][0]), ex.as_expr(d))), stride)
        else:
            axes.append((d, stride))
    return axes


def reshape(layout: Layout, shape: Shape) -> Layout | None:
    """The same elements in the same order under `shape`, or None when no stride expression per axis can say it.

    Raises ValueError when the element counts differ."""
    if layout.shape == shape:
        return layout
    if ex.as_expr(numel(layout.shape)) is not ex.as_expr(numel(shape)):
        raise ValueError(f"cannot reshape {show(layout.shape)} to {show(shape)}: the element counts differ")
    old = [(d, s) for d, s in zip(layout.shape, layout.strides, strict=True) if d != 1]
    new = [d for d in shape if d != 1]
    strides: list[Expr] = []
    i = j = 0
    while i < len(old) or j < len(new):
        i_end, j_end = i + 1, j + 1
        left = ex.as_expr(old[i][0]) if i < len(old) else ONE
        right = ex.as_expr(new[j]) if j < len(new) else ONE
        while left is not right:
            grow_left = _grow_left(left, right, i_end < len(old), j_end < len(new))
            if grow_left is None:
                return None
            if grow_left:
                left = ex.mul(left, ex.as_expr(old[i_end][0]))
                i_end += 1
            else:
                right = ex.mul(right, ex.as_expr(new[j_end]))
                j_end += 1
        block = _reshape_block(old[i:i_end], new[j:j_end])
        if block is None:
            return None
        strides += block
        i, j = i_end, j_end
    found = iter(strides)
    return Layout(shape, tuple(ZERO if d == 1 else next(found) for d in shape), layout.offset)


def _grow_left(left: Expr, right: Expr, can_left: bool, can_right: bool) -> bool | None:
    a, b = left.constant, right.constant
    if a is not None and b is not None:
        wanted = a < b
    else:  # the side that divides the other is the shorter one
        wanted = ex.mod(right, left) is ZERO
        if not wanted and ex.mod(left, right) is not ZERO:
            wanted = can_left
    if wanted:
        return True if can_left else (False if can_right else None)
    return False if can_right else (True if can_left else None)


def _reshape_block(old: Sequence[tuple[Dim, Expr]], new: Sequence[Dim]) -> list[Expr] | None:
    merged = old[0][1] if len(old) == 1 else merge_axes([d for d, _ in old], [s for _, s in old])
    if len(new) == 1:
        return [merged]
    return _split_axis(merged, new)


def _split_axis(stride: Expr, shape: Sequence[Dim]) -> list[Expr] | None:
    """The strides of the axes of `shape` that one axis with `stride` falls into, or None when they can't be told apart:
    the address has to be a sum of one term for each of them."""
    names = [f"{ex.AXIS_MARK}{i}" for i in range(len(shape))]
    extents = dict(zip(names, shape, strict=True))
    position, step, steps = ZERO, ONE, []
    for name, d in zip(reversed(names), reversed(shape), strict=True):
        steps.append(step)
        position = ex.add(position, ex.mul(ex.var(name), step))
        step = ex.mul(step, ex.as_expr(d))
    start = ex.substitute(stride, {ITER: ZERO})
    strides: list[Expr] = []
    total = ZERO
    for name, d, step in zip(names, shape, reversed(steps), strict=True):
        own = ex.substitute(stride, {ITER: ex.mul(Z, step)}, {ITER: d})
        strides.append(ex.add(own, ex.mul(start, ex.MINUS_ONE)) if strides else own)
        total = ex.add(total, ex.substitute(strides[-1], {ITER: ex.var(name)}, extents))
    return strides if total is ex.substitute(stride, {ITER: position}, extents) else None


def address(layout: Layout, index: Sequence[Expr], extents: Mapping[str, Dim] | None = None) -> Expr:
    """The address of the element at `index` (one expression per axis)."""
    total = layout.offset
    for stride, at in zip(layout.strides, index, strict=True):
        total = ex.add(total, ex.substitute(stride, {ITER: at}, extents))
    return total


def unflatten(flat: Expr, shape: Sequence[Dim], extents: Mapping[str, Dim] | None = None) -> list[Expr]:
    """The index along each axis of `shape` of the element at row-major position `flat`."""
    index: list[Expr] = []
    inner: Expr = ONE
    for position in range(len(shape) - 1, -1, -1):
        d = ex.as_expr(shape[position])
        if d is ONE:
            index.append(ZERO)
            continue
        at = ex.floordiv(flat, inner, extents)
        index.append(ex.mod(at, d, extents) if any(e != 1 for e in shape[:position]) else at)
        inner = ex.mul(inner, d)
    return index[::-1]


def read(buffer: np.ndarray, layout: Layout, dims: Mapping[str, int]) -> np.ndarray:
    """The elements of a flat `buffer` under `layout`, as an array (a view where the strides are affine). What is read
    of an empty buffer is 0: a join with nothing, such as an empty cache, reads it and then takes the other side.

    Raises IndexError when the layout reaches outside the buffer."""
    shape = [int(ex.evaluate(d, dims)) for d in layout.shape]
    offset = int(ex.evaluate(layout.offset, dims))
    if 0 in shape or not buffer.size:
        return np.zeros(shape, buffer.dtype)
    slopes = [ex.coefficient_of(s, ITER) for s in layout.strides]
    if all(c is not None for c in slopes):
        steps = [int(ex.evaluate(c, dims)) for c in slopes if c is not None]
        reach = [(n - 1) * s for n, s in zip(shape, steps, strict=True)]
        low, high = offset + sum(min(r, 0) for r in reach), offset + sum(max(r, 0) for r in reach)
        if low < 0 or high >= buffer.size:
            raise IndexError(f"layout {layout} reaches {low}..{high} of a buffer of {buffer.size} elements")
        start = buffer[offset:]
        return np.lib.stride_tricks.as_strided(start, shape, [s * buffer.itemsize for s in steps], writeable=False)
    index: Any = offset
    for axis, (n, stride) in enumerate(zip(shape, layout.strides, strict=True)):
        at = np.asarray(ex.evaluate(stride, {**dims, ITER: np.arange(n, dtype=np.int64)}))
        index = index + np.broadcast_to(at, (n,)).reshape([n if a == axis else 1 for a in range(len(shape))])
    index = np.broadcast_to(index, shape)
    if index.size and (index.min() < 0 or index.max() >= buffer.size):
        raise IndexError(f"layout {layout} reaches outside a buffer of {buffer.size} elements")
    return np.asarray(buffer[index])


def bind(layout: Layout, dims: Mapping[str, int]) -> Layout:
    """`layout` with named dimensions replaced by their values, re-simplified."""
    if not dims:
        return layout
    shape = tuple(ex.as_dim(ex.substitute(ex.as_expr(d), dims)) for d in layout.shape)
    offset = ex.substitute(layout.offset, dims)
    strides: list[Expr] = []
    for d, stride in zip(shape, layout.strides, strict=True):
        strides.append(ZERO if d == 1 else ex.substitute(stride, dims, {ITER: d}))
        if d == 1:  # a stride that holds the start of a slice is not 0 at index 0
            offset = ex.add(offset, ex.substitute(stride, {**dims, ITER: 0}))
    return Layout(shape, tuple(strides), offset)


def show(shape: Sequence[Dim]) -> str:
    """`shape` as users read it: `[batch, 16, 64]`."""
    return "[" + ", ".join(str(d) for d in shape) + "]"

