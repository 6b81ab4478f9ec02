"""Scatter kernels against one write after the other in Python."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.errors import WorkbenchError
from workbench.ir import dtype as dt
from workbench.ir import expr as ex
from workbench.ir import ops
from workbench.ir.dtype import DType
from workbench.ir.expr import Expr
from workbench.ir.llir import Apply, Body, Buffer, Immediate, Load, MapKernel, Position, Program, ScatterKernel, axis
from workbench.runtime import get_runtime

Shape = tuple[int, ...]
DTYPES = dt.DTYPES


def row_major(shape: Shape) -> Expr:
    return sum((axis(i) * prod(shape[i + 1 :]) for i in range(len(shape)) if shape[i] != 1), start=ex.ZERO)


def program_of(data: np.ndarray, dtype: DType, shape: Shape, mode: str, index: Body, update: Body) -> Program:
    """Buffer 0 holds the data, 1 a copy of it, 2 the result, 3 the positions, 4 what is written."""
    count, size = prod(shape), data.size
    buffers = [
        Buffer(0, dtype, size, "input", 0),
        Buffer(1, dtype, size, "intermediate", 1),
        Buffer(2, dtype, size, "output", 2),
        Buffer(3, dt.I64, count, "input", 3),
        Buffer(4, dtype, count, "input", 4),
    ]
    copy = MapKernel(1, (size,), Load(0, axis(0) if size != 1 else ex.ZERO, dtype), (1,))
    return Program(buffers, [copy, ScatterKernel(2, 1, size, shape, mode, index, update, (2,))], [2])


def run(program: Program, arrays: dict[int, np.ndarray]) -> np.ndarray:
    runtime = get_runtime("cpu", 1)
    (result,) = runtime.load(runtime.plan(program, {}), {}).run(arrays)
    return result


def one_by_one(data: np.ndarray, index: np.ndarray, update: np.ndarray, mode: str) -> np.ndarray:
    combine = ops.SCATTER_MODES[mode]
    out = data.copy()
    for at, value in zip(index.reshape(-1), update.reshape(-1), strict=True):
        place = min(max(int(at), 0), out.size - 1)
        out[place] = value if combine is None else combine(out[place], value)
    return out


def values(rng: np.random.Generator, count: int, dtype: DType) -> np.ndarray:
    if dtype.is_float:
        return np.where(rng.random(count) < 0.05, np.nan, rng.standard_normal(count)).astype(dtype.numpy)
    return rng.integers(-9 if dtype.is_signed else 0, 2 if dtype is dt.BOOL else 200, count).astype(dtype.numpy)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.sampled_from((0, 1, 2, 3, 7)), max_size=3).map(tuple),
    size=st.sampled_from((0, 1, 2, 5, 64)),
    mode=st.sampled_from(sorted(ops.SCATTER_MODES)),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_writes_are_done_in_order_and_inside(shape: Shape, size: int, mode: str, dtype: DType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data, update = values(rng, size, dtype), values(rng, prod(shape), dtype)
    index = rng.integers(-3, size + 3, prod(shape))
    index[rng.random(index.size) < 0.1] = rng.choice([np.iinfo(np.int64).min, np.iinfo(np.int64).max])
    program = program_of(data, dtype, shape, mode, Load(3, row_major(shape), dt.I64), Load(4, row_major(shape), dtype))
    with np.errstate(all="ignore"):
        wanted = one_by_one(data, index, update, mode) if size else data
    np.testing.assert_array_equal(run(program, {0: data, 3: index, 4: update}), wanted)


def test_positions_and_values_are_computed_where_they_are_written() -> None:
    """A column of every row, backwards, doubled."""
    shape = (4, 3)
    at = Apply("Add", (Position(axis(0) * 5, dt.I64), Immediate(4, dt.I64)), dt.I64)
    value = Apply("Mul", (Load(4, row_major(shape) * -1 + 11, dt.F32), Immediate(2.0, dt.F32)), dt.F32)
    data, update = np.zeros(20, np.float32), np.arange(12, dtype=np.float32)
    found = run(program_of(data, dt.F32, shape, "none", at, value), {0: data, 3: np.zeros(12, np.int64), 4: update})
    wanted = np.zeros((4, 5), np.float32)
    wanted[:, 4] = 2 * update[::-1].reshape(shape)[:, 2]
    np.testing.assert_array_equal(found.reshape(4, 5), wanted)


def test_what_does_not_fit_its_buffers_is_refused() -> None:
    data = np.zeros(8, np.float32)
    index, update = Load(3, axis(0), dt.I64), Load(4, axis(0), dt.F32)
    runtime = get_runtime("cpu", 1)
    outside = program_of(data, dt.F32, (4,), "add", Load(3, axis(0) + 1, dt.I64), update)
    with pytest.raises(WorkbenchError, match=r"reads elements 1\.\.4 of buffer 3"):
        runtime.plan(outside, {})
    other = program_of(data, dt.F32, (4,), "add", index, update)
    other.buffers[1] = Buffer(1, dt.I32, 8, "intermediate", 1)
    with pytest.raises(WorkbenchError, match="in place of buffer 1"):
        runtime.plan(other, {})


def test_a_scatter_says_what_it_does_and_costs() -> None:
    program = program_of(
        np.zeros(64, np.float32), dt.F32, (3, 4), "add", Load(3, row_major((3, 4)), dt.I64), Load(4, ex.ZERO, dt.F32)
    )
    launch = get_runtime("cpu", 1).plan(program, {}).launches[-1]
    assert (launch.name, launch.flops) == ("scatter add 3x4 into 64", 12)
    assert launch.nbytes == 12 * 8 + 4 + 2 * 12 * 4  # positions, one value, what is read and written again
