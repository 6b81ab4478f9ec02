"""Nodes that are run as they are, together: what they read of the outside, and the ONNX model that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.frontend.values import Value, View, dtype_of, shape_of
from workbench.ir.expr import Expr

IR_VERSION = 10
_GRAPH = 5
"""AttributeProto.GRAPH."""


@dataclass(frozen=True, slots=True)
class Region:
    """`nodes` are NodeProtos in order, whose names are of the import as a whole. `reads` are the values of the outside
    by name, in the order of first use, `tensors` initializers of types that the graph cannot hold."""

    nodes: tuple[Any, ...]
    reads: Mapping[str, Value]
    tensors: Mapping[str, Any]
    opsets: Mapping[str, int]

    @property
    def operands(self) -> dict[str, View]:
        """What is given at run time; what is known of the others is in the model."""
        return {name: x for name, x in self.reads.items() if isinstance(x, View)}


@dataclass(frozen=True, slots=True)
class Unheld:
    """A value that the graph cannot hold: `name` is what the region's nodes call it, `kind` what it is, for people."""

    name: str
    kind: str
    region: Region


def joined(regions: Sequence[Region], node: Any, reads: Mapping[str, Value], tensors: Mapping[str, Any],
           opsets: Mapping[str, int]) -> Region:  # fmt: skip
    """`node` behind all nodes of `regions`, each once."""
    nodes: dict[int, Any] = {id(n): n for region in regions for n in region.nodes}
    all_reads = {name: x for region in regions for name, x in region.reads.items()} | dict(reads)
    all_tensors = {name: t for region in regions for name, t in region.tensors.items()} | dict(tensors)
    merged = {domain: version for region in regions for domain, version in region.opsets.items()} | dict(opsets)
    return Region((*nodes.values(), node), all_reads, all_tensors, merged)


def model_of(region: Region, outputs: Sequence[str], extents: Mapping[str, tuple[int | str, ...]]) -> bytes:
    """The region as a serialized model that yields `outputs`. Names are numbers in the order of their first use, so
    that equal regions are equal models; `extents` are the shapes of the operands."""
    from onnx import helper, numpy_helper

    names: dict[str, str] = {"": ""}
    for name in (*region.operands, *region.reads, *region.tensors):
        names.setdefault(name, f"~{len(names)}")
    for node in region.nodes:
        for name in node.output:
            names.setdefault(name, f"~{len(names)}")
    inputs = [
        helper.make_tensor_value_info(names[name], helper.np_dtype_to_tensor_dtype(x.dtype.numpy), extents[name])
        for name, x in region.operands.items()
    ]
    known = [
        numpy_helper.from_array(np.asarray(x, order="C"), names[name])
        for name, x in region.reads.items()
        if not isinstance(x, View)
    ]
    for name, tensor in region.tensors.items():
        copy = type(tensor)()
        copy.CopyFrom(tensor)
        copy.name = names[name]
        known.append(copy)
    graph = helper.make_graph(
        [renamed(node, names) for node in region.nodes],
        "opaque",
        inputs,
        [helper.make_empty_tensor_value_info(names[name]) for name in outputs],
        known,
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in sorted(region.opsets.items())]
    return bytes(helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION).SerializeToString())


def renamed(node: Any, names: Mapping[str, str]) -> Any:
    """A copy of a NodeProto in which values go by `names`, also where its subgraphs read them; what is not in there
    keeps its name."""
    copy = type(node)()
    copy.CopyFrom(node)
    for position, name in enumerate(copy.input):
        copy.input[position] = names.get(name, name)
    for position, name in enumerate(copy.output):
        copy.output[position] = names.get(name, name)
    for attribute in copy.attribute:
        if attribute.type == _GRAPH:
            _rename_inside(attribute.g, names)
    return copy


def _rename_inside(graph: Any, names: Mapping[str, str]) -> None:
    own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    outer = {name: new for name, new in names.items() if name not in own}
    for position, node in enumerate(graph.node):
        graph.node[position].CopyFrom(renamed(node, outer))
    for value in graph.output:
        value.name = outer.get(value.name, value.name)


def extents_of(view: View) -> tuple[int | str, ...]:
    """A shape as ONNX writes it: expressions over named dimensions by their text."""
    return tuple(str(d) if isinstance(d, Expr) else d for d in shape_of(view))


def is_plain(x: Value) -> bool:
    """Whether a value is an array of numbers."""
    return isinstance(x, np.ndarray) and x.dtype != object and dtype_of(x).kind in "biufV"
