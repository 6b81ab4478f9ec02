"""Targets that run LLIR, and the killable process that candidates run in."""

from __future__ import annotations

from workbench.errors import UnavailableError, WorkbenchError
from workbench.runtime.protocol import Runtime

TARGETS = ("auto", "cpu", "cuda")


def get_runtime(target: str, threads: int | None = None) -> Runtime:
    """The runtime for `target` (auto, cpu or cuda); `threads` limits the CPU's library calls.

    Raises UnavailableError for a target this machine or version lacks, WorkbenchError for a name that is none."""
    if target == "cuda":
        raise UnavailableError("the cuda target is not part of this version yet", "use --target cpu")
    if target not in TARGETS:
        raise WorkbenchError(f"unknown target {target!r}", f"one of {', '.join(TARGETS)}")
    from workbench.runtime.cpu import CpuRuntime

    return CpuRuntime(threads)


def describe_devices() -> list[dict[str, object]]:
    """One entry per device: name, target, cores, memory in bytes and what its libraries are."""
    from workbench.runtime.cpu.describe import describe_cpu

    return [describe_cpu()]


def device_name(target: str) -> str:
    """The name of the device that `target` runs on here, for headers; the target's own where it is not known."""
    from workbench.runtime.cpu.describe import cpu_name

    return (cpu_name() if target == "cpu" else "") or target
