"""The importer and the interpreter as an ONNX backend: `prepare(model).run(inputs)`, and for `onnx.backend.test`.

    import workbench.frontend.backend as backend
    outputs = backend.prepare(onnx.load("model.onnx")).run([array, ..])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx.backend.base import Backend as OnnxBackend
from onnx.backend.base import BackendRep, namedtupledict

from workbench.errors import InputError, WorkbenchError, printable
from workbench.frontend.importer import Imported, import_model
from workbench.frontend.values import NotKnownError, NotLoweredError
from workbench.ir import expr as ex
from workbench.ir import ops
from workbench.ir.expr import Expr
from workbench.ir.hlir import Graph
from workbench.ir.interpret import interpret


class PreparedModel(BackendRep):  # type: ignore[misc]
    """A model to run on NumPy arrays. What is given at run time but must be known when a model is imported (axes, pads,
    shapes) is found out at the first run; later runs import again only when it changes."""

    def __init__(self, model: ModelProto) -> None:
        held = {t.name for t in model.graph.initializer}
        self.model = model
        self.inputs = [v.name for v in model.graph.input if v.name not in held]
        self.outputs = [v.name for v in model.graph.output]
        self.known: frozenset[str] = frozenset()
        """Inputs whose values the graph at hand holds for."""
        self._imported: tuple[dict[str, np.ndarray | None], Imported] | None = None

    def run(self, inputs: Any, **options: Any) -> Any:
        """The outputs, a namedtuple of arrays, for one array per input, in order; None for an absent optional one.

        Raises ModelError for a model that cannot be imported, and InputError for inputs that it does not have."""
        if len(inputs) > len(self.inputs):
            raise InputError(f"{len(inputs)} inputs; the model has {len(self.inputs)}")
        arrays = [None if x is None else np.asarray(x) for x in inputs]
        given = dict(zip(self.inputs, [*arrays, *[None] * (len(self.inputs) - len(arrays))], strict=True))
        graph = self.imported(given).graph
        found = interpret(graph, given, _dims(graph, given))
        return namedtupledict("Outputs", self.outputs)(*(found[name] for name in self.outputs))

    def imported(self, given: dict[str, np.ndarray | None]) -> Imported:
        """The model imported for these inputs, with those known that it cannot be imported without.

        Raises ModelError."""
        while True:
            absent = {name for name, array in given.items() if array is None}
            known = {name: given[name] for name in self.known | absent}
            if self._imported is not None and _same(known, self._imported[0]):
                return self._imported[1]
            try:
                self._imported = known, import_model(self.model, known=known)
            except NotKnownError as error:
                if self.known.issuperset(error.inputs):
                    raise
                self.known |= set(error.inputs)


def _same(some: dict[str, np.ndarray | None], others: dict[str, np.ndarray | None]) -> bool:
    return some.keys() == others.keys() and all(np.array_equal(a, others[n]) for n, a in some.items())  # type: ignore[arg-type]


def _dims(graph: Graph, given: dict[str, np.ndarray | None]) -> dict[str, int]:
    """The values of named dimensions, by the shapes of the arrays.

    Raises InputError for an array that does not fit its input."""
    dims: dict[str, int] = {}
    for node_id in graph.inputs:
        node = graph[node_id]
        assert isinstance(node.op, ops.Input)
        name = node.op.name
        array = given.get(name)
        if array is None:
            raise InputError(f"input '{printable(name)}' is not given")
        if array.ndim != len(node.shape):
            raise InputError(f"input '{printable(name)}' has {len(node.shape)} axes; the array has {array.ndim}")
        for extent, size in zip(node.shape, array.shape, strict=True):
            key = str(extent)
            wanted = dims.setdefault(key, size) if isinstance(extent, Expr) else extent
            if wanted != size or (isinstance(extent, Expr) and ex.variables(extent) != {key}):
                raise InputError(f"input '{printable(name)}' has an axis of {extent}; the array has {size} there")
    return {**graph.dims, **dims}


class Backend(OnnxBackend):  # type: ignore[misc]
    """ONNX's interface to a backend. Everything runs in NumPy, whatever the device is called."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **options: Any) -> bool:
        """Whether the model can be imported once its inputs are given."""
        try:
            import_model(model)
        except NotKnownError:
            return True
        except NotLoweredError:
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **options: Any) -> PreparedModel:
        """A model to run. Raises ModelError at its first run when it cannot be imported."""
        if not cls.supports_device(device):
            raise InputError(f"'{printable(device)}' is no device of this backend", "it has CPU")
        return PreparedModel(model)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Sequence[np.ndarray],
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **options: Any,
    ) -> Any:
        """The outputs of one operator. `opset_version` is its version; the newest where it is left out."""
        given = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in zip([n for n in node.input if n], inputs, strict=True)
        ]
        made = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in node.output if name]
        graph = helper.make_graph([node], "node", given, made)
        opsets = [helper.make_opsetid(node.domain, options["opset_version"])] if "opset_version" in options else None
        return cls.prepare(helper.make_model(graph, opset_imports=opsets), device).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether `device` is the CPU."""
        return device.split(":")[0] == "CPU"


__all__ = ["Backend", "PreparedModel", "WorkbenchError", "is_compatible", "prepare", "run_model", "run_node",
           "supports_device"]  # fmt: skip

is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
