"""Search strategies, behind one small interface: given what was found so far, which genomes to try next."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from workbench.errors import WorkbenchError
from workbench.search.space import Genome, Space

GENERATION = 30
MAX_MUTATIONS = 30
ATTEMPTS_PER_CHILD = 20


@dataclass(frozen=True, slots=True)
class Proposal:
    """A genome to try. `parent` is the digest of the genome it came from, empty for a first one."""

    genome: Genome
    digest: str
    parent: str
    generation: int


class Strategy(Protocol):
    """Proposes genomes in generations. All randomness comes from the seed, so a replayed search proposes the same."""

    name: str

    def propose(self, best: Genome | None) -> list[Proposal]:
        """The next generation; `best` is the fastest genome so far, None until one was profiled. Empty: nothing new
        is left to try."""
        ...


@dataclass(slots=True)
class Evolve:
    """luminal's search: random genomes until one is viable, then generations of mutants of the best one.

    Each of the 30 children of a generation differs from the best genome in 1 to 30 genes; no genome is proposed
    twice."""

    space: Space
    seed: int
    name: str = "evolve"
    generation: int = 0
    tried: set[str] = field(default_factory=set)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def propose(self, best: Genome | None) -> list[Proposal]:
        """See Strategy."""
        if best is None:
            return self._unseen(1, self._fresh, "")
        self.generation += 1
        parent = best
        return self._unseen(GENERATION, lambda: self._mutant(parent), self.space.digest(best))

    def _unseen(self, count: int, make: Callable[[], Genome], parent: str) -> list[Proposal]:
        found: list[Proposal] = []
        for _ in range(count * ATTEMPTS_PER_CHILD):
            genome = make()
            digest = self.space.digest(genome)
            if digest not in self.tried:
                self.tried.add(digest)
                found.append(Proposal(genome, digest, parent, self.generation))
                if len(found) == count:
                    break
        return found

    def _fresh(self) -> Genome:
        return tuple(self._random.randrange(len(self.space.options[c])) for c in self.space.genes)

    def _mutant(self, parent: Genome) -> Genome:
        if not parent:
            return parent
        genes = list(parent)
        active = self.space.active_genes(parent) or list(range(len(parent)))
        for _ in range(self._random.randint(1, MAX_MUTATIONS)):
            # genes without effect are mutated too, now and then: they matter once another choice reaches them
            gene = self._random.choice(active) if self._random.random() < 0.8 else self._random.randrange(len(genes))
            genes[gene] = self._random.randrange(len(self.space.options[self.space.genes[gene]]))
        return tuple(genes)


@dataclass(slots=True)
class Sample:
    """Random genomes, each independent of what was found: the baseline that the others have to beat."""

    space: Space
    seed: int
    name: str = "random"
    _inner: Evolve = field(init=False)

    def __post_init__(self) -> None:
        self._inner = Evolve(self.space, self.seed)

    def propose(self, best: Genome | None) -> list[Proposal]:
        """See Strategy."""
        found: list[Proposal] = []
        while len(found) < GENERATION and (more := self._inner.propose(None)):
            found += more
        return found


STRATEGIES: dict[str, Callable[[Space, int], Strategy]] = {"evolve": Evolve, "random": Sample}


def make_strategy(name: str, space: Space, seed: int) -> Strategy:
    """The strategy called `name`. Raises WorkbenchError for an unknown one."""
    if name not in STRATEGIES:
        raise WorkbenchError(f"--strategy: '{name}' is not one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name](space, seed)
