"""What a runtime is, and the messages between the session and a device worker.

A runtime turns LLIR into a `Plan`: kernel sources and library calls in order over a planned arena, everything a
worker needs to compile, bind and run it. Plans are plain data (msgspec structs), so that they cross a process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec
import numpy as np

from workbench.ir.hlir import CustomOpSpec
from workbench.ir.llir import Program


class PlanBuffer(msgspec.Struct, frozen=True, array_like=True):
    """A buffer: `arena_offset` (bytes) when it lives in the arena, else None: bound by the caller under its index."""

    dtype: str
    elements: int
    arena_offset: int | None


class NativeLaunch(msgspec.Struct, frozen=True, tag="native", array_like=True):
    """Call kernel `source` with the addresses of `buffers`, and after them `sizes`: the values of the named dimensions
    that the code is for any value of. The rest is for the profile: what it is, its work."""

    source: str
    buffers: tuple[int, ...]
    name: str
    flops: int
    nbytes: int
    sizes: tuple[int, ...] = ()


class MatrixRef(msgspec.Struct, frozen=True, array_like=True):
    """As `llir.GemmOperand`."""

    buffer: int
    row_stride: int
    col_stride: int
    batch_offsets: tuple[int, ...]


class GemmLaunch(msgspec.Struct, frozen=True, tag="gemm", array_like=True):
    """As `llir.GemmCall`, bound to plan buffers."""

    out: int
    m: int
    n: int
    k: int
    a: MatrixRef
    b: MatrixRef
    dtype: str
    routine: str
    name: str
    flops: int
    nbytes: int


class OpaqueLaunch(msgspec.Struct, frozen=True, tag="opaque", array_like=True):
    """Run a custom operator on the host (see `runtime.opaque`)."""

    out: int
    shape: tuple[int, ...]
    operands: tuple[int, ...]
    operand_shapes: tuple[tuple[int, ...], ...]
    model: bytes
    output: int
    runner: str
    name: str
    flops: int
    nbytes: int


Launch = NativeLaunch | GemmLaunch | OpaqueLaunch


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """An executable, not yet compiled. `sources` maps kernel key (a hash of its text) to its text."""

    target: str
    buffers: tuple[PlanBuffer, ...]
    launches: tuple[Launch, ...]
    sources: dict[str, str]
    outputs: tuple[int, ...]
    arena_bytes: int


class ProfileOptions(msgspec.Struct, frozen=True, array_like=True):
    """How a candidate is timed. `warmup` runs are not counted; `trials` are, but no more than `seconds` allow;
    timing stops early once the median of at least 3 runs is over `give_up_ms`."""

    warmup: int = 2
    trials: int = 10
    seconds: float = 0.5
    give_up_ms: float | None = None


class Profile(msgspec.Struct, frozen=True, array_like=True):
    """Times of whole runs in milliseconds, and what led to them."""

    median_ms: float
    p20_ms: float
    p80_ms: float
    runs: int
    compile_seconds: float
    run_seconds: float
    max_abs_err: float
    max_rel_err: float
    kernels: tuple[tuple[str, int, float, int, int], ...] = ()
    """Per distinct kernel: (name, calls, milliseconds per run, flops, bytes)."""


class Rejection(msgspec.Struct, frozen=True, array_like=True):
    """Why a candidate was not timed. `step` is compile, run or verify; `reason` one of REASONS; `detail` a sentence."""

    step: str
    reason: str
    detail: str


REASONS = (
    "no-viable-kernel",
    "cycle",
    "kernel-size",
    "placement",
    "library-refuses",
    "memory",
    "compile",
    "crash",
    "hang",
    "wrong",
    "slow",
)


class Runtime(Protocol):
    """A target. One object per target; holds no device state."""

    name: str

    def estimate_memory(self, program: Program) -> int:
        """Bytes of arena that `program` needs (inputs, constants and boundary values come on top)."""
        ...

    def memory_limit(self) -> int:
        """Bytes that a candidate's arena may take on this machine."""
        ...

    def plan(self, program: Program, custom_ops: Mapping[int, CustomOpSpec]) -> Plan:
        """Kernel sources, calls and arena for `program`. `custom_ops` are those of the graph, by id."""
        ...

    def template(
        self, program: Program, custom_ops: Mapping[int, CustomOpSpec]
    ) -> Template:
        """As `plan`, for a program whose sizes depend on named dimensions: kernels that serve every value of them."""
        ...

    def shared_arena(self) -> SharedArena:
        """An arena for `load`, empty as yet."""
        ...

    def load(self, plan: Plan, bindings: Mapping[int, np.ndarray], shared: SharedArena | None = None) -> Loaded:
        """Compile `plan` here, in this process. `bindings` are flat arrays for buffers that are not in the arena and
        do not change between runs (constants). Plans that are never run at the same time may share an arena."""
        ...


class Template(Protocol):
    """A program for every value of its named dimensions; its code is there once."""

    def plan(self, dims: Mapping[str, int]) -> Plan:
        """The plan for these values. Raises WorkbenchError for values that the program is not for."""
        ...


class SharedArena(Protocol):
    """Memory that several loaded plans take their arena from; as large as the largest."""

    @property
    def nbytes(self) -> int:
        """Its size."""
        ...


class Loaded(Protocol):
    """A compiled plan that can be run in this process."""

    compile_seconds: float

    def run(self, bindings: Mapping[int, np.ndarray]) -> list[np.ndarray]:
        """Flat outputs, in the plan's order (copies). `bindings` are flat arrays for the buffers still unbound."""
        ...

    def execute(self) -> None:
        """Run once on what was bound last, to the end, without copying the outputs: what is timed."""
        ...

    def limited(self) -> AbstractContextManager[object]:
        """A context for `execute` in which library calls keep to the runtime's thread count."""
        ...

    def launch_times(self, bindings: Mapping[int, np.ndarray], runs: int) -> list[float]:
        """Milliseconds of each launch of the plan, in order; medians over `runs` instrumented runs."""
        ...

    def profile_kernels(self, bindings: Mapping[int, np.ndarray], runs: int) -> list[tuple[str, int, float, int, int]]:
        """One row per distinct kernel, as in `Profile.kernels`, from `runs` instrumented runs."""
        ...


def by_kernel(launches: Sequence[Launch], times: Sequence[float]) -> list[tuple[str, int, float, int, int]]:
    """Rows as in `Profile.kernels` from the milliseconds of each launch: launches of the same kernel are added up."""
    rows: dict[tuple[str, str], tuple[int, float, int, int]] = {}
    for launch, took in zip(launches, times, strict=True):
        key = (launch.name, launch.source if isinstance(launch, NativeLaunch) else "")
        calls, spent, flops, nbytes = rows.get(key, (0, 0.0, 0, 0))
        rows[key] = (calls + 1, spent + took, flops + launch.flops, nbytes + launch.nbytes)
    return [(name, *row) for (name, _), row in rows.items()]


def memory_fits(runtime: Runtime, program: Program, limit: int | None = None) -> tuple[bool, int]:
    """Whether the arena of `program` fits `limit` (default: the runtime's own), and its size in bytes."""
    needed = runtime.estimate_memory(program)
    return needed <= (runtime.memory_limit() if limit is None else limit), needed
