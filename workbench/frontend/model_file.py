"""The model file: opened, decoded, and its graph put in an order in which every value is made before it is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import ModelError, printable
from workbench.frontend.functions import inlined
from workbench.frontend.inside import without_weights
from workbench.frontend.registry import MAX_OPSET, MIN_OPSET, standard
from workbench.ir.weights import map_file

_LARGE_FILE = 1 << 20
"""Bytes from which on it is worth while to look for weights that can stay where they are."""
_GRAPH = 5
"""AttributeProto.GRAPH."""


class OnnxNode:
    """A NodeProto, its fields read once: each access to a protobuf field costs as much as a function call."""

    __slots__ = ("attribute", "domain", "input", "name", "op_type", "output", "proto", "reads")

    def __init__(self, proto: Any) -> None:
        self.proto = proto
        self.op_type: str = proto.op_type
        self.domain: str = proto.domain
        self.name: str = proto.name
        self.input: tuple[str, ...] = tuple(proto.input)
        self.output: tuple[str, ...] = tuple(proto.output)
        self.attribute: Sequence[Any] = proto.attribute
        inner = [a.g for a in self.attribute if a.type == _GRAPH]
        self.reads: tuple[str, ...] = (*self.input, *_read_inside(inner)) if inner else self.input
        """Every value that must be there first: the inputs, and what subgraphs read of the outside."""


def _read_inside(graphs: Sequence[Any]) -> set[str]:
    """Names that subgraphs, and those inside them, read without making them."""
    found: set[str] = set()
    for graph in graphs:
        made = {v.name for v in graph.input} | {t.name for t in graph.initializer}
        made.update(name for node in graph.node for name in node.output)
        found.update(name for v in graph.output if (name := v.name) not in made)
        for node in graph.node:
            found.update(name for name in OnnxNode(node).reads if name and name not in made)
    return found


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A decoded model. `opsets` is by domain, the standard one ''; `nodes` are what the outputs need, in order. With
    `holds_weights`, initializers are external data of the model's file itself."""

    path: Path
    proto: Any
    opsets: Mapping[str, int]
    nodes: Sequence[OnnxNode]
    holds_weights: bool = False

    @property
    def graph(self) -> Any:
        """The GraphProto."""
        return self.proto.graph


def open_model(source: Path | str | Any) -> ModelFile:
    """Open and check the model at a path, or the ModelProto itself; external data is not touched. Large weights inside
    the file become external data of it.

    Raises ModelError when there is no such file, or it is no ONNX model that this importer reads."""
    if isinstance(source, Path | str):
        path = Path(source)
        proto, holds_weights = _decode(path)
    else:
        path, proto, holds_weights = Path("model"), source, False
    proto = inlined(proto)
    nodes = [OnnxNode(node) for node in proto.graph.node]
    if bytes in {type(text) for text in _texts(proto, nodes)}:  # protobuf's way to say that it is no text
        raise ModelError(f"{printable(str(path))} is damaged: a name in it is not text")
    opsets = {standard(o.domain): o.version for o in proto.opset_import}
    version = opsets.get("")
    if version is None:
        if any(not standard(n.domain) for n in nodes):
            raise ModelError(f"{printable(path.name)} does not say which opset it uses")
    elif not MIN_OPSET <= version <= MAX_OPSET and not _means_the_same(nodes, version):
        raise ModelError(
            f"{printable(path.name)} uses opset {version}; supported are {MIN_OPSET} to {MAX_OPSET}",
            "convert it with onnx.version_converter, or export it again",
        )
    if not proto.graph.output:
        raise ModelError(f"{printable(path.name)} has no outputs")
    return ModelFile(path, proto, opsets, _needed(_ordered(proto.graph, nodes), proto.graph), holds_weights)


def _means_the_same(nodes: Sequence[OnnxNode], version: int) -> bool:
    """Whether every standard operator of a model older than MIN_OPSET is what it was then."""
    from onnx import defs

    if not 1 <= version < MIN_OPSET:
        return False
    used = {n.op_type for n in nodes if not standard(n.domain)}
    known = {s.name for s in defs.get_all_schemas() if not s.domain}
    return used <= known and all(_since(name, version) == _since(name, MIN_OPSET) for name in used)


def _since(name: str, version: int) -> int:
    from onnx import defs

    try:
        return int(defs.get_schema(name, version, "").since_version)
    except Exception:  # SchemaError: there was no such operator yet
        return 0


