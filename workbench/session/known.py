"""The best genomes known across sessions, so that `run` need not search again what was searched before."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
from loguru import logger

from workbench.chunking import Group
from workbench.egraph.snapshot import Snapshot, SnapshotData
from workbench.errors import SessionError
from workbench.search.space import Genome
from workbench.session import events as ev
from workbench.session.leading import digest_of_snapshot
from workbench.session.points import Dims
from workbench.session.saturation import GroupEGraph
from workbench.session.search_stage import GroupBest
from workbench.session.store import state_directory, write_file

MOST_KEPT = 64
"""Points of a group whose bests are kept; the one found longest ago goes first."""


class _Best(msgspec.Struct, frozen=True):
    """The best genome at these values of the named dimensions that the group has."""

    dims: dict[str, int]
    genome: Genome
    ms: float
    first_ms: float


class _Known(msgspec.Struct, frozen=True):
    """The best genomes of a group, with the e-graph that their numbers refer to."""

    snapshot: SnapshotData
    root: str
    bests: list[_Best]
    event: ev.GroupSaturated


def _path(group: Group, rules_digest: str, target: str) -> Path:
    text = f"{group.digest} {rules_digest} {target} by point"
    return state_directory() / "best" / f"{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}.msgpack"


def remember(group: Group, saturated: GroupEGraph, target: str, best: GroupBest) -> None:
    """Keep `best` unless a faster one is known at its point. Bests over another e-graph of the same program, as other
    limits give it, go. Where it cannot be written, that is logged: only reuse is lost."""
    path = _path(group, saturated.rules_digest, target)
    snapshot = saturated.snapshot.data
    known = _read(path)
    bests: list[_Best] = []
    if known is not None and digest_of_snapshot(known.snapshot) == digest_of_snapshot(snapshot):
        bests = known.bests
    if any(old.dims == best.dims and old.ms <= best.ms for old in bests):
        return
    found = _Best(dict(best.dims), best.genome, best.ms, best.first_ms)
    bests = [*(old for old in bests if old.dims != best.dims), found][-MOST_KEPT:]
    try:
        write_file(path, msgspec.msgpack.encode(_Known(snapshot, saturated.root, bests, saturated.event)))
    except SessionError as error:
        logger.warning("the best of group {} is not kept for later runs: {}", group.index, error)


def recall(
    group: Group, rules_digest: str, target: str, wanted: list[Dims]
) -> tuple[GroupEGraph, tuple[GroupBest, ...]] | None:
    """The e-graph and the best genomes known for a group, at the points `wanted`, or at all there are where none is;
    None where one is not known."""
    known = _read(_path(group, rules_digest, target))
    if known is None:
        return None
    event = msgspec.structs.replace(known.event, group=group.index)
    saturated = GroupEGraph(event, Snapshot(known.snapshot), known.root, target, rules_digest)
    space = saturated.space
    found = [
        GroupBest(best.genome, best.ms, best.first_ms, best.dims)
        for best in known.bests
        if len(best.genome) == len(space.genes)  # else written by another version
        and all(0 <= c < len(space.options[g]) for c, g in zip(best.genome, space.genes, strict=True))
    ]
    if wanted:
        found = [best for dims in wanted for best in found if best.dims == dims]
    if not found or len(found) < len(wanted):
        return None
    return saturated, tuple(found)


def _read(path: Path) -> _Known | None:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=_Known)
    except (OSError, msgspec.DecodeError):
        return None
