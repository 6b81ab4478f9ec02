"""Generated kernels against the definition of LLIR: random shapes, addresses, dtypes and bodies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.errors import WorkbenchError
from workbench.ir import dtype as dt
from workbench.ir import expr as ex
from workbench.ir.dtype import DType
from workbench.ir.expr import Expr
from workbench.ir.llir import (
    GATHERED,
    Apply,
    Body,
    Buffer,
    GatherLoad,
    Immediate,
    Load,
    MapKernel,
    Position,
    Program,
    ReduceKernel,
    axis,
)
from workbench.runtime import get_runtime
from workbench.runtime.bounds import interval, reach
from workbench.runtime.compare import compare, default_tolerance
from workbench.runtime.cpu.builder import REGISTER
from workbench.runtime.cpu.schedule import Vectors

DTYPES = tuple(REGISTER)
"""Those that the CPU has kernels for."""

RunKernel = Callable[..., np.ndarray]
EXTENTS = st.sampled_from((1, 1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 33, 48, 64, 65, 100))
LARGEST = 6000
PROCESSORS = st.sampled_from((Vectors(16, 16), Vectors(16, 4), Vectors(4, 8), Vectors(16, 4, converts_f16=False)))


@st.composite
def shapes(draw: st.DrawFn, least: int, most: int) -> tuple[int, ...]:
    shape: list[int] = []
    for _ in range(draw(st.integers(least, most))):
        extent = draw(EXTENTS)
        shape.append(extent if prod(shape) * extent <= LARGEST else 1)
    return tuple(shape)


def row_major(shape: tuple[int, ...], order: list[int]) -> list[int]:
    """Strides of the axes when they lie in memory in `order`, outermost first."""
    strides = [0] * len(shape)
    step = 1
    for position in reversed(order):
        strides[position] = step
        step *= shape[position]
    return strides


@st.composite
def addresses(draw: st.DrawFn, shape: tuple[int, ...]) -> Expr:
    """Addresses as layouts make them: permuted, broadcast, reversed, strided, merged and split axes."""
    order = draw(st.permutations(range(len(shape)))) if draw(st.booleans()) else list(range(len(shape)))
    kind = draw(st.sampled_from(("plain", "plain", "broadcast", "reversed", "strided", "merged", "modular")))
    extents = {f"#{i}": n for i, n in enumerate(shape)}
    strides = row_major(shape, list(order))
    total = ex.ZERO
    for i, n in enumerate(shape):
        here = axis(i)
        if kind == "broadcast" and draw(st.booleans()):
            continue
        if kind == "reversed" and draw(st.booleans()):
            here = (n - 1) - here
        total = total + here * strides[i]
    if kind == "strided":
        return total * draw(st.integers(2, 5)) + draw(st.integers(0, 3))
    if kind == "merged":
        count = prod(shape)
        inner = draw(st.sampled_from([d for d in range(1, count + 1) if count % d == 0] or [1]))
        outer = max(1, count // inner)
        c = ex.const(inner)
        return ex.mod(total, c, extents) * outer + ex.floordiv(total, c, extents)
    if kind == "modular":
        return ex.mod(total, ex.const(draw(st.integers(1, 40))), extents)
    return total


def data(address: Expr, shape: tuple[int, ...], dtype: DType, rng: np.random.Generator, extra: int = 0) -> np.ndarray:
    """Random values for every element that `address` reaches, and not one more."""
    place = {f"#{i}": index for i, index in enumerate(np.indices(shape))}
    reached = np.asarray(ex.evaluate(address, place))
    return values(int(reached.max(initial=0)) + 1 + extra, dtype, rng)


def values(count: int, dtype: DType, rng: np.random.Generator) -> np.ndarray:
    if dtype is dt.BOOL:
        return rng.integers(0, 2, count).astype(np.bool_)
    if dtype.is_float:
        return (rng.standard_normal(count) * 3).astype(dtype.numpy)
    return rng.integers(-50, 50, count).astype(dtype.numpy)


def bounded(body: Body, dtype: DType) -> Body:
    """1 / (1 + body^2): keeps what follows well-conditioned."""
    square = Apply("Mul", (body, body), dtype)
    return Apply("Recip", (Apply("Add", (Immediate(1.0, dtype), square), dtype),), dtype)


def combined(names: list[str], leaves: list[Body], dtype: DType) -> Body:
    """A body that applies `names` one after the other, taking up a leaf for each further operand."""
    body, taken = leaves[0], 0

    def leaf() -> Body:
        nonlocal taken
        taken += 1
        return leaves[taken % len(leaves)]

    for name in names:
        match name:
            case "Add" | "Mul" | "Mod":
                body = Apply(name, (body, leaf()), dtype)
            case "Select":
                body = Apply("Select", (Apply("LessThan", (body, leaf()), dt.BOOL), leaf(), body), dtype)
            case "Sqrt":
                body = Apply("Sqrt", (Apply("Mul", (body, body), dtype),), dtype)
            case "Cast":
                body = Apply("Cast", (Apply("Cast", (body,), dt.F64),), dtype)
            case "Exp2" | "Sin":
                body = Apply(name, (bounded(body, dtype),), dtype)
            case _:
                body = Apply(name, (body,), dtype)
    return body


FLOAT_FUNCTIONS = ("Add", "Mul", "Select", "Exp2", "Sin", "Sqrt", "Erf", "Cast")
EXACT_FUNCTIONS = ("Add", "Mul", "Mod", "Select", "Cast")


@st.composite
def bodies(draw: st.DrawFn, shape: tuple[int, ...], dtype: DType) -> tuple[Body, dict[int, np.ndarray]]:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    arrays: dict[int, np.ndarray] = {}
    leaves: list[Body] = []
    for buffer in range(1, 1 + draw(st.integers(1, 3))):
        address = draw(addresses(shape))
        arrays[buffer] = data(address, shape, dtype, rng)
        leaves.append(Load(buffer, address, dtype))
    if draw(st.booleans()):
        leaves.append(Immediate(values(1, dtype, rng)[0].item(), dtype))
    if shape and draw(st.booleans()):
        leaves.append(Position(draw(addresses(shape)), dtype))
    functions = FLOAT_FUNCTIONS if dtype.is_float else EXACT_FUNCTIONS
    names = draw(st.lists(st.sampled_from(functions), max_size=4))
    return combined(names, leaves, dtype), arrays


def close(got: np.ndarray, expected: np.ndarray, dtype: DType, terms: float = 0.0) -> bool:
    """Whether f32 results are right to 1e-5 of their size or of the sum of the absolute `terms` they come from."""
    if dtype is dt.F32:
        return bool(np.all(np.abs(got - expected) <= 1e-5 * (terms + np.abs(expected).max(initial=0.0))))
    own = default_tolerance(dtype)
    return compare(got, expected, own.rtol, own.atol_scale)[0]


@settings(max_examples=150)
@given(choice=st.data())
def test_maps_compute_what_llir_says(choice: st.DataObject, run_kernel: RunKernel, expected_kernel: RunKernel) -> None:
    shape = choice.draw(shapes(0, 4))
    dtype = choice.draw(st.sampled_from(DTYPES))
    body, arrays = choice.draw(bodies(shape, dtype))
    kernel = MapKernel(0, shape, body, (0,))
    got = run_kernel(kernel, arrays, dtype.numpy, choice.draw(PROCESSORS))
    assert close(got, expected_kernel(kernel, arrays, dtype.numpy), dtype)


@settings(max_examples=150)
@given(choice=st.data())
def test_reductions_compute_what_llir_says(
    choice: st.DataObject, run_kernel: RunKernel, expected_kernel: RunKernel
) -> None:
    shape = choice.draw(shapes(1, 4))
    dtype = choice.draw(st.sampled_from(DTYPES))
    combine = "max" if dtype is dt.BOOL else choice.draw(st.sampled_from(("sum", "max")))
    order = choice.draw(st.sampled_from(("inner", "outer")))
    body, arrays = choice.draw(bodies(shape, dtype))
    kernel = ReduceKernel(0, shape[:-1], shape[-1], combine, body, order, (0,))
    got = run_kernel(kernel, arrays, dtype.numpy, choice.draw(PROCESSORS))
    absolute = Apply("Sqrt", (Apply("Mul", (body, body), dtype),), dtype)
    terms = 0.0
    if dtype is dt.F32 and combine == "sum":
        terms = expected_kernel(replace(kernel, body=absolute), arrays, dtype.numpy).max(initial=0.0)
    assert close(got, expected_kernel(kernel, arrays, dtype.numpy), dtype, terms)


@settings(max_examples=60)
@given(
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 140), st.integers(1, 20)),
    order=st.sampled_from(("inner", "outer")),
    combine=st.sampled_from(("sum", "max")),
    layouts=st.tuples(st.booleans(), st.booleans()),
    dtype=st.sampled_from((dt.F32, dt.F64, dt.I32, dt.F16, dt.BF16, dt.U8)),
    vectors=PROCESSORS,
)
def test_products_of_matrices_with_something_more_inside(
    sizes: tuple[int, int, int],
    order: Literal["inner", "outer"],
    combine: Literal["sum", "max"],
    layouts: tuple[bool, bool],
    dtype: DType,
    vectors: Vectors,
    run_kernel: RunKernel,
    expected_kernel: RunKernel,
) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(m * n * k)
    left = axis(0) * k + axis(2) if layouts[0] else axis(2) * m + axis(0)
    right = axis(2) * n + axis(1) if layouts[1] else axis(1) * k + axis(2)
    product = Apply("Mul", (Load(1, left, dtype), Load(2, right, dtype)), dtype)
    body = Apply("Add", (product, Apply("Mul", (Load(3, axis(0), dtype), Load(4, axis(1), dtype)), dtype)), dtype)
    arrays = {i + 1: values(size, dtype, rng) for i, size in enumerate((m * k, k * n, m, n))}
    kernel = ReduceKernel(0, (m, n), k, combine, body, order, (0,))
    got, wanted = run_kernel(kernel, arrays, dtype.numpy, vectors), expected_kernel(kernel, arrays, dtype.numpy)
    assert close(got, wanted, dtype, terms=100.0)


@settings(max_examples=60)
@given(choice=st.data())
def test_gathers_read_the_clamped_row(choice: st.DataObject, run_kernel: RunKernel, expected_kernel: RunKernel) -> None:
    shape = choice.draw(shapes(1, 3))
    dtype = choice.draw(st.sampled_from((dt.F32, dt.I64, dt.BOOL, dt.F16, dt.BF16, dt.U8)))
    index_dtype = choice.draw(st.sampled_from((dt.I64, dt.I32, dt.I8)))
    rng = np.random.default_rng(choice.draw(st.integers(0, 1 << 30)))
    rows = choice.draw(st.integers(1, 20))
    columns = shape[-1]
    per_row = choice.draw(st.booleans())  # an embedding's rows, or an index for every element
    address = axis(0) if per_row else choice.draw(addresses(shape))
    indices = rng.integers(-5, rows + 5, data(address, shape, index_dtype, rng).size).astype(index_dtype.numpy)
    table = values(rows * columns, dtype, rng)
    body = GatherLoad(2, ex.var(GATHERED) * columns + axis(len(shape) - 1), Load(1, address, index_dtype), rows, dtype)
    arrays = {1: indices, 2: table}
    if choice.draw(st.booleans()):
        kernel: MapKernel | ReduceKernel = MapKernel(0, shape, body, (0,))
    else:
        order = choice.draw(st.sampled_from(("inner", "outer")))
        kernel = ReduceKernel(0, shape[:-1], shape[-1], "max", body, order, (0,))
    got = run_kernel(kernel, arrays, dtype.numpy)
    assert np.array_equal(got, expected_kernel(kernel, arrays, dtype.numpy))


@pytest.mark.parametrize("order", ["inner", "outer"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions_of_nothing_give_the_identity(order: str, dtype: DType, run_kernel: RunKernel) -> None:
    body = Load(1, axis(0), dtype)
    nothing = {1: np.zeros(0, dtype.numpy)}
    most = run_kernel(ReduceKernel(0, (5,), 0, "max", body, order, (0,)), nothing, dtype.numpy)  # type: ignore[arg-type]
    least = False if dtype is dt.BOOL else -np.inf if dtype.is_float else np.iinfo(dtype.numpy).min
    assert np.array_equal(most, np.full(5, least))
    if dtype is not dt.BOOL:
        total = run_kernel(ReduceKernel(0, (5,), 0, "sum", body, order, (0,)), nothing, dtype.numpy)  # type: ignore[arg-type]
        assert np.array_equal(total, np.zeros(5))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)])
def test_maps_of_nothing_are_left_out(shape: tuple[int, ...], run_kernel: RunKernel) -> None:
    kernel = MapKernel(0, shape, Load(1, axis(0), dt.F32), (0,))
    assert run_kernel(kernel, {1: np.zeros(0, np.float32)}, np.dtype(np.float32)).size == 0


@pytest.mark.parametrize("order", ["inner", "outer"])
@pytest.mark.parametrize("extent", [1, 5, 16, 37, 200])
def test_maximum_propagates_nan_and_minus_infinity(order: str, extent: int, run_kernel: RunKernel) -> None:
    rng = np.random.default_rng(extent)
    x = np.full((40, extent), -np.inf, np.float32)
    x[1:] = rng.standard_normal((39, extent))
    x[2, rng.integers(extent)] = np.nan
    x[3, rng.integers(extent)] = np.inf
    kernel = ReduceKernel(0, (40,), extent, "max", Load(1, axis(0) * extent + axis(1), dt.F32), order, (0,))  # type: ignore[arg-type]
    assert np.array_equal(run_kernel(kernel, {1: x.reshape(-1)}, x.dtype), x.max(1), equal_nan=True)


def test_masked_softmax_sums_keep_infinities(run_kernel: RunKernel) -> None:
    x = np.array([0.0, -np.inf, 1.0, -np.inf] * 10, np.float32)
    body = Apply("Exp2", (Load(1, axis(0), dt.F32),), dt.F32)
    kernel = ReduceKernel(0, (), 40, "sum", body, "inner", (0,))
    assert run_kernel(kernel, {1: x}, x.dtype) == pytest.approx([30.0])


def test_long_f32_sums_stay_accurate(run_kernel: RunKernel) -> None:
    x = np.random.default_rng(0).random(1 << 20, np.float32)
    kernel = ReduceKernel(0, (), x.size, "sum", Load(1, axis(0), dt.F32), "inner", (0,))
    exact = x.sum(dtype=np.float64)
    assert abs(run_kernel(kernel, {1: x}, x.dtype)[0] - exact) / exact < 1e-5


def test_equal_kernels_share_one_source() -> None:
    def kernel(out: int, source: int) -> MapKernel:
        return MapKernel(out, (8,), Apply("Sqrt", (Load(source, axis(0), dt.F32),), dt.F32), (out,))

    buffers = [
        Buffer(0, dt.F32, 8, "input", 0),
        Buffer(1, dt.F32, 8, "intermediate", 1),
        Buffer(2, dt.F32, 8, "output", 2),
    ]
    plan = get_runtime("cpu").plan(Program(buffers, [kernel(1, 0), kernel(2, 1)], [2]), {})
    assert len(plan.sources) == 1
    assert [launch.name for launch in plan.launches] == ["map Sqrt 8"] * 2
    (x,) = get_runtime("cpu").load(plan, {}).run({0: np.full(8, 16.0, np.float32)})
    assert np.array_equal(x, np.full(8, 2.0, np.float32))


@pytest.mark.parametrize("address", [axis(0) + 1, axis(0) - 1, (axis(0) * 3) % 10, axis(0) // 2 * 3])
def test_an_address_outside_its_buffer_is_refused(address: Expr) -> None:
    buffers = [Buffer(0, dt.F32, 8, "output", 0), Buffer(1, dt.F32, 8, "input", 0)]
    kernel = MapKernel(0, (8,), Load(1, address, dt.F32), (0,))
    with pytest.raises(WorkbenchError, match="buffer 1"):
        get_runtime("cpu").plan(Program(buffers, [kernel], [0]), {})


@settings(max_examples=100)
@given(choice=st.data())
def test_the_range_of_an_address_is_never_too_narrow(choice: st.DataObject) -> None:
    shape = choice.draw(shapes(1, 4))
    address = choice.draw(addresses(shape))
    at = np.asarray(ex.evaluate(address, {f"#{i}": index for i, index in enumerate(np.indices(shape))}))
    extents = {f"#{i}": n for i, n in enumerate(shape)}
    low, high = interval(address, extents)
    assert low <= at.min() <= at.max() <= high
    assert reach(address, tuple(extents.items()), int(at.max()) + 1) is None
    assert reach(address, tuple(extents.items()), int(at.max())) == (at.min(), at.max())


def test_a_shared_subexpression_is_computed_once() -> None:
    body: Body = Load(1, axis(0), dt.F32)
    for _ in range(12):
        body = Apply("Mul", (body, body), dt.F32)
    kernel = MapKernel(0, (64,), body, (0,))
    buffers = [Buffer(0, dt.F32, 64, "output", 0), Buffer(1, dt.F32, 64, "input", 0)]
    (source,) = get_runtime("cpu").plan(Program(buffers, [kernel], [0]), {}).sources.values()
    assert source.count("fmul") == 12
