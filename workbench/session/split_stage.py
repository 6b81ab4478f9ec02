"""The split stage: the graph in chunks, each chunk's program, equal ones in groups; on disk for the panes too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from loguru import logger

from workbench import chunking
from workbench.chunking import Chunk, Group
from workbench.egraph.parameters import emit_all
from workbench.egraph.program import ChunkProgram
from workbench.errors import printable
from workbench.session import events as ev
from workbench.session.rows import node_rows

if TYPE_CHECKING:
    from workbench.session.session import CompileSession


def cut_graph(session: CompileSession) -> tuple[list[Chunk], list[int]]:
    """The chunks, and the nodes behind which the graph is cut."""
    graph, spec = session.graph, session.spec
    cuts = sorted(set(chunking.find_breaks(graph, spec.breaks)) ^ set(spec.toggled))
    chunks = chunking.split(graph, cuts)
    session.emit(
        ev.ChunksSplit(
            chunks=[
                ev.ChunkInfo(c.index, len(c.nodes), list(c.inputs), list(c.outputs), printable(c.begins_at))
                for c in chunks
            ],
            breaks=cuts,
            mode=spec.breaks,
        )
    )
    return chunks, cuts


def emit_programs(
    session: CompileSession, chunks: list[Chunk], cuts: list[int]
) -> tuple[list[ChunkProgram], list[Group]]:
    """Each chunk's egglog program, and the groups of chunks that have the same one."""
    graph = session.graph
    programs = emit_all(graph, [(c.nodes, c.inputs, c.outputs) for c in chunks])
    for chunk, program in zip(chunks, programs, strict=True):
        session.store.write(f"chunks/chunk_{chunk.index}.egg", program.text.encode())
        rows = node_rows(graph, chunk, program, cuts)
        session.store.write(f"chunks/chunk_{chunk.index}.json", msgspec.json.encode(rows))
    groups = chunking.group([p.digest for p in programs])
    session.emit(
        ev.GroupsFormed(
            groups=[
                ev.GroupInfo(
                    g.index,
                    g.representative,
                    list(g.members),
                    len(chunks[g.representative].nodes),
                    g.digest,
                    len(session.points.of(programs[g.representative].dims).all()),
                )
                for g in groups
            ]
        )
    )
    logger.info("{} chunks in {} groups", len(chunks), len(groups))
    return programs, groups
