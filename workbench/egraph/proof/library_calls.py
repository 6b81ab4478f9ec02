"""What the library calls compute, by their documentation: column-major matrices, leading dimensions, transposes.

BLAS xGEMM (netlib), cuBLAS gemm and cublasLtMatmul are defined on column-major storage: element (i, j) of a matrix with
leading dimension ld lies at i + j*ld, and ld may not be less than the number of rows stored. A row-major C[m, n] is the
column-major C'[n, m], so the call that computes it is C' = op(B) op(A), with B and A exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.ir import dtype as dt


class Meaningless(Exception):
    """The e-node asks for what cannot be: a read outside a buffer, operands that do not fit, a call that is refused."""


class Refused(Meaningless):
    """A call that the library refuses to make; it returns an error and computes nothing."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand of a call: its flat buffer, where each batch entry begins, and its leading dimension."""

    buffer: np.ndarray
    entries: Sequence[int]
    leading: int


Call = Callable[[str, tuple[int, ...], int, int, int, Matrix, Matrix], np.ndarray]


def gemm(layout: str, batch: tuple[int, ...], m: int, n: int, k: int, a: Matrix, b: Matrix) -> np.ndarray:
    """C[batch, m, n] = A[batch, m, k] B[batch, k, n]; `layout` is how A and B are stored (RmCm: A row-major, B
    column-major). The flat result. Raises Meaningless."""
    if len(layout) != 4 or {layout[:2], layout[2:]} - {"Rm", "Cm"}:
        raise Meaningless(f"'{layout}' is no pair of operand layouts")
    first = _stored(b, layout[2:] == "Rm", k, n)  # op(B), n x k
    second = _stored(a, layout[:2] == "Rm", m, k)  # op(A), k x m
    wide = np.float64 if dt.is_float(first.dtype) else np.int64
    # the column-major result n x m, read by columns, is the row-major m x n
    result = [np.asarray(x.astype(wide) @ y.astype(wide)).T for x, y in zip(first, second, strict=True)]
    return np.array(result).astype(a.buffer.dtype).reshape(-1) if result else np.zeros(0, a.buffer.dtype)


def _stored(matrix: Matrix, row_major: bool, rows: int, columns: int) -> np.ndarray:
    """The entries as the call reads them, each `columns` x `rows`: a row-major matrix is its own transpose stored by
    columns and is taken as it is (N); a column-major one is transposed (T)."""
    height, width = (columns, rows) if row_major else (rows, columns)
    if matrix.leading < max(1, height):
        raise Refused(f"a leading dimension of {matrix.leading} for columns of {height}")
    at = np.arange(height)[:, None] + np.arange(width)[None, :] * matrix.leading
    taken = []
    for start in matrix.entries:
        low, high = start, start + (int(at.max()) if at.size else 0)
        if at.size and (low < 0 or high >= matrix.buffer.size):
            raise Meaningless(f"it reads elements {low} to {high} of {matrix.buffer.size}")
        block = matrix.buffer[at + start] if at.size else np.zeros(at.shape, matrix.buffer.dtype)
        taken.append(block if row_major else block.T)
    return np.array(taken) if taken else np.zeros((0, columns, rows), matrix.buffer.dtype)


def lt_matmul(layout: str, batch: tuple[int, ...], m: int, n: int, k: int, a: Matrix, b: Matrix) -> np.ndarray:
    """As `gemm`, by cublasLtMatmul: a batch has one offset between its entries, and the dtype is a floating one."""
    held = dt.from_numpy(a.buffer.dtype)
    if held is None or held.name not in ("f64", "f32", "f16", "bf16"):
        raise Meaningless(f"cublasLt does not multiply {held}")
    for matrix in (a, b):
        steps = {y - x for x, y in zip(matrix.entries, matrix.entries[1:], strict=False)}
        if len(steps) > 1:
            raise Meaningless("a batch whose entries are not one stride apart")
    return gemm(layout, batch, m, n, k, a, b)


CALLS: dict[str, Call] = {"Sgemm": gemm, "Dgemm": gemm, "Cublas": gemm, "CublasLt": lt_matmul}
"""Constructors of library calls."""
