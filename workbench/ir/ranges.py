"""What integers of a graph can be: the range that follows from their dtype and from what they are computed of.

Zero points are known to lie in the range that they are subtracted from, as quantization has them, and nothing else
about their values is used: layers of one structure have the same ranges.
"""

from __future__ import annotations

import numpy as np

from workbench.ir import dtype as dt
from workbench.ir import ops
from workbench.ir.dtype import DType
from workbench.ir.hlir import Graph, Node

Range = tuple[int, int]
"""The least and the greatest value."""

BYTE = 255
"""How far apart two bytes of one type can be."""
_LOOKED_AT = 1 << 16
"""Elements of the largest constant whose values are looked at."""


def magnitude(graph: Graph, node_id: int) -> int | None:
    """What no element of the node's value exceeds in magnitude; None where only its dtype says so."""
    found = integer_range(graph, node_id)
    return None if found is None else max(-found[0], found[1])


def integer_range(graph: Graph, node_id: int) -> Range | None:
    """The range of an integer or boolean node that its dtype leaves room beyond; None where it may be any."""
    known: dict[int, Range | None] = {}
    stack = [node_id]
    while stack:
        node = graph[stack[-1]]
        settled = node.dtype.is_float or _of_dtype(node.dtype)
        missing = [] if settled else [o.source for o in node.operands if o.source not in known]
        if missing:
            stack += missing
        elif settled:
            known[stack.pop()] = _of_dtype(node.dtype)
        else:
            known[stack.pop()] = _of_node(graph, node, [known[o.source] for o in node.operands])
    return known[node_id]


def _of_dtype(dtype: DType) -> Range | None:
    """The range of a narrow integer type."""
    if dtype is dt.BOOL:
        return 0, 1
    if dtype.is_float or dtype.itemsize > 1:
        return None
    limits = np.iinfo(dtype.numpy)
    return int(limits.min), int(limits.max)


def _of_node(graph: Graph, node: Node, operands: list[Range | None]) -> Range | None:
    """The range of a node of a wide integer type."""
    match node.op:
        case ops.Constant():
            return _of_constant(graph, node)
        case ops.Cast() | ops.GraphBreak() | ops.Output():
            found = operands[0]
        case ops.Gather():
            found = operands[1]
        case ops.Elementwise("Select"):
            found = _joined(operands[1], operands[2])
        case ops.Elementwise("Add"):
            found = _sum(*operands)
        case ops.Elementwise("Mul"):
            found = _product(*operands)
        case _:
            return None
    limits = np.iinfo(node.dtype.numpy)
    return found if found is not None and limits.min <= found[0] and found[1] <= limits.max else None


def _of_constant(graph: Graph, node: Node) -> Range | None:
    """Of a number, itself; of a small tensor of differences of bytes, what those can be."""
    value = graph.scalar(node.id)
    if value is not None:
        return int(value), int(value)
    data = graph.constants[node.id]
    if not isinstance(data, np.ndarray) or not 0 < data.size <= _LOOKED_AT:
        return None
    return (-BYTE, BYTE) if data.min() >= -BYTE and data.max() <= BYTE else None


def _joined(a: Range | None, b: Range | None) -> Range | None:
    return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))


def _sum(a: Range | None, b: Range | None) -> Range | None:
    if a is None or b is None:
        return None
    for (low, high), (least, most) in ((a, b), (b, a)):
        if high - low == BYTE and -high <= least and most <= -low:  # a byte less a zero point
            return -BYTE, BYTE
    return a[0] + b[0], a[1] + b[1]


def _product(a: Range | None, b: Range | None) -> Range | None:
    if a is None or b is None:
        return None
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)
