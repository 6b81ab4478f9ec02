"""Copies of a chunk in one graph: the same program for one, chained for several, and no two alike."""

from __future__ import annotations

import pytest

from workbench.chunking import find_breaks, group, split
from workbench.chunking.repeat import links, repeat
from workbench.chunking.split import Chunk
from workbench.egraph.program import emit
from workbench.frontend import import_model
from workbench.frontend.demo import write_demo
from workbench.ir import ops
from workbench.ir.hlir import Graph


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, list[Chunk]]:
    """The demo, and one chunk of each of its groups."""
    graph = import_model(write_demo(tmp_path_factory.mktemp("demo") / "demo.onnx")).graph
    chunks = split(graph, find_breaks(graph, "auto"))
    groups = group([emit(graph, c.nodes, c.inputs, c.outputs).digest for c in chunks])
    return graph, [chunks[g.representative] for g in groups]


def test_one_copy_is_the_chunk(layers: tuple[Graph, list[Chunk]]) -> None:
    graph, chunks = layers
    for chunk in chunks:
        one = repeat(graph, chunk, 1)
        program = emit(one.graph, one.nodes, one.inputs, one.outputs)
        assert program.digest == emit(graph, chunk.nodes, chunk.inputs, chunk.outputs).digest


def test_a_copy_reads_what_the_one_before_computes_where_it_fits(layers: tuple[Graph, list[Chunk]]) -> None:
    graph, chunks = layers
    chained = 0
    for chunk in chunks:
        several = repeat(graph, chunk, 3)
        chain = links(graph, chunk)
        assert several.chained == len(chain)
        assert all(graph[i].shape == graph[o].shape and graph[i].dtype == graph[o].dtype for i, o in chain.items())
        assert not any(isinstance(graph[i].op, ops.Constant) for i in chain)
        size = len(chunk.nodes)
        for copy in (1, 2):
            own = set(several.nodes[copy * size : (copy + 1) * size])
            earlier = set(several.nodes[: copy * size])
            read = {o.source for n in own for o in several.graph[n].operands}
            assert bool(read & earlier) == bool(chain)
            assert read - own - earlier <= set(several.inputs)
        chained += len(chain)
    assert chained


def test_copies_share_no_input_but_scalars(layers: tuple[Graph, list[Chunk]]) -> None:
    graph, chunks = layers
    for chunk in chunks:
        one, two = repeat(graph, chunk, 1), repeat(graph, chunk, 2)
        assert len(two.nodes) == 2 * len(one.nodes)
        assert len(two.inputs) == 2 * len(one.inputs) - one.chained
        text = emit(two.graph, two.nodes, two.inputs, two.outputs).text
        lines = [line.split(" ;")[0] for line in text.splitlines() if "(Input " in line]
        assert len({line.split("(Input ")[1] for line in lines}) == len(lines)
