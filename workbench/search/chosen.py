"""What a genome uses of an e-graph: the e-classes that its choices reach, and the kernels that each ends up in."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from workbench.search.space import Genome, Space, value_children


@dataclass(frozen=True, slots=True)
class Chosen:
    """`node_of[c]` is the e-node that computes a reached e-class c; `kernels_of[c]` are the e-classes of the kernels
    that c is computed in: of a buffer, itself; of an element, every kernel whose body it is part of."""

    node_of: Mapping[int, int]
    kernels_of: Mapping[int, Sequence[int]]


def chosen(space: Space, genome: Genome) -> Chosen:
    """What `genome` reaches from the outputs. Its kernels come in the order in which they are reached."""
    snapshot = space.snapshot
    node_of: dict[int, int] = {}
    kernels_of: dict[int, list[int]] = {}
    buffers = [space.root]  # and lists of buffers
    seen = {space.root}
    for buffer in buffers:
        body = [buffer]
        inside = {buffer}
        for eclass in body:
            node = node_of[eclass] = space.node(genome, eclass)
            kernels_of.setdefault(eclass, []).append(buffer)
            for child in value_children(snapshot, node):
                if snapshot.class_sort[child] == "Elem":
                    if child not in inside:
                        inside.add(child)
                        body.append(child)
                elif child not in seen:
                    seen.add(child)
                    buffers.append(child)
    return Chosen(node_of, kernels_of)


def replaced_in(space: Space, made: Chosen, loads: Collection[int]) -> list[int]:
    """The e-classes of the kernels in which something else is chosen where one of the e-nodes `loads` stands: what the
    load reads is computed there instead."""
    snapshot = space.snapshot
    found: dict[int, None] = {}
    for load in loads:
        if snapshot.op(load) == "Load":
            element = snapshot.class_of(load)
            if made.node_of.get(element, load) != load:
                found.update(dict.fromkeys(made.kernels_of[element]))
    return list(found)