def _decode(path: Path) -> tuple[Any, bool]:
    """The ModelProto, and whether it refers to the file for its large weights."""
    shown = printable(str(path))
    try:
        data, refers = _contents(path)
    except FileNotFoundError:
        raise ModelError(f"no such file: {shown}") from None
    except IsADirectoryError:
        raise ModelError(f"{shown} is a directory, not an ONNX file") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {shown}: {getattr(error, 'strerror', None) or error}") from error
    if not data:
        raise ModelError(f"{shown} is empty")
    import onnx

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception:  # protobuf's DecodeError, whichever implementation of it is in use
        raise ModelError(f"{shown} is not a readable ONNX model: it is truncated or of another format") from None
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ModelError(f"{shown} is not an ONNX model: it has no graph")
    return proto, refers


def _contents(path: Path) -> tuple[bytes, bool]:
    """What the file says; True when that is without its large weights, but refers to them."""
    if path.is_file() and path.stat().st_size >= _LARGE_FILE:
        mapped = map_file(path)
        if mapped is not None and (found := without_weights(memoryview(mapped))) is not None:
            return found, True
    return path.read_bytes(), False


def _texts(proto: Any, nodes: Sequence[OnnxNode]) -> Iterator[str | bytes]:
    """Every name in the model's graph and the subgraphs in it."""
    for opset in proto.opset_import:
        yield opset.domain
    graphs: list[tuple[Any, Sequence[Any]]] = [(proto.graph, nodes)]
    while graphs:
        graph, inside = graphs.pop()
        for node in inside:
            yield node.op_type
            yield node.domain
            yield node.name
            yield from node.input
            yield from node.output
            for attribute in node.attribute:
                yield attribute.name
                if attribute.type == _GRAPH:
                    graphs.append((attribute.g, attribute.g.node))
        for tensor in graph.initializer:
            yield tensor.name
            for entry in tensor.external_data:
                yield entry.key
                yield entry.value
        for value in (*graph.input, *graph.output):
            yield value.name
            for dim in value.type.tensor_type.shape.dim:
                yield dim.dim_param


def body_nodes(graph: Any) -> list[OnnxNode]:
    """The nodes of a subgraph in order. Names that nothing in it makes are the surrounding graph's.

    Raises ModelError when there is no order."""
    nodes = [OnnxNode(node) for node in graph.node]
    inside = {name for node in nodes for name in node.output}
    outside = {name for node in nodes for name in node.reads} | {v.name for v in graph.output}
    return _ordered(graph, nodes, outside - inside)


def _ordered(graph: Any, nodes: Sequence[OnnxNode], outside: Set[str] = frozenset()) -> list[OnnxNode]:
    """The graph's nodes so that each follows those it reads; usually as they are. `outside` is there already."""
    _check_names(graph, nodes)
    made = {t.name for t in graph.initializer} | {v.name for v in graph.input} | outside
    order: list[OnnxNode] = []
    waiting = list(nodes)
    while waiting:
        blocked: list[OnnxNode] = []
        for node in waiting:
            if all(not name or name in made for name in node.reads):
                made.update(node.output)
                order.append(node)
            else:
                blocked.append(node)
        if len(blocked) == len(waiting):
            raise _unordered(blocked, made)
        waiting = blocked
    for output in graph.output:
        if output.name not in made:
            raise ModelError(f"output '{printable(output.name)}' is made by no node")
    return order


def _check_names(graph: Any, nodes: Sequence[OnnxNode]) -> None:
    for what, names in (
        ("output", [v.name for v in graph.output]),
        ("input", [v.name for v in graph.input]),
        ("initializer", [t.name for t in graph.initializer]),
        ("node output", [name for node in nodes for name in node.output if name]),
    ):
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise ModelError(f"{what} '{printable(repeated[0])}' appears twice")


def _unordered(blocked: Sequence[OnnxNode], made: set[str]) -> ModelError:
    later = {name for node in blocked for name in node.output}
    for node in blocked:
        for name in node.reads:
            if name and name not in made and name not in later:
                return ModelError(f"{place(node)} reads '{printable(name)}', which nothing makes")
    return ModelError(f"the graph has a cycle through {place(blocked[0])}")


def _needed(order: Sequence[OnnxNode], graph: Any) -> list[OnnxNode]:
    """The nodes of `order` that some output needs."""
    wanted = {v.name for v in graph.output}
    kept: list[OnnxNode] = []
    for node in reversed(order):
        if any(name in wanted for name in node.output):
            wanted.update(node.reads)
            kept.append(node)
    return kept[::-1]


def place(node: OnnxNode) -> str:
    """A node as error messages name it."""
    return f"node '{printable(node_name(node))}' ({printable(node.op_type)})"


def node_name(node: OnnxNode) -> str:
    """What users know the node by: its name, else its first output."""
    return node.name or next((o for o in node.output if o), "") or node.op_type
