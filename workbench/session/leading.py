"""The best candidate of a group, kept in the session so that the explorer can say what it uses and how long that takes.

`best/GROUP-TARGET.msgpack` is written whenever a search finds a better one, and once more when the compiled program was
measured; the bests at the group's further points are beside it. What it numbers are e-classes of one snapshot, whose
digest it names.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from workbench.chunking import Group
from workbench.egraph.snapshot import SnapshotData
from workbench.ir import expr as ex
from workbench.ir import llir
from workbench.search.extract import kernel_classes
from workbench.search.space import Genome
from workbench.session.points import Dims
from workbench.session.store import SessionStore

if TYPE_CHECKING:
    from workbench.session.executable import Compiled
    from workbench.session.session import CompileSession


class KernelTime(msgspec.Struct, frozen=True, array_like=True):
    """One kernel of a chunk: its name, and the milliseconds of one call, the mean over `calls` of them."""

    name: str
    ms: float
    calls: int


class Leading(msgspec.Struct, frozen=True):
    """The best candidate: its number in the search, its genome over the snapshot named by `snapshot`, milliseconds for
    one chunk, and the time of its kernels by e-class, once that is known."""

    snapshot: str
    index: int
    genome: Genome
    ms: float
    kernels: dict[int, KernelTime] = {}


def digest_of_snapshot(data: SnapshotData) -> str:
    """A name for the numbering of an e-graph."""
    whole = hashlib.blake2b(digest_size=8)
    for part in (data.node_op, data.node_class, data.children):
        whole.update(part)
    return whole.hexdigest()


def _name(digest: str, target: str, point: int) -> str:
    return f"best/{digest}-{target}{f'-{point}' if point else ''}.msgpack"


def leading_path(store: SessionStore, digest: str, target: str, point: int = 0) -> Path:
    """The file of the group of that digest, at one of its points."""
    return store / _name(digest, target, point)


def read_leading(store: SessionStore, digest: str, target: str, point: int = 0) -> Leading | None:
    """The best candidate kept for the group of that digest, at one of its points; None where there is none."""
    try:
        return msgspec.msgpack.decode(leading_path(store, digest, target, point).read_bytes(), type=Leading)
    except (OSError, msgspec.DecodeError):
        return None


def forget_leading(store: SessionStore, group: Group, target: str, point: int = 0) -> None:
    """A search begins: what the one before found is no longer the best so far."""
    with contextlib.suppress(OSError):
        leading_path(store, group.digest, target, point).unlink(missing_ok=True)


def keep_leading(
    session: CompileSession, group: Group, genome: Genome, index: int, ms: float, point: int = 0
) -> None:
    """Keep the best candidate so far at one of the group's points. Raises SessionError when the disk is full."""
    snapshot = digest_of_snapshot(session.saturated[group.index].snapshot.data)
    _write(session.store, group, session.target, point, Leading(snapshot, index, genome, ms))


def _write(store: SessionStore, group: Group, target: str, point: int, leading: Leading) -> None:
    store.write(_name(group.digest, target, point), msgspec.msgpack.encode(leading))


def keep_kernel_times(session: CompileSession, dims: Dims, compiled: Compiled, times: Sequence[float]) -> None:
    """Add the time of each kernel, from the milliseconds of each launch of the whole program at the point `dims`, to
    what is kept of each group's best there. Raises SessionError when the disk is full."""
    placed = _by_kernel(compiled, times, dims)
    if not placed:
        return
    points = {g.index: session.points_of(g).place_of(dims) for g in session.groups}
    genomes = {g.index: session.best[g.index][points[g.index]].genome for g in session.groups}
    classes = {
        g.index: kernel_classes(session.saturated[g.index].space, genomes[g.index], dims) for g in session.groups
    }
    group_of = {c: g.index for g in session.groups for c in g.members}
    taken: dict[int, dict[int, list[tuple[str, float]]]] = {g.index: {} for g in session.groups}
    begin = 0
    for chunk in session.chunks:
        index = group_of[chunk.index]
        here: dict[int, tuple[str, float]] = {}
        for place, eclass in enumerate(classes[index], begin):
            if place in placed:  # the kernels of one e-class, a copy and what is scattered into it, go by the last
                name, ms = placed[place]
                here[eclass] = (name, here.get(eclass, ("", 0.0))[1] + ms)
        for eclass, took in here.items():
            taken[index].setdefault(eclass, []).append(took)
        begin += len(classes[index])
    for g in session.groups:
        point = points[g.index]
        leading = read_leading(session.store, g.digest, session.target, point)
        if leading is not None and leading.genome == genomes[g.index]:
            kernels = {
                eclass: KernelTime(calls[0][0], sum(ms for _, ms in calls) / len(calls), len(calls))
                for eclass, calls in taken[g.index].items()
            }
            _write(session.store, g, session.target, point, msgspec.structs.replace(leading, kernels=kernels))


def _by_kernel(compiled: Compiled, times: Sequence[float], dims: Dims) -> dict[int, tuple[str, float]]:
    """(name, milliseconds) by the kernel's place in the program; one with nothing to compute has no launch, nor has one
    that ran when the program was loaded."""
    program, plan = compiled.program, compiled.plan
    written = [
        place
        for place, kernel in enumerate(program.kernels)
        if place not in compiled.computed_once
        and 0 not in (ex.sized(d, dims) for d in llir.work(kernel))
    ]
    if len(written) != len(plan.launches):
        return {}
    return {
        place: (launch.name, times[number])
        for number, (place, launch) in enumerate(zip(written, plan.launches, strict=True))
    }
