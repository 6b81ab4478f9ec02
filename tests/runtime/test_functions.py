"""Scalar functions: the error of each polynomial over dense sweeps, special values, and every dtype against NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from workbench.ir import dtype as dt
from workbench.ir.dtype import DType
from workbench.ir.llir import Apply, Load, MapKernel, axis
from workbench.ir.ops import ELEMENTWISE
from workbench.runtime.cpu.builder import REGISTER
from workbench.runtime.cpu.functions import FUNCTIONS

DTYPES = tuple(REGISTER)
"""Those that the CPU has kernels for."""

RunKernel = Callable[..., np.ndarray]
F32 = np.dtype(np.float32)
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, 3e38, -3e38, 0.5, 2.0, 126.5, -125.5, 88.0],
    np.float32,
)


@pytest.fixture(scope="session")
def apply(run_kernel: RunKernel) -> Callable[..., np.ndarray]:
    """`apply(name, *arrays)`: a compiled elementwise function of flat arrays."""

    def run(name: str, *arrays: np.ndarray, result: DType | None = None) -> np.ndarray:
        by_numpy = {d.numpy: d for d in DTYPES}
        operands = tuple(Load(k + 1, axis(0), by_numpy[a.dtype]) for k, a in enumerate(arrays))
        dtype = result or ELEMENTWISE[name].result or by_numpy[arrays[-1].dtype]
        body = Apply(name, operands, dtype)
        kernel = MapKernel(0, (arrays[0].size,), body, (0,))
        return run_kernel(kernel, {k + 1: a for k, a in enumerate(arrays)}, dtype.numpy)

    return run


def ulps(got: np.ndarray, exact: np.ndarray) -> float:
    """The largest error in units of the last place of the f32 nearest to `exact` (f64)."""
    spacing = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    return float(np.max(np.abs(got.astype(np.float64) - exact) / spacing))


def every(start: float, stop: float, count: int = 1 << 20) -> np.ndarray:
    """f32 values spread evenly over the bit patterns of [start, stop], both of one sign."""
    low, high = (int(np.float32(v).view(np.int32)) for v in (start, stop))
    return np.linspace(low, high, count).astype(np.int64).astype(np.int32).view(np.float32)


def test_every_function_of_the_primitives_has_a_kernel() -> None:
    assert set(FUNCTIONS) == set(ELEMENTWISE)


@pytest.mark.parametrize(("start", "stop"), [(-126.0, 127.999), (-1.0, 1.0), (-126.0, -120.0), (127.0, 127.99999)])
def test_exp2_is_within_2_ulp(start: float, stop: float, apply: RunKernel) -> None:
    x = np.linspace(start, stop, 1 << 20, dtype=np.float32)
    assert ulps(apply("Exp2", x), np.exp2(x.astype(np.float64))) <= 2.0


def test_exp2_underflows_to_zero_and_overflows_to_infinity(apply: RunKernel) -> None:
    x = np.array([-126.0, -126.00001, -127.0, -149.0, -1e9, -3e38, 128.0, 129.0, 3e38], np.float32)
    wanted = np.array([2.0**-126, 0, 0, 0, 0, 0, np.inf, np.inf, np.inf], np.float32)
    np.testing.assert_array_equal(apply("Exp2", x), wanted)


@pytest.mark.parametrize(("start", "stop"), [(1e-44, 3e38), (0.5, 2.0), (0.999, 1.001)])
def test_log2_is_within_2_ulp(start: float, stop: float, apply: RunKernel) -> None:
    x = every(start, stop)
    x = x[x != 1]
    assert ulps(apply("Log2", x), np.log2(x.astype(np.float64))) <= 2.0


@pytest.mark.parametrize("limit", [4.0, 1e2, 1e4, 1e6])
def test_sin_is_within_2e_7(limit: float, apply: RunKernel) -> None:
    x = np.linspace(-limit, limit, 1 << 20, dtype=np.float32)
    assert np.max(np.abs(apply("Sin", x) - np.sin(x.astype(np.float64)))) <= 2e-7


def test_small_sines_keep_their_relative_precision(apply: RunKernel) -> None:
    x = every(1e-40, 1.0)
    assert ulps(apply("Sin", x), np.sin(x.astype(np.float64))) <= 2.0


def test_sin_of_huge_arguments_stays_in_range(apply: RunKernel) -> None:
    assert np.all(np.abs(apply("Sin", every(1e6, 3e38, 4096))) <= 1.0)


def test_erf_is_within_2e_7_and_2_ulp_when_small(apply: RunKernel) -> None:
    erf = np.vectorize(math.erf, otypes=[np.float64])
    x = np.linspace(-5, 5, 1 << 18, dtype=np.float32)
    assert np.max(np.abs(apply("Erf", x) - erf(x.astype(np.float64)))) <= 2e-7
    small = every(1e-30, 0.92, 1 << 18)
    assert ulps(apply("Erf", small), erf(small.astype(np.float64))) <= 2.0


@pytest.mark.parametrize("name", ["Exp2", "Log2", "Sqrt", "Recip", "Sin", "Floor", "Round"])
def test_special_values_are_those_of_numpy(name: str, apply: RunKernel) -> None:
    with np.errstate(all="ignore"):
        exact = ELEMENTWISE[name].compute(SPECIAL.astype(np.float64)).astype(np.float32)
    x = SPECIAL if name != "Sin" else SPECIAL[np.abs(SPECIAL) != np.float32(3e38)]
    exact = exact if name != "Sin" else exact[np.abs(SPECIAL) != np.float32(3e38)]
    got = apply(name, x)
    assert np.array_equal(np.isnan(got), np.isnan(exact))
    assert np.array_equal(np.isinf(got), np.isinf(exact))
    np.testing.assert_allclose(got, exact, rtol=1e-6, atol=1e-45)


def test_erf_tends_to_one_and_keeps_nan(apply: RunKernel) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, 1e30, -1e-45], np.float32)
    np.testing.assert_array_equal(apply("Erf", x), np.array([1, -1, np.nan, 0, 1, -1e-45], np.float32))


@pytest.mark.parametrize("dtype", [dt.F32, dt.F64], ids=str)
def test_rounding_takes_ties_to_the_even_integer(dtype: DType, apply: RunKernel) -> None:
    halves = np.arange(-40, 41) / 2
    near = [np.nextafter(0.5, 0), np.nextafter(-0.5, 0), 2.0**22 + 0.5, 2.0**23 + 1, 2.0**40, -(2.0**22) - 1.5]
    x = np.concatenate([halves, near]).astype(dtype.numpy)
    x = np.concatenate([x, np.nextafter(x, dtype.numpy.type(0)), np.nextafter(x, dtype.numpy.type(np.inf))])
    exact = np.array([round(float(v)) for v in x], dtype.numpy)  # Python rounds ties to even
    np.testing.assert_array_equal(apply("Round", x), exact)


@pytest.mark.parametrize("name", ["Exp2", "Log2", "Sin", "Sqrt", "Recip", "Erf", "Floor", "Round"])
def test_f64_functions_agree_with_numpy(name: str, apply: RunKernel) -> None:
    x = np.abs(np.random.default_rng(0).standard_normal(133)) * 10 + 0.1
    np.testing.assert_allclose(apply(name, x), ELEMENTWISE[name].compute(x), rtol=1e-14)


@pytest.mark.parametrize("name", ["Add", "Mul", "Mod", "LessThan"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_binary_functions_agree_with_numpy(name: str, dtype: DType, apply: RunKernel) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.integers(-20, 20, 500) + 0.25 * dtype.is_float, rng.integers(-4, 5, 500)
    if not dtype.is_signed:
        x, y = x % 100 * 2, y % 7
    a, b = x.astype(dtype.numpy), y.astype(dtype.numpy)
    if dtype is dt.BOOL:
        if name == "Mod":
            pytest.skip("NumPy has no modulo of booleans")
        a, b = x > 0, y > 0
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(apply(name, a, b), ELEMENTWISE[name].compute(a, b))


def test_integer_modulo_never_traps(apply: RunKernel) -> None:
    least = np.iinfo(np.int32).min
    x = np.array([least, least, 7, 0, -7, least] * 5, np.int32)
    y = np.array([-1, 0, 0, 0, 3, least] * 5, np.int32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(apply("Mod", x, y), np.array([0, 0, 0, 0, 2, 0] * 5, np.int32))


def test_float_modulo_takes_the_sign_of_the_divisor(apply: RunKernel) -> None:
    x = np.array([5.5, -5.5, 5.5, -5.5, 0.0, -0.0, 1.0, np.inf, np.nan, -1.0], np.float32)
    y = np.array([3, 3, -3, -3, 2, -2, 0, 1, 1, np.inf], np.float32)
    with np.errstate(all="ignore"):
        exact = np.mod(x, y)
    got = apply("Mod", x, y)
    np.testing.assert_array_equal(got, exact)
    np.testing.assert_array_equal(np.signbit(got[~np.isnan(exact)]), np.signbit(exact[~np.isnan(exact)]))


@pytest.mark.parametrize("source", DTYPES, ids=str)
@pytest.mark.parametrize("target", DTYPES, ids=str)
def test_casts_truncate_toward_zero(source: DType, target: DType, apply: RunKernel) -> None:
    x = np.array([0, 1, -1, 2.75, -2.75, 100.5, -0.5, 0.0, 7, -120], np.float64)
    if not source.is_signed or (source.is_float and not target.is_signed):
        x = np.abs(x)  # what is out of range is another test's
    x = x.astype(source.numpy)
    np.testing.assert_array_equal(apply("Cast", x, result=target), x.astype(target.numpy))


@pytest.mark.parametrize("source", [d for d in DTYPES if not d.is_float and d is not dt.BOOL], ids=str)
@pytest.mark.parametrize("target", [d for d in DTYPES if not d.is_float and d is not dt.BOOL], ids=str)
def test_casts_of_integers_wrap(source: DType, target: DType, apply: RunKernel) -> None:
    x = np.random.default_rng(3).integers(0, 256, (64, 8), np.uint8).view(source.numpy).reshape(-1)
    np.testing.assert_array_equal(apply("Cast", x, result=target), x.astype(target.numpy))


@pytest.mark.parametrize("target", [d for d in DTYPES if not d.is_float and d is not dt.BOOL], ids=str)
@pytest.mark.parametrize("source", [dt.F32, dt.F64, dt.F16, dt.BF16], ids=str)
def test_casts_out_of_range_saturate(source: DType, target: DType, apply: RunKernel) -> None:
    x = dt.convert(np.array([np.nan, np.inf, -np.inf, 1e30, -1e30]), source.numpy)
    limits = np.iinfo(target.numpy)
    wanted = np.array([0, limits.max, limits.min, limits.max, limits.min], target.numpy)
    np.testing.assert_array_equal(apply("Cast", x, result=target), wanted)
    np.testing.assert_array_equal(dt.convert(x, target.numpy), wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_select_takes_lane_by_lane(dtype: DType, apply: RunKernel) -> None:
    rng = np.random.default_rng(2)
    condition = rng.integers(0, 2, 100).astype(np.bool_)
    a, b = rng.integers(0, 2, (2, 100)).astype(dtype.numpy)
    np.testing.assert_array_equal(apply("Select", condition, a, b), np.where(condition, a, b))
