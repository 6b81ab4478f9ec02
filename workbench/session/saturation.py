"""The saturate stage of one group: run or reuse, count every rule, keep the snapshot."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from workbench.chunking import Group
from workbench.egraph.messages import RuleInfo, StepDone
from workbench.egraph.program import ChunkProgram
from workbench.egraph.rules import RuleFile, category
from workbench.egraph.saturate import Saturator
from workbench.egraph.snapshot import Snapshot, SnapshotData
from workbench.search.space import Space, build_space
from workbench.session import events as ev
from workbench.session.store import SessionStore


@dataclass(frozen=True, slots=True)
class GroupEGraph:
    """A group's saturated e-graph: its statistics and the space that the search chooses from."""

    event: ev.GroupSaturated
    space: Space
    rules_digest: str


class _Kept(msgspec.Struct, frozen=True):
    """What is kept on disk of a saturation."""

    steps: list[ev.SaturationStep]
    event: ev.GroupSaturated
    snapshot: SnapshotData


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
    """Saturate a group's program, or take the kept result of the same program, rules and target unless `fresh`.

    Raises RuleError, SaturationStopped, and NothingViable when no kernel computes an output."""
    rules_digest = digest_of(files)
    name = f"snapshots/{group.digest}-{target}-{rules_digest}.msgpack"
    kept = None if fresh else _read(store, name)
    if kept is None:
        kept = _saturate(saturator, group, program, emit)
        store.write(name, msgspec.msgpack.encode(kept))
    else:
        for step in kept.steps:
            emit(msgspec.structs.replace(step, group=group.index))
    event = msgspec.structs.replace(kept.event, group=group.index)
    emit(event)
    return GroupEGraph(event, build_space(Snapshot(kept.snapshot), program.root, target), rules_digest)


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
            )
        )
        emit(shown[-1])

    rules = saturator.rules
    result = saturator.saturate(program.text, on_step)
    snapshot = Snapshot(result.snapshot)
    event = ev.GroupSaturated(
        group=group.index,
        classes=snapshot.class_count,
        nodes=snapshot.node_count,
        seconds=result.engine_seconds,
        overhead_seconds=max(0.0, result.total_seconds - result.engine_seconds),
        rules=rule_rows(rules, steps),
        stopped=result.stopped,
    )
    return _Kept(shown, event, result.snapshot)


def rule_rows(rules: Sequence[RuleInfo], steps: Sequence[StepDone]) -> list[ev.RuleRow]:
    """One row per rule of the library, fired or not, from the steps' reports."""
    rows: list[ev.RuleRow] = []
    for rule in rules:
        own = [s for s in steps if s.ruleset == rule.ruleset]
        rows.append(
            ev.RuleRow(
                name=rule.name,
                category=category(rule.file),
                ruleset=rule.ruleset,
                file=rule.file,
                line=rule.line,
                matches=sum(s.matches.get(rule.name, 0) for s in own),
                seconds=sum(s.rule_seconds.get(rule.name, 0.0) for s in own),
                steps=[s.matches.get(rule.name, 0) for s in own],
            )
        )
    return rows
