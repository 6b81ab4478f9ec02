"""A search under way: what it gives up on, what it counts, and how it goes on after it was killed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.choices import Case, saturated
from tests.small_graphs import residual_mlp
from workbench.egraph.saturate import Saturator
from workbench.errors import WorkbenchError
from workbench.ir.llir import MapKernel, Program
from workbench.runtime.protocol import Plan, Profile, ProfileOptions, Rejection
from workbench.search.ledger import Entry, Ledger
from workbench.search.search import GIVE_UP_FACTOR, Outcome, search
from workbench.search.strategies import STRATEGIES, make_strategy


@pytest.fixture(scope="module")
def layers(saturator: Saturator) -> Case:
    """Three layers: a space of many more genomes than are tried."""
    return saturated(saturator, residual_mlp(layers=3))


@dataclass
class Counting:
    """A device on which a program takes as long as it has kernels and as its maps are large."""

    reject: Callable[[int], Rejection | None] = lambda count: None
    memory: int = 1 << 40
    plans: list[Program] = field(default_factory=list)
    options: list[ProfileOptions] = field(default_factory=list)

    def memory_fits(self, program: Program) -> tuple[bool, int, int]:
        needed = sum(b.nbytes for b in program.buffers if b.role == "intermediate")
        return needed <= self.memory, needed, self.memory

    def plan(self, program: Program) -> Plan:
        self.plans.append(program)
        return Plan("cpu", (), (), {}, (), 0)

    def evaluate(self, plan: Plan, options: ProfileOptions) -> Profile | Rejection:
        self.options.append(options)
        rejection = self.reject(len(self.plans))
        if rejection is not None:
            return rejection
        program = self.plans[-1]
        ms = len(program.kernels) + sum(isinstance(k, MapKernel) for k in program.kernels) / 10
        return Profile(ms, ms, ms, 3, 0.0, 0.0, 0.0, 0.0)


def run_search(
    case: Case,
    path: Path,
    evaluator: Counting,
    limit: int = 60,
    strategy: str = "evolve",
    seed: int = 0,
    checkpoint: Callable[[], bool] = lambda: True,
) -> tuple[list[Entry], Outcome]:
    ledger = Ledger(path)
    entries, outcome = [], Outcome()
    for entry, state in search(
        case.space,
        make_strategy(strategy, case.space, seed),
        evaluator,
        limit=limit,
        dims={},
        ledger=ledger,
        search_id=f"s{seed}",
        checkpoint=checkpoint,
    ):
        entries.append(entry)
        outcome = state
    ledger.close()
    return entries, outcome


def test_the_best_is_never_worse_than_the_first(layers: Case, tmp_path: Path) -> None:
    evaluator = Counting()
    entries, outcome = run_search(layers, tmp_path / "c.jsonl", evaluator)
    times = [e.ms for e in entries if e.ms is not None]
    assert outcome.best_ms == min(times)
    assert outcome.first_ms == times[0]
    assert outcome.best_ms <= outcome.first_ms
    assert entries[outcome.best_index].ms == outcome.best_ms
    assert (outcome.candidates, outcome.profiled) == (len(entries), len(times))
    assert [e.index for e in entries] == list(range(len(entries)))


def test_what_is_much_slower_than_the_best_is_timed_no_further(layers: Case, tmp_path: Path) -> None:
    evaluator = Counting()
    run_search(layers, tmp_path / "c.jsonl", evaluator, limit=10)
    assert evaluator.options[0].give_up_ms is None
    assert evaluator.options[1].give_up_ms is not None
    assert evaluator.options[1].give_up_ms == pytest.approx(GIVE_UP_FACTOR * run_first_ms(layers, tmp_path))


def run_first_ms(layers: Case, tmp_path: Path) -> float:
    _, outcome = run_search(layers, tmp_path / "first.jsonl", Counting(), limit=1)
    assert outcome.first_ms is not None
    return outcome.first_ms


def test_rejections_are_counted_by_reason(layers: Case, tmp_path: Path) -> None:
    def every_third(count: int) -> Rejection | None:
        return Rejection("verify", "wrong", "off by 3") if count % 3 == 0 else None

    entries, outcome = run_search(layers, tmp_path / "c.jsonl", Counting(every_third), limit=40)
    wrong = [e for e in entries if e.reason == "wrong"]
    assert outcome.rejected == {"wrong": len(wrong)}
    assert all((e.step, e.detail, e.ms) == ("verify", "off by 3", None) for e in wrong)
    assert outcome.profiled == len(entries) - len(wrong)


def test_what_does_not_fit_memory_is_not_run(layers: Case, tmp_path: Path) -> None:
    evaluator = Counting(memory=-1)
    entries, outcome = run_search(layers, tmp_path / "c.jsonl", evaluator, limit=5)
    assert entries
    assert {e.reason for e in entries} == {"memory"}
    assert not evaluator.plans
    assert outcome.best is None


def test_what_the_target_cannot_take_is_one_candidates_loss(layers: Case, tmp_path: Path) -> None:
    class Refusing(Counting):
        def plan(self, program: Program) -> Plan:
            if len(program.kernels) % 2:
                raise WorkbenchError("no such function here")
            return super().plan(program)

    entries, outcome = run_search(layers, tmp_path / "c.jsonl", Refusing(), limit=40)
    refused = [e for e in entries if e.reason]
    assert refused
    assert {(e.step, e.reason, e.detail) for e in refused} == {("compile", "compile", "no such function here")}
    assert outcome.profiled == len(entries) - len(refused) > 0


def test_a_stop_is_obeyed_between_candidates(layers: Case, tmp_path: Path) -> None:
    left = [3]

    def checkpoint() -> bool:
        left[0] -= 1
        return left[0] >= 0

    entries, outcome = run_search(layers, tmp_path / "c.jsonl", Counting(), checkpoint=checkpoint)
    assert len(entries) == outcome.candidates == 3


def test_the_limit_is_kept(layers: Case, tmp_path: Path) -> None:
    assert len(run_search(layers, tmp_path / "a.jsonl", Counting(), limit=1)[0]) == 1
    assert len(run_search(layers, tmp_path / "b.jsonl", Counting(), limit=45)[0]) == 45
    assert run_search(layers, tmp_path / "c.jsonl", Counting(), limit=0)[0] == []


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("killed_after", [0, 1, 17, 40])
def test_a_killed_search_goes_on_the_same_way(
    layers: Case, tmp_path: Path, strategy: str, killed_after: int
) -> None:
    def some(count: int) -> Rejection | None:
        return Rejection("run", "crash", "") if count % 5 == 1 else None

    whole, _ = run_search(layers, tmp_path / "whole.jsonl", Counting(some), strategy=strategy)
    path = tmp_path / "c.jsonl"
    first = Counting(some)
    run_search(layers, path, first, limit=killed_after, strategy=strategy)
    path.write_bytes(path.read_bytes() + b'{"search":"s0","index":99,"gen')  # torn by the kill
    # the second run counts on from where the first one was
    second = Counting(lambda count: some(count + len(first.plans)))
    again, outcome = run_search(layers, path, second, strategy=strategy)
    assert [(e.genome, e.parent, e.generation, e.reason, e.ms) for e in again] == [
        (e.genome, e.parent, e.generation, e.reason, e.ms) for e in whole
    ]
    assert len(first.plans) + len(second.plans) == len(whole)
    third = Counting(some)
    assert run_search(layers, path, third, strategy=strategy)[1].best_ms == outcome.best_ms
    assert third.plans == []
    assert len(path.read_bytes().splitlines()) == len(whole)


def test_another_search_is_not_replayed(layers: Case, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    run_search(layers, path, Counting(), limit=10, seed=0)
    second = Counting()
    entries, _ = run_search(layers, path, second, limit=10, seed=1)
    assert len(second.plans) == len(entries) == 10
