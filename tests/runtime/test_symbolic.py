"""Kernels whose sizes are named dimensions: one code, against the definition of LLIR, at every value."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.test_kernels import (
    EXACT_FUNCTIONS,
    FLOAT_FUNCTIONS,
    PROCESSORS,
    close,
    combined,
    data,
    values,
)
from tests.runtime.test_rows import mean_of
from workbench.errors import WorkbenchError
from workbench.ir import dtype as dt
from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir import llir
from workbench.ir.dtype import DType
from workbench.ir.expr import Expr
from workbench.ir.layout import Dim
from workbench.ir.llir import (
    ALONG,
    GATHERED,
    Apply,
    BatchOffsets,
    Body,
    Buffer,
    GatherLoad,
    GemmCall,
    GemmOperand,
    Immediate,
    Load,
    MapKernel,
    Position,
    Program,
    Reduced,
    ReduceKernel,
    RowKernel,
    RowPass,
    axis,
)
from workbench.runtime import get_runtime
from workbench.runtime.arena import plan_arena
from workbench.runtime.cpu.builder import REGISTER
from workbench.runtime.cpu.jit import host_vectors, kernels_compiled
from workbench.runtime.cpu.native import shown
from workbench.runtime.cpu.plan import PlanTemplate
from workbench.runtime.cpu.schedule import Vectors

RunKernel = Callable[..., np.ndarray]
N, M = ex.var("n"), ex.var("m")
LENGTHS = (1, 7, 15, 16, 17, 128)
DTYPES = tuple(REGISTER)
SIZES: tuple[Dim, ...] = (N, N, M, 1, 3, 4, 16, N * 2, N * 16, N + 1, N * M)
SMALL = st.sampled_from((1, 1, 2, 3, 7, 8, 15, 16, 17, 33, 40))
LARGEST = 8000
R = ex.var(ALONG)


@st.composite
def shapes(draw: st.DrawFn, least: int, most: int, dims: dict[str, int]) -> tuple[Dim, ...]:
    """Extents of which some depend on dimensions; as many elements at `dims` as a test can take."""
    shape: list[Dim] = []
    for _ in range(draw(st.integers(least, most))):
        extent = draw(st.sampled_from(SIZES))
        shape.append(extent if ex.sized(lay.numel((*shape, extent)), dims) <= LARGEST else 2)
    return tuple(shape)


@st.composite
def addresses(draw: st.DrawFn, shape: tuple[Dim, ...]) -> Expr:
    """Addresses as layouts make them: permuted, broadcast, reversed, strided, merged and split axes."""
    order = draw(st.permutations(range(len(shape)))) if draw(st.booleans()) else list(range(len(shape)))
    kind = draw(st.sampled_from(("plain", "plain", "broadcast", "reversed", "strided", "merged", "modular")))
    extents = {f"#{i}": n for i, n in enumerate(shape)}
    strides: dict[int, Dim] = {a: lay.numel([shape[b] for b in order[at + 1 :]]) for at, a in enumerate(order)}
    total = ex.ZERO
    for i, n in enumerate(shape):
        here = axis(i)
        if kind == "broadcast" and draw(st.booleans()):
            continue
        if kind == "reversed" and draw(st.booleans()):
            here = (n - 1) - here
        total = total + here * strides[i]
    if kind == "strided":
        return total * draw(st.sampled_from((2, 3, N))) + draw(st.integers(0, 3))
    if kind == "merged" and shape:
        inner = ex.as_expr(draw(st.sampled_from(shape)))
        outer = ex.floordiv(ex.as_expr(lay.numel(shape)), inner)
        return ex.mod(total, inner, extents) * outer + ex.floordiv(total, inner, extents)
    if kind == "modular":
        return ex.mod(total, ex.as_expr(draw(st.sampled_from((5, 16, N, M, N * 4)))), extents)
    return total


def numbers(shape: tuple[Dim, ...], dims: dict[str, int]) -> tuple[int, ...]:
    return tuple(ex.sized(d, dims) for d in shape)


def at(address: Expr, dims: dict[str, int]) -> Expr:
    return ex.substitute(address, dims)


@st.composite
def bodies(
    draw: st.DrawFn, shape: tuple[Dim, ...], dtype: DType, dims: dict[str, int]
) -> tuple[Body, dict[int, np.ndarray]]:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    arrays: dict[int, np.ndarray] = {}
    leaves: list[Body] = []
    for buffer in range(1, 1 + draw(st.integers(1, 3))):
        address = draw(addresses(shape))
        arrays[buffer] = data(at(address, dims), numbers(shape, dims), dtype, rng)
        leaves.append(Load(buffer, address, dtype))
    if draw(st.booleans()):
        leaves.append(Immediate(values(1, dtype, rng)[0].item(), dtype))
    if shape and draw(st.booleans()):
        leaves.append(Position(draw(addresses(shape)), dtype))
    if draw(st.booleans()):
        leaves.append(Position(N * 3 + 1, dtype))
    functions = FLOAT_FUNCTIONS if dtype.is_float else EXACT_FUNCTIONS
    names = draw(st.lists(st.sampled_from(functions), max_size=4))
    return combined(names, leaves, dtype), arrays


@settings(max_examples=60)
@given(choice=st.data(), n=SMALL, m=SMALL, dtype=st.sampled_from(DTYPES), vectors=PROCESSORS)
def test_maps_compute_what_llir_says(
    choice: st.DataObject, n: int, m: int, dtype: DType, vectors: Vectors, run_kernel: RunKernel,
    expected_kernel: RunKernel,
) -> None:  # fmt: skip
    dims = {"n": n, "m": m}
    shape = choice.draw(shapes(0, 4, dims))
    body, arrays = choice.draw(bodies(shape, dtype, dims))
    kernel = MapKernel(0, shape, body, (0,))
    got = run_kernel(kernel, arrays, dtype.numpy, vectors, dims)
    assert close(got, expected_kernel(kernel, arrays, dtype.numpy, dims), dtype)


@settings(max_examples=60)
@given(choice=st.data(), n=SMALL, m=SMALL, dtype=st.sampled_from(DTYPES), vectors=PROCESSORS)
def test_reductions_compute_what_llir_says(
    choice: st.DataObject, n: int, m: int, dtype: DType, vectors: Vectors, run_kernel: RunKernel,
    expected_kernel: RunKernel,
) -> None:  # fmt: skip
    dims = {"n": n, "m": m}
    shape = choice.draw(shapes(1, 4, dims))
    combine = "max" if dtype is dt.BOOL else choice.draw(st.sampled_from(("sum", "max")))
    order = choice.draw(st.sampled_from(("inner", "outer")))
    body, arrays = choice.draw(bodies(shape, dtype, dims))
    kernel = ReduceKernel(0, shape[:-1], shape[-1], combine, body, order, (0,))
    got = run_kernel(kernel, arrays, dtype.numpy, vectors, dims)
    wanted = expected_kernel(kernel, arrays, dtype.numpy, dims)
    terms = 0.0
    if dtype is dt.F32 and combine == "sum":
        absolute = Apply("Sqrt", (Apply("Mul", (body, body), dtype),), dtype)
        magnitude = ReduceKernel(0, shape[:-1], shape[-1], combine, absolute, order, (0,))
        terms = expected_kernel(magnitude, arrays, dtype.numpy, dims).max(initial=0.0)
    assert close(got, wanted, dtype, terms)


@st.composite
def rows(draw: st.DrawFn, dtype: DType, dims: dict[str, int]) -> tuple[RowKernel, dict[int, np.ndarray]]:
    """A row kernel of one or two passes, each with its own extent and its own loads."""
    shape = draw(shapes(0, 2, dims))
    if ex.sized(lay.numel(shape), dims) > 100:
        shape = (N,)
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    arrays: dict[int, np.ndarray] = {}
    known: list[Body] = []
    along = st.sampled_from((N, M, N + 1, 1, 5, 32, N * 2))

    def body(extent: Dim | None) -> Body:
        whole = shape if extent is None else (*shape, extent)
        leaves = list(known)
        for _ in range(draw(st.integers(1, 2))):
            address = draw(addresses(whole))
            buffer = len(arrays) + 1
            arrays[buffer] = data(at(address, dims), numbers(whole, dims), dtype, rng)
            here = address if extent is None else ex.substitute(address, {f"#{len(shape)}": R}, {ALONG: extent})
            leaves.append(Load(buffer, here, dtype))
        functions = FLOAT_FUNCTIONS if dtype.is_float else EXACT_FUNCTIONS
        made = combined(draw(st.lists(st.sampled_from(functions), max_size=2)), leaves[::-1], dtype)
        for value in known:
            made = Apply("Add", (made, value), dtype)
        return made

    passes: list[RowPass] = []
    for index in range(draw(st.integers(1, 2))):
        extent = draw(along)
        passes.append(RowPass(draw(st.sampled_from(("sum", "max"))), extent, body(extent)))  # type: ignore[arg-type]
        known.append(mean_of(Reduced(index, dtype), ex.sized(extent, dims), dtype))
    stored = draw(st.one_of(st.none(), along))
    return RowKernel(0, shape, tuple(passes), stored, body(stored), (0,)), arrays


@settings(max_examples=50)
@given(choice=st.data(), n=SMALL, m=SMALL, dtype=st.sampled_from((dt.F64, dt.I32, dt.I64)), vectors=PROCESSORS)
def test_rows_compute_what_llir_says(
    choice: st.DataObject, n: int, m: int, dtype: DType, vectors: Vectors, run_kernel: RunKernel,
    expected_kernel: RunKernel,
) -> None:  # fmt: skip
    dims = {"n": n, "m": m}
    kernel, arrays = choice.draw(rows(dtype, dims))
    got = run_kernel(kernel, arrays, dtype.numpy, vectors, dims)
    assert close(got, expected_kernel(kernel, arrays, dtype.numpy, dims), dtype)


def softmax(rows: tuple[Dim, ...], extent: Dim, place: int | None = None) -> RowKernel:
    """Base-2 softmax along the row: of buffer 1, or in its place."""
    address = sum((axis(i) * lay.numel((*rows[i + 1 :], extent)) for i in range(len(rows))), start=R)
    x = Load(1, address, dt.F32)
    shifted = Apply("Add", (x, Apply("Mul", (Reduced(0, dt.F32), Immediate(-1.0, dt.F32)), dt.F32)), dt.F32)
    raised = Apply("Exp2", (shifted,), dt.F32)
    body = Apply("Mul", (raised, Apply("Recip", (Reduced(1, dt.F32),), dt.F32)), dt.F32)
    passes = (RowPass("max", extent, x), RowPass("sum", extent, raised))
    return RowKernel(0 if place is None else 2, rows, passes, extent, body, (0,), place)


def test_one_code_serves_all_lengths(run_kernel: RunKernel, expected_kernel: RunKernel) -> None:
    rng = np.random.default_rng(0)
    rowwise = ReduceKernel(0, (N,), M, "sum", Load(1, axis(0) * M + axis(1), dt.F32), "inner", (0,))
    columnwise = ReduceKernel(0, (M,), N, "max", Load(1, axis(1) * M + axis(0), dt.F32), "outer", (0,))
    transposed = MapKernel(0, (M, N), Load(1, axis(1) * M + axis(0), dt.F32), (0,))
    kernels = (softmax((N,), M), rowwise, columnwise, transposed)
    for kernel in kernels:
        before = None
        for n in LENGTHS:
            for m in (n, 5):
                x = rng.standard_normal(n * m).astype(np.float32)
                got = run_kernel(kernel, {1: x}, x.dtype, None, {"n": n, "m": m})
                assert close(got, expected_kernel(kernel, {1: x}, x.dtype, {"n": n, "m": m}), dt.F32, terms=float(m))
            assert before in (None, kernels_compiled())
            before = kernels_compiled()


@pytest.mark.parametrize("length", LENGTHS)
def test_in_place_no_element_is_computed_twice(length: int, expected_kernel: RunKernel) -> None:
    x = np.random.default_rng(length).standard_normal(3 * length).astype(np.float32)
    double = MapKernel(1, (N * 3,), Apply("Add", (Load(0, axis(0), dt.F32),) * 2, dt.F32), (1,))
    square = Apply("Mul", (Load(1, axis(0), dt.F32),) * 2, dt.F32)
    buffers = [Buffer(i, dt.F32, N * 3, r, i) for i, r in enumerate(("input", "intermediate", "output"))]  # type: ignore[arg-type]
    for last in (MapKernel(2, (N * 3,), square, (2,), in_place=1), softmax((3,), N, place=1)):
        program = Program(buffers, [double, last], [2])
        plan = PlanTemplate(program, {}, host_vectors()).plan({"n": length})
        assert plan.buffers[1].arena_offset == plan.buffers[2].arena_offset
        (got,) = get_runtime("cpu").load(plan, {}).run({0: x})
        assert close(got, expected_kernel(last, {1: x + x}, x.dtype, {"n": length}), dt.F32, terms=1.0)


@pytest.mark.parametrize("dims", [{"n": 1, "m": 1}, {"n": 7, "m": 3}, {"n": 16, "m": 40}, {"n": 17, "m": 2}])
@pytest.mark.parametrize("per_row", [True, False])
def test_gathers_read_the_clamped_row(
    dims: dict[str, int], per_row: bool, run_kernel: RunKernel, expected_kernel: RunKernel
) -> None:
    """From a table of `m` rows, by indices of which some are outside."""
    n, m = dims["n"], dims["m"]
    rng = np.random.default_rng(n)
    indices = rng.integers(-3, m + 3, n if per_row else n * 6).astype(np.int64)
    table = rng.standard_normal(m * 6).astype(np.float32)
    index = Load(1, axis(0) if per_row else axis(0) * 6 + axis(1), dt.I64)
    for column, size in ((axis(1), 6), (axis(1) * M, M)):  # rows, and columns, of the table
        body = GatherLoad(2, ex.var(GATHERED) * (6 if size == 6 else 1) + column, index, M, dt.F32)
        kernel = MapKernel(0, (N, 6), body, (0,))
        arrays = {1: indices, 2: table}
        got = run_kernel(kernel, arrays, table.dtype, None, dims)
        assert np.array_equal(got, expected_kernel(kernel, arrays, table.dtype, dims))


@pytest.mark.parametrize("order", ["inner", "outer"])
def test_reductions_of_nothing_give_the_identity(order: Literal["inner", "outer"], run_kernel: RunKernel) -> None:
    """At 0 the code for all values would read what is not there: another is written."""
    kernel = ReduceKernel(0, (5,), N, "max", Load(1, axis(0) * N + axis(1), dt.F32), order, (0,))
    got = run_kernel(kernel, {1: np.zeros(0, np.float32)}, np.dtype(np.float32), None, {"n": 0})
    assert np.array_equal(got, np.full(5, -np.inf))
    passes = (RowPass("sum", N, Load(1, axis(0) * N + R, dt.F32)),)
    row = RowKernel(0, (5,), passes, M, Apply("Exp2", (Reduced(0, dt.F32),), dt.F32), (0,))
    got = run_kernel(row, {1: np.zeros(0, np.float32)}, np.dtype(np.float32), None, {"n": 0, "m": 3})
    assert np.array_equal(got, np.ones(15))


def test_kernels_of_nothing_are_left_out(run_kernel: RunKernel) -> None:
    kernel = MapKernel(0, (N, 4), Load(1, axis(0) * 4 + axis(1), dt.F32), (0,))
    assert run_kernel(kernel, {1: np.zeros(0, np.float32)}, np.dtype(np.float32), None, {"n": 0}).size == 0


@pytest.mark.parametrize("n", [1, 3, 1 << 30])
def test_indices_that_need_64_bits_get_them(n: int, run_kernel: RunKernel, expected_kernel: RunKernel) -> None:
    """Lanes are of 32 bits until the sizes at hand do not fit; divisions are right in both."""
    numerator = axis(0) * N + axis(0)
    for value in (ex.floordiv(numerator, M), ex.mod(numerator, M), N - axis(0)):
        kernel = MapKernel(0, (50,), Position(value, dt.I64), (0,))
        for m in (1, 7, n // 2 + 1):
            got = run_kernel(kernel, {}, np.dtype(np.int64), None, {"n": n, "m": m})
            assert np.array_equal(got, expected_kernel(kernel, {}, got.dtype, {"n": n, "m": m}))


def test_an_address_outside_at_some_lengths_is_refused_there() -> None:
    buffers = [Buffer(0, dt.F32, N, "output", 0), Buffer(1, dt.F32, 10, "input", 1)]
    template = PlanTemplate(Program(buffers, [MapKernel(0, (N,), Load(1, axis(0), dt.F32), (0,))], [0]), {}, Vectors())
    assert len(template.plan({"n": 10}).launches) == 1
    with pytest.raises(WorkbenchError, match=r"elements 0\.\.10 of buffer 1, which has 10"):
        template.plan({"n": 11})


def test_a_negative_extent_is_refused() -> None:
    buffers = [Buffer(0, dt.F32, N - 3, "output", 0)]
    kernel = MapKernel(0, (N - 3,), Immediate(1.0, dt.F32), (0,))
    template = PlanTemplate(Program(buffers, [kernel], [0]), {}, Vectors())
    assert template.plan({"n": 3}).launches == ()
    with pytest.raises(WorkbenchError, match="negative for n=2"):
        template.plan({"n": 2})


def test_code_names_its_sizes_and_shares_its_source() -> None:
    def kernel(out: int, size: Expr) -> MapKernel:
        return MapKernel(out, (size, 8), Apply("Sqrt", (Load(0, axis(0) * 8 + axis(1), dt.F32),), dt.F32), (out,))

    buffers = [
        Buffer(0, dt.F32, 800, "input", 0),
        Buffer(1, dt.F32, N * 8, "output", 1),
        Buffer(2, dt.F32, M * 8, "output", 2),
    ]
    plan = PlanTemplate(Program(buffers, [kernel(1, N), kernel(2, M)], [1, 2]), {}, Vectors()).plan({"n": 3, "m": 5})
    assert [launch.name for launch in plan.launches] == ["map Sqrt nx8", "map Sqrt mx8"]
    assert [launch.sizes for launch in plan.launches] == [(3,), (5,)]  # type: ignore[union-attr]
    assert len(plan.sources) == 1
    assert shown((N * 4, N * N + M * 3 + M * N * 5 + 1000), {"n": 2, "m": 3}) == "(n*4)x1043"


@pytest.mark.parametrize("dims", [{"n": 1, "m": 1}, {"n": 5, "m": 3}, {"n": 0, "m": 2}])
def test_library_calls_take_their_sizes_from_the_dimensions(dims: dict[str, int]) -> None:
    """A batch of m heads: [n, m, 4] x [n, m, 4]^T, where the heads lie beside each other."""
    n, m = dims["n"], dims["m"]
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, m, 4)).astype(np.float32) for _ in range(2))
    heads = BatchOffsets(0, (M,), (ex.Z * 4,))
    left, right = GemmOperand(0, M * 4, 1, heads), GemmOperand(1, 1, M * 4, heads)
    call = GemmCall(2, N, N, 4, left, right, dt.F32, "sgemm", "RmCm", (2,))
    sizes = (N * M * 4, N * M * 4, M * N * N)
    roles = ("input", "input", "output")
    buffers = [Buffer(i, dt.F32, s, r, i) for i, (s, r) in enumerate(zip(sizes, roles, strict=True))]  # type: ignore[arg-type]
    program = Program(buffers, [call], [2])
    plan = PlanTemplate(program, {}, Vectors()).plan(dims)
    (got,) = get_runtime("cpu").load(plan, {}).run({0: a.reshape(-1), 1: b.reshape(-1)})
    np.testing.assert_allclose(got.reshape(m, n, n), np.einsum("imk,jmk->mij", a, b), rtol=1e-5)
    if n:
        assert [launch.name for launch in plan.launches] == ["sgemm RmCm mxnxnx4"]
        assert ex.sized(llir.flops(call), dims) == plan.launches[0].flops == 8 * m * n * n


def test_plans_share_an_arena_that_grows() -> None:
    """A plan that ran before the arena moved runs again right."""
    buffers = [Buffer(i, dt.F32, N, r, i) for i, r in enumerate(("input", "intermediate", "output"))]  # type: ignore[arg-type]
    kernels = [MapKernel(i + 1, (N,), Apply("Add", (Load(i, axis(0), dt.F32),) * 2, dt.F32), (i,)) for i in range(2)]
    program = Program(buffers, kernels, [2])
    template, runtime = PlanTemplate(program, {}, Vectors()), get_runtime("cpu")
    arena = runtime.shared_arena()
    loaded = {n: runtime.load(template.plan({"n": n}), {}, arena) for n in (4, 4000)}
    for n in (4, 4000, 4):
        x = np.arange(n, dtype=np.float32)
        assert np.array_equal(loaded[n].run({0: x})[0], 4 * x)
    assert arena.nbytes == plan_arena(program, {"n": 4000})[1] == prod((2, 16000)) + 2 * (-16000 % 64)


@pytest.mark.parametrize("vectors", [Vectors(16, 16), Vectors(16, 4)])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 17, 5), (4, 16, 9), (9, 40, 3), (18, 7, 20)])
def test_products_of_matrices_of_any_size(
    sizes: tuple[int, int, int], vectors: Vectors, run_kernel: RunKernel, expected_kernel: RunKernel
) -> None:
    """Rows are taken in blocks that share what they load, and those left over one by one."""
    m, n, k = sizes
    rng = np.random.default_rng(m)
    product = Apply("Mul", (Load(1, axis(1) * M + axis(3), dt.F64), Load(2, axis(3) * N + axis(2), dt.F64)), dt.F64)
    body = Apply("Add", (product, Load(3, axis(0), dt.F64)), dt.F64)
    arrays = {1: rng.standard_normal(m * k), 2: rng.standard_normal(k * n), 3: rng.standard_normal(2)}
    rows, dims = ex.var("rows"), {"rows": m, "n": n, "m": k}
    kernel = ReduceKernel(0, (2, rows, N), M, "sum", body, "outer", (0,))
    got = run_kernel(kernel, arrays, np.dtype(float), vectors, dims)
    assert close(got, expected_kernel(kernel, arrays, got.dtype, dims), dt.F64)
