"""Graph breaks: the values behind which the graph is cut into chunks.

Automatic breaks use structure alone. A value is *heavy* when a contraction is among its ancestors. Where exactly one
heavy value is live, everything after it depends on the past through that value only: those are the dominators of the
last heavy output in the graph of heavy values. Of these, the last before each next contraction is a candidate, and
candidates are kept where they set apart a segment that occurs more than once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import networkx as nx

from workbench.errors import WorkbenchError
from workbench.ir import ops
from workbench.ir.hlir import Graph, Node, is_contraction

SOURCE = -1
MODES = ("auto", "none", "explicit")


def find_breaks(graph: Graph, mode: str) -> frozenset[int]:
    """Node ids behind which to cut. `mode` is auto, none, explicit, or a regular expression on node labels.

    GraphBreak nodes in the model always cut, but for mode none. Raises WorkbenchError for a bad expression or one
    that matches nothing."""
    explicit = frozenset(n.id for n in graph if isinstance(n.op, ops.GraphBreak))
    match mode:
        case "none":
            return frozenset()
        case "explicit":
            return explicit
        case "auto":
            return explicit or frozenset(automatic_breaks(graph))
        case _:
            return explicit | _breaks_by_name(graph, mode)


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
    heavy: set[int] = set()
    for node in graph:
        if any(o.source in heavy for o in node.operands) or is_contraction(graph, node):
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
    """Cuts from structure alone, in order; empty when nothing repeats."""
    heavy = heavy_nodes(graph)
    products = {o.source for n in graph if n.id in heavy and is_contraction(graph, n) for o in n.operands}
    chain = [n for n in _dominator_chain(graph, heavy) if n not in products]
    levels = cut_levels(graph, chain)
    contracted = {levels[n.id] for n in graph if n.id in heavy and is_contraction(graph, n)}
    # chain[i] is followed by segment i + 1
    cuts = [cut for i, cut in enumerate(chain) if i + 1 in contracted]
    segments = _segment_signatures(graph, heavy, cuts)
    repeats = Counter(segments.values())
    return [
        cut
        for i, cut in enumerate(cuts)
        if repeats[segments.get(i, ())] > 1 or repeats[segments.get(i + 1, ())] > 1
    ]


def _dominator_chain(graph: Graph, heavy: set[int]) -> list[int]:
    """The heavy values that every path from the first contractions to the last heavy output passes, in order."""
    sinks = [o for o in graph.outputs if o in heavy]
    if not sinks:
        return []
    flow = nx.DiGraph()
    for node_id in sorted(heavy):
        sources = [o.source for o in graph[node_id].operands if o.source in heavy]
        flow.add_edges_from((s, node_id) for s in sources or [SOURCE])
    dominator: Mapping[int, int] = nx.immediate_dominators(flow, SOURCE)
    chain: list[int] = []
    value = graph[max(sinks)].operands[0].source
    while value is not None and value != SOURCE:
        chain.append(value)
        value = dominator[value]
    return chain[:0:-1]  # in order, without the output itself


def _segment_signatures(graph: Graph, heavy: set[int], cuts: list[int]) -> dict[int, tuple[object, ...]]:
    """What is computed in each segment between cuts: its heavy primitives with shapes and layouts, without names."""
    levels = cut_levels(graph, cuts)
    parts: dict[int, list[object]] = {}
    for node in graph:
        if node.id in heavy:
            parts.setdefault(levels[node.id], []).append(_signature(node))
    return {level: tuple(part) for level, part in parts.items()}


def _signature(node: Node) -> object:
    kind = "Output" if isinstance(node.op, ops.Output) else node.op
    return (kind, node.shape, node.dtype.name, tuple(o.layout for o in node.operands))
