"""f16 and bf16 in kernels: every bit pattern read, every rounding of a store, by instruction and without one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from workbench.ir import dtype as dt
from workbench.ir.dtype import DType
from workbench.ir.expr import var
from workbench.ir.llir import (
    ALONG,
    Apply,
    Immediate,
    Load,
    MapKernel,
    Reduced,
    ReduceKernel,
    RowKernel,
    RowPass,
    axis,
)
from workbench.runtime.cpu.jit import host_vectors
from workbench.runtime.cpu.schedule import Vectors

RunKernel = Callable[..., np.ndarray]
HALF = pytest.mark.parametrize("dtype", [dt.F16, dt.BF16], ids=str)
PROCESSORS = pytest.mark.parametrize(
    "vectors", [host_vectors(), Vectors(16, 4, converts_f16=False)], ids=["this one", "none that converts f16"]
)
PATTERNS = np.arange(1 << 16, dtype=np.uint16)


def every(dtype: DType) -> np.ndarray:
    """Every number of a half dtype."""
    return PATTERNS.view(dtype.numpy)


def cast(x: np.ndarray, target: DType, run_kernel: RunKernel, vectors: Vectors) -> np.ndarray:
    source = dt.from_numpy(x.dtype)
    assert source is not None
    body = Apply("Cast", (Load(1, axis(0), source),), target)
    return run_kernel(MapKernel(0, (x.size,), body, (0,)), {1: x}, target.numpy, vectors)


@HALF
@PROCESSORS
def test_every_number_is_read_exactly(dtype: DType, vectors: Vectors, run_kernel: RunKernel) -> None:
    np.testing.assert_array_equal(
        cast(every(dtype), dt.F32, run_kernel, vectors), every(dtype).astype(np.float32)
    )


@HALF
@PROCESSORS
def test_stores_round_to_nearest_even(dtype: DType, vectors: Vectors, run_kernel: RunKernel) -> None:
    """All halves, the points midway between them, and what lies just beside either."""
    halves = every(dtype).astype(np.float32)
    halves = halves[np.isfinite(halves)]
    bits = np.unique(halves).view(np.int32)
    middle = ((bits[1:].astype(np.int64) + bits[:-1]) // 2).astype(np.int32).view(np.float32)
    random = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, np.uint32).view(np.float32)
    special = np.array([np.nan, np.inf, -np.inf, 65519.0, 65520.0, 3.4e38, -3.4e38, 1e-45, 0.0, -0.0], np.float32)
    x = np.concatenate([halves, middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf), random, special])
    got, wanted = cast(x, dtype, run_kernel, vectors), dt.convert(x, dtype.numpy)
    number = ~np.isnan(x)
    np.testing.assert_array_equal(got.view(np.uint16)[number], wanted.view(np.uint16)[number])
    assert np.isnan(got[~number].astype(np.float32)).all()


@HALF
@PROCESSORS
def test_f64_rounds_once(dtype: DType, vectors: Vectors, run_kernel: RunKernel) -> None:
    """A little more than midway between two halves: f32 does not see that, and would round to even."""
    halves = np.arange(1, 2, 2.0**-6)
    step = 2 * dt.unit_roundoff(dtype)
    x = np.concatenate([halves + step / 2 + 2.0**-40, halves + step / 2 - 2.0**-40, halves, [1e300, np.nan, -1e-300]])
    wanted = np.concatenate([halves + step, halves, halves, [np.inf, np.nan, -0.0]])
    np.testing.assert_array_equal(cast(x, dtype, run_kernel, vectors).astype(np.float64), wanted)


@HALF
def test_a_fused_kernel_rounds_where_separate_ones_would(dtype: DType, run_kernel: RunKernel) -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal(1000).astype(dtype.numpy) for _ in range(2))
    square = Apply("Mul", (Load(1, axis(0), dtype), Load(1, axis(0), dtype)), dtype)
    body = Apply("Add", (Apply("Mul", (square, Load(2, axis(0), dtype)), dtype), Immediate(0.1, dtype)), dtype)
    got = run_kernel(MapKernel(0, (1000,), body, (0,)), {1: x, 2: y}, dtype.numpy)
    np.testing.assert_array_equal(got, (x * x) * y + np.asarray(0.1, np.float64).astype(dtype.numpy))


@HALF
@pytest.mark.parametrize("order", ["inner", "outer"])
def test_sums_accumulate_in_f32_and_round_once(dtype: DType, order: str, run_kernel: RunKernel) -> None:
    """In half precision a sum of 4,096 ones and more ends where adding one no longer changes it."""
    count = 5000
    x = np.ones(3 * count, dtype.numpy)
    body = Load(1, axis(0) * count + axis(1), dtype)
    kernel = ReduceKernel(0, (3,), count, "sum", body, order, (0,))  # type: ignore[arg-type]
    wanted = np.full(3, count, np.float32).astype(dtype.numpy)
    np.testing.assert_array_equal(run_kernel(kernel, {1: x}, dtype.numpy), wanted)


@HALF
def test_what_a_row_keeps_is_rounded_as_if_it_were_stored(dtype: DType, run_kernel: RunKernel) -> None:
    x = np.random.default_rng(2).standard_normal((4, 100)).astype(dtype.numpy)
    element = Load(1, axis(0) * 100 + var(ALONG), dtype)
    body = Apply("Cast", (Reduced(0, dtype),), dt.F32)
    kernel = RowKernel(0, (4,), (RowPass("sum", 100, element),), None, body, (0,))
    exact = x.astype(np.float64).sum(1).astype(np.float32)
    got = run_kernel(kernel, {1: x.reshape(-1)}, np.dtype(np.float32))
    assert np.array_equal(got.astype(dtype.numpy).astype(np.float32), got)
    np.testing.assert_allclose(got, exact, rtol=dt.unit_roundoff(dtype) * 1.01)
