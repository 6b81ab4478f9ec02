"""Which scalar constants are parameters: those in which chunks of one structure differ, such as the scales and zero
points of quantized layers. As inputs of their chunks they leave the chunks one program, and so one group."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.egraph.program import ChunkProgram, emit
from workbench.ir.hlir import Graph

Parts = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Of a chunk: nodes in topological order, boundary inputs, outputs."""


def emit_all(graph: Graph, chunks: Sequence[Parts]) -> list[ChunkProgram]:
    """The programs of all chunks of a model."""
    programs = [emit(graph, *parts) for parts in chunks]
    alike: dict[str, list[int]] = {}
    for i, program in enumerate(programs):
        alike.setdefault(program.pattern, []).append(i)
    for members in alike.values():
        if len({programs[i].digest for i in members}) > 1:
            parameters = _varying_uses(graph, [programs[i] for i in members])
            for i in members:
                programs[i] = emit(graph, *chunks[i], parameters)
    return programs


def _varying_uses(graph: Graph, programs: Sequence[ChunkProgram]) -> dict[int, int]:
    """The uses of scalars at which programs of one pattern do not all have one value, each with the number of its
    parameter. Uses that agree in every program are one parameter."""
    numbers: dict[tuple[str, ...], int] = {}
    found: dict[int, int] = {}
    for use, scalars in enumerate(zip(*(program.scalars for program in programs), strict=True)):
        values = tuple(f"{graph[i].dtype} {graph.scalar(i)!r}" for i in scalars)
        if len(set(values)) > 1:
            found[use] = numbers.setdefault(values, len(numbers))
    return found
