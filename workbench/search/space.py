"""The search space of a saturated e-graph: which e-nodes can be chosen, and genomes over them.

A genome says, for each gene (an e-class with more than one viable e-node), which of its e-nodes to use. An e-node is
viable when every buffer and element it needs has a viable e-node of its own, without going round in a circle.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workbench.egraph.snapshot import Snapshot
from workbench.errors import NotViableError

KERNELS = frozenset({"Input", "Map", "SumInner", "SumOuter", "MaxInner", "MaxOuter", "ScatterLoop", "Opaque"})
LIBRARY_CALLS = {"cpu": frozenset({"Sgemm", "Dgemm"}), "cuda": frozenset({"Cublas", "CublasLt"})}
"""By target: what a rule of another target made cannot be chosen."""
ELEMENTS = frozenset(
    {
        "Load", "Immediate", "Inline", "RowSum", "RowMax", "InPlace", "ECast", "EIota", "EGather",
        "EAdd", "EMul", "EMod", "ELessThan", "ESelect",
        "EExp2", "ELog2", "ESin", "ESqrt", "ERecip", "EErf", "EFloor", "ERound",
    }
)  # fmt: skip
CHOSEN = KERNELS | ELEMENTS | {"RNil", "RCons"}
VALUE_SORTS = frozenset({"IR", "Elem", "IRList"})

Genome = tuple[int, ...]
"""Option index per gene, in the order of `Space.genes`."""


class NothingViable(NotViableError):
    """No kernel can compute an output."""


@dataclass(frozen=True, slots=True)
class Space:
    """`options[c]` are the viable e-nodes of e-class c; `genes` the reachable e-classes that have a choice."""

    snapshot: Snapshot
    root: int
    options: tuple[tuple[int, ...], ...]
    genes: tuple[int, ...]
    gene_of: dict[int, int]

    @property
    def size_log10(self) -> float:
        """Logarithm of the number of genomes."""
        return sum(math.log10(len(self.options[c])) for c in self.genes)

    def node(self, genome: Genome, eclass: int) -> int:
        """The e-node that `genome` chooses for an e-class."""
        gene = self.gene_of.get(eclass)
        return self.options[eclass][0 if gene is None else genome[gene]]

    def active_genes(self, genome: Genome) -> list[int]:
        """Genes that the genome's own choices reach from the outputs, in walking order. Others have no effect."""
        seen: set[int] = {self.root}
        stack = [self.root]
        active: list[int] = []
        while stack:
            eclass = stack.pop()
            gene = self.gene_of.get(eclass)
            if gene is not None:
                active.append(gene)
            for child in value_children(self.snapshot, self.node(genome, eclass)):
                if child not in seen:
                    seen.add(child)
                    stack.append(child)
        return active

    def digest(self, genome: Genome) -> str:
        """A name for what the genome computes: genes without effect do not count."""
        text = ",".join(f"{g}:{genome[g]}" for g in sorted(self.active_genes(genome)))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def value_children(snapshot: Snapshot, node: int) -> Iterable[int]:
    """Children of an e-node that are values (buffers or elements)."""
    return (c for c in snapshot.children(node) if c >= 0 and snapshot.class_sort[c] in VALUE_SORTS)


def build_space(snapshot: Snapshot, root: str, target: str = "cpu") -> Space:
    """The space below the global `root`, of the kernels that `target` has. Raises NothingViable naming what stops an
    output."""
    options = _viable(snapshot, CHOSEN | LIBRARY_CALLS[target])
    root_class = snapshot.variables[root]
    if not options[root_class]:
        raise NothingViable(*_explain(snapshot, options, root_class))
    reachable = _reachable(snapshot, options, root_class)
    genes = tuple(c for c in reachable if len(options[c]) > 1)
    return Space(snapshot, root_class, options, genes, {c: i for i, c in enumerate(genes)})


def _viable(snapshot: Snapshot, chosen: frozenset[str]) -> tuple[tuple[int, ...], ...]:
    """Least fixpoint from the leaves: an e-node becomes viable once all its value children have a viable e-node."""
    waiting: dict[int, int] = {}
    users: dict[int, list[int]] = {}
    ready: list[int] = []
    for node in range(snapshot.node_count):
        if snapshot.op(node) not in chosen:
            continue
        children = set(value_children(snapshot, node))
        waiting[node] = len(children)
        for child in children:
            users.setdefault(child, []).append(node)
        if not children:
            ready.append(node)
    options: list[list[int]] = [[] for _ in range(snapshot.class_count)]
    while ready:
        node = ready.pop()
        owner = snapshot.class_of(node)
        options[owner].append(node)
        if len(options[owner]) == 1:
            for user in users.get(owner, ()):
                waiting[user] -= 1
                if waiting[user] == 0:
                    ready.append(user)
    return tuple(tuple(sorted(nodes)) for nodes in options)


def _reachable(snapshot: Snapshot, options: Sequence[Sequence[int]], root: int) -> list[int]:
    order = [root]
    seen = {root}
    for eclass in order:
        for node in options[eclass]:
            for child in value_children(snapshot, node):
                if child not in seen:
                    seen.add(child)
                    order.append(child)
    return order


def _explain(snapshot: Snapshot, options: Sequence[Sequence[int]], root: int) -> tuple[str, str]:
    """The deepest e-class without a viable e-node, in words: its operators, and what to look at."""
    at, seen = root, {root}
    while True:
        deeper = next(
            (
                child
                for node in snapshot.nodes_of[at]
                for child in value_children(snapshot, node)
                if not options[child] and child not in seen
            ),
            None,
        )
        if deeper is None:
            break
        seen.add(deeper)
        at = deeper
    operators = sorted({snapshot.op(n) for n in snapshot.nodes_of[at]})
    names = [v for v, c in snapshot.variables.items() if c == at and v.startswith("$t")]
    where = f" ({', '.join(names)} in the program)" if names else ""
    return (
        f"no valid graph: nothing computes {' / '.join(operators)}{where}",
        "a rule that lowers it did not fire; a missing dtype fact is the usual cause",
    )
