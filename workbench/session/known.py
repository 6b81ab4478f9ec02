"""The best genomes known across sessions, so that `run` need not search again what was searched before."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
from loguru import logger

from workbench.chunking import Group
from workbench.egraph.snapshot import Snapshot, SnapshotData
from workbench.errors import SessionError
from workbench.search.space import Genome
from workbench.session import events as ev
from workbench.session.saturation import GroupEGraph
from workbench.session.search_stage import GroupBest
from workbench.session.store import state_directory, write_file


class _Known(msgspec.Struct, frozen=True):
    """A best genome with the e-graph that its numbers refer to."""

    snapshot: SnapshotData
    root: str
    genome: Genome
    ms: float
    first_ms: float
    event: ev.GroupSaturated


def _path(group: Group, rules_digest: str, target: str, dims: Mapping[str, int]) -> Path:
    text = f"{group.digest} {rules_digest} {target} {sorted(dims.items())}"
    return state_directory() / "best" / f"{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}.msgpack"


def remember(group: Group, saturated: GroupEGraph, target: str, dims: Mapping[str, int], best: GroupBest) -> None:
    """Keep `best` unless a faster one is known. Where it cannot be written, that is logged: only reuse is lost."""
    path = _path(group, saturated.rules_digest, target, dims)
    old = _read(path)
    if old is not None and old.ms <= best.ms:
        return
    snapshot = saturated.snapshot.data
    known = _Known(snapshot, "$root", best.genome, best.ms, best.first_ms, saturated.event)
    try:
        write_file(path, msgspec.msgpack.encode(known))
    except SessionError as error:
        logger.warning("the best of group {} is not kept for later runs: {}", group.index, error)


def recall(
    group: Group, rules_digest: str, target: str, dims: Mapping[str, int]
) -> tuple[GroupEGraph, GroupBest] | None:
    """The e-graph and best genome known for a group, or None."""
    known = _read(_path(group, rules_digest, target, dims))
    if known is None:
        return None
    event = msgspec.structs.replace(known.event, group=group.index)
    saturated = GroupEGraph(event, Snapshot(known.snapshot), known.root, target, rules_digest)
    space = saturated.space
    if len(known.genome) != len(space.genes) or any(
        not 0 <= choice < len(space.options[gene]) for choice, gene in zip(known.genome, space.genes, strict=True)
    ):
        return None  # written by another version
    return saturated, GroupBest(known.genome, known.ms, known.first_ms)


def _read(path: Path) -> _Known | None:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=_Known)
    except (OSError, msgspec.DecodeError):
        return None
