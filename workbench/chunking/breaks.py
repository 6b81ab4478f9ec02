"""Graph breaks: the values behind which the graph is cut into chunks.

Automatic breaks use structure alone. A value is *heavy* when a contraction is among its ancestors. A sum of one term is
none: an outer product, as exporters write the angles of rotary positions. Where exactly one heavy value is live,
everything after it depends on the past through that value only: those are the dominators of the last heavy output among
the heavy values. Of these, one between each contraction and the next is a candidate, and candidates are kept where they
set apart a segment that occurs more than once, and where a chunk would otherwise have more than MOST_CONTRACTIONS: a
net whose blocks all differ is searched block by block too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from workbench.errors import WorkbenchError
from workbench.ir import ops
from workbench.ir.hlir import Graph, Node
from workbench.ir.ops import Op

MODES = ("auto", "none", "explicit")
MOST_CONTRACTIONS = 8
"""Of a chunk, where it can be cut at all: the choices for each multiply in one search."""


def find_breaks(graph: Graph, mode: str) -> frozenset[int]:
    """Node ids behind which to cut. `mode` is auto, none, explicit, or a regular expression on node labels.

    GraphBreak nodes in the model always cut, and so do custom operators, before and behind, but for mode none. Raises
    WorkbenchError for a bad expression or one that matches nothing."""
    explicit = frozenset(n.id for n in graph if isinstance(n.op, ops.GraphBreak))
    around = breaks_around(graph)
    match mode:
        case "none":
            return frozenset()
        case "explicit":
            return explicit | around
        case "auto":
            return around | (explicit or frozenset(automatic_breaks(graph)))
        case _:
            return explicit | around | _breaks_by_name(graph, mode)


def breaks_around(graph: Graph) -> frozenset[int]:
    """Custom operators, and what is computed for them."""
    custom = [n for n in graph if isinstance(n.op, ops.CustomOp)]
    read = (graph[o.source] for n in custom for o in n.operands)
    computed = (n.id for n in read if not isinstance(n.op, ops.Input | ops.Constant))
    return frozenset(n.id for n in custom) | frozenset(computed)


def _breaks_by_name(graph: Graph, pattern: str) -> frozenset[int]:
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise WorkbenchError(f"--breaks: '{pattern}' is not a regular expression: {error}") from None
    last: dict[str, int] = {}
    for node in graph:
        if node.operands and not isinstance(node.op, ops.Output) and wanted.search(node.label):
            last[node.label] = node.id  # one model operator can be several primitives: cut behind the last
    if not last:
        raise WorkbenchError(
            f"--breaks: no node name matches '{pattern}'", "luminal-tui inspect MODEL --json lists the node names"
        )
    return frozenset(last.values())


def heavy_nodes(graph: Graph) -> set[int]:
    """Ids of the nodes that are contractions or have one among their ancestors."""
    contractions = {n for n in graph.contractions if graph[n].operands[0].layout.shape[-1] != 1}
    heavy: set[int] = set()
    for node in graph:
        if node.id in contractions or any(o.source in heavy for o in node.operands):
            heavy.add(node.id)
    return heavy


def cut_levels(graph: Graph, cuts: Iterable[int]) -> dict[int, int]:
    """For each node, the largest number of cuts on a path that leads to it."""
    behind = set(cuts)
    levels: dict[int, int] = {}
    for node in graph:
        levels[node.id] = max((levels[o.source] + (o.source in behind) for o in node.operands), default=0)
    return levels


def automatic_breaks(graph: Graph) -> list[int]:
    """Cuts from structure alone, in order; none in a small graph in which nothing repeats."""
    heavy = heavy_nodes(graph)
    products = {o.source for n in graph.contractions for o in graph[n].operands}
    chain = [n for n in _dominator_chain(graph, heavy) if n not in products]
    cuts = _one_per_gap(graph, chain, cut_levels(graph, chain))
    segments = _segment_signatures(graph, heavy, cuts)
    repeats: Counter[int | None] = Counter(segments.values())
    levels = cut_levels(graph, cuts)
    held = Counter(levels[n] for n in graph.contractions)
    kept: list[int] = []
    since = 0
    """Contractions behind the last cut that is kept."""
    for i, cut in enumerate(cuts):
        since += held[i]
        alone = repeats[segments.get(i)] > 1 or repeats[segments.get(i + 1)] > 1
        if alone or since + held[i + 1] > MOST_CONTRACTIONS:
            kept.append(cut)
            since = 0
    return kept


def _one_per_gap(graph: Graph, chain: list[int], levels: Mapping[int, int]) -> list[int]:
    """Between one contraction and the next, one dominator to cut behind: of the kind (operator, shape, operands'
    operators) that is commonest among all dominators, so that the same place is chosen every time, and the last of
    those."""
    contracted = {levels[n] for n in graph.contractions}
    kinds = {n: _kind(graph, graph[n]) for n in chain}
    common = Counter(kinds.values())
    cuts: list[int] = []
    gap: list[int] = []
    for i, value in enumerate(chain):
        gap.append(value)
        if i + 1 in contracted:  # chain[i] is followed by segment i + 1
            most = max(common[kinds[n]] for n in gap)
            cuts.append(next(n for n in reversed(gap) if common[kinds[n]] == most))
            gap = []
    return cuts


def _kind(graph: Graph, node: Node) -> object:
    return (_nameless(node.op), node.shape, tuple(_nameless(graph[o.source].op) for o in node.operands))


def _nameless(op: Op) -> object:
    """An operator without what names it: equal structures are to compare equal."""
    return type(op) if isinstance(op, ops.Input | ops.Output | ops.CustomOp) else op


def _dominator_chain(graph: Graph, heavy: set[int]) -> list[int]:
    """The heavy values that every path from the first contractions to the last heavy output passes, in order.

    In any topological order of a graph, the values on all paths from source to sink are exactly those that no edge
    jumps over, once nodes that do not lead to the sink (early outputs) are set aside."""
    sinks = [o for o in graph.outputs if o in heavy]
    if not sinks:
        return []
    sink = max(sinks, key=lambda o: graph[o].operands[0].source)  # outputs may be in any order
    position = {n: i for i, n in enumerate(sorted(heavy & graph.ancestors([sink])))}
    reach = [0] * len(position)
    """Position of the last reader of each value."""
    first_roots = 0
    for node_id, at in position.items():
        sources = [position[o.source] for o in graph[node_id].operands if o.source in position]
        for source in sources:
            reach[source] = at
        if not sources:
            first_roots = at  # an edge from the virtual source
    chain: list[int] = []
    furthest = first_roots
    for node_id, at in position.items():
        if furthest <= at and node_id != sink:
            chain.append(node_id)
        furthest = max(furthest, reach[at])
    return chain


def _segment_signatures(graph: Graph, heavy: set[int], cuts: list[int]) -> dict[int, int]:
    """A number for what is computed in each segment between cuts: its heavy primitives with shapes and layouts, without
    names. Equal segments have equal numbers."""
    levels = cut_levels(graph, cuts)
    parts: dict[int, list[object]] = {}
    for node in graph:
        if node.id in heavy:
            parts.setdefault(levels[node.id], []).append(_signature(node))
    numbers: dict[tuple[object, ...], int] = {}
    return {level: numbers.setdefault(tuple(part), len(numbers)) for level, part in parts.items()}


def _signature(node: Node) -> object:
    return (_nameless(node.op), node.shape, node.dtype.name, tuple(o.layout for o in node.operands))
