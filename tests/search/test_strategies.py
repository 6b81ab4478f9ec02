"""Which genomes are tried next."""

from __future__ import annotations

import pytest

from tests.choices import Case, saturated
from tests.small_graphs import residual_mlp
from workbench.egraph.saturate import Saturator
from workbench.egraph.snapshot import Builder, Snapshot
from workbench.errors import WorkbenchError
from workbench.search.space import Genome, Space
from workbench.search.strategies import GENERATION, MAX_MUTATIONS, STRATEGIES, Evolve, Proposal, make_strategy


@pytest.fixture(scope="module")
def layers(saturator: Saturator) -> Case:
    """Three layers: a space of many more than a generation's genomes."""
    return saturated(saturator, residual_mlp(layers=3))


def proposals(space: Space, name: str, seed: int, rounds: int) -> list[list[Proposal]]:
    strategy = make_strategy(name, space, seed)
    found = [strategy.propose(None)]
    for _ in range(rounds - 1):
        found.append(strategy.propose(found[0][0].genome))
    return found


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_seed_settles_what_is_proposed(layers: Case, name: str) -> None:
    assert proposals(layers.space, name, 5, 4) == proposals(layers.space, name, 5, 4)
    assert proposals(layers.space, name, 5, 4) != proposals(layers.space, name, 6, 4)


@pytest.mark.parametrize("name", STRATEGIES)
def test_nothing_is_proposed_twice(layers: Case, name: str) -> None:
    found = [p.digest for generation in proposals(layers.space, name, 0, 8) for p in generation]
    assert len(found) == len(set(found))


def test_a_generation_is_thirty_mutants_of_the_best(layers: Case) -> None:
    first, second, *_ = proposals(layers.space, "evolve", 0, 3)
    (parent,) = first
    assert (parent.parent, parent.generation) == ("", 0)
    assert len(second) == GENERATION == 30
    for child in second:
        assert (child.parent, child.generation) == (parent.digest, 1)
        changed = sum(a != b for a, b in zip(child.genome, parent.genome, strict=True))
        assert 1 <= changed <= MAX_MUTATIONS == 30
        assert layers.space.digest(child.genome) == child.digest


def small_space(sizes: tuple[int, ...]) -> Space:
    """Independent genes with `sizes` options, all of which count."""
    builder = Builder.empty()
    builder.ops.extend(["RCons", "Immediate"])
    builder.class_sort.extend(["IRList", *("Elem" for _ in sizes)])
    builder.node_op.append(0)
    builder.node_class.append(0)
    builder.children.extend(range(1, len(sizes) + 1))
    builder.child_start.append(len(builder.children))
    options: list[tuple[int, ...]] = [(0,)]
    for gene, size in enumerate(sizes):
        options.append(tuple(range(len(builder.node_op), len(builder.node_op) + size)))
        for _ in range(size):
            builder.node_op.append(1)
            builder.node_class.append(gene + 1)
            builder.child_start.append(len(builder.children))
    genes = tuple(i + 1 for i in range(len(sizes)))
    return Space(Snapshot(builder.finish()), 0, tuple(options), genes, {c: i for i, c in enumerate(genes)})


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("sizes", [(), (2,), (2, 2, 2), (3, 2)])
def test_a_small_space_is_exhausted_and_then_ends(name: str, sizes: tuple[int, ...]) -> None:
    space = small_space(sizes)
    strategy = make_strategy(name, space, 0)
    best: Genome | None = None
    seen: set[Genome] = set()
    for _ in range(50):
        generation = strategy.propose(best)
        if not generation:
            break
        best = best or generation[0].genome
        seen |= {p.genome for p in generation}
    else:
        pytest.fail("the search of a small space does not end")
    total = 1
    for size in sizes:
        total *= size
    assert len(seen) == total


def test_an_unknown_strategy_is_refused(layers: Case) -> None:
    with pytest.raises(WorkbenchError, match="'anneal' is not one of evolve, random"):
        make_strategy("anneal", layers.space, 0)


def test_mutants_reach_genes_that_do_not_count_yet(layers: Case) -> None:
    strategy = Evolve(layers.space, 0)
    (first,) = strategy.propose(None)
    active = set(layers.space.active_genes(first.genome))
    touched = {
        gene
        for _ in range(5)
        for child in strategy.propose(first.genome)
        for gene, (a, b) in enumerate(zip(child.genome, first.genome, strict=True))
        if a != b
    }
    assert touched - active or active == set(range(len(layers.space.genes)))
