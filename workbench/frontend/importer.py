"""ONNX to HLIR: inputs and named dimensions, then one operator after the other, then what the outputs need."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import ModelError, printable
from workbench.frontend import operators as _operators  # registers the table's rows
from workbench.frontend import symbolic
from workbench.frontend.builder import Builder
from workbench.frontend.coverage import OperatorUse, operator_uses
from workbench.frontend.dims import NamedDims
from workbench.frontend.inference import Trials
from workbench.frontend.lowering import Lowering
from workbench.frontend.model_file import ModelFile, open_model
from workbench.frontend.opaque import OpaqueOperators, OpaqueUse
from workbench.frontend.scope import Scope
from workbench.frontend.tensors import TensorReader
from workbench.frontend.values import (
    SUPPORTED,
    NotKnownError,
    NotLoweredError,
    UnequalDimsError,
    Value,
    View,
    graph_dtype,
)
from workbench.ir import ops
from workbench.ir.dtype import DType
from workbench.ir.hlir import Graph
from workbench.ir.layout import Dim

assert _operators
MOST_SHOWN = 4
"""Unsupported operators that an error lists."""


@dataclass(slots=True)
class Imported:
    """An imported model. `parameters` counts the elements of its initializers of floats and bytes, `missing_weights`
    names those whose file is not there, `opaque` the nodes that are run as they are. `fixed_dims` are named dimensions
    that the model's structure depends on: the graph is for these values of them alone. `dim_names` is what the graph
    calls the named dimensions, by what the model does. `equal_dims` are those that the model uses as if they were equal
    to others, and what they are equal to; the graph does not have them."""

    graph: Graph
    onnx_nodes: int
    parameters: int
    missing_weights: list[str] = field(default_factory=list)
    opaque: tuple[OpaqueUse, ...] = ()
    fixed_dims: dict[str, int] = field(default_factory=dict)
    dim_names: dict[str, str] = field(default_factory=dict)
    equal_dims: dict[str, Dim] = field(default_factory=dict)


def import_model(
    model: Path | str | Any,
    *,
    dims: Mapping[str, int] | None = None,
    random_weights: bool = False,
    allow_opaque: bool = False,
    known: Mapping[str, np.ndarray | None] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Imported:
    """The ONNX model (a path, or a ModelProto without external data) in HLIR.

    `dims` gives named dimensions their representative values; they stay symbolic, but for those whose value decides
    what there is to compute (the length of an unrolled loop). With `random_weights`, constants whose file is missing
    get made-up data when loaded. With `allow_opaque`, operators that are not lowered become CustomOp nodes where
    somebody can run them and their results' shapes are known. `known` gives inputs of the model values (None: absent)
    that hold for every run; they are no inputs of the graph then. `input_shapes` are shapes that some inputs will have:
    the named dimensions that `dims` does not give take their values from these, where the ranks agree.

    Raises ModelError; of these, NotKnownError when more had to be known: its `inputs` say of what."""
    with _no_collection(), np.errstate(all="ignore"), Trials() as trials:
        file = open_model(model)
        fixed: frozenset[str] = frozenset()
        equal: dict[str, Dim] = {}
        while True:
            named = NamedDims(dims or {}, input_shapes or {}, fixed, equal)
            try:
                with symbolic.noting() as assumed:
                    imported = _Import(file, named, random_weights, trials if allow_opaque else None, known or {}).run()
                imported.graph.assumed.extend(assumed)
                return imported
            except NotKnownError as error:
                if error.dims <= fixed:
                    raise
                fixed |= error.dims
            except UnequalDimsError as error:
                united = named.united(error.pairs)
                if united is None:
                    raise
                equal = united


@contextmanager
def _no_collection() -> Iterator[None]:
    """Cyclic garbage collection off: an import makes many objects that all stay, and none in cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Import:
    def __init__(
        self,
        model: ModelFile,
        dims: NamedDims,
        random_weights: bool,
        trials: Trials | None,
        known: Mapping[str, np.ndarray | None],
    ) -> None:
        self.model = model
        self.builder = Builder()
        self.tensors = TensorReader(model.path, random_weights, holds_weights=model.holds_weights)
        self.initializers = {t.name: t for t in model.graph.initializer}
        self.known = known
        self.dims = dims
        self.opaque = None if trials is None else OpaqueOperators(model, self.builder, dims, trials)
        self.scope = Scope(model.opsets, self.initializers)
        self.lowering = Lowering(self.builder, self.tensors, self.opaque)

    def run(self) -> Imported:
        self._check_operators()
        inputs = [v for v in self.model.graph.input if v.name not in self.known and v.name not in self.initializers]
        self.scope.values.update(self.known)
        for given in inputs:
            self.dims.declare(given.name, _tensor_type(given).shape.dim)
        self.dims.check_given()
        for given in inputs:
            self.scope.values[given.name] = self._input(given)
        try:
            for node in self.model.nodes:
                self.lowering.lower(node, self.scope)
        except NotKnownError as error:
            error.inputs = self._inputs_of(error.value)
            raise
        graph = self.builder.finish(
            self.model.path.stem, [(v.name, self._output(v.name)) for v in self.model.graph.output]
        )
        graph.dims.update(self.dims.open)
        return Imported(
            graph,
            len(self.model.graph.node),
            sum(_weight_elements(t) for t in self.initializers.values()),
            self.tensors.missing,
            () if self.opaque is None else self.opaque.finish(graph),
            self.dims.closed,
            self.dims.names,
            self.dims.equal,
        )

    def _inputs_of(self, value: Value | None) -> tuple[str, ...]:
        """The names of the model's inputs that `value` is computed from."""
        nodes = self.builder.nodes
        seen: set[int] = set()
        names: list[str] = []
        stack = [value.source] if isinstance(value, View) else []
        while stack:
            node = nodes[stack.pop()]
            if node.id not in seen:
                seen.add(node.id)
                stack += [operand.source for operand in node.operands]
                if isinstance(node.op, ops.Input):
                    names.append(node.op.name)
        return tuple(sorted(names))

    def _check_operators(self) -> None:
        if self.opaque is not None:
            return
        missing = [use for use in operator_uses(self.model.nodes, self.model.opsets) if not use.supported]
        if missing:
            shown = ", ".join(_unsupported_text(use) for use in missing[:MOST_SHOWN])
            more = f" and {len(missing) - MOST_SHOWN} more" if len(missing) > MOST_SHOWN else ""
            raise NotLoweredError(f"unsupported operators: {shown}{more}", _advice(missing))

    def _input(self, given: Any) -> View:
        tensor = _tensor_type(given)
        dtype = _input_dtype(printable(given.name), tensor.elem_type)
        shape = self.dims.shape(given.name, tensor.shape.dim)
        self.builder.label = given.name
        return self.builder.unique_node(ops.Input(given.name), (), shape, dtype)

    def _output(self, name: str) -> View:
        unheld = self.scope.unheld_value(name)
        if unheld is not None:
            raise NotLoweredError(
                f"output '{printable(name)}' is {unheld.kind}", "what a model gives must be a tensor of a known shape"
            )
        value = self.lowering.value(name, self.scope)
        if value is None:
            raise ModelError(f"output '{printable(name)}' has no value")
        self.builder.label = name
        try:
            view = self.builder.contiguous(value)
        except ModelError as error:
            raise ModelError(f"output '{printable(name)}': {error.message}", error.hint) from error
        source = self.builder.nodes[view.source]
        if isinstance(source.op, ops.Input):  # an output has a buffer of its own
            return self.builder.copy(view)
        return view


