"""A kept e-graph as the explorer reads it, and its e-nodes as rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec

from workbench.egraph.eclasses import ClassIndex
from workbench.egraph.snapshot import Snapshot, SnapshotData
from workbench.egraph.terms import Terms
from workbench.errors import printable
from workbench.search.chosen import Chosen, chosen
from workbench.search.space import NothingViable, Space, build_space
from workbench.session import events as ev
from workbench.session.eclass import ChildRow, ENodeRow, KernelUse
from workbench.session.leading import Leading, digest_of_snapshot
from workbench.session.spec import EGG

ROOT = "$root"
MOST_KERNELS = 4
"""Kernels that are listed beside an e-node; the rest is counted."""


class Kept(msgspec.Struct, frozen=True):
    """What the explorer reads of a kept saturation."""

    event: ev.GroupSaturated
    snapshot: SnapshotData


class EGraph:
    """A kept e-graph with what is made of it once: index, terms, space."""

    def __init__(self, kept: Kept, target: str) -> None:
        self.event, self.target = kept.event, target
        self.snapshot = Snapshot(kept.snapshot)
        self.index = ClassIndex(kept.snapshot)
        self.terms = Terms(self.snapshot, self.index)
        self.digest = digest_of_snapshot(kept.snapshot)
        self.rules = {rule.name: rule for rule in kept.event.rules}
        self.refused = ""
        """Why there is no space."""
        self.texts: dict[int, str] = {}
        """What a filter searches, by e-node."""
        self._chosen: tuple[Leading, Chosen] | None = None

    @cached_property
    def space(self) -> Space | None:
        """What the search may choose; None where no kernel computes an output, and in an egglog program."""
        if self.target == EGG:
            return None
        try:
            return build_space(self.snapshot, ROOT, self.target)
        except NothingViable as error:
            self.refused = str(error)
            return None

    def chosen(self, leading: Leading | None) -> Chosen | None:
        """What the best candidate uses; None where it is not of this e-graph."""
        space = self.space
        if leading is None or space is None or leading.snapshot != self.digest:
            return None
        if len(leading.genome) != len(space.genes):
            return None  # written by another version
        if self._chosen is None or self._chosen[0] is not leading:
            self._chosen = leading, chosen(space, leading.genome)
        return self._chosen[1]


class RowWriter:
    """Makes rows of e-nodes, with what the best candidate does with them."""

    def __init__(self, egraph: EGraph, made: Chosen | None, leading: Leading | None) -> None:
        self.egraph, self.made, self.leading = egraph, made, leading
        self._kernels: dict[int, KernelUse] = {}
        self._options: dict[int, frozenset[int]] = {}

    def ordered(self, nodes: list[int]) -> list[int]:
        """The chosen one first, then those that can be chosen, the subsumed ones last."""
        made, data = self.made, self.egraph.snapshot.data

        def rank(node: int) -> tuple[bool, bool, bool, int]:
            picked = made is not None and made.node_of.get(self.egraph.snapshot.class_of(node)) == node
            return not picked, not self._is_option(node), bool(data.subsumed[node]), node

        return sorted(nodes, key=rank)

    def _is_option(self, node: int) -> bool:
        space, eclass = self.egraph.space, self.egraph.snapshot.class_of(node)
        if space is None:
            return False
        if eclass not in self._options:
            self._options[eclass] = frozenset(space.options[eclass])
        return node in self._options[eclass]

    def has(self, node: int, words: Sequence[str]) -> bool:
        """Whether an e-node's term and maker have all the words."""
        text = self.egraph.texts.get(node)
        if text is None:
            maker = self.egraph.snapshot.made_by(node) or ""
            text = self.egraph.texts[node] = f"{self.egraph.terms.node(node)} {maker}".lower()
        return all(word in text for word in words)

    def row(self, node: int) -> ENodeRow:
        """An e-node as it is shown."""
        egraph, snapshot, made = self.egraph, self.egraph.snapshot, self.made
        eclass = snapshot.class_of(node)
        maker = snapshot.made_by(node)
        rule = egraph.rules.get(maker) if maker else None
        picked = made is not None and made.node_of.get(eclass) == node
        kernels = list(made.kernels_of[eclass]) if made is not None and picked and self._is_computed(node) else []
        return ENodeRow(
            id=node,
            eclass=eclass,
            op=printable(snapshot.op(node), 60),
            term=egraph.terms.node(node),
            children=[
                ChildRow(
                    place,
                    child,
                    printable(snapshot.class_sort[child], 60),
                    egraph.index.size(child),
                    egraph.terms.short(child),
                    bool(egraph.terms.value(child)),
                )
                for place, child in enumerate(snapshot.children(node), 1)
                if child >= 0
            ],
            made_by=printable(maker) if maker else "",
            file=printable(rule.file) if rule else "",
            line=rule.line if rule else 0,
            subsumed=bool(snapshot.data.subsumed[node]),
            option=self._is_option(node),
            chosen=picked,
            kernels=[self.kernel(k) for k in kernels[:MOST_KERNELS]],
            more_kernels=max(0, len(kernels) - MOST_KERNELS),
        )

    def _is_computed(self, node: int) -> bool:
        """Whether a kernel computes it: an input is there, a list is none."""
        snapshot = self.egraph.snapshot
        return snapshot.class_sort[snapshot.class_of(node)] != "IRList" and snapshot.op(node) != "Input"

    def kernel(self, eclass: int) -> KernelUse:
        """The kernel that computes an e-class, with its time where it has one."""
        found = self._kernels.get(eclass)
        if found is None:
            text = self.egraph.terms.short(eclass, 0)
            timed = self.leading.kernels.get(eclass) if self.leading is not None else None
            if timed is None:
                found = KernelUse(eclass, text)
            else:
                found = KernelUse(eclass, text, printable(timed.name), timed.ms, timed.calls)
            self._kernels[eclass] = found
        return found
