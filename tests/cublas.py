"""cuBLAS in NumPy: what its documentation says that the calls compute, over flat memory, one element after another.

https://docs.nvidia.com/cuda/cublas/ (cublas<t>gemm, cublas<t>gemmBatched, cublasLtMatmul). Matrices are column-major:
element (r, c) of a stored matrix lies at r + c * ld."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.ir.llir import GemmCall, GemmOperand


def stored(memory: np.ndarray, start: int, rows: int, columns: int, ld: int) -> np.ndarray:
    """A stored matrix. Arguments that the library answers with CUBLAS_STATUS_INVALID_VALUE are an error."""
    assert ld >= max(1, rows), f"a leading dimension of {ld} for {rows} rows"
    r, c = np.arange(rows)[:, None], np.arange(columns)[None, :]
    return memory[start + r + c * ld]


def operand(
    memory: np.ndarray, start: int, transposed: bool, rows: int, columns: int, ld: int
) -> np.ndarray:
    """op(X), which is rows x columns."""
    if transposed:
        return stored(memory, start, columns, rows, ld).T
    return stored(memory, start, rows, columns, ld)


@dataclass(frozen=True)
class Arguments:
    """A row-major C = A B as the column-major call that computes its transpose, with B as the first operand."""

    rows: int
    columns: int
    inner: int
    transposed: tuple[bool, bool]
    leading: tuple[int, int]
    starts: tuple[Sequence[int], Sequence[int]]

    @classmethod
    def of(cls, call: GemmCall) -> Arguments:
        """From the operand layouts that the e-graph matched."""
        a_row_major, b_row_major = call.layout[:2] == "Rm", call.layout[2:] == "Rm"
        return cls(
            call.n,
            call.m,
            call.k,
            (not b_row_major, not a_row_major),
            (_leading(call.b, b_row_major), _leading(call.a, a_row_major)),
            (call.b.batch_offsets, call.a.batch_offsets),
        )


def _leading(matrix: GemmOperand, row_major: bool) -> int:
    ld, one = (matrix.row_stride, matrix.col_stride) if row_major else (matrix.col_stride, matrix.row_stride)
    assert one == 1
    return ld


def gemm_batched(call: GemmCall, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """cublasSgemmBatched with arrays of pointers; a batch of one is cublasSgemm. C as flat memory."""
    assert a.dtype == b.dtype == np.float32
    return _run(Arguments.of(call), a, b)


def lt_matmul(call: GemmCall, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """cublasLtMatmul, whose matrix layouts have one offset between the entries of a batch."""
    assert a.dtype == b.dtype == call.dtype.numpy
    args = Arguments.of(call)
    for starts in args.starts:
        steps = {after - before for before, after in itertools.pairwise(starts)}
        assert len(steps) <= 1, f"no one stride describes a batch at {list(starts)}"
    return _run(args, a, b)


def _run(args: Arguments, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    wide = np.float64  # at least as exact as the compute types
    entries: list[np.ndarray] = []
    for at_b, at_a in zip(*args.starts, strict=True):
        first = operand(b, at_b, args.transposed[0], args.rows, args.inner, args.leading[0])
        second = operand(a, at_a, args.transposed[1], args.inner, args.columns, args.leading[1])
        result = first.astype(wide) @ second.astype(wide)
        entries.append(result.T.reshape(-1))  # column-major with ldc = rows, one entry after another
    return np.concatenate(entries).astype(a.dtype)
