"""Several copies of one chunk as a graph of their own: what a deeper model would be without cuts."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.chunking.split import Chunk
from workbench.ir import ops
from workbench.ir.hlir import Graph, Operand


@dataclass(frozen=True, slots=True)
class Repeated:
    """`graph` holds the copies; `nodes`, `inputs` and `outputs` are as a chunk has them. `chained` counts the values
    that each copy takes from the one before it."""

    graph: Graph
    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    chained: int


def links(graph: Graph, chunk: Chunk) -> dict[int, int]:
    """Which output of the chunk the next copy reads in place of which input: of the same shape and dtype, never in
    place of a constant, and first in place of values that another chunk computes, as in the model itself."""
    free = [i for i in chunk.inputs if not isinstance(graph[i].op, ops.Constant)]
    free.sort(key=lambda i: isinstance(graph[i].op, ops.Input))
    found: dict[int, int] = {}
    for output in chunk.outputs:
        wanted = (graph[output].shape, graph[output].dtype)
        place = next((i for i in free if i not in found and (graph[i].shape, graph[i].dtype) == wanted), None)
        if place is not None:
            found[place] = output
    return found


def repeat(graph: Graph, chunk: Chunk, copies: int) -> Repeated:
    """`copies` copies of `chunk`, each reading the outputs of the one before where they fit (`links`). Everything else
    that a copy reads is an input of its own, so that no two copies are the same; scalar constants stay constants."""
    chain = links(graph, chunk)
    made = Graph(f"{copies} x chunk {chunk.index}", dims=dict(graph.dims))
    nodes: list[int] = []
    inputs: list[int] = []
    outputs: list[int] = []
    before: dict[int, int] = {}
    for copy in range(copies):
        new: dict[int, int] = {}
        for i in chunk.inputs:
            node = graph[i]
            if before and i in chain:
                new[i] = before[chain[i]]
                continue
            scalar = graph.scalar(i) is not None
            op: ops.Op = ops.Constant() if scalar else ops.Input(f"copy {copy} input {len(inputs)}")
            added = made.add(op, [], node.shape, node.dtype, node.label)
            if scalar:
                made.constants[added.id] = graph.constants[i]
            new[i] = added.id
            inputs.append(added.id)
        for i in chunk.nodes:
            node = graph[i]
            operands = [Operand(new[o.source], o.layout) for o in node.operands]
            new[i] = made.add(node.op, operands, node.shape, node.dtype, node.label).id
            nodes.append(new[i])
        outputs += [new[o] for o in chunk.outputs]
        before = new
    read = {o.source for n in nodes for o in made[n].operands}
    kept = tuple(dict.fromkeys(o for o in outputs if o not in read or o in outputs[-len(chunk.outputs) :]))
    return Repeated(made, tuple(nodes), tuple(inputs), kept, len(chain))
