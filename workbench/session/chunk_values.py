"""What one chunk computes, taken by itself: made-up values at its boundary, and what the interpreter makes of them.

For models that are not run as a whole: because their weights are made up anyway, or take more memory than there is. It
touches the weights of that chunk only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from loguru import logger

from workbench.chunking import Chunk
from workbench.chunking.breaks import heavy_nodes
from workbench.ir import ops
from workbench.ir.hlir import Graph
from workbench.ir.interpret import evaluate
from workbench.session.reference import Reference, custom_runner, representative_array, representative_inputs


@dataclass(frozen=True, slots=True)
class ChunkValues:
    """`boundary` are the values that come in, flat, by HLIR node, without constants; `outputs` what the interpreter
    makes of them, flat, in the order of the chunk's outputs."""

    boundary: Mapping[int, np.ndarray]
    outputs: tuple[np.ndarray, ...]


def values_in(reference: Reference, graph: Graph, chunk: Chunk) -> ChunkValues:
    """The chunk's values in a run of the whole model."""
    boundary = {i: reference.values[i] for i in _free(graph, chunk)}
    return ChunkValues(boundary, tuple(reference.values[o] for o in chunk.outputs))


def made_up_values(
    graph: Graph, chunk: Chunk, dims: Mapping[str, int], seed: int, checkpoint: Callable[[], None]
) -> ChunkValues:
    """The chunk's values for made-up ones at its boundary, from `seed`. What no contraction leads to (a mask, a table)
    is computed as in the whole model; the rest is normal, or positive, or below 1: the first that leaves the results
    finite, so that there is something to compare with."""
    best: ChunkValues | None = None
    least: int | None = None
    for spread in (_as_it_is, np.abs, _below_one):
        checkpoint()
        found = _values(graph, chunk, dims, seed, spread)
        infinite = sum(int(np.sum(~np.isfinite(o.astype(np.float64)))) for o in found.outputs)
        if least is None or infinite < least:
            best, least = found, infinite
        if not infinite:
            break
    assert best is not None
    if least:
        logger.warning("chunk {}: {} results are not finite for any values tried at its boundary", chunk.index, least)
    return best


def _as_it_is(values: np.ndarray) -> np.ndarray:
    return values


def _below_one(values: np.ndarray) -> np.ndarray:
    size = np.abs(values)
    return np.asarray(size / (1 + size))


def _free(graph: Graph, chunk: Chunk) -> list[int]:
    return [i for i in chunk.inputs if not isinstance(graph[i].op, ops.Constant)]


def _values(
    graph: Graph, chunk: Chunk, dims: Mapping[str, int], seed: int, spread: Callable[[np.ndarray], np.ndarray]
) -> ChunkValues:
    free = _free(graph, chunk)
    heavy = heavy_nodes(graph)
    rng = np.random.default_rng([seed, chunk.index])
    inputs = representative_inputs(graph, seed, dims)
    values: dict[int, np.ndarray] = {}
    for node_id in graph.inputs:
        op = graph[node_id].op
        assert isinstance(op, ops.Input)
        values[node_id] = inputs[op.name].reshape(-1)
    for node_id in free:
        if node_id in heavy:
            made = representative_array(graph, node_id, dims, rng).reshape(-1)
            values[node_id] = spread(made).astype(made.dtype) if graph[node_id].dtype.is_float else made
    light = [i for i in free if i not in values]
    keep = {*free, *chunk.outputs}
    run = custom_runner(graph)
    evaluate(graph, sorted(graph.ancestors(light) - set(values)), values, dims, run, keep)
    constants = [i for i in chunk.inputs if isinstance(graph[i].op, ops.Constant)]
    evaluate(graph, [*constants, *chunk.nodes], values, dims, run, keep)
    return ChunkValues({i: values[i] for i in free}, tuple(values[o] for o in chunk.outputs))
