"""Row kernels, and kernels in place of what they read, against the definition of LLIR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.test_kernels import (
    EXACT_FUNCTIONS,
    FLOAT_FUNCTIONS,
    PROCESSORS,
    addresses,
    close,
    combined,
    data,
    row_major,
    shapes,
    values,
)
from workbench.errors import WorkbenchError
from workbench.ir import dtype as dt
from workbench.ir import expr as ex
from workbench.ir.dtype import DType
from workbench.ir.expr import Expr
from workbench.ir.llir import (
    ALONG,
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
    Reduced,
    RowKernel,
    RowPass,
    axis,
)
from workbench.runtime import get_runtime
from workbench.runtime.arena import plan_arena
from workbench.runtime.cpu.jit import host_vectors
from workbench.runtime.cpu.plan import plan_program
from workbench.runtime.cpu.schedule import Vectors

RunKernel = Callable[..., np.ndarray]
R = ex.var(ALONG)
DTYPES = (dt.F32, dt.F64, dt.I32, dt.I64)
ALONG_EXTENTS = st.sampled_from((0, 1, 1, 2, 3, 5, 8, 15, 16, 17, 33, 64, 65, 100, 131))


def mean_of(value: Body, extent: int, dtype: DType) -> Body:
    """`value` over `extent`, so that what follows stays of its size; integers as they are."""
    if not dtype.is_float:
        return value
    return Apply("Mul", (value, Immediate(1.0 / max(1, extent), dtype)), dtype)


@st.composite
def rows(draw: st.DrawFn, dtype: DType) -> tuple[RowKernel, dict[int, np.ndarray]]:
    """A row kernel of one to three passes, each with its own extent and its own loads."""
    shape = tuple(min(n, 9) for n in draw(shapes(0, 3)))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    arrays: dict[int, np.ndarray] = {}
    known: list[Body] = []

    def body(extent: int | None) -> Body:
        whole = shape if extent is None else (*shape, max(1, extent))
        leaves = list(known)
        for _ in range(draw(st.integers(1, 2))):
            address = draw(addresses(whole))
            buffer = len(arrays) + 1
            arrays[buffer] = data(address, whole, dtype, rng)
            here = address if extent is None else ex.substitute(address, {f"#{len(shape)}": R}, {ALONG: extent})
            leaves.append(Load(buffer, here, dtype))
        if extent is not None and draw(st.booleans()):
            leaves.append(Position(R, dtype))
        functions = FLOAT_FUNCTIONS if dtype.is_float else EXACT_FUNCTIONS
        made = combined(draw(st.lists(st.sampled_from(functions), max_size=3)), leaves[::-1], dtype)
        for value in known:  # every later pass feels every earlier one
            made = Apply("Add", (made, value), dtype)
        return made

    passes: list[RowPass] = []
    for index in range(draw(st.integers(1, 3))):
        extent = draw(ALONG_EXTENTS)
        combine = draw(st.sampled_from(("sum", "max")))
        each = RowPass(combine, extent, body(extent))  # type: ignore[arg-type]
        passes.append(each)
        if combine == "max" and extent == 0:  # the least value would swamp what is added to it
            passes[-1] = replace(each, combine="sum")
        known.append(mean_of(Reduced(index, dtype), extent, dtype))
    stored = draw(st.one_of(st.none(), ALONG_EXTENTS))
    return RowKernel(0, shape, tuple(passes), stored, body(stored), (0,)), arrays


@settings(max_examples=150)
@given(choice=st.data(), dtype=st.sampled_from(DTYPES), vectors=PROCESSORS)
def test_rows_compute_what_llir_says(
    choice: st.DataObject, dtype: DType, vectors: Vectors, run_kernel: RunKernel, expected_kernel: RunKernel
) -> None:
    kernel, arrays = choice.draw(rows(dtype))
    got = run_kernel(kernel, arrays, dtype.numpy, vectors)
    wanted = expected_kernel(kernel, arrays, dtype.numpy)
    if dtype is dt.F32:  # beside the same in f64: how much its own rounding may have grown on the way
        exact = expected_kernel(doubled(kernel), {i: a.astype(np.float64) for i, a in arrays.items()}, np.dtype(float))
        room = np.abs(wanted - exact).max(initial=0.0)
        assert np.all(np.abs(got - exact) <= 8 * room + 2e-5 * (1 + np.abs(exact).max(initial=0.0)))
    else:
        assert close(got, wanted, dtype)


def doubled(kernel: RowKernel) -> RowKernel:
    """The same kernel of f64 throughout."""

    def body(item: Body) -> Body:
        match item:
            case Apply(name, operands, dtype):
                return Apply(name, tuple(body(o) for o in operands), dt.F64 if dtype is dt.F32 else dtype)
            case _:
                return replace(item, dtype=dt.F64) if item.dtype is dt.F32 else item

    passes = tuple(replace(p, body=body(p.body)) for p in kernel.passes)
    return replace(kernel, passes=passes, body=body(kernel.body))


def softmax(shape: tuple[int, ...], extent: int, address: Expr | None = None) -> RowKernel:
    """Base-2 softmax along the row, of buffer 1."""
    if address is None:
        address = sum((axis(i) * s * extent for i, s in enumerate(row_major(shape, list(range(len(shape)))))), start=R)
    x = Load(1, address, dt.F32)
    shifted = Apply("Add", (x, Apply("Mul", (Reduced(0, dt.F32), Immediate(-1.0, dt.F32)), dt.F32)), dt.F32)
    raised = Apply("Exp2", (shifted,), dt.F32)
    body = Apply("Mul", (raised, Apply("Recip", (Reduced(1, dt.F32),), dt.F32)), dt.F32)
    return RowKernel(0, shape, (RowPass("max", extent, x), RowPass("sum", extent, raised)), extent, body, (0,))


@pytest.mark.parametrize("extent", [1, 5, 16, 17, 37, 200])
def test_nan_and_infinities_stay_in_their_rows(extent: int, run_kernel: RunKernel) -> None:
    rng = np.random.default_rng(extent)
    x = rng.standard_normal((6, extent)).astype(np.float32)
    x[1, rng.integers(extent)] = np.nan
    x[2, rng.integers(extent)] = np.inf
    x[3] = -np.inf
    x[4, : extent // 2] = -np.inf  # a mask
    got = run_kernel(softmax((6,), extent), {1: x.reshape(-1)}, x.dtype).reshape(6, extent)
    for bad in (1, 2, 3):
        assert np.isnan(got[bad]).any()
    assert np.isnan(got[1]).all()
    for good in (0, 4, 5):
        e = np.exp2(x[good].astype(float) - x[good].max())
        np.testing.assert_allclose(got[good], e / e.sum(), rtol=2e-6)
    assert (got[4, : extent // 2] == 0).all()


@pytest.mark.parametrize("dtype", [*DTYPES, dt.BOOL], ids=str)
@pytest.mark.parametrize("stored", [None, 3])
def test_a_pass_over_nothing_gives_the_identity(dtype: DType, stored: int | None, run_kernel: RunKernel) -> None:
    body = Load(1, axis(0) * 0 + R, dtype)
    kernel = RowKernel(0, (4,), (RowPass("max", 0, body),), stored, Reduced(0, dtype), (0,))
    least = False if dtype is dt.BOOL else -np.inf if dtype.is_float else np.iinfo(dtype.numpy).min
    got = run_kernel(kernel, {1: np.zeros(0, dtype.numpy)}, dtype.numpy)
    assert np.array_equal(got, np.full(4 * (stored or 1), least))
    nothing = replace(kernel, extent=0)
    assert run_kernel(nothing, {1: np.zeros(0, dtype.numpy)}, dtype.numpy).size == 0


def test_a_pass_over_nothing_takes_no_argument(run_kernel: RunKernel) -> None:
    """Two kernels of one source have as many arguments, whatever their empty passes would have read."""
    for buffers in ((1,), (1, 2)):
        loads: list[Body] = [Load(b, R, dt.F32) for b in buffers]
        none = RowPass("sum", 0, loads[0] if len(loads) == 1 else Apply("Mul", tuple(loads), dt.F32))
        kernel = RowKernel(0, (3,), (none,), 7, Apply("Exp2", (Reduced(0, dt.F32),), dt.F32), (0,))
        arrays = {b: np.zeros(0, np.float32) for b in buffers}
        assert np.array_equal(run_kernel(kernel, arrays, np.dtype(np.float32)), np.ones(21))


def test_a_gather_by_what_a_pass_found(run_kernel: RunKernel, expected_kernel: RunKernel) -> None:
    """The element of a table that each row's largest index names."""
    rng = np.random.default_rng(0)
    indices, table = rng.integers(0, 30, (5, 40)), rng.standard_normal(20).astype(np.float32)
    largest = RowPass("max", 40, Load(1, axis(0) * 40 + R, dt.I64))
    body = GatherLoad(2, ex.var(GATHERED), Reduced(0, dt.I64), 20, dt.F32)
    arrays = {1: indices.reshape(-1), 2: table}
    for stored in (None, 3, 17):
        kernel = RowKernel(0, (5,), (largest,), stored, body, (0,))
        got = run_kernel(kernel, arrays, table.dtype)
        assert np.array_equal(got, expected_kernel(kernel, arrays, table.dtype))
        assert np.array_equal(got.reshape(5, -1)[:, 0], table[indices.max(1).clip(0, 19)])


