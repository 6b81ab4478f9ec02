"""Where intermediate and output buffers lie: offsets in one arena, such that buffers alive together never overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from workbench.ir.llir import Program, aliases, reads

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""

NO_DIMS: Mapping[str, int] = MappingProxyType({})
"""For a program in which all sizes are numbers."""

SHARE_OF_FREE_MEMORY = 0.7
_IN_ARENA = ("intermediate", "output")
_CGROUP_V2 = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current")
_CGROUP_V1 = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes")


@dataclass(frozen=True, slots=True)
class Lifetime:
    """`nbytes` needed from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int


def places(program: Program) -> dict[int, int]:
    """By buffer, the one whose memory it lies in: itself, or what in the arena it was computed in place of."""
    found = {b.id: b.id for b in program.buffers}
    for buffer, other in aliases(program.kernels).items():
        if program.buffers[other].role in _IN_ARENA:
            found[buffer] = found[other]  # kernels are in order, so the other's place is known
    return found


@dataclass(frozen=True, slots=True)
class Spans:
    """What of an arena does not depend on sizes: the place of each buffer, and the steps that each place is needed
    for."""

    places: dict[int, int]
    steps: dict[int, tuple[int, int]]

    def lifetimes(self, program: Program, dims: Mapping[str, int]) -> dict[int, Lifetime]:
        """With the sizes that `program`, whose spans these are, has at values of its named dimensions."""
        return {b: Lifetime(program.buffers[b].bytes_at(dims), *ends) for b, ends in self.steps.items()}

    def plan(self, program: Program, dims: Mapping[str, int]) -> tuple[dict[int, int], int]:
        """As `plan_arena`."""
        offsets, nbytes = place(self.lifetimes(program, dims))
        return {b: offsets[other] for b, other in self.places.items() if other in offsets}, nbytes


def spans(program: Program) -> Spans:
    """Of every buffer that has a place of its own in the arena, in kernel positions; outputs live to the end. A buffer
    that takes another's place prolongs that one's life."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    own = places(program)
    for step, kernel in enumerate(program.kernels):
        for buffer in (kernel.out, *reads(kernel)):
            first.setdefault(own[buffer], step)
            last[own[buffer]] = step
    end = len(program.kernels)
    for buffer in program.outputs:
        first.setdefault(own[buffer], 0)
        last[own[buffer]] = end
    steps = {b.id: (first[b.id], last[b.id]) for b in program.buffers if b.role in _IN_ARENA and b.id in first}
    return Spans(own, steps)


def lifetimes(program: Program) -> dict[int, Lifetime]:
    """The lifetime of every buffer that has a place of its own in the arena."""
    return spans(program).lifetimes(program, NO_DIMS)


def place(needs: dict[int, Lifetime]) -> tuple[dict[int, int], int]:
    """(offset in bytes by buffer, arena size). Largest first, each into the tightest gap that its lifetime leaves."""
    offsets: dict[int, int] = {}
    placed: list[tuple[int, int, Lifetime]] = []
    total = 0
    for buffer, need in sorted(needs.items(), key=lambda item: (-item[1].nbytes, item[1].first, item[0])):
        size = _aligned(need.nbytes)
        if size == 0:
            offsets[buffer] = 0
            continue
        offset = _tightest_gap(placed, need, size)
        offsets[buffer] = offset
        placed.append((offset, size, need))
        total = max(total, offset + size)
    return offsets, total


def _tightest_gap(placed: list[tuple[int, int, Lifetime]], need: Lifetime, size: int) -> int:
    taken = sorted(
        (offset, offset + length)
        for offset, length, other in placed
        if other.first <= need.last and need.first <= other.last
    )
    best: tuple[int, int] | None = None
    end = 0
    for low, high in taken:
        gap = low - end
        if gap >= size and (best is None or gap < best[0]):
            best = (gap, end)
        end = max(end, high)
    return end if best is None else best[1]


def _aligned(nbytes: int) -> int:
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def plan_arena(program: Program, dims: Mapping[str, int] = NO_DIMS) -> tuple[dict[int, int], int]:
    """(offset by buffer id, bytes) of the arena of `program`, for values of its named dimensions. Deterministic."""
    return spans(program).plan(program, dims)


def peak_live(needs: dict[int, Lifetime]) -> int:
    """Bytes of the largest set of buffers that are alive together: what no arena can go below."""
    steps = {need.first for need in needs.values()}
    return max((sum(_aligned(n.nbytes) for n in needs.values() if n.first <= s <= n.last) for s in steps), default=0)


def free_memory() -> int:
    """Bytes that this process may still take: what the machine has free, or its control group if that is less."""
    free = 1 << 34
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    for limit_path, used_path in (_CGROUP_V2, _CGROUP_V1):
        try:
            limit, used = Path(limit_path).read_text().strip(), Path(used_path).read_text().strip()
        except OSError:
            continue
        if limit.isdigit() and used.isdigit():
            free = min(free, max(0, int(limit) - int(used)))
    return free


def memory_limit() -> int:
    """Bytes that an arena may take here."""
    return int(free_memory() * SHARE_OF_FREE_MEMORY)