def _tensor_type(given: Any) -> Any:
    """The TypeProto.Tensor of an input. Raises ModelError when it is none, or without a shape."""
    kind = given.type.optional_type.elem_type if given.type.HasField("optional_type") else given.type
    if not kind.HasField("tensor_type"):
        raise ModelError(f"input '{printable(given.name)}' is not a tensor")
    if not kind.tensor_type.HasField("shape"):
        raise ModelError(
            f"input '{printable(given.name)}' has no shape", "export the model with the shapes of its inputs"
        )
    return kind.tensor_type


def _input_dtype(name: str, elem_type: int) -> DType:
    from onnx import TensorProto, helper

    try:
        dtype = graph_dtype(helper.tensor_dtype_to_np_dtype(elem_type))
    except (KeyError, ValueError, TypeError):
        dtype = None
    if dtype is None:
        known = elem_type in TensorProto.DataType.values()
        shown = TensorProto.DataType.Name(elem_type).lower() if known else str(elem_type)
        raise ModelError(f"input '{name}' is {shown}, which is not supported", SUPPORTED)
    return dtype


def _weight_elements(tensor: Any) -> int:
    if tensor.data_type not in (1, 2, 3, 10, 11, 16):  # floats, and the bytes that stand for them
        return 0
    count = 1
    for d in tensor.dims:
        count *= d
    return count


def _advice(missing: Sequence[OperatorUse]) -> str:
    """What to do about operators that are not supported."""
    if any(use.domain == "com.microsoft" for use in missing):
        return (
            "com.microsoft is onnxruntime's own: quantize with QuantFormat.QDQ, and keep models as they are before it "
            "optimizes them"
        )
    return ""


def _unsupported_text(use: OperatorUse) -> str:
    domain = f"{printable(use.domain)}::" if use.domain else ""
    return f"{domain}{printable(use.name)} x{use.count} (first: '{printable(use.first_node)}')"
