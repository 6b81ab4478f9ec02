"""How far off a result may be: by the coarsest dtype that a value on the way to it was rounded to.

An f32 result that was computed in f16 on the way is no more exact than f16. One of inputs and weights in f16 that is
computed in f32 is as exact as f32: what is given is the same for all that compute with it.
"""

from __future__ import annotations

from collections.abc import Collection

from workbench.ir import dtype as dt
from workbench.ir import ops
from workbench.ir.hlir import Graph
from workbench.runtime.compare import Tolerance, default_tolerance


def tolerance(graph: Graph, node_id: int, inside: Collection[int] | None = None) -> Tolerance:
    """What the value of a node may be off by when all of `inside` (by default the graph) is computed."""
    own = graph[node_id].dtype
    if not own.is_float:
        return default_tolerance(own)
    rounded = {own}
    seen, stack = {node_id}, [node_id]
    while stack:
        node = graph[stack.pop()]
        if isinstance(node.op, ops.Input | ops.Constant):
            continue
        rounded.add(node.dtype)
        for operand in node.operands:
            if operand.source not in seen and (inside is None or operand.source in inside):
                seen.add(operand.source)
                stack.append(operand.source)
    return default_tolerance(max((d for d in rounded if d.is_float), key=dt.unit_roundoff))
