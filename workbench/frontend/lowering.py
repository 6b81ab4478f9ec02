"""One ONNX node after the other, each by its row in the table, else by ONNX's own definition of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.errors import ModelError, printable
from workbench.frontend import half
from workbench.frontend.body import Body
from workbench.frontend.builder import SMALL, Builder, fold
from workbench.frontend.definitions import definition
from workbench.frontend.model_file import OnnxNode, body_nodes, node_name, place
from workbench.frontend.opaque import OpaqueOperators, unheld_tensor
from workbench.frontend.region import Unheld
from workbench.frontend.registry import Operator, find, foldable, standard
from workbench.frontend.scope import Scope
from workbench.frontend.signature import check_types
from workbench.frontend.tensors import TensorReader
from workbench.frontend.values import (
    SUPPORTED,
    NotKnownError,
    NotLoweredError,
    Value,
    View,
    check_extents,
    graph_dtype,
    is_float,
)
from workbench.ir.weights import ExternalData

MOST_INNER_NODES = 50_000
"""Nodes of subgraphs and definitions lowered in one model, each repetition counted."""
_DEEPEST = 12
"""Levels of subgraphs and definitions inside each other."""
_LONGEST_TEXT = 600
_SCALARS = 16
"""Elements up to which even a matrix of floats or bytes counts as a known array."""
_RENAMED = {"transA": "trans_a", "transB": "trans_b", "else": "otherwise"}
_INHERENT = (ValueError, IndexError, TypeError, KeyError, OverflowError, ZeroDivisionError, MemoryError)
"""What a malformed model makes NumPy and the layouts raise."""


class Lowering:
    """Lowers nodes into `builder`. `opaque` keeps what cannot be lowered, where that is allowed."""

    def __init__(self, builder: Builder, tensors: TensorReader, opaque: OpaqueOperators | None) -> None:
        self.builder = builder
        self.tensors = tensors
        self.opaque = opaque
        self._depth = 0
        self._inner_nodes = 0

    def value(self, name: str, scope: Scope) -> Value | None:
        """What `name` stands for in `scope`; an initializer is read when it is first asked for."""
        if name in scope.values:
            return scope.values[name]
        holder = scope.holder(name)
        if name in holder.values:
            return holder.values[name]
        if name in holder.unheld:
            raise NotLoweredError(f"'{printable(name)}' is {holder.unheld[name].kind}")
        data, shape, dtype = self.tensors.read(holder.initializers[name])
        value: Value
        if not isinstance(data, ExternalData) and data.size <= SMALL:
            value = self.builder.lift(data, name) if _is_matrix(data) else data
        else:
            held = graph_dtype(dtype)
            if held is None:
                raise ModelError(f"initializer '{printable(name)}' is {dtype}, which is not supported", SUPPORTED)
            value = self.builder.constant(data, shape, held, name)
        holder.values[name] = value
        return value

    def lower(self, node: OnnxNode, scope: Scope) -> None:
        """Give the outputs of `node` their values.

        Raises ModelError, which names the node."""
        self.builder.label = scope.place + node_name(node)
        if scope.given is not None:
            node = _resolved(node, scope.given)
        try:
            results = self._run_as_it_is(node, scope) if self.opaque is not None else None
            if results is None:
                results = self._results(node, [self.value(name, scope) for name in node.input], scope)
            for result in results:
                if isinstance(result, View):
                    check_extents(result.layout.shape)
        except ModelError as error:
            error.message = printable(error.message, _LONGEST_TEXT)  # operators quote what attributes say
            raise error.at(place(node)) from error.__cause__
        except _INHERENT as error:
            raise ModelError(f"{place(node)}: {printable(str(error)) or type(error).__name__}") from error
        except RecursionError as error:
            raise ModelError(f"{place(node)}: expressions nested too deeply") from error
        outputs = node.output
        if len(results) < len(outputs) and any(outputs[len(results) :]):
            raise ModelError(f"{place(node)}: more outputs than the operator has")
        for name, result in zip(outputs, results, strict=False):
            if isinstance(result, Unheld):
                scope.unheld[name] = result
            elif name:
                scope.values[name] = result

    def _run_as_it_is(self, node: OnnxNode, scope: Scope) -> tuple[Value | Unheld | None, ...] | None:
        """The outputs of a node that reads what the graph cannot hold, and so runs with what made that."""
        for name in node.reads:
            unheld = scope.unheld_value(name) if name else None
            if unheld is not None:
                return self._opaque(node, scope, f"it reads what is {unheld.kind}")
            if name and unheld_tensor(name, scope) is not None:
                return self._opaque(node, scope, "it reads an initializer of a type which the graph does not hold")
        return None

    def _opaque(self, node: OnnxNode, scope: Scope, why: str) -> tuple[Value | Unheld | None, ...]:
        assert self.opaque is not None
        return self.opaque.lower(node, scope, lambda name: self.value(name, scope), why)

    def _results(self, node: OnnxNode, inputs: list[Value | None], scope: Scope) -> tuple[Value | Unheld | None, ...]:
        opset = scope.opset(node.domain)
        check_types(node.domain, node.op_type, opset, inputs)
        row = find(node.domain, node.op_type, opset)
        try:
            given = half.widened(self.builder, node, inputs)
            if row is not None:
                results = self._apply(row, node, given, scope)
            else:
                results = self._defined(node, given, scope)
            if given is inputs:
                return results
            return half.narrowed(self.builder, node, opset, inputs, results)
        except NotLoweredError as error:
            # inside an operator's definition the operator as a whole; a dimension is fixed rather
            if self.opaque is None or scope.given is not None or (isinstance(error, NotKnownError) and error.dims):
                raise
            return self._opaque(node, scope, error.message)

    def _apply(
        self, row: Operator, node: OnnxNode, inputs: list[Value | None], scope: Scope
    ) -> tuple[Value | None, ...]:
        if not row.fewest_inputs <= len(inputs) <= row.most_inputs:
            raise ModelError(f"{len(inputs)} inputs")
        if row.fewest_inputs and any(x is None for x in inputs[: row.fewest_inputs]):
            raise ModelError("a required input is absent")
        if row.rest_from is not None and any(x is None for x in inputs[row.rest_from :]):
            raise ModelError("a required input is absent")
        attributes = self._attributes(row, node, scope)
        if row.fold is not None:
            arrays = foldable(inputs)
            if arrays is not None:
                return (fold(row.fold, *arrays),)
        if row.counts_outputs:
            attributes["outputs"] = len(node.output)
        result = row.lower(self.builder, *inputs, **attributes)
        return result if isinstance(result, tuple) else (result,)

    def _defined(self, node: OnnxNode, inputs: list[Value | None], scope: Scope) -> tuple[Value | None, ...]:
        """The outputs of ONNX's definition of the operator."""
        found = definition(node, scope.opset(node.domain), inputs)
        if found is None:
            raise NotLoweredError("the operator is not supported")
        body, attributes = found
        if len(inputs) > len(body.input):
            raise ModelError(f"{len(inputs)} inputs")
        opsets = {standard(o.domain): o.version for o in body.opset_import}
        inner = Scope(opsets, given=attributes, place=self._inside(node_name(node), scope))
        values = [*inputs, *(None for _ in body.input[len(inputs) :])]
        inner.values.update(zip(body.input, values, strict=True))
        wanted = [name if asked else "" for name, asked in zip(body.output, node.output, strict=False)]
        return self._run([OnnxNode(n) for n in body.node], wanted, inner)

    def _attributes(self, row: Operator, node: OnnxNode, scope: Scope) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if not node.attribute and not row.required:
            return found
        for attribute in node.attribute:
            name = _RENAMED.get(attribute.name, attribute.name)
            if name not in row.attributes:
                raise NotLoweredError(f"attribute '{printable(attribute.name)}' is not supported")
            if attribute.type != row.attributes[name]:
                raise ModelError(f"attribute '{printable(attribute.name)}' is of the wrong kind")
            found[name] = self._attribute(attribute, node, scope)
        absent = row.required - found.keys()
        if absent:
            raise ModelError(f"attribute '{min(absent)}' is absent")
        return found

    def _attribute(self, attribute: Any, node: OnnxNode, scope: Scope) -> Any:
        match attribute.type:
            case 1:
                return attribute.f
            case 2:
                return attribute.i
            case 3:
                return attribute.s.decode("utf-8", "replace")
            case 4:
                return self.tensors.array(attribute.t)
            case 5:
                return self._body(attribute.g, node, scope)
            case 6:
                return list(attribute.floats)
            case 7:
                return list(attribute.ints)
            case 8:
                return [s.decode("utf-8", "replace") for s in attribute.strings]
            case _:
                raise NotLoweredError(f"attribute '{printable(attribute.name)}' is of an unsupported kind")

    def _body(self, graph: Any, node: OnnxNode, scope: Scope) -> Body:
        """The subgraph as something to call; what it does not make itself it reads from `scope`."""
        names = [v.name for v in graph.input]
        outputs = [v.name for v in graph.output]
        where = self._inside(node_name(node), scope)
        ordered: list[OnnxNode] = []

        def run(values: Sequence[Value | None]) -> tuple[Value | None, ...]:
            if not ordered:
                ordered.extend(body_nodes(graph))
            inner = Scope(scope.opsets, {t.name: t for t in graph.initializer}, scope, scope.given, where)
            inner.values.update(zip(names, values, strict=True))
            return self._run(ordered, outputs, inner)

        return Body(len(names), len(outputs), run)

    def _run(self, nodes: Sequence[OnnxNode], outputs: Sequence[str], scope: Scope) -> tuple[Value | None, ...]:
        """The outputs of `nodes`, which are lowered in `scope`."""
        self._inner_nodes += len(nodes) + 1
        if self._depth >= _DEEPEST:
            raise ModelError(f"subgraphs more than {_DEEPEST} levels deep")
        if self._inner_nodes > MOST_INNER_NODES:
            raise NotLoweredError(f"loops of more than {MOST_INNER_NODES} nodes in all")
        label = self.builder.label
        self._depth += 1
        try:
            for node in nodes:
                self.lower(node, scope)
            return tuple(self.value(name, scope) for name in outputs)
        finally:
            self._depth -= 1
            self.builder.label = label

    def _inside(self, name: str, scope: Scope) -> str:
        return f"{scope.place}{name}/"[-512:]


def _resolved(node: OnnxNode, given: Mapping[str, Any]) -> OnnxNode:
    """`node` with the function's attributes where it refers to them; what is not given is left out."""
    if not any(a.ref_attr_name for a in node.attribute):
        return node
    proto = type(node.proto)()
    proto.CopyFrom(node.proto)
    del proto.attribute[:]
    for attribute in node.attribute:
        meant = given.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if meant is not None:
            made = proto.attribute.add()
            made.CopyFrom(meant)
            made.name = attribute.name
    return OnnxNode(proto)


def _is_matrix(data: Any) -> bool:
    """Whether `data` looks like a weight: its layout in memory is then kept, whatever its size."""
    weighs = is_float(data) or data.dtype in (np.int8, np.uint8)
    return weighs and data.ndim > 1 and data.size > _SCALARS
