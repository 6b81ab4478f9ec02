"""Search strategies, behind one small interface: given what was found so far, which genomes to try next."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from workbench.errors import WorkbenchError
from workbench.search.extract import Fitted
from workbench.search.space import Genome, Space

GENERATION = 30
MUTATIONS = (1, 3, 8, 30)
"""How many genes a child changes at most, one of these: near a good genome, few changes win."""
MAX_MUTATIONS = max(MUTATIONS)
ATTEMPTS_PER_CHILD = 20
FAMILY_SHARE = 0.3
"""How many children change one kind of choice at many places at once, where such moves win."""

FUSED_FIRST = ("Inline", "InPlace", "RowSum", "RowMax", "Load", "SumInner", "MaxInner", "SumOuter", "MaxOuter")
"""What the first genome prefers, anything else (a library call) before these: the fewest kernels."""
MATMULS_FIRST = ("Inline", "InPlace", "Load", "RowSum", "SumOuter", "SumInner")
"""The same where a matmul is computed or loaded, which no pass over a row does well."""

Fit = Callable[[Genome], Fitted]
"""Makes the choices of a genome that do not fit together plain ones."""


def as_it_is(genome: Genome) -> Fitted:
    """The genome, whatever fits together in it."""
    return Fitted(genome, ())


def fused_genome(space: Space) -> Genome:
    """The genome that computes every value inside its consumers wherever an e-node offers it, matmuls apart."""
    snapshot = space.snapshot

    def is_matmul(eclass: int) -> bool:
        nodes = snapshot.nodes_of[eclass]
        loaded = [snapshot.children(n)[0] for n in nodes if snapshot.op(n) == "Load"]
        return any(snapshot.op(n) == "Matmul" for c in (eclass, *loaded) for n in snapshot.nodes_of[c])

    def choice(eclass: int) -> int:
        order = MATMULS_FIRST if is_matmul(eclass) else FUSED_FIRST
        kinds = [snapshot.op(n) for n in space.options[eclass]]
        return min(range(len(kinds)), key=lambda i: (order.index(kinds[i]) + 1 if kinds[i] in order else 0, i))

    return tuple(choice(c) for c in space.genes)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A genome to try. `parent` is the digest of the genome it came from, empty for a first one; `note` says which
    choices were made plain to fit it together."""

    genome: Genome
    digest: str
    parent: str
    generation: int
    note: str = ""


class Strategy(Protocol):
    """Proposes genomes in generations. All randomness comes from the seed, so a replayed search proposes the same."""

    name: str

    def propose(self, best: Genome | None) -> list[Proposal]:
        """The next generation; `best` is the fastest genome so far, None until one was profiled. Empty: nothing new
        is left to try."""
        ...


@dataclass(slots=True)
class Evolve:
    """luminal's search, but from a fused genome: if that is not viable, random ones until one is, then generations of
    mutants of the best one.

    Each of the 30 children of a generation differs from the best genome in 1 to 30 genes; no genome is proposed
    twice. `fit` is applied to every genome before it is proposed."""

    space: Space
    seed: int
    fit: Fit = as_it_is
    name: str = "evolve"
    first: Genome | None = None
    generation: int = 0
    tried: set[str] = field(default_factory=set)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.first = fused_genome(self.space)

    def propose(self, best: Genome | None) -> list[Proposal]:
        """See Strategy."""
        if best is None:
            return self._unseen(1, self._first, "")
        self.generation += 1
        parent = best
        return self._unseen(GENERATION, lambda: self._mutant(parent), self.space.digest(best))

    def _unseen(self, count: int, make: Callable[[], Genome], parent: str) -> list[Proposal]:
        found: list[Proposal] = []
        for _ in range(count * ATTEMPTS_PER_CHILD):
            fitted = self._new(make())
            if fitted is not None:
                why = "; ".join(dict.fromkeys(fitted.notes))
                note = f"kept in memory instead: {why}" if why else ""
                found.append(Proposal(fitted.genome, self.space.digest(fitted.genome), parent, self.generation, note))
                if len(found) == count:
                    break
        return found

    def _new(self, genome: Genome) -> Fitted | None:
        """`genome` as it is to be tried, or None if what it computes was tried before."""
        digest = self.space.digest(genome)
        if digest in self.tried:
            return None
        self.tried.add(digest)
        fitted = self.fit(genome)
        fits = self.space.digest(fitted.genome)
        if fits != digest and fits in self.tried:
            return None
        self.tried.add(fits)
        return fitted

    def _first(self) -> Genome:
        if self.first is None:
            return self._fresh()
        first, self.first = self.first, None
        return first

    def _fresh(self) -> Genome:
        return tuple(self._random.randrange(len(self.space.options[c])) for c in self.space.genes)

    def _mutant(self, parent: Genome) -> Genome:
        if not parent:
            return parent
        genes = list(parent)
        active = self.space.active_genes(parent) or list(range(len(parent)))
        if self._random.random() < FAMILY_SHARE:
            self._flip_family(genes, active)
            return tuple(genes)
        for _ in range(self._random.randint(1, self._random.choice(MUTATIONS))):
            # genes without effect are mutated too, now and then: they matter once another choice reaches them
            gene = self._random.choice(active) if self._random.random() < 0.8 else self._random.randrange(len(genes))
            genes[gene] = self._random.randrange(len(self.space.options[self.space.genes[gene]]))
        return tuple(genes)

    def _flip_family(self, genes: list[int], active: list[int]) -> None:
        """Change one kind of choice to another wherever both stand, at no more than MAX_MUTATIONS places."""
        kinds = [[self.space.snapshot.op(n) for n in self.space.options[c]] for c in self.space.genes]
        site = self._random.choice(active)
        old, new = kinds[site][genes[site]], self._random.choice(kinds[site])
        places = [g for g in active if kinds[g][genes[g]] == old and new in kinds[g]]
        for gene in self._random.sample(places, min(len(places), MAX_MUTATIONS)):
            genes[gene] = kinds[gene].index(new)


@dataclass(slots=True)
class Sample:
    """Random genomes, each independent of what was found: the baseline that the others have to beat."""

    space: Space
    seed: int
    fit: Fit = as_it_is
    name: str = "random"
    _inner: Evolve = field(init=False)

    def __post_init__(self) -> None:
        self._inner = Evolve(self.space, self.seed, self.fit)
        self._inner.first = None

    def propose(self, best: Genome | None) -> list[Proposal]:
        """See Strategy."""
        found: list[Proposal] = []
        while len(found) < GENERATION and (more := self._inner.propose(None)):
            found += more
        return found


STRATEGIES: dict[str, Callable[[Space, int, Fit], Strategy]] = {"evolve": Evolve, "random": Sample}


def make_strategy(name: str, space: Space, seed: int, fit: Fit = as_it_is) -> Strategy:
    """The strategy called `name`, whose genomes go through `fit` before they are proposed.

    Raises WorkbenchError for an unknown one."""
    if name not in STRATEGIES:
        raise WorkbenchError(f"--strategy: '{name}' is not one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name](space, seed, fit)
