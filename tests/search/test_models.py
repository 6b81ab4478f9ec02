"""Extraction on chunks of real models: whatever a genome chooses computes what the interpreter computes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.choices import assert_near, computed, extracted, kernels_of, leaf_values, random_genome, saturated
from workbench import chunking
from workbench.egraph.program import emit
from workbench.egraph.rules import read_library
from workbench.egraph.saturate import Saturator
from workbench.frontend import import_model
from workbench.ir import interpret
from workbench.search.placement import Rejected

GENOMES = 8


@pytest.mark.parametrize("name", ["llama3_tiny_4l_dynamo", "gpt2_tiny_2l_ts17", "whisper_encoder_tiny_2l_ts17"])
def test_random_genomes_of_every_group_are_right(model_path: Callable[[str], Path], name: str) -> None:
    graph = import_model(model_path(name)).graph
    chunks = chunking.split(graph, chunking.find_breaks(graph, "auto"))
    groups = chunking.group([emit(graph, c.nodes, c.inputs, c.outputs).digest for c in chunks])
    values = leaf_values(graph, graph.dims)
    keep = {i for c in chunks for i in (*c.inputs, *c.outputs)}
    interpret.evaluate(graph, [n.id for n in graph], values, graph.dims, keep=keep)
    rng = random.Random(11)
    kinds: set[str] = set()
    with Saturator(read_library()) as saturator:
        for group in groups:
            case = saturated(saturator, graph, chunks[group.representative])
            for _ in range(GENOMES):
                try:
                    program = extracted(case, random_genome(case.space, rng))
                except Rejected as rejected:
                    if rejected.reason != "kernel-size":
                        raise
                    continue
                kinds |= set(kernels_of(program))
                for node_id, found in zip(case.chunk.outputs, computed(program, values), strict=True):
                    assert_near(found, values[node_id], steps=512)
    assert kinds >= {"MapKernel", "ReduceKernel", "RmRm"}


def test_a_graph_without_breaks_is_extracted_whole(model_path: Callable[[str], Path]) -> None:
    graph = import_model(model_path("llama3_tiny_4l_dynamo")).graph
    with Saturator(read_library()) as saturator:
        case = saturated(saturator, graph)
        program = extracted(case, tuple(0 for _ in case.space.genes))
    values = leaf_values(graph, graph.dims)
    interpret.evaluate(graph, case.chunk.nodes, values, graph.dims, keep=set(case.chunk.outputs))
    (found,) = computed(program, leaf_values(graph, graph.dims))
    assert_near(found, values[case.chunk.outputs[0]], steps=512)
