"""The saturate stage of one group: run or reuse, count every rule, keep the snapshot."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from workbench.chunking import Group
from workbench.egraph.messages import StepDone
from workbench.egraph.program import ChunkProgram
from workbench.egraph.rules import RuleFile
from workbench.egraph.saturate import Limits, Saturator
from workbench.egraph.snapshot import Snapshot, SnapshotData
from workbench.search.space import NothingViable, Space, build_space
from workbench.session import events as ev
from workbench.session.rule_statistics import rule_rows
from workbench.session.spec import SessionSpec
from workbench.session.store import SessionStore


@dataclass(frozen=True)
class GroupEGraph:
    """A group's saturated e-graph: its statistics and what the search chooses from."""

    event: ev.GroupSaturated
    snapshot: Snapshot
    root: str
    target: str
    rules_digest: str

    @cached_property
    def space(self) -> Space:
        """The choices. Raises NothingViable when no kernel computes an output."""
        try:
            return build_space(self.snapshot, self.root, self.target)
        except NothingViable as error:
            stopped, culprit = self.event.stopped, self.event.culprit
            if not stopped:
                raise
            why = f"group {self.event.group}: saturation stopped at its {stopped}"
            raise NothingViable(error.message, f"{why}; {culprit.text}" if culprit else why) from None


class _Kept(msgspec.Struct, frozen=True):
    """What is kept on disk of a saturation."""

    steps: list[ev.SaturationStep]
    event: ev.GroupSaturated
    snapshot: SnapshotData
    limits: tuple[int, float, int] = (0, 0.0, 0)


def limits_of(spec: SessionSpec) -> Limits:
    """The limits of a saturation that the options give."""
    usual = Limits()
    return Limits(
        nodes=usual.nodes if spec.egg_nodes is None else spec.egg_nodes,
        seconds=usual.seconds if spec.egg_seconds is None else spec.egg_seconds,
        memory_bytes=usual.memory_bytes if spec.egg_memory is None else spec.egg_memory,
    )


def kept_name(group_digest: str, target: str, rules_digest: str) -> str:
    """Where a session keeps a group's e-graph; the newest of a group is the one in use."""
    return f"snapshots/{group_digest}-{target}-{rules_digest}.msgpack"


def digest_of(files: Sequence[RuleFile]) -> str:
    """A name for the content of a rule library."""
    whole = hashlib.blake2b(digest_size=8)
    for file in files:
        whole.update(f"{file.name}\0{file.text}\0".encode())
    return whole.hexdigest()


def saturate_group(
    store: SessionStore,
    saturator: Saturator,
    files: Sequence[RuleFile],
    target: str,
    group: Group,
    program: ChunkProgram,
    emit: Callable[[ev.AnyEvent], None],
    *,
    fresh: bool,
) -> GroupEGraph:
    """Saturate a group's program, or take the kept result of the same program, rules, target and limits unless
    `fresh`.

    Raises RuleError and SaturationStopped."""
    rules_digest = digest_of(files)
    name = kept_name(group.digest, target, rules_digest)
    kept = None if fresh else _read(store, name)
    if kept is None or kept.limits != _numbers(saturator.limits):
        kept = _saturate(saturator, group, program, emit)
        store.write(name, msgspec.msgpack.encode(kept))
    else:
        store.touch(name)
        for step in kept.steps:
            emit(msgspec.structs.replace(step, group=group.index))
    event = msgspec.structs.replace(kept.event, group=group.index, rules_digest=rules_digest)
    emit(event)
    return GroupEGraph(event, Snapshot(kept.snapshot), program.root, target, rules_digest)


def _numbers(limits: Limits) -> tuple[int, float, int]:
    return limits.nodes, limits.seconds, limits.memory_bytes


def _read(store: SessionStore, name: str) -> _Kept | None:
    try:
        return msgspec.msgpack.decode((store / name).read_bytes(), type=_Kept)
    except (OSError, msgspec.DecodeError):
        return None


def _saturate(
    saturator: Saturator, group: Group, program: ChunkProgram, emit: Callable[[ev.AnyEvent], None]
) -> _Kept:
    steps: list[StepDone] = []
    shown: list[ev.SaturationStep] = []

    def on_step(step: StepDone) -> None:
        steps.append(step)
        shown.append(
            ev.SaturationStep(
                group=group.index,
                step=step.step,
                ruleset=step.ruleset,
                seconds=step.seconds,
                matches=sum(step.matches.values()),
                nodes=step.nodes,
                rebuild_seconds=step.rebuild_seconds,
                added=step.added,
                sizes=step.sizes,
            )
        )
        emit(shown[-1])

    rules = saturator.rules
    result = saturator.saturate(program.text, on_step)
    snapshot = Snapshot(result.snapshot)
    reached = len(steps) if result.steps is None else result.steps
    event = ev.GroupSaturated(
        group=group.index,
        classes=snapshot.class_count,
        nodes=snapshot.node_count,
        seconds=result.engine_seconds,
        overhead_seconds=max(0.0, result.total_seconds - result.engine_seconds),
        rules=rule_rows(rules, steps, snapshot),
        stopped=result.stopped,
        culprit=None if result.culprit is None else ev.Culprit(**msgspec.structs.asdict(result.culprit)),
        steps=reached if result.stopped else None,
    )
    return _Kept(shown, event, result.snapshot, _numbers(saturator.limits))
