"""The chunk splitter: from a graph and its breaks to chunks with boundary inputs and outputs.

A node goes to the chunk numbered by the cuts behind it. Inputs and constants are placed in every chunk that uses them;
light values (no contraction behind them) that no cut precedes are recomputed in every chunk that needs them; any other
value that is used in another chunk, a value behind which is cut too, is a boundary output of its own and a boundary
input there. Node order within a
chunk is a depth-first walk from its outputs, so that equal structures are listed in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from workbench.chunking.breaks import cut_levels, heavy_nodes
from workbench.ir import ops
from workbench.ir.hlir import Graph, Node


@dataclass(frozen=True, slots=True)
class Chunk:
    """`nodes` are computed here, operands first. `inputs` are model inputs, constants and values of other chunks, in
    the order of first use. `outputs` are read by other chunks or are model outputs."""

    index: int
    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    begins_at: str
    """Label of a break that this chunk lies behind; empty for the first."""


def output_value(graph: Graph, output: int) -> int:
    """The node that holds the value of Output node `output`: its operand, or the node itself where it has to copy an
    input or a constant."""
    source = graph[graph[output].operands[0].source]
    return output if isinstance(source.op, ops.Input | ops.Constant) else source.id


def split(graph: Graph, cuts: Iterable[int]) -> list[Chunk]:
    """Chunks in execution order. Every live node is in at least one."""
    behind = set(cuts)
    levels = _levels(graph, behind)
    heavy = heavy_nodes(graph)
    results = {output_value(graph, o) for o in graph.outputs}
    home = _homes(graph, levels, heavy, results | behind)
    wanted: dict[int, set[int]] = {level: set() for level in home.values()}
    for node_id in results:
        wanted[home[node_id]].add(node_id)
    begins: dict[int, str] = {}
    walks: dict[int, _Walk] = {}
    for level in sorted(wanted, reverse=True):
        walk = walks[level] = _Walk(graph, home, level)
        for node_id in sorted(wanted[level]):
            walk.visit(node_id)
        for source in walk.inputs:
            if source in home:
                wanted[home[source]].add(source)
                if source in behind:
                    begins.setdefault(level, graph[source].label or f"node {source}")
    chunks: list[Chunk] = []
    for level in sorted(wanted):
        walk = walks[level]
        if walk.nodes:
            outputs = tuple(sorted(wanted[level]))
            chunks.append(
                Chunk(len(chunks), tuple(walk.nodes), tuple(walk.inputs), outputs, begins.get(level, ""))
            )
    return chunks


def _levels(graph: Graph, behind: set[int]) -> dict[int, int]:
    """The number of cuts behind each node, doubled. A custom operator that is cut off on all sides is one below the
    others of its number, so that it is a chunk of its own: nothing there depends on it, nor it on anything there."""
    found = cut_levels(graph, behind)
    return {i: 2 * level - _is_cut_off(graph, graph[i], behind) for i, level in found.items()}


def _is_cut_off(graph: Graph, node: Node, behind: set[int]) -> bool:
    if not isinstance(node.op, ops.CustomOp) or node.id not in behind:
        return False
    sources = (graph[o.source] for o in node.operands)
    return all(s.id in behind or isinstance(s.op, ops.Input | ops.Constant) for s in sources)


def _homes(graph: Graph, levels: Mapping[int, int], heavy: set[int], asked_for: set[int]) -> dict[int, int]:
    """The level of each node that is computed in one chunk only; the others are recomputed where needed. Values that
    are `asked_for` (results, cuts) never are."""
    home: dict[int, int] = {}
    for node in graph:
        if isinstance(node.op, ops.Input | ops.Constant):
            continue
        if isinstance(node.op, ops.Output) and node.id not in asked_for:
            continue
        if node.id in heavy or levels[node.id] > 0 or node.id in asked_for or isinstance(node.op, ops.CustomOp):
            home[node.id] = levels[node.id]
    return home


class _Walk:
    """A depth-first walk of one chunk from its outputs: operands before users, boundary inputs by first use."""

    def __init__(self, graph: Graph, home: Mapping[int, int], level: int) -> None:
        self.graph, self.home, self.level = graph, home, level
        self.nodes: list[int] = []
        self.inputs: list[int] = []
        self.seen: set[int] = set()

    def visit(self, root: int) -> None:
        stack: list[tuple[int, bool]] = [(root, False)]
        while stack:
            node_id, operands_done = stack.pop()
            if operands_done:
                self.nodes.append(node_id)
                continue
            if node_id in self.seen:
                continue
            self.seen.add(node_id)
            node = self.graph[node_id]
            if self._is_boundary(node):
                self.inputs.append(node_id)
                continue
            stack.append((node_id, True))
            stack += [(o.source, False) for o in reversed(node.operands)]

    def _is_boundary(self, node: Node) -> bool:
        if isinstance(node.op, ops.Input | ops.Constant):
            return True
        return self.home.get(node.id, self.level) != self.level
