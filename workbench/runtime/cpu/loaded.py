"""A compiled plan in this process: one arena, and one prepared call per launch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import numpy as np

from workbench.errors import InputError, WorkbenchError
from workbench.ir.dtype import BY_NAME
from workbench.runtime.arena import ALIGNMENT
from workbench.runtime.cpu.gemm import extent_of, matmul_call
from workbench.runtime.cpu.jit import compile_sources
from workbench.runtime.cpu.plan import launch_buffers
from workbench.runtime.opaque import Evaluation
from workbench.runtime.protocol import GemmLaunch, Launch, NativeLaunch, OpaqueLaunch, Plan, by_kernel

Call = Callable[[], object]
GROWTH = 1.25
"""How much larger a shared arena becomes at least, where it has to grow."""


@cache
def _blas() -> Any:
    import threadpoolctl

    return threadpoolctl.ThreadpoolController()


class Arena:
    """See `protocol.SharedArena`."""

    def __init__(self) -> None:
        self._memory = _aligned_bytes(0)

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self._memory.size

    def memory(self, nbytes: int) -> np.ndarray:
        """The memory, with room for `nbytes`. Where it had to grow, it is another than before; what holds the old one
        keeps it. Raises WorkbenchError where there is not enough."""
        if self._memory.size < nbytes:
            most = int(self._memory.size * GROWTH)  # lengths that grow step by step do not move it at each
            for size in (max(nbytes, most), nbytes):
                try:
                    self._memory = _aligned_bytes(size)
                    break
                except MemoryError:
                    continue
            else:
                raise WorkbenchError(f"there is no memory for an arena of {nbytes:,} bytes")
        return self._memory


class CpuLoaded:
    """See `protocol.Loaded`. Not safe for use from two threads at once: runs share the arena."""

    def __init__(
        self,
        plan: Plan,
        bindings: Mapping[int, np.ndarray],
        threads: int | None = None,
        shared: Arena | None = None,
    ) -> None:
        """Compile the sources of `plan` and prepare its launches; `bindings` and `shared` as in `Runtime.load`.

        Raises InputError for arrays that do not fit, WorkbenchError for a plan that is not sound."""
        self.plan = plan
        self.threads = threads
        native = [launch for launch in plan.launches if isinstance(launch, NativeLaunch)]
        sources = {x.source: (plan.sources[x.source], len(x.buffers) + len(x.sizes)) for x in native}
        self._functions, self.compile_seconds = compile_sources(sources)
        self._shared = shared
        self._arena = _aligned_bytes(plan.arena_bytes) if shared is None else shared.memory(plan.arena_bytes)
        self._arrays: list[np.ndarray | None] = [self._in_arena(i) for i in range(len(plan.buffers))]
        for buffer, array in bindings.items():
            self._arrays[buffer] = self._checked(buffer, array)
        touched = {b for launch in plan.launches for b in launch_buffers(launch)} | set(plan.outputs)
        self.unbound = tuple(sorted(b for b in touched if self._arrays[b] is None))
        """Buffers that every run must be given."""
        changing = set(self.unbound)
        self._changing = [i for i, x in enumerate(plan.launches) if changing & set(launch_buffers(x))]
        self._evaluations: dict[tuple[object, ...], Evaluation] = {}
        self._calls: list[Call] = self._fixed_calls()
        self._bound_to: tuple[int, ...] | None = None if self.unbound else ()

    def run(self, bindings: Mapping[int, np.ndarray]) -> list[np.ndarray]:
        """Flat outputs in the plan's order, copied out of the arena. `bindings` are flat arrays for `unbound`.

        Raises InputError for a missing array or one of another size or dtype."""
        self.bind(bindings)
        with self.limited():
            self.execute()
        return self.outputs()

    def bind(self, bindings: Mapping[int, np.ndarray]) -> None:
        """Set the arrays that the next runs read. Errors as in `run`."""
        for buffer in self.unbound:
            if buffer not in bindings:
                raise InputError(f"buffer {buffer} is not bound", "pass an array for it")
        arrays = {buffer: self._checked(buffer, bindings[buffer]) for buffer in self.unbound}
        self._follow_arena()
        places = tuple(a.ctypes.data for a in arrays.values())
        for buffer, array in arrays.items():
            self._arrays[buffer] = array
        if places != self._bound_to:
            for i in self._changing:
                self._calls[i] = self._prepared(self.plan.launches[i])
            self._bound_to = places

    def _follow_arena(self) -> None:
        """Take up the shared arena again where it has grown, and so moved, since."""
        if self._shared is None or self._shared.memory(self.plan.arena_bytes) is self._arena:
            return
        self._arena = self._shared.memory(self.plan.arena_bytes)
        for i, b in enumerate(self.plan.buffers):
            if b.arena_offset is not None:
                self._arrays[i] = self._in_arena(i)
        self._calls = self._fixed_calls()
        self._bound_to = None if self.unbound else ()

    def _fixed_calls(self) -> list[Call]:
        """The launches that are the same in all runs, prepared."""
        varying = set(self._changing)
        return [_nothing if i in varying else self._prepared(x) for i, x in enumerate(self.plan.launches)]

    def execute(self) -> None:
        """Run all launches on what is bound."""
        for call in self._calls:
            call()

    def outputs(self) -> list[np.ndarray]:
        """Copies of the outputs as the last run left them."""
        return [self._array(b).copy() for b in self.plan.outputs]

    def limited(self) -> AbstractContextManager[object]:
        """A context in which BLAS uses at most `threads` threads."""
        if self.threads is None or not any(isinstance(x, GemmLaunch) for x in self.plan.launches):
            return nullcontext()
        limit: AbstractContextManager[object] = _blas().limit(limits=self.threads, user_api="blas")
        return limit

    def launch_times(self, bindings: Mapping[int, np.ndarray], runs: int) -> list[float]:
        """Milliseconds of each launch, in the plan's order; medians over `runs`. Errors as in `run`."""
        self.bind(bindings)
        times: list[list[int]] = [[] for _ in self._calls]
        clock = time.perf_counter_ns
        with self.limited():
            self.execute()
            for _ in range(max(1, runs)):
                for samples, call in zip(times, self._calls, strict=True):
                    began = clock()
                    call()
                    samples.append(clock() - began)
        return [statistics.median(samples) / 1e6 for samples in times]

    def profile_kernels(self, bindings: Mapping[int, np.ndarray], runs: int) -> list[tuple[str, int, float, int, int]]:
        """(name, calls, milliseconds, flops, bytes) per distinct kernel, all per run; times are medians over `runs`."""
        return by_kernel(self.plan.launches, self.launch_times(bindings, runs))

    def _in_arena(self, buffer: int) -> np.ndarray | None:
        b = self.plan.buffers[buffer]
        dtype = BY_NAME[b.dtype].numpy
        if b.arena_offset is None:
            return None
        end = b.arena_offset + b.elements * dtype.itemsize
        if b.elements and (end > self.plan.arena_bytes or b.arena_offset < 0 or b.arena_offset % dtype.itemsize):
            raise WorkbenchError(f"buffer {buffer} does not lie in the arena")
        return self._arena[b.arena_offset : end].view(dtype) if b.elements else np.empty(0, dtype)

    def _checked(self, buffer: int, array: np.ndarray) -> np.ndarray:
        if not 0 <= buffer < len(self.plan.buffers):
            raise InputError(f"buffer {buffer} is not in the plan")
        b = self.plan.buffers[buffer]
        dtype = BY_NAME[b.dtype].numpy
        if array.dtype != dtype or array.size != b.elements:
            raise InputError(
                f"buffer {buffer} takes {b.elements} elements of {b.dtype}, not {array.size} of {array.dtype}"
            )
        return np.require(array.reshape(-1), requirements=["C", "A"])

    def _array(self, buffer: int) -> np.ndarray:
        array = self._arrays[buffer]
        if array is None:
            raise InputError(f"buffer {buffer} is not bound", "pass an array for it")
        return array

    def _prepared(self, launch: Launch) -> Call:
        match launch:
            case NativeLaunch():
                places = [self._array(b).ctypes.data for b in launch.buffers]
                return partial(self._functions[launch.source], *places, *launch.sizes)
            case GemmLaunch():
                return self._prepared_gemm(launch)
            case OpaqueLaunch():
                return self._prepared_custom(launch)

    def _prepared_gemm(self, launch: GemmLaunch) -> Call:
        out, a, b = (self._array(x) for x in (launch.out, launch.a.buffer, launch.b.buffer))
        batch = len(launch.a.batch_offsets)
        fits = (
            len(launch.b.batch_offsets) == batch
            and out.size >= batch * launch.m * launch.n
            and a.size >= extent_of(launch.a, launch.m, launch.k)
            and b.size >= extent_of(launch.b, launch.k, launch.n)
        )
        if not fits or {x.dtype for x in (out, a, b)} != {BY_NAME[launch.dtype].numpy}:
            raise WorkbenchError(f"{launch.name} does not fit its buffers")
        return matmul_call(launch, out, a, b)

    def _prepared_custom(self, launch: OpaqueLaunch) -> Call:
        """The first launch of a model on given operands runs it, and the others take their outputs from that."""
        operands = [self._array(b).reshape(s) for b, s in zip(launch.operands, launch.operand_shapes, strict=True)]
        out = self._array(launch.out).reshape(launch.shape)
        key = _evaluation_of(launch)
        alike = [x for x in self.plan.launches if isinstance(x, OpaqueLaunch) and _evaluation_of(x) == key]
        evaluation = self._evaluations.get(key)
        if evaluation is None:
            evaluation = Evaluation(launch.name, launch.runner, launch.model, self.threads)
            self._evaluations[key] = evaluation
        shared = evaluation
        if len(alike) == 1:
            direct = shared.bound(operands, launch.output, out)
            if direct is not None:
                return direct

        def call() -> None:
            if launch is alike[0]:
                shared.run(operands)
            out[...] = shared.output(launch.output, launch.shape, out.dtype)

        return call


def _evaluation_of(launch: OpaqueLaunch) -> tuple[object, ...]:
    """What launches of which one serves all have in common."""
    return launch.model, launch.operands, launch.operand_shapes


def _nothing() -> None:
    """Stands for a launch whose buffers are not bound yet."""


def _aligned_bytes(size: int) -> np.ndarray:
    # all ones is NaN: what is read before it is written shows in the result
    raw = np.full(size + ALIGNMENT, 0xFF, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]
