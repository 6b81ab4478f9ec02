"""What kernels are checked against: LLIR by its definition, in NumPy, over buffers that end at a guard page."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from workbench.ir import dtype as dt
from workbench.ir import expr as ex
from workbench.ir.dtype import BY_NAME
from workbench.ir.layout import numel
from workbench.ir.llir import (
    ALONG,
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
    ReduceKernel,
    RowKernel,
)
from workbench.ir.ops import ELEMENTWISE
from workbench.runtime.cpu.jit import compile_sources, host_vectors
from workbench.runtime.cpu.native import result_shape, sized_shape
from workbench.runtime.cpu.plan import PlanTemplate
from workbench.runtime.cpu.schedule import Vectors
from workbench.runtime.protocol import NativeLaunch

PAGE = mmap.PAGESIZE
CANARY = 0xA5
Arrays = Mapping[int, np.ndarray]


def value_of(
    body: Body, place: Mapping[str, Any], arrays: Arrays, reduced: Sequence[np.ndarray] = ()
) -> np.ndarray:
    """`body` at every place of the iteration space (`place`: index arrays by axis name); `reduced` is what the earlier
    passes over a row gave, to be broadcast over the place."""
    with np.errstate(all="ignore"):
        match body:
            case Immediate(value, dtype):
                return np.asarray(value, dtype.numpy)
            case Load(buffer, address, _):
                return np.asarray(arrays[buffer][ex.evaluate(address, place)])
            case GatherLoad(buffer, address, index, extent, _):
                last = ex.evaluate(extent, place) - 1
                chosen = np.clip(value_of(index, place, arrays, reduced).astype(np.int64), 0, last)
                return np.asarray(arrays[buffer][ex.evaluate(address, {**place, "#g": chosen})])
            case Reduced(index, _):
                return reduced[index]
            case Position(value, dtype):
                return np.asarray(ex.evaluate(value, place)).astype(dtype.numpy)
            case Apply("Cast", (operand,), dtype):
                return dt.convert(value_of(operand, place, arrays, reduced), dtype.numpy)
            case Apply(name, operands, dtype):
                values = [value_of(o, place, arrays, reduced) for o in operands]
                return np.asarray(ELEMENTWISE[name].compute(*values)).astype(dtype.numpy)


def places(shape: tuple[int, ...], last: str | None = None) -> dict[str, np.ndarray]:
    """Index arrays over `shape` by axis name; the last axis may have another."""
    names = [f"#{i}" for i in range(len(shape))]
    if last is not None:
        names[-1] = last
    return dict(zip(names, np.indices(shape, np.int64), strict=True))


def combined_over(full: np.ndarray, combine: str, dtype: np.dtype) -> np.ndarray:
    """The sum or maximum over the last axis; sums of floats are taken in f64."""
    if combine == "sum":
        return np.asarray(full.sum(-1, dtype=np.float64 if dt.is_float(dtype) else dtype))
    if full.shape[-1]:
        return np.asarray(full.max(-1))
    least = False if dtype == np.bool_ else -np.inf if dt.is_float(dtype) else np.iinfo(dtype).min
    return np.full(full.shape[:-1], least)


def expected_of(
    kernel: MapKernel | ReduceKernel | RowKernel, arrays: Arrays, dtype: np.dtype, dims: Mapping[str, int] | None = None
) -> np.ndarray:
    """The flat result of `kernel` over flat arrays, for values of the named dimensions; f32 sums are taken in f64."""
    given = dims or {}
    if isinstance(kernel, RowKernel):
        return row_of(kernel, arrays, dtype, given)
    shape = sized_shape(kernel.iteration if isinstance(kernel, ReduceKernel) else kernel.shape, given)
    full = np.broadcast_to(value_of(kernel.body, {**places(shape), **given}, arrays), shape)
    if isinstance(kernel, ReduceKernel):
        full = combined_over(full, kernel.combine, dtype)
    return np.ascontiguousarray(full).astype(dtype).reshape(-1)


def row_of(kernel: RowKernel, arrays: Arrays, dtype: np.dtype, dims: Mapping[str, int]) -> np.ndarray:
    """A row kernel: pass after pass over all rows at once."""
    reduced: list[np.ndarray] = []
    rows, result = sized_shape(kernel.shape, dims), sized_shape(kernel.result, dims)
    for each in kernel.passes:
        shape = (*rows, ex.sized(each.extent, dims))
        spread = [r[..., None] for r in reduced]
        full = np.broadcast_to(value_of(each.body, {**places(shape, ALONG), **dims}, arrays, spread), shape)
        own = each.body.dtype.numpy
        reduced.append(np.asarray(combined_over(full, each.combine, own)).astype(own))
    if kernel.extent is None:
        full = np.broadcast_to(value_of(kernel.body, {**places(rows), **dims}, arrays, reduced), rows)
    else:
        spread = [r[..., None] for r in reduced]
        full = np.broadcast_to(value_of(kernel.body, {**places(result, ALONG), **dims}, arrays, spread), result)
    return np.ascontiguousarray(full).astype(dtype).reshape(-1)


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy whose last byte lies before a page that cannot be read: a read past the end is a crash."""
    size = max(PAGE, -(-array.nbytes // PAGE) * PAGE)
    memory = mmap.mmap(-1, size + PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + size), PAGE, 0) == 0
    copy = np.frombuffer(memory, array.dtype, array.size, size - array.nbytes)
    copy[...] = array.reshape(-1)
    return copy


@pytest.fixture(scope="session")
def run_kernel() -> Callable[..., np.ndarray]:
    """`run_kernel(kernel, arrays, dtype, vectors, dims)`: the flat output of a compiled kernel whose out is buffer 0,
    written for a processor with `vectors` (default: this one), at values of the named dimensions.

    Inputs end at a guard page; bytes around the output must not change."""

    def run(
        kernel: MapKernel | ReduceKernel | RowKernel,
        arrays: Arrays,
        dtype: np.dtype,
        vectors: Vectors | None = None,
        dims: Mapping[str, int] | None = None,
    ) -> np.ndarray:
        given = dims or {}
        count = int(np.prod(sized_shape(result_shape(kernel), given), dtype=np.int64))
        by_numpy = {d.numpy: d for d in BY_NAME.values()}
        buffers = [Buffer(0, by_numpy[dtype], numel(result_shape(kernel)), "output", 0)]
        for i in sorted(arrays):
            buffers.append(Buffer(i, by_numpy[arrays[i].dtype], arrays[i].size, "input", 0))
        plan = PlanTemplate(Program(buffers, [kernel], [0]), {}, vectors or host_vectors()).plan(given)
        if not plan.launches:
            return np.empty(0, dtype)
        (launch,) = plan.launches
        assert isinstance(launch, NativeLaunch)
        arguments = len(launch.buffers) + len(launch.sizes)
        functions, _ = compile_sources({launch.source: (plan.sources[launch.source], arguments)})
        margin = 128
        nbytes = count * dtype.itemsize
        memory = np.full(nbytes + 2 * margin, CANARY, np.uint8)
        held = {i: guarded(a) for i, a in arrays.items()}
        places = {0: memory.ctypes.data + margin} | {i: a.ctypes.data for i, a in held.items()}
        functions[launch.source](*(places[b] for b in launch.buffers), *launch.sizes)
        assert (memory[:margin] == CANARY).all()
        assert (memory[margin + nbytes :] == CANARY).all()
        return memory[margin : margin + nbytes].copy().view(dtype)

    return run


@pytest.fixture(scope="session")
def expected_kernel() -> Callable[..., np.ndarray]:
    """`expected_kernel(kernel, arrays, dtype, dims)`: the same by the definition of LLIR."""
    return expected_of
