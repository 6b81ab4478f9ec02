"""Saturated chunks of the test models, made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.choices import Case, leaf_values, saturated
from tests.small_graphs import residual_mlp
from workbench.chunking import find_breaks, group, split
from workbench.egraph.program import emit
from workbench.egraph.rules import read_library
from workbench.egraph.saturate import Saturator
from workbench.frontend import import_model
from workbench.ir import interpret
from workbench.ir.hlir import Graph
from workbench.session.reference import representative_inputs


@pytest.fixture(scope="session")
def saturator() -> Iterator[Saturator]:
    """The library as it ships."""
    with Saturator(read_library()) as it:
        yield it


class Model:
    """A test model, cut as the workbench cuts it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.chunks = split(graph, find_breaks(graph, "auto"))
        self.programs = [emit(graph, c.nodes, c.inputs, c.outputs) for c in self.chunks]
        self.groups = group([p.digest for p in self.programs])
        self.inputs = representative_inputs(graph, 0)
        self.values = leaf_values(graph, graph.dims)
        for node_id, array in zip(graph.inputs, self.inputs.values(), strict=True):
            self.values[node_id] = np.ascontiguousarray(array).reshape(-1)
        boundary = {o for c in self.chunks for o in (*c.outputs, *c.inputs)}
        interpret.evaluate(graph, [n.id for n in graph], self.values, graph.dims, keep={*self.values, *boundary})


@pytest.fixture(scope="session")
def model(model_path: Callable[[str], Path]) -> Callable[[str], Model]:
    """`model(name)`: a test model with the values at its chunks' boundaries."""
    known: dict[str, Model] = {}

    def load(name: str) -> Model:
        if name not in known:
            known[name] = Model(import_model(model_path(name)).graph)
        return known[name]

    return load


@pytest.fixture(scope="session")
def layer(saturator: Saturator) -> Case:
    """One layer of a residual MLP: a matmul, a relu and an addition."""
    return saturated(saturator, residual_mlp(layers=1))
