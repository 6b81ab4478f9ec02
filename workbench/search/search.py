"""The search of one group: proposals go through extract, memory, and the device, each step guarded, each rejection
recorded with its reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from workbench.errors import WorkbenchError
from workbench.ir.llir import Program
from workbench.runtime.protocol import Plan, Profile, ProfileOptions, Rejection
from workbench.search.extract import extract
from workbench.search.ledger import Entry, Ledger
from workbench.search.placement import Rejected
from workbench.search.space import Genome, Space
from workbench.search.strategies import Proposal, Strategy

GIVE_UP_FACTOR = 3.0
"""A candidate is timed no further once it is this many times slower than the best."""


class Evaluator(Protocol):
    """Runs a candidate on the device: the session's device worker, bound to the group's inputs."""

    def memory_fits(self, program: Program) -> tuple[bool, int, int]:
        """(fits, bytes needed, bytes allowed)."""
        ...

    def plan(self, program: Program) -> Plan:
        """The program's kernels and calls."""
        ...

    def evaluate(self, plan: Plan, options: ProfileOptions) -> Profile | Rejection:
        """Compile, run, compare with the interpreter, and time."""
        ...


@dataclass(slots=True)
class Outcome:
    """The state of one search. `best` is the fastest right candidate so far."""

    best: Genome | None = None
    best_ms: float | None = None
    best_index: int = -1
    first_ms: float | None = None
    candidates: int = 0
    profiled: int = 0
    rejected: dict[str, int] = field(default_factory=dict)


def search(
    space: Space,
    strategy: Strategy,
    evaluator: Evaluator,
    *,
    limit: int,
    dims: Mapping[str, int],
    ledger: Ledger,
    search_id: str,
    checkpoint: Callable[[], bool],
) -> Iterator[tuple[Entry, Outcome]]:
    """Evaluate up to `limit` candidates, yielding each entry with the state after it.

    `checkpoint` is called between candidates: it blocks while paused and returns False to stop. Candidates that the
    ledger knows are replayed from it, so a resumed search goes the same way."""
    outcome = Outcome()
    while outcome.candidates < limit:
        proposals = strategy.propose(outcome.best)
        if not proposals:
            return
        for proposal in proposals:
            if outcome.candidates >= limit or not checkpoint():
                return
            entry = ledger.find(search_id, proposal.digest)
            if entry is None:
                entry = _evaluate(space, proposal, evaluator, outcome, dims, search_id)
                ledger.add(entry)
            _record(outcome, proposal, entry)
            yield entry, outcome


def _record(outcome: Outcome, proposal: Proposal, entry: Entry) -> None:
    index = outcome.candidates
    outcome.candidates += 1
    if entry.reason:
        outcome.rejected[entry.reason] = outcome.rejected.get(entry.reason, 0) + 1
        return
    assert entry.ms is not None
    outcome.profiled += 1
    if outcome.first_ms is None:
        outcome.first_ms = entry.ms
    if outcome.best_ms is None or entry.ms < outcome.best_ms:
        outcome.best, outcome.best_ms, outcome.best_index = proposal.genome, entry.ms, index


def _evaluate(
    space: Space,
    proposal: Proposal,
    evaluator: Evaluator,
    outcome: Outcome,
    dims: Mapping[str, int],
    search_id: str,
) -> Entry:
    """One candidate through the three steps."""
    seconds: dict[str, float] = {}
    memory = kernels = 0

    def entry(step: str, reason: str = "", detail: str = "", profile: Profile | None = None) -> Entry:
        return Entry(
            search=search_id,
            index=outcome.candidates,
            genome=proposal.digest,
            parent=proposal.parent,
            generation=proposal.generation,
            step=step,
            reason=reason,
            detail=detail,
            ms=profile.median_ms if profile else None,
            p20_ms=profile.p20_ms if profile else None,
            p80_ms=profile.p80_ms if profile else None,
            memory_bytes=memory,
            kernels=kernels,
            seconds={k: round(v, 6) for k, v in seconds.items()},
        )

    began = time.perf_counter()
    try:
        program = extract(space, proposal.genome, dims)
    except Rejected as rejected:
        seconds["extract"] = time.perf_counter() - began
        return entry("extract", rejected.reason, rejected.detail)
    kernels = len(program.kernels)
    seconds["extract"] = time.perf_counter() - began

    began = time.perf_counter()
    fits, memory, allowed = evaluator.memory_fits(program)
    seconds["memory"] = time.perf_counter() - began
    if not fits:
        return entry("memory", "memory", f"needs {memory:,} bytes of intermediates, {allowed:,} are allowed")

    began = time.perf_counter()
    try:
        plan = evaluator.plan(program)
    except WorkbenchError as error:  # what the target can't take is this candidate's loss, not the search's
        seconds["plan"] = time.perf_counter() - began
        return entry("compile", "compile", str(error))
    seconds["plan"] = time.perf_counter() - began
    give_up = None if outcome.best_ms is None else outcome.best_ms * GIVE_UP_FACTOR
    began = time.perf_counter()
    answer = evaluator.evaluate(plan, ProfileOptions(give_up_ms=give_up))
    seconds["device"] = time.perf_counter() - began
    if isinstance(answer, Rejection):
        return entry(answer.step, answer.reason, answer.detail)
    seconds["compile"], seconds["run"] = answer.compile_seconds, answer.run_seconds
    return entry("profile", detail=proposal.note, profile=answer)
