"""The CPU target: vector kernels written as LLVM IR and compiled in the process, and BLAS through NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from workbench.ir.hlir import CustomOpSpec
from workbench.ir.llir import Program
from workbench.runtime import arena
from workbench.runtime.protocol import Plan, SharedArena

if TYPE_CHECKING:
    from workbench.runtime.cpu.loaded import Arena, CpuLoaded
    from workbench.runtime.cpu.plan import PlanTemplate


class CpuRuntime:
    """See `protocol.Runtime`. `threads` limits BLAS (None: as many as it likes); generated kernels use one."""

    name = "cpu"

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads

    def estimate_memory(self, program: Program) -> int:
        """Bytes of arena that `program` needs."""
        return arena.plan_arena(program)[1]

    def memory_limit(self) -> int:
        """A safe share of the memory that is free now, in bytes."""
        return arena.memory_limit()

    def plan(self, program: Program, custom_ops: Mapping[int, CustomOpSpec]) -> Plan:
        """As `protocol.Runtime.plan`. Raises WorkbenchError for what this target cannot run."""
        from workbench.runtime.cpu.jit import host_vectors
        from workbench.runtime.cpu.plan import plan_program

        return plan_program(program, custom_ops, host_vectors())

    def template(
        self, program: Program, custom_ops: Mapping[int, CustomOpSpec]
    ) -> PlanTemplate:
        """As `protocol.Runtime.template`. Raises WorkbenchError for what this target cannot run."""
        from workbench.runtime.cpu.jit import host_vectors
        from workbench.runtime.cpu.plan import PlanTemplate

        return PlanTemplate(program, custom_ops, host_vectors())

    def shared_arena(self) -> Arena:
        """As `protocol.Runtime.shared_arena`."""
        from workbench.runtime.cpu.loaded import Arena

        return Arena()

    def load(self, plan: Plan, bindings: Mapping[int, np.ndarray], shared: SharedArena | None = None) -> CpuLoaded:
        """As `protocol.Runtime.load`. Raises InputError for arrays that do not fit, WorkbenchError where there is not
        enough memory."""
        from workbench.runtime.cpu.loaded import Arena, CpuLoaded

        assert shared is None or isinstance(shared, Arena)
        return CpuLoaded(plan, bindings, self.threads, shared)
