"""Targets that run LLIR, and the killable process that candidates run in."""

from __future__ import annotations

from workbench.errors import UnavailableError, WorkbenchError, printable
from workbench.runtime.protocol import Runtime
from workbench.targets import CHOICES, resolved


def get_runtime(target: str, threads: int | None = None) -> Runtime:
    """The runtime for `target` (auto, cpu or cuda); `threads` limits the CPU's library calls.

    Raises UnavailableError for a target whose kernels cannot run here, WorkbenchError for a name that is none."""
    if target not in CHOICES:
        raise WorkbenchError(f"unknown target '{printable(target, 40)}'", f"one of {', '.join(CHOICES)}")
    if resolved(target) == "cuda":
        raise UnavailableError(
            "profiling kernels for cuda needs a CUDA device and the runtime for it, which this version does not have",
            "--target cpu searches here; up to saturation, with rules and X-rays, everything works for cuda as it is",
        )
    from workbench.runtime.cpu import CpuRuntime

    return CpuRuntime(threads)


def describe_devices() -> list[dict[str, object]]:
    """One entry per device: name, target, cores, memory in bytes and what its libraries are."""
    from workbench.runtime.cpu.describe import describe_cpu

    return [describe_cpu()]


def device_name(target: str) -> str:
    """The name of the device that `target` runs on here, for headers; the target's own where it is not known."""
    if target != "cpu":
        return "no device"
    from workbench.runtime.cpu.describe import cpu_name

    return cpu_name() or target
