"""Library matmuls: four layouts on the BLAS path, batches of every kind, and degenerate sizes."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.errors import WorkbenchError
from workbench.ir import dtype as dt
from workbench.ir.dtype import DType
from workbench.ir.llir import Buffer, GemmCall, GemmOperand, Program
from workbench.runtime.cpu import CpuRuntime
from workbench.runtime.cpu.gemm import batch_grid
from workbench.runtime.cpu.loaded import CpuLoaded


def operand(buffer: int, layout: str, rows: int, columns: int, offsets: tuple[int, ...]) -> GemmOperand:
    strides = (columns, 1) if layout == "Rm" else (1, rows)
    return GemmOperand(buffer, *strides, offsets)


def load(call: GemmCall, a: np.ndarray, b: np.ndarray) -> CpuLoaded:
    out = len(call.a.batch_offsets) * call.m * call.n
    buffers = [
        Buffer(0, call.dtype, a.size, "input", 0),
        Buffer(1, call.dtype, b.size, "constant", 1),
        Buffer(2, call.dtype, out, "output", 2),
    ]
    runtime = CpuRuntime(threads=1)
    return runtime.load(runtime.plan(Program(buffers, [call], [2]), {}), {1: b})


def expected(call: GemmCall, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    def matrix(flat: np.ndarray, o: GemmOperand, offset: int, rows: int, columns: int) -> np.ndarray:
        r, c = np.indices((rows, columns))
        return flat[offset + r * o.row_stride + c * o.col_stride].astype(np.float64)

    results = [
        matrix(a, call.a, i, call.m, call.k) @ matrix(b, call.b, j, call.k, call.n)
        for i, j in zip(call.a.batch_offsets, call.b.batch_offsets, strict=True)
    ]
    return np.array(results).reshape(-1)


@settings(max_examples=120)
@given(
    m=st.integers(0, 9),
    n=st.integers(0, 9),
    k=st.integers(0, 9),
    layouts=st.tuples(st.sampled_from(("Rm", "Cm")), st.sampled_from(("Rm", "Cm"))),
    batch=st.integers(1, 6),
    kind=st.sampled_from(("regular", "shared", "grouped", "irregular")),
    dtype=st.sampled_from((dt.F32, dt.F64, dt.I64)),
    seed=st.integers(0, 1000),
)
def test_matmuls_agree_with_numpy(
    m: int, n: int, k: int, layouts: tuple[str, str], batch: int, kind: str, dtype: DType, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    step = k * n
    right = {
        "regular": tuple(i * step for i in range(batch)),
        "shared": (3,) * batch,
        "grouped": tuple(i // 2 * step for i in range(batch)),
        "irregular": tuple(int(v) for v in rng.integers(0, 50, batch)),
    }[kind]
    left = tuple(i * m * k for i in range(batch))
    a = rng.integers(-4, 5, batch * m * k).astype(dtype.numpy)
    b = rng.integers(-4, 5, max(right) + step).astype(dtype.numpy)
    call = GemmCall(
        2, m, n, k, operand(0, layouts[0], m, k, left), operand(1, layouts[1], k, n, right), dtype, "gemm", "", (0,)
    )
    (got,) = load(call, a, b).run({0: a})
    assert np.array_equal(got, expected(call, a, b))


@pytest.mark.parametrize("size", [(1, 256, 256), (256, 1, 256), (256, 256, 1)])
@pytest.mark.parametrize("layout", ["RmRm", "RmCm", "CmRm", "CmCm"])
def test_vectors_and_outer_products_work_in_every_layout(layout: str, size: tuple[int, int, int]) -> None:
    m, n, k = size
    rng = np.random.default_rng(0)
    a, b = rng.random(m * k, np.float32), rng.random(k * n, np.float32)
    call = GemmCall(
        2,
        m,
        n,
        k,
        operand(0, layout[:2], m, k, (0,)),
        operand(1, layout[2:], k, n, (0,)),
        dt.F32,
        "sgemm",
        layout,
        (0,),
    )
    np.testing.assert_allclose(load(call, a, b).run({0: a})[0], expected(call, a, b), rtol=1e-5)


@pytest.mark.parametrize("layout", ["RmRm", "RmCm", "CmRm", "CmCm"])
def test_every_layout_runs_at_the_speed_of_blas(layout: str) -> None:
    size = 320
    rng = np.random.default_rng(0)
    a, b = rng.random((size, size), np.float32), rng.random((size, size), np.float32)
    call = GemmCall(
        2, size, size, size, operand(0, layout[:2], size, size, (0,)), operand(1, layout[2:], size, size, (0,)),
        dt.F32, "sgemm", layout, (0,),
    )  # fmt: skip
    loaded = load(call, a.reshape(-1), b.reshape(-1))
    loaded.run({0: a.reshape(-1)})
    with loaded.limited():
        ours, blas = best_of(loaded.execute), best_of(lambda: a @ b)
    # NumPy's own loops, which it falls back to, are over twenty times slower
    assert ours < 4 * blas


def best_of(call: object) -> float:
    assert callable(call)
    times = []
    for _ in range(8):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def test_grouped_heads_are_one_call() -> None:
    a = [i * 10 for i in range(8)]
    b = [i // 4 * 7 for i in range(8)]
    assert batch_grid(a, b) == ((2, 4), (40, 10), (7, 0))
    assert batch_grid([0, 5, 1], [0, 0, 0]) is None


def test_an_operand_that_is_too_small_is_refused() -> None:
    call = GemmCall(2, 4, 4, 4, operand(0, "Rm", 4, 4, (0,)), operand(1, "Rm", 4, 4, (8,)), dt.F32, "sgemm", "", (0,))
    flat = np.zeros(16, np.float32)
    with pytest.raises(WorkbenchError, match="does not fit"):
        load(call, flat, flat).run({0: flat})
