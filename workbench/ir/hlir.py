"""HLIR: the model as a graph of primitives. Nodes are immutable; edges carry layouts.

`Graph.nx` is the same graph as a networkx DiGraph (node attribute `node`, edge attribute `layouts`), for structural
questions and for tools. It is made when first asked for: large models are imported often without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import networkx as nx
import numpy as np

from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir import ops
from workbench.ir.dtype import DType
from workbench.ir.expr import ZERO, Expr
from workbench.ir.layout import Dim, Layout, Shape
from workbench.ir.ops import Op
from workbench.ir.weights import ExternalData


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand edge: the node whose buffer is read, and how."""

    source: int
    layout: Layout


@dataclass(frozen=True, slots=True)
class Node:
    """One primitive. `shape` and `dtype` are those of its contiguous result; `label` is the model's name for the
    place it came from, verbatim (escape before showing)."""

    id: int
    op: Op
    operands: tuple[Operand, ...]
    shape: Shape
    dtype: DType
    label: str

    @property
    def name(self) -> str:
        """The primitive's name, for instance `SumReduce`."""
        return ops.op_name(self.op)


@dataclass(frozen=True, slots=True)
class CustomOpSpec:
    """What a CustomOp is: output number `output` of a serialized ONNX model whose inputs are the operands, in order.
    `name` is the node's name, verbatim, `operator` what it is, with its domain; `runner` is who runs it (a key of
    `runtime.opaque.RUNNERS`)."""

    name: str
    operator: str
    model: bytes
    output: int = 0
    runner: str = "reference"


@dataclass(slots=True)
class Graph:
    """A model in HLIR. Mutate only through `add`."""

    name: str = "model"
    constants: dict[int, np.ndarray | ExternalData] = field(default_factory=dict)
    custom_ops: dict[int, CustomOpSpec] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    """Representative value of each named dimension, for profiling."""
    assumed: list[tuple[Expr, int]] = field(default_factory=list)
    """Expressions of named dimensions, and what the graph is made for them to be at least."""
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    _nodes: dict[int, Node] = field(default_factory=dict)
    _consumers: dict[int, dict[int, None]] = field(default_factory=dict)
    _nx: nx.DiGraph | None = None
    _contractions: frozenset[int] | None = None

    def add(self, op: Op, operands: Sequence[Operand], shape: Shape, dtype: DType, label: str = "") -> Node:
        """Append a node; its operands must exist."""
        node = Node(len(self._nodes), op, tuple(operands), shape, dtype, label)
        self.adopt([node])
        return node

    def adopt(self, nodes: Iterable[Node]) -> None:
        """Append nodes that are numbered on from those that are here; their operands must exist."""
        self._nx = self._contractions = None
        for node in nodes:
            self._nodes[node.id] = node
            for operand in node.operands:
                self._consumers.setdefault(operand.source, {})[node.id] = None
            if isinstance(node.op, ops.Input):
                self.inputs.append(node.id)
            elif isinstance(node.op, ops.Output):
                self.outputs.append(node.id)

    def __getitem__(self, node_id: int) -> Node:
        return self._nodes[node_id]

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        """Nodes in the order they were added, which is topological."""
        return iter(self._nodes.values())

    def scalar(self, node_id: int) -> float | int | bool | None:
        """The value of a one-element Constant held in memory, else None."""
        data = self.constants.get(node_id)
        if isinstance(data, np.ndarray) and data.size == 1:
            value: float | int | bool = data.reshape(-1)[0].item()
            return value
        return None

    @property
    def contractions(self) -> frozenset[int]:
        """Ids of the sums that are matmuls or convolutions (see `is_contraction`)."""
        if self._contractions is None:
            self._contractions = frozenset(n.id for n in self if is_contraction(self, n))
        return self._contractions

    @property
    def nx(self) -> nx.DiGraph:
        """The graph in networkx. Operands of one node that read the same source are one edge with several layouts."""
        if self._nx is None:
            self._nx = nx.DiGraph()
            for node in self:
                self._nx.add_node(node.id, node=node)
                for operand in node.operands:
                    if self._nx.has_edge(operand.source, node.id):
                        self._nx.edges[operand.source, node.id]["layouts"].append(operand.layout)
                    else:
                        self._nx.add_edge(operand.source, node.id, layouts=[operand.layout])
        return self._nx

    def consumers(self, node_id: int) -> Iterable[int]:
        """Ids of the nodes that read `node_id`, each once."""
        return self._consumers.get(node_id, ())

    def ancestors(self, node_ids: Iterable[int]) -> set[int]:
        """`node_ids` and everything that they are computed from."""
        seen: set[int] = set()
        stack = list(node_ids)
        while stack:
            node_id = stack.pop()
            if node_id not in seen:
                seen.add(node_id)
                stack += [operand.source for operand in self._nodes[node_id].operands]
        return seen

    def live_from_outputs(self) -> set[int]:
        """Ids of the nodes that some output needs (inputs included where needed)."""
        return self.ancestors(self.outputs)


def is_contraction(graph: Graph, node: Node) -> bool:
    """Whether `node` is a matmul or convolution: a sum over a product in which one operand is broadcast
    along an axis that the other is not, and both vary along the summed one."""
    if node.op != ops.Reduce("SumReduce"):
        return False
    product = graph[node.operands[0].source]
    in_order = node.operands[0].layout.is_contiguous and product.shape[: len(node.shape)] == node.shape
    if product.op != ops.Elementwise("Mul") or not in_order:
        return False  # else it is not the product's last axes that are summed
    left, right = (operand.layout for operand in product.operands)
    if left.rank < 3 or (left.shape[-1] != 1 and ZERO in (left.strides[-1], right.strides[-1])):
        return False
    # a matrix-vector product is broadcast on one side only
    return _broadcast_where_not(left, right) or _broadcast_where_not(right, left)


def _broadcast_where_not(a: Layout, b: Layout) -> bool:
    return any(
        sa is ZERO and sb is not ZERO for d, sa, sb in zip(a.shape, a.strides, b.strides, strict=True) if d != 1
    )


def shape_values(shape: Sequence[Dim], dims: Mapping[str, int]) -> tuple[int, ...]:
    """`shape` with named dimensions replaced by their values."""
    return tuple(int(ex.evaluate(d, dims)) for d in shape)


def describe(node: Node) -> str:
    """A node as users read it: `Mul [1, 16, 64] f32`."""
    return f"{node.name} {lay.show(node.shape)} {node.dtype}"
