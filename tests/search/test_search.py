"""The search: what is chosen from, what is proposed, what is recorded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.choices import Case, saturated
from tests.small_graphs import elementwise, residual_mlp, whole
from workbench.egraph.rules import read_library
from workbench.egraph.saturate import Saturator
from workbench.ir import dtype as dt
from workbench.ir import llir, ops
from workbench.ir.hlir import Graph
from workbench.ir.llir import Program
from workbench.runtime.protocol import Plan, Profile, ProfileOptions, Rejection
from workbench.search.extract import extract
from workbench.search.ledger import Entry, Ledger
from workbench.search.placement import Rejected
from workbench.search.search import Outcome, search
from workbench.search.space import NothingViable
from workbench.search.strategies import GENERATION, Evolve, make_strategy


@pytest.fixture(scope="module")
def case() -> Iterator[Case]:
    with Saturator(read_library()) as saturator:
        yield saturated(saturator, residual_mlp(2))


class Scripted:
    """Times a candidate by its number of kernels, and counts what it was asked."""

    def __init__(self, needed: int = 0, reason: str = "") -> None:
        self.needed, self.reason, self.asked = needed, reason, 0
        self.kernels = 0

    def memory_fits(self, program: Program) -> tuple[bool, int, int]:
        self.kernels = len(program.kernels)
        return self.needed <= 100, self.needed, 100

    def plan(self, program: Program) -> Plan:
        return Plan("none", (), (), {}, (), 0)

    def evaluate(self, plan: Plan, options: ProfileOptions) -> Profile | Rejection:
        self.asked += 1
        if self.reason:
            return Rejection("run", self.reason, "scripted")
        ms = float(self.kernels)
        return Profile(ms, ms, ms, 10, 0.0, 0.0, 0.0, 0.0)


def run(case: Case, evaluator: Scripted, ledger: Path, limit: int = 40, seed: int = 3) -> tuple[list[Entry], Outcome]:
    entries: list[Entry] = []
    outcome = Outcome()
    record = Ledger(ledger)
    for entry, state in search(
        case.space, Evolve(case.space, seed), evaluator, limit=limit, dims={}, ledger=record, search_id="s",
        checkpoint=lambda: True,
    ):  # fmt: skip
        entries.append(entry)
        outcome = state
    record.close()
    return entries, outcome


def test_the_best_is_the_fastest_and_never_slower_than_the_first(case: Case, tmp_path: Path) -> None:
    entries, outcome = run(case, Scripted(), tmp_path / "ledger")
    times = [e.ms for e in entries if e.ms is not None]
    assert outcome.first_ms == times[0]
    assert outcome.best_ms == min(times) <= times[0]
    assert times[outcome.best_index] == outcome.best_ms
    assert len({e.genome for e in entries}) == len(entries) == 40


def test_a_replayed_ledger_goes_the_same_way_without_asking_again(case: Case, tmp_path: Path) -> None:
    first = run(case, Scripted(), tmp_path / "ledger", limit=25)[0]
    evaluator = Scripted()
    again, _ = run(case, evaluator, tmp_path / "ledger", limit=40)
    assert again[:25] == first
    assert evaluator.asked == 15


def test_a_torn_last_line_is_dropped_and_written_over(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    run(case, Scripted(), path, limit=5)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"search":"s","index":')
    ledger = Ledger(path)
    assert len(ledger) == 5
    ledger.close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("evaluator", "reason", "step"),
    [(Scripted(needed=200), "memory", "memory"), (Scripted(reason="crash"), "crash", "run")],
)
def test_rejections_have_their_step_and_reason(
    case: Case, tmp_path: Path, evaluator: Scripted, reason: str, step: str
) -> None:
    entries, outcome = run(case, evaluator, tmp_path / "ledger", limit=6)
    assert {(e.reason, e.step) for e in entries} == {(reason, step)}
    assert outcome.rejected == {reason: 6}
    assert outcome.best is None


def test_a_search_stops_at_its_checkpoint(case: Case, tmp_path: Path) -> None:
    answers = iter([True, True, True, False])
    ledger = Ledger(tmp_path / "ledger")
    found = list(
        search(case.space, Evolve(case.space, 0), Scripted(), limit=50, dims={}, ledger=ledger, search_id="s",
               checkpoint=lambda: next(answers))
    )  # fmt: skip
    assert len(found) == 3
    ledger.close()


def test_one_seed_proposes_one_sequence(case: Case) -> None:
    def proposals(seed: int) -> list[str]:
        strategy = Evolve(case.space, seed)
        first = strategy.propose(None)
        return [p.digest for p in first + strategy.propose(first[0].genome) + strategy.propose(first[0].genome)]

    assert proposals(7) == proposals(7)
    assert proposals(7) != proposals(8)
    assert len(set(proposals(7))) == len(proposals(7)) == 1 + 2 * GENERATION


def test_a_generation_descends_from_the_best(case: Case) -> None:
    strategy = Evolve(case.space, 1)
    parent = strategy.propose(None)[0]
    children = strategy.propose(parent.genome)
    assert {c.parent for c in children} == {parent.digest}
    assert all(sum(a != b for a, b in zip(c.genome, parent.genome, strict=True)) <= 30 for c in children)


def test_genes_without_effect_do_not_make_another_candidate(case: Case) -> None:
    space = case.space
    rng = random.Random(5)
    for _ in range(20):
        genome = tuple(rng.randrange(len(space.options[c])) for c in space.genes)
        idle = set(range(len(space.genes))) - set(space.active_genes(genome))
        changed = tuple(
            rng.randrange(len(space.options[space.genes[g]])) if g in idle else choice
            for g, choice in enumerate(genome)
        )
        assert space.digest(changed) == space.digest(genome)
        assert extract(space, changed, {}).kernels == extract(space, genome, {}).kernels


def test_unknown_strategies_are_refused(case: Case) -> None:
    with pytest.raises(Exception, match="evolve"):
        make_strategy("luck", case.space, 0)


def test_a_library_without_dtype_rules_says_what_is_missing(tmp_path: Path) -> None:
    files = tuple(f for f in read_library() if f.name != "dtype.egg")
    with Saturator(files) as saturator, pytest.raises(NothingViable) as caught:
        saturated(saturator, residual_mlp(1))
    assert "no valid graph" in caught.value.message
    assert "dtype" in caught.value.hint


def test_too_much_inlining_is_rejected_by_name() -> None:
    with Saturator(read_library()) as saturator:
        space = saturated(saturator, deep_square(12)).space
    inline_all = tuple(
        next((i for i, n in enumerate(space.options[c]) if space.snapshot.op(n) == "Inline"), 0) for c in space.genes
    )
    with pytest.raises(Rejected) as caught:
        extract(space, inline_all, {})
    assert caught.value.reason == "kernel-size"
    load_all = tuple(
        next((i for i, n in enumerate(space.options[c]) if space.snapshot.op(n) == "Load"), 0) for c in space.genes
    )
    assert all(isinstance(k, llir.MapKernel) for k in extract(space, load_all, {}).kernels)


def deep_square(times: int) -> Graph:
    """x*x of x*x of .. : inlined whole, the body doubles each time."""
    graph = Graph("deep")
    x = graph.add(ops.Input("x"), [], (4,), dt.F32, "x")
    for _ in range(times):
        x = elementwise(graph, "Mul", x, x)
    graph.add(ops.Output("y"), [whole(x)], x.shape, dt.F32, "y")
    return graph
