"""A model under other names: of nodes, values, weights, dimensions, its graph, its producer. What it computes stays.

Compilers that know a layer by its name fail on these."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from onnx import ModelProto

_SIGNS = "abcxyz0189_./:\\\"'();$ é"
_GRAPH = 5
"""AttributeProto.GRAPH."""


def renamed(model: ModelProto, seed: int = 0) -> ModelProto:
    """A copy of `model` in which every name is a random one, and nothing is documented. Files that weights lie in keep
    their names, functions that the model defines theirs."""
    rng = random.Random(seed)
    names: dict[str, str] = {"": ""}

    def new(name: str) -> str:
        return names.setdefault(name, f"{''.join(rng.choices(_SIGNS, k=rng.randint(1, 24)))}{len(names):x}")

    copy = ModelProto()
    copy.CopyFrom(model)
    for field in ("producer_name", "producer_version", "domain", "doc_string", "metadata_props"):
        copy.ClearField(field)
    for graph in _graphs(copy.graph):
        graph.name = new(graph.name)
        for field in ("doc_string", "value_info", "metadata_props", "quantization_annotation"):
            graph.ClearField(field)
        for value in (*graph.input, *graph.output):
            value.name = new(value.name)
            value.ClearField("doc_string")
            for dim in value.type.tensor_type.shape.dim:
                if any(c.isalnum() for c in dim.dim_param):  # some exporters write "?" for each unknown one
                    dim.dim_param = new(dim.dim_param)
        for tensor in graph.initializer:
            tensor.name = new(tensor.name)
            tensor.ClearField("doc_string")
        for number, node in enumerate(graph.node):
            node.name = new(f"{graph.name} {number}")
            node.input[:] = map(new, node.input)
            node.output[:] = map(new, node.output)
            for field in ("doc_string", "metadata_props"):
                node.ClearField(field)
    return copy


def _graphs(graph: Any) -> Iterator[Any]:
    """`graph` and the subgraphs in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == _GRAPH:
                yield from _graphs(attribute.g)