def test_a_row_read_across_memory(run_kernel: RunKernel, expected_kernel: RunKernel) -> None:
    """Softmax over the columns of a matrix, and over a row whose position takes a division."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal(24 * 40).astype(np.float32)
    parted = ex.floordiv(R, ex.const(8), {ALONG: 24}) * 320 + axis(0) * 8 + ex.mod(R, ex.const(8), {ALONG: 24})
    for address in (R * 40 + axis(0), parted):
        kernel = softmax((40,), 24, address)
        got = run_kernel(kernel, {1: x}, x.dtype)
        np.testing.assert_allclose(got, expected_kernel(kernel, {1: x}, x.dtype), rtol=2e-6)


def test_a_row_outside_its_buffer_is_refused() -> None:
    buffers = [Buffer(0, dt.F32, 40, "output", 0), Buffer(1, dt.F32, 39, "input", 0)]
    with pytest.raises(WorkbenchError, match=r"elements 0\.\.39 of buffer 1"):
        get_runtime("cpu").plan(Program(buffers, [softmax((4,), 10)], [0]), {})


# In place


@st.composite
def in_place_programs(draw: st.DrawFn) -> tuple[Program, np.ndarray, np.ndarray]:
    """2x, and in its place a map or a row kernel over that, with another operand; their inputs."""
    dtype = draw(st.sampled_from((*DTYPES, dt.BOOL)))
    shape = draw(shapes(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    x, other = values(prod(shape), dtype, rng), values(shape[-1], dtype, rng)
    names = [f"#{i}" for i in range(len(shape))]
    by_row = dtype is not dt.BOOL and draw(st.booleans())
    if by_row:
        names[-1] = ALONG
    strides = row_major(shape, list(range(len(shape))))
    address = sum((ex.var(n) * s for n, s, d in zip(names, strides, shape, strict=True) if d > 1), start=ex.ZERO)
    count = len(x)
    double = MapKernel(2, (count,), Apply("Add", (Load(0, axis(0), dtype),) * 2, dtype), (2,))
    if count == 1:
        double = MapKernel(2, (), Apply("Add", (Load(0, ex.ZERO, dtype),) * 2, dtype), (2,))
    mine = Load(2, address, dtype)
    along = ex.var(names[-1]) if shape[-1] > 1 else ex.ZERO
    body: Body = Apply("Add", (Apply("Mul", (mine, mine), dtype), Load(1, along, dtype)), dtype)
    if by_row:
        body = Apply("Add", (body, Reduced(0, dtype)), dtype)
        most = RowPass("max", shape[-1], mine)
        last: MapKernel | RowKernel = RowKernel(3, shape[:-1], (most,), shape[-1], body, (3,), in_place=2)
    else:
        last = MapKernel(3, shape, body, (3,), in_place=2)
    roles = ("input", "input", "intermediate", "output")
    sizes = (count, shape[-1], count, count)
    buffers = [Buffer(i, dtype, n, role, i) for i, (n, role) in enumerate(zip(sizes, roles, strict=True))]
    return Program(buffers, [double, last], [3]), x, other


@settings(max_examples=100)
@given(made=in_place_programs(), vectors=PROCESSORS)
def test_in_place_every_element_is_computed_once(
    made: tuple[Program, np.ndarray, np.ndarray], vectors: Vectors, expected_kernel: RunKernel
) -> None:
    program, x, other = made
    plan = plan_program(program, {}, vectors)
    assert plan.buffers[2].arena_offset == plan.buffers[3].arena_offset is not None
    (got,) = get_runtime("cpu").load(plan, {}).run({0: x, 1: other})
    last = program.kernels[1]
    wanted = expected_kernel(last, {1: other, 2: x + x}, x.dtype)
    assert close(got, wanted, program.buffers[3].dtype)


def epilogue(count: int, role: str = "intermediate", dtype: DType = dt.F32, elements: int | None = None) -> Program:
    """x -> 2x -> 4x, the last in place."""
    buffers = [
        Buffer(0, dt.F32, count, "input", 0),
        Buffer(1, dt.F32, count, role, 1),  # type: ignore[arg-type]
        Buffer(2, dtype, count if elements is None else elements, "output", 2),
    ]
    kernels = []
    for out, in_place in ((1, None), (2, 1)):
        body = Apply("Add", (Load(out - 1, axis(0), dt.F32),) * 2, dt.F32)
        kernels.append(MapKernel(out, (count,), body, (out,), in_place))
    return Program(buffers, kernels, [2])


def test_what_is_overwritten_takes_no_memory_of_its_own() -> None:
    program = epilogue(1000)
    offsets, nbytes = plan_arena(program)
    assert offsets[1] == offsets[2]
    assert nbytes == 4032 == get_runtime("cpu").estimate_memory(program)
    apart = Program(program.buffers, [program.kernels[0], replace(program.kernels[1], in_place=None)], [2])
    assert get_runtime("cpu").estimate_memory(apart) == 2 * 4032
    plan = plan_program(program, {}, host_vectors())
    assert [launch.name for launch in plan.launches] == ["map Add 1000", "map Add 1000 in place"]
    assert plan.launches[1].buffers == (2,)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "program", [epilogue(8, "input"), epilogue(8, dtype=dt.F64), epilogue(8, elements=9)], ids=["role", "dtype", "size"]
)
def test_a_place_that_does_not_fit_is_refused(program: Program) -> None:
    with pytest.raises(WorkbenchError, match="buffer 2 does not fit in place of buffer 1"):
        get_runtime("cpu").plan(program, {})
