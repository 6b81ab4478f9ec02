"""ONNX to HLIR: inputs and named dimensions, then one operator after the other, then what the outputs need."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import ModelError, printable
from workbench.frontend import operators as _operators  # registers the table's rows
from workbench.frontend.builder import SMALL, Builder, fold
from workbench.frontend.coverage import OperatorUse, operator_uses
from workbench.frontend.model_file import ModelFile, node_name, open_model, place
from workbench.frontend.opaque import OpaqueOperators
from workbench.frontend.registry import Operator, find, foldable
from workbench.frontend.tensors import TensorReader
from workbench.frontend.values import IMPORTED, NotLoweredError, Value, View, graph_dtype
from workbench.ir import expr as ex
from workbench.ir import ops
from workbench.ir.dtype import DType
from workbench.ir.hlir import ExternalData, Graph
from workbench.ir.layout import Dim

assert _operators

_SCALARS = 16
"""Elements up to which even a float matrix counts as a known array."""
_RENAMED = {"transA": "trans_a", "transB": "trans_b"}
_INHERENT = (ValueError, IndexError, TypeError, KeyError, OverflowError, ZeroDivisionError, MemoryError)
"""What a malformed model makes NumPy and the layouts raise."""


@dataclass(slots=True)
class Imported:
    """An imported model. `parameters` counts the elements of its float initializers, `missing_weights` names those
    whose file is not there, `unsupported` the operators kept as opaque ones, by how often."""

    graph: Graph
    onnx_nodes: int
    parameters: int
    missing_weights: list[str] = field(default_factory=list)
    unsupported: dict[str, int] = field(default_factory=dict)


def import_model(
    path: Path | str,
    *,
    dims: Mapping[str, int] | None = None,
    random_weights: bool = False,
    allow_opaque: bool = False,
) -> Imported:
    """The ONNX model at `path` in HLIR.

    `dims` gives named dimensions their representative values; they stay symbolic. With `random_weights`, constants
    whose file is missing get made-up data when loaded. With `allow_opaque`, operators that are not lowered become
    CustomOp nodes where their result's shape is known. Raises ModelError."""
    with _no_collection(), np.errstate(all="ignore"):
        return _Import(open_model(path), dict(dims or {}), random_weights, allow_opaque).run()


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
    def __init__(self, model: ModelFile, dims: dict[str, int], random_weights: bool, allow_opaque: bool) -> None:
        self.model = model
        self.builder = Builder()
        self.tensors = TensorReader(model.path.parent, random_weights)
        self.initializers = {t.name: t for t in model.graph.initializer}
        self.values: dict[str, Value | None] = {"": None}
        self.dims = NamedDims(dims)
        self.opaque = OpaqueOperators(model) if allow_opaque else None

    def run(self) -> Imported:
        self._check_operators()
        for given in self.model.graph.input:
            if given.name not in self.initializers:
                self.values[given.name] = self._input(given)
        self.dims.check_all_used()
        for node in self.model.nodes:
            self._lower(node)
        graph = self.builder.finish(
            self.model.path.stem, [(v.name, self._output(v.name)) for v in self.model.graph.output]
        )
        graph.dims.update(self.dims.values)
        if self.opaque is not None:
            graph.custom_ops.update(self.opaque.specs)
        return Imported(
            graph,
            len(self.model.graph.node),
            sum(_float_elements(t) for t in self.initializers.values()),
            self.tensors.missing,
            dict(self.opaque.used) if self.opaque is not None else {},
        )

    def _check_operators(self) -> None:
        missing = [use for use in operator_uses(self.model.nodes, self.model.opsets) if not use.supported]
        if self.opaque is not None:
            missing = [use for use in missing if not self.opaque.can_hold(use)]
        if missing:
            raise ModelError(
                "unsupported operators: " + ", ".join(_unsupported_text(use) for use in missing),
                "" if self.opaque is not None else "opaque operators can be allowed where their shapes are known",
            )

    def _input(self, given: Any) -> View:
        tensor = given.type.tensor_type
        name = printable(given.name)
        if not given.type.HasField("tensor_type"):
            raise ModelError(f"input '{name}' is not a tensor")
        if not tensor.HasField("shape"):
            raise ModelError(f"input '{name}' has no shape", "export the model with the shapes of its inputs")
        dtype = _input_dtype(name, tensor.elem_type)
        shape = tuple(self.dims.extent(given.name, axis, d) for axis, d in enumerate(tensor.shape.dim))
        self.builder.label = given.name
        return self.builder.unique_node(ops.Input(given.name), (), shape, dtype)

    def _output(self, name: str) -> View:
        value = self._value(name)
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

    def _value(self, name: str) -> Value | None:
        if name in self.values:
            return self.values[name]
        tensor = self.initializers[name]
        data, shape, dtype = self.tensors.read(tensor)
        value: Value
        if not isinstance(data, ExternalData) and data.size <= SMALL:
            value = self.builder.lift(data, name) if _is_matrix(data) else data
        else:
            held = graph_dtype(dtype)
            if held is None:
                raise ModelError(f"initializer '{printable(name)}' is {dtype}, which is not supported")
            value = self.builder.constant(data, shape, held, name)
        self.values[name] = value
        return value

    def _lower(self, node: Any) -> None:
        row = find(node.domain, node.op_type, self._opset(node.domain))
        self.builder.label = node_name(node)
        inputs = [self._value(name) for name in node.input]
        try:
            results = self._results(node, row, inputs)
        except ModelError as error:
            raise type(error)(f"{place(node)}: {error.message}", error.hint) from error
        except _INHERENT as error:
            raise ModelError(f"{place(node)}: {printable(str(error)) or type(error).__name__}") from error
        outputs = list(node.output)
        if len(results) < len(outputs) and any(outputs[len(results) :]):
            raise ModelError(f"{place(node)}: more outputs than the operator has")
        for name, result in zip(outputs, results, strict=False):
            if name:
                self.values[name] = result

    def _results(self, node: Any, row: Operator | None, inputs: list[Value | None]) -> tuple[Value | None, ...]:
        try:
            if row is None:
                raise NotLoweredError("the operator is not supported")
            return self._apply(row, node, inputs)
        except NotLoweredError:
            if self.opaque is None:
                raise
            return (self.opaque.node(self.builder, node, inputs),)

    def _apply(self, row: Operator, node: Any, inputs: list[Value | None]) -> tuple[Value | None, ...]:
        if not row.fewest_inputs <= len(inputs) <= row.most_inputs:
            raise ModelError(f"{len(inputs)} inputs")
        if row.fewest_inputs and any(x is None for x in inputs[: row.fewest_inputs]):
            raise ModelError("a required input is absent")
        attributes = self._attributes(row, node)
        if row.fold is not None:
            arrays = foldable(inputs)
            if arrays is not None:
                return (fold(row.fold, *arrays),)
        if row.counts_outputs:
            attributes["outputs"] = len(node.output)
        result = row.lower(self.builder, *inputs, **attributes)
        return result if isinstance(result, tuple) else (result,)

    def _attributes(self, row: Operator, node: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if not node.attribute and not row.required:
            return found
        for attribute in node.attribute:
            name = _RENAMED.get(attribute.name, attribute.name)
            if name not in row.attributes:
                raise NotLoweredError(f"attribute '{printable(attribute.name)}' is not supported")
            found[name] = self._attribute(attribute)
        absent = row.required - found.keys()
        if absent:
            raise ModelError(f"attribute '{min(absent)}' is absent")
        return found

    def _attribute(self, attribute: Any) -> Any:
        match attribute.type:
            case 1:
                return attribute.f
            case 2:
                return attribute.i
            case 3:
                return attribute.s.decode("utf-8", "replace")
            case 4:
                return self.tensors.array(attribute.t)
            case 6:
                return list(attribute.floats)
            case 7:
                return list(attribute.ints)
            case 8:
                return [s.decode("utf-8", "replace") for s in attribute.strings]
            case _:
                raise NotLoweredError(f"attribute '{printable(attribute.name)}' is of an unsupported kind")

    def _opset(self, domain: str) -> int:
        return self.model.opsets.get("" if domain == "ai.onnx" else domain, 1)


class NamedDims:
    """The named dimensions of the inputs and their representative values."""

    def __init__(self, given: Mapping[str, int]) -> None:
        self.given = dict(given)
        self.values: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._claimed: set[str] = set()
        for name, value in self.given.items():
            if value < 1:
                raise ModelError(f"dimension '{printable(name)}' is given as {value}; it must be at least 1")

    def extent(self, input_name: str, axis: int, dim: Any) -> Dim:
        """The extent that an input's TensorShapeProto.Dimension stands for."""
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            return int(dim.dim_value)
        if dim.HasField("dim_value") and dim.dim_value != -1:
            raise ModelError(f"input '{printable(input_name)}' has the extent {dim.dim_value} on axis {axis}")
        named = any(c.isalnum() for c in dim.dim_param)  # some exporters write "?" for every unknown extent
        return ex.var(self._name(dim.dim_param if named else f"{input_name}_{axis}"))

    def _name(self, original: str) -> str:
        known = self._names.get(original)
        if known is not None:
            return known
        base = re.sub(r"[^A-Za-z0-9_.]", "_", original) or "dim"
        name = f"{base}_" if base in ("z", "MIter") else base
        suffix = 1
        while name in self.values:
            suffix += 1
            name = f"{base}_{suffix}"
        self._names[original] = name
        claimed = next((key for key in (original, name) if key in self.given), None)
        self.values[name] = 1 if claimed is None else self.given[claimed]
        if claimed is not None:
            self._claimed.add(claimed)
        return name

    def check_all_used(self) -> None:
        """Raises ModelError when a value was given for a dimension that the model does not have."""
        for name in self.given.keys() - self._claimed:
            has = ", ".join(self.values) or "none"
            raise ModelError(f"the model has no dimension '{printable(name)}'", f"it has: {has}")


def _input_dtype(name: str, elem_type: int) -> DType:
    from onnx import TensorProto, helper

    try:
        dtype = graph_dtype(helper.tensor_dtype_to_np_dtype(elem_type))
    except (KeyError, ValueError, TypeError):
        dtype = None
    if dtype is None:
        known = elem_type in TensorProto.DataType.values()
        shown = TensorProto.DataType.Name(elem_type).lower() if known else str(elem_type)
        raise ModelError(f"input '{name}' is {shown}; supported are {', '.join(d.name for d in IMPORTED)}")
    return dtype


def _is_matrix(data: np.ndarray) -> bool:
    """Whether `data` looks like a weight: its layout in memory is then kept, whatever its size."""
    return data.dtype.kind == "f" and data.ndim > 1 and data.size > _SCALARS and graph_dtype(data.dtype) is not None


def _float_elements(tensor: Any) -> int:
    if tensor.data_type not in (1, 10, 11, 16):
        return 0
    count = 1
    for d in tensor.dims:
        count *= d
    return count


def _unsupported_text(use: OperatorUse) -> str:
    domain = f"{printable(use.domain)}::" if use.domain else ""
    return f"{domain}{printable(use.name)} x{use.count} (first: '{printable(use.first_node)}')"
