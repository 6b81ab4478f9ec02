"""Library matmuls: NumPy views of flat buffers, in strides that let `np.matmul` reach BLAS without a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from workbench.errors import WorkbenchError
from workbench.runtime.protocol import GemmLaunch, MatrixRef


def extent_of(ref: MatrixRef, rows: int, columns: int) -> int:
    """Elements of its buffer that the operand needs; 0 when it is empty. Raises WorkbenchError for negative places."""
    if rows == 0 or columns == 0 or not ref.batch_offsets:
        return 0
    if min(*ref.batch_offsets, ref.row_stride, ref.col_stride) < 0:
        raise WorkbenchError("a matrix operand starts before its buffer")
    return max(ref.batch_offsets) + (rows - 1) * ref.row_stride + (columns - 1) * ref.col_stride + 1


def matmul_call(launch: GemmLaunch, out: np.ndarray, a: np.ndarray, b: np.ndarray) -> Callable[[], object]:
    """A call that computes the launch over flat buffers: one matmul when the batch offsets are regular, else several.

    `out`, `a`, `b` are flat arrays of the launch's dtype that are large enough (see `extent_of`)."""
    m, n, k, batch = launch.m, launch.n, launch.k, len(launch.a.batch_offsets)
    if batch * m * n == 0:
        return lambda: None
    out = out[: batch * m * n]
    if k == 0:
        return lambda: out.fill(0)
    grid = batch_grid(launch.a.batch_offsets, launch.b.batch_offsets)
    if grid is not None:
        sizes, a_steps, b_steps = grid
        left = _view(a, launch.a, launch.a.batch_offsets[0], (m, k), sizes, a_steps)
        right = _view(b, launch.b, launch.b.batch_offsets[0], (k, n), sizes, b_steps)
        return _call(left, right, out.reshape(*sizes, m, n))
    calls = [
        _call(
            _view(a, launch.a, launch.a.batch_offsets[i], (m, k), (), ()),
            _view(b, launch.b, launch.b.batch_offsets[i], (k, n), (), ()),
            out[i * m * n : (i + 1) * m * n].reshape(m, n),
        )
        for i in range(batch)
    ]

    def run() -> None:
        for call in calls:
            call()

    return run


def _call(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> Callable[[], object]:
    return lambda: np.matmul(left, right, out=out)


def _view(
    flat: np.ndarray,
    ref: MatrixRef,
    offset: int,
    shape: tuple[int, int],
    sizes: tuple[int, ...],
    steps: tuple[int, ...],
) -> np.ndarray:
    rows, columns = shape
    row_stride, col_stride = ref.row_stride, ref.col_stride
    # BLAS asks for one stride of 1; that of an axis of one element may be anything
    if columns == 1 and row_stride != 1:
        col_stride = 1
    elif columns == 1:
        col_stride = rows
    elif rows == 1:
        row_stride = columns if col_stride == 1 else 1
    size = flat.itemsize
    strides = (*(s * size for s in steps), row_stride * size, col_stride * size)
    return as_strided(flat[offset:], (*sizes, rows, columns), strides, writeable=False)


def batch_grid(a: Sequence[int], b: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """(extents, steps of a, steps of b) of a grid of at most two axes on which both offset lists are affine.

    None when there is no such grid."""
    count = len(a)
    if count == 1:
        return (), (), ()
    for inner in (count, *(d for d in range(count // 2, 1, -1) if count % d == 0)):
        outer = count // inner
        steps = [_grid_steps(offsets, outer, inner) for offsets in (a, b)]
        if steps[0] is not None and steps[1] is not None:
            if outer == 1:
                return (inner,), steps[0][1:], steps[1][1:]
            return (outer, inner), steps[0], steps[1]
    return None


def _grid_steps(offsets: Sequence[int], outer: int, inner: int) -> tuple[int, int] | None:
    high = offsets[inner] - offsets[0] if outer > 1 else 0
    low = offsets[1] - offsets[0] if inner > 1 else 0
    regular = all(offsets[i] == offsets[0] + i // inner * high + i % inner * low for i in range(len(offsets)))
    return (high, low) if regular else None
