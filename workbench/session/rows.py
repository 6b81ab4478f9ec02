"""The rows of the graph pane: a chunk's nodes as display text."""

from __future__ import annotations

from collections.abc import Collection

from workbench.chunking import Chunk
from workbench.egraph.program import ChunkProgram
from workbench.errors import printable
from workbench.ir.hlir import Graph
from workbench.ir.layout import show
from workbench.session.events import NodeRow


def node_rows(graph: Graph, chunk: Chunk, program: ChunkProgram, breaks: Collection[int]) -> list[NodeRow]:
    """One row per boundary input and node of `chunk`, in program order; scalar constants stand in the program, but for
    those that are its parameters."""
    rows: list[NodeRow] = []
    for node_id in dict.fromkeys((*program.inputs, *chunk.nodes)):
        node = graph[node_id]
        rows.append(
            NodeRow(
                id=node.id,
                name=node.name if node_id not in chunk.inputs or not node.operands else f"← {node.name}",
                shape=show(node.shape),
                dtype=node.dtype.name,
                label=printable(node.label),
                operands=[(o.source, str(o.layout)) for o in node.operands],
                line=program.lines.get(node_id, 0),
                is_break=node_id in breaks,
            )
        )
    return rows
