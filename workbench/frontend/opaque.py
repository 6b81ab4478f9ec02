"""Operators that are not lowered: kept whole as CustomOp nodes, run by onnxruntime or onnx's reference implementation.

What such an operator yields is asked of ONNX's shape inference and of onnxruntime, for the operand shapes at hand. A
value that the graph cannot hold (text, a sequence, a size that depends on data) is no value of the graph: the operators
that read it run together with the one that makes it, up to the first result that can be held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from workbench.errors import printable
from workbench.frontend.builder import SMALL, Builder
from workbench.frontend.inference import Trials
from workbench.frontend.model_file import ModelFile, OnnxNode, node_name
from workbench.frontend.region import Region, Unheld, extents_of, is_plain, joined, model_of, renamed
from workbench.frontend.registry import standard
from workbench.frontend.scope import Scope
from workbench.frontend.values import NotKnownError, NotLoweredError, Value, View, graph_dtype
from workbench.ir import expr as ex
from workbench.ir import ops
from workbench.ir.dtype import DType
from workbench.ir.expr import Expr
from workbench.ir.hlir import CustomOpSpec, Graph, Operand
from workbench.ir.layout import Dim, Shape
from workbench.trials import Output, Trial

if TYPE_CHECKING:
    from workbench.frontend.dims import NamedDims

RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
_GRAPH = 5
"""AttributeProto.GRAPH."""
_EXTERNAL = 1
"""TensorProto.EXTERNAL."""


@dataclass(frozen=True, slots=True)
class OpaqueUse:
    """A node that is run as it is: `operator` with its domain, `why` it is not lowered, `runner` who runs it. `nodes`
    counts the ONNX nodes that run with it, itself included."""

    name: str
    operator: str
    why: str
    runner: str
    nodes: int


class OpaqueOperators:
    """Makes CustomOp nodes in `builder`. `specs` says what each is, `uses` why there is one."""

    def __init__(self, model: ModelFile, builder: Builder, dims: NamedDims, trials: Trials) -> None:
        self.model, self.builder, self.dims, self.trials = model, builder, dims, trials
        self.specs: dict[int, CustomOpSpec] = {}
        self.uses: dict[int, OpaqueUse] = {}
        self._symbols: dict[str, Expr] = {}
        """Extents by their text."""
        self._names: dict[object, str] = {}
        self._kept: list[Value] = []
        """Values that have a name, so that no other takes their identity."""
        self._made = 0

    def lower(
        self, node: OnnxNode, scope: Scope, value: Callable[[str], Value | None], why: str
    ) -> tuple[Value | Unheld | None, ...]:
        """The outputs of `node`, which runs as it is; `value` looks up what it reads. `why` says why.

        Raises NotLoweredError when that cannot be; NotKnownError where it could be, were dimensions fixed."""
        try:
            return self._lowered(node, scope, value, why)
        except NotKnownError:
            raise
        except NotLoweredError as error:
            said = f"{why}; and it cannot be run as it is: {error.message}"
            raise NotLoweredError(printable(said, 600), error.hint) from error

    def finish(self, graph: Graph) -> tuple[OpaqueUse, ...]:
        """Give the finished graph the specs of its custom operators; the uses that are left, in order."""
        live = {n.op.id for n in graph if isinstance(n.op, ops.CustomOp)}
        graph.custom_ops.update({i: spec for i, spec in self.specs.items() if i in live})
        return tuple(dict.fromkeys(self.uses[i] for i in sorted(live)))

    def _lowered(
        self, node: OnnxNode, scope: Scope, value: Callable[[str], Value | None], why: str
    ) -> tuple[Value | Unheld | None, ...]:
        random = _random_inside(node.proto)
        if random:
            raise NotLoweredError(f"{random} is random, so that no run could be compared with another")
        region, outputs = self._region(node, scope, value)
        if any(t.data_location == _EXTERNAL for t in (*_tensors_inside(node.proto), *region.tensors.values())):
            raise NotLoweredError("it holds a tensor whose data is in another file, which nobody else is to open")
        wanted = [name for name in outputs if name]
        trial = self._tried(region, wanted)
        if trial.runner is None:
            raise NotLoweredError(*_nobody(node, trial.refusals))
        model = self._model(region, wanted)
        views = [self.builder.contiguous(v) for v in region.operands.values()]
        edges = tuple(Operand(v.source, v.layout) for v in views)
        operator = _operator(node)
        use = OpaqueUse(scope.place + node_name(node), operator, why, trial.runner, len(region.nodes))
        results: list[Value | Unheld | None] = []
        for name, original in zip(outputs, node.output, strict=True):
            if not name:
                results.append(None)
                continue
            output = trial.outputs[wanted.index(name)]
            held = self._held(output, self._said.get(original) if scope.parent is None else None)
            if held is None:
                results.append(Unheld(name, self._kind(output, region, wanted, wanted.index(name)), region))
                continue
            spec_id = len(self.specs)
            self.specs[spec_id] = CustomOpSpec(use.name, operator, model, wanted.index(name), trial.runner)
            self.uses[spec_id] = use
            results.append(self.builder.unique_node(ops.CustomOp(spec_id), edges, *held))
        return tuple(results)

    def _region(
        self, node: OnnxNode, scope: Scope, value: Callable[[str], Value | None]
    ) -> tuple[Region, list[str]]:
        """The node with those that it must run with, and what its outputs are called there."""
        names: dict[str, str] = {}
        reads: dict[str, Value] = {}
        tensors: dict[str, Any] = {}
        before: list[Region] = []
        inner = sorted(set(node.reads) - set(node.input))
        for name in dict.fromkeys((*node.input, *inner)):
            if not name:
                continue
            unheld = scope.unheld_value(name)
            if unheld is not None:
                before.append(unheld.region)
                names[name] = unheld.name
                continue
            tensor = unheld_tensor(name, scope)
            if tensor is not None:
                names[name] = self._name(id(tensor))
                tensors[names[name]] = tensor
                continue
            found = value(name)
            if found is None:
                if name in inner:
                    raise NotLoweredError(f"a subgraph reads '{printable(name)}', which is absent")
                names[name] = ""
                continue
            if not is_plain(found) or found.size > SMALL:  # type: ignore[union-attr]
                found = self.builder.lift(found)
            names[name] = self._name((found.source, found.layout) if isinstance(found, View) else id(found))
            self._kept.append(found)
            reads[names[name]] = found
        self._made += 1
        outputs = [f"o{self._made}.{i}" if name else "" for i, name in enumerate(node.output)]
        copy = renamed(node.proto, names)
        copy.name = copy.doc_string = ""
        del copy.output[:]
        copy.output.extend(outputs)
        domains = {standard(n.domain) for n in _all_nodes(node.proto)} | {""}
        return joined(before, copy, reads, tensors, {d: scope.opset(d) for d in domains}), outputs

    def _name(self, key: object) -> str:
        return self._names.setdefault(key, f"v{len(self._names)}")

    def _tried(self, region: Region, outputs: Sequence[str]) -> Trial:
        return self.trials.of(self._model(region, outputs))

    def _model(self, region: Region, outputs: Sequence[str]) -> bytes:
        extents = {}
        for name, view in region.operands.items():
            extents[name] = extents_of(view)
            self._symbols |= {str(d): d for d in view.shape if isinstance(d, Expr)}
        return model_of(region, outputs, extents)

    def _held(self, output: Output, declared: Output | None) -> tuple[Shape, DType] | None:
        """Shape and dtype where both are known and the graph can hold them."""
        for said in (output, declared):
            if said is None or said.dims is None:
                continue
            dtype = _dtype(said.element or (0 if declared is None else declared.element))
            shape = [self._extent(d) for d in said.dims]
            if dtype is not None and None not in shape:
                return tuple(d for d in shape if d is not None), dtype
        return None

    def _extent(self, dim: int | str | None) -> Dim | None:
        return self._symbols.get(dim) if isinstance(dim, str) else dim

    @cached_property
    def _said(self) -> Mapping[str, Output]:
        """What the model itself says of the values of its graph."""
        return {
            v.name: self._told(v.type.tensor_type)
            for v in (*self.model.graph.value_info, *self.model.graph.output)
            if v.type.HasField("tensor_type") and v.type.tensor_type.HasField("shape")
        }

    def _told(self, tensor: Any) -> Output:
        dims: list[int | str | None] = []
        for d in tensor.shape.dim:
            name = self.dims.names.get(d.dim_param) if d.HasField("dim_param") else None
            if name is None:
                dims.append(d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None)
                continue
            extent = self.dims.extent(name)
            if isinstance(extent, Expr):
                self._symbols[str(extent)] = extent
            dims.append(str(extent) if isinstance(extent, Expr) else extent)
        return Output(tensor.elem_type, tuple(dims), "")

    def _kind(self, output: Output, region: Region, outputs: Sequence[str], position: int) -> str:
        """What an output is that cannot be held, for people.

        Raises NotKnownError where its size depends on named dimensions alone, in a way that nobody says."""
        if not output.element or _dtype(output.element) is None:
            return f"{output.kind}, which the graph does not hold"
        open_dims = {n for v in region.operands.values() for d in v.shape for n in ex.dims_of(d)}
        if open_dims:
            given = {name: self.dims.values[name] for name in open_dims}
            here = replace(region, reads={n: _at(x, given) for n, x in region.reads.items()})
            dims = self._tried(here, outputs).outputs[position].dims
            if dims is not None and all(isinstance(d, int) for d in dims):
                raise NotKnownError("how its size depends on dimensions is not known", dims=open_dims)
        return "of a size that depends on data"


def unheld_tensor(name: str, scope: Scope) -> Any | None:
    """The initializer of that name where the graph cannot hold its type: text, for instance."""
    holder = scope.holder(name)
    tensor = None if name in holder.values else holder.initializers.get(name)
    return tensor if tensor is not None and _dtype(tensor.data_type) is None else None


def _at(x: Value, dims: Mapping[str, int]) -> Value:
    """A value with the extents that it has for `dims`."""
    if not isinstance(x, View):
        return x
    return replace(x, layout=replace(x.layout, shape=tuple(ex.bound(ex.as_expr(d), dims) for d in x.shape)))


def _dtype(element: int) -> DType | None:
    from onnx import helper

    try:
        return graph_dtype(helper.tensor_dtype_to_np_dtype(element))
    except (KeyError, ValueError, TypeError):  # an element type that this onnx does not know, or none
        return None


def _operator(node: OnnxNode) -> str:
    domain = standard(node.domain)
    return f"{domain}::{node.op_type}" if domain else node.op_type


def _nobody(node: OnnxNode, refusals: Mapping[str, str]) -> tuple[str, str]:
    """That nobody can run a node, and what to do."""
    said = "; ".join(f"{runner}: {reason}" for runner, reason in refusals.items())
    hint = "replace it by standard operators"
    if "onnxruntime" not in refusals:
        said = f"onnxruntime is not installed; {said}"
        hint = "install onnxruntime, if it has this operator, or " + hint
    return said, hint


def _all_nodes(proto: Any) -> list[Any]:
    found = [proto]
    for attribute in proto.attribute:
        if attribute.type == _GRAPH:
            for node in attribute.g.node:
                found += _all_nodes(node)
    return found


def _tensors_inside(proto: Any) -> list[Any]:
    """The tensors that a node holds in its attributes and subgraphs."""
    attributes = [a for node in _all_nodes(proto) for a in node.attribute]
    found = [t for a in attributes for t in (a.t, *a.tensors, *(t for g in (a.g, *a.graphs) for t in g.initializer))]
    sparse = [s for a in attributes for s in (a.sparse_tensor, *a.sparse_tensors, *a.g.sparse_initializer)]
    return found + [part for s in sparse for part in (s.values, s.indices)]


def _random_inside(proto: Any) -> str:
    """The name of a random operator in a node, or ''. Dropout is one where it may train."""

    def is_random(node: Any) -> bool:
        may_train = node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] != ""
        return not standard(node.domain) and (node.op_type in RANDOM or may_train)

    return next((n.op_type for n in _all_nodes(proto) if is_random(n)), "")
