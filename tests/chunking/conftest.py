"""Graphs of the test models, and ways to compare a split graph with the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from workbench.chunking import output_value, split
from workbench.frontend import import_model
from workbench.ir import interpret, ops
from workbench.ir.hlir import Graph


@pytest.fixture(scope="session")
def graph_of(model_path: Callable[[str], Path]) -> Callable[[str], Graph]:
    """`graph_of(name)`: the HLIR of a test model, imported once."""
    known: dict[str, Graph] = {}

    def load(name: str) -> Graph:
        if name not in known:
            known[name] = import_model(model_path(name)).graph
        return known[name]

    return load


def leaf_values(graph: Graph, inputs: dict[str, np.ndarray]) -> dict[int, np.ndarray]:
    values: dict[int, np.ndarray] = {}
    for node in graph:
        match node.op:
            case ops.Input(name):
                values[node.id] = np.ascontiguousarray(inputs[name]).reshape(-1)
            case ops.Constant():
                data = graph.constants[node.id]
                assert isinstance(data, np.ndarray)
                values[node.id] = data.reshape(-1)
            case _:
                pass
    return values


@pytest.fixture(scope="session")
def agrees_with_whole() -> Callable[..., None]:
    """`agrees(graph, cuts, whole)`: each chunk of the split, computed from nothing but its inputs, gives the values
    that the whole graph has there (`whole`: all node values; None compares nothing), and every live node is in some
    chunk."""

    def check(graph: Graph, cuts: Iterable[int], whole: dict[int, np.ndarray] | None) -> None:
        chunks = split(graph, cuts)
        known = {n.id for n in graph if isinstance(n.op, ops.Input | ops.Constant)}
        for position, chunk in enumerate(chunks):
            assert chunk.index == position
            assert set(chunk.inputs) <= known, "a chunk reads what no earlier chunk gives"
            assert not set(chunk.inputs) & set(chunk.nodes)
            inside = set(chunk.inputs)
            for node_id in chunk.nodes:
                assert {o.source for o in graph[node_id].operands} <= inside
                inside.add(node_id)
            known |= set(chunk.outputs)
            if whole is None:
                continue
            values = {i: whole[i] for i in chunk.inputs}
            interpret.evaluate(graph, chunk.nodes, values, graph.dims, keep=set(chunk.outputs))
            for output in chunk.outputs:
                # a product behind which the graph is cut is rounded where the whole graph's is not
                near = 1e-5 * float(np.max(np.abs(np.nan_to_num(whole[output], posinf=0, neginf=0)), initial=1e-3))
                np.testing.assert_allclose(values[output], whole[output], rtol=1e-5, atol=near)
        computed = {n for chunk in chunks for n in chunk.nodes}
        live = {
            n
            for n in graph.live_from_outputs()
            if not isinstance(graph[n].op, ops.Input | ops.Constant | ops.Output)
        }
        assert live <= computed
        assert {output_value(graph, o) for o in graph.outputs} <= known

    return check


@pytest.fixture(scope="session")
def all_values() -> Callable[[Graph, dict[str, np.ndarray]], dict[int, np.ndarray]]:
    """`all_values(graph, inputs)`: the value of every node, by the interpreter."""

    def values_of(graph: Graph, inputs: dict[str, np.ndarray]) -> dict[int, np.ndarray]:
        values = leaf_values(graph, inputs)
        everything = [n.id for n in graph]
        interpret.evaluate(graph, everything, values, graph.dims)
        interpret.evaluate(graph, everything, values, graph.dims, keep=everything)  # products that were not stored
        return values

    return values_of
