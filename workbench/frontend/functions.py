"""The functions that a model defines itself, expanded where they are called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from workbench.errors import ModelError, printable
from workbench.frontend.registry import standard

MOST_NODES = 200_000
"""Nodes that a model may have once its functions are expanded."""
_GRAPH = 5
"""AttributeProto.GRAPH."""

Key = tuple[str, str, str]
"""Domain, name and overload of a function."""


def inlined(proto: Any) -> Any:
    """`proto` with the functions it defines itself expanded where they are called.

    Raises ModelError for functions that call each other in a circle, or grow beyond MOST_NODES."""
    if not proto.functions:
        return proto
    _check_growth(proto)
    import onnx.inliner

    try:
        return onnx.inliner.inline_local_functions(proto)
    except Exception as error:
        raise ModelError(f"the model's own functions cannot be expanded: {printable(str(error))}") from error


def _check_growth(proto: Any) -> None:
    calls: dict[Key, list[Key]] = {
        (standard(f.domain), f.name, f.overload): [_callee(n) for n in all_nodes(f.node)] for f in proto.functions
    }
    try:
        own = {key: [callee for callee in of if callee in calls] for key, of in calls.items()}
        order = list(TopologicalSorter(own).static_order())
    except CycleError as error:
        name = printable(str(error.args[1][0][1]))
        raise ModelError(f"the model's function '{name}' calls itself, or others that do") from error
    size: dict[Key, int] = {}
    for key in order:
        size[key] = sum(size.get(callee, 1) for callee in calls[key])
    total = sum(size.get(_callee(n), 1) for n in all_nodes(proto.graph.node))
    if total > MOST_NODES:
        raise ModelError(f"the model's own functions expand to more than the {MOST_NODES} nodes that are allowed")


def _callee(node: Any) -> Key:
    return standard(node.domain), node.op_type, node.overload


def all_nodes(nodes: Sequence[Any]) -> Iterator[Any]:
    """`nodes`, and those of the subgraphs in them."""
    waiting = [nodes]
    while waiting:
        for node in waiting.pop():
            yield node
            waiting += [a.g.node for a in node.attribute if a.type == _GRAPH]
