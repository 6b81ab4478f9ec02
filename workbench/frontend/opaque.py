"""Operators that are not lowered: kept whole as CustomOp nodes, run by whatever runs ONNX nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from workbench.frontend.builder import Builder
from workbench.frontend.coverage import OperatorUse
from workbench.frontend.inference import static_types
from workbench.frontend.model_file import ModelFile, node_name
from workbench.frontend.registry import standard
from workbench.frontend.values import NotLoweredError, Value, View, graph_dtype
from workbench.ir import ops
from workbench.ir.dtype import DType
from workbench.ir.hlir import CustomOpSpec, Operand


class OpaqueOperators:
    """Makes CustomOp nodes. `specs` says what runs each, `used` counts them by operator."""

    def __init__(self, model: ModelFile) -> None:
        self.model = model
        self.specs: dict[int, CustomOpSpec] = {}
        self.used: Counter[str] = Counter()

    def can_hold(self, use: OperatorUse) -> bool:
        """Whether every use of this operator has one output whose shape and element type are known."""
        nodes = [n for n in self.model.nodes if n.op_type == use.name and standard(n.domain) == use.domain]
        return all(len(n.output) == 1 and n.output[0] in self._inferred and not _has_subgraph(n) for n in nodes)

    def node(self, builder: Builder, node: Any, inputs: Sequence[Value | None]) -> View:
        """The CustomOp node of an ONNX node; operands that are not contiguous are copied first."""
        inferred = self._inferred.get(node.output[0])
        if inferred is None or len(node.output) != 1 or _has_subgraph(node):
            raise NotLoweredError("the operator is not supported, and the shape of its result is not known")
        shape, dtype = inferred
        views = [builder.contiguous(x) for x in inputs if x is not None]
        spec_id = len(self.specs)
        self.specs[spec_id] = CustomOpSpec(
            node_name(node), node.proto.SerializeToString(), tuple(sorted(self.model.opsets.items()))
        )
        self.used[node.op_type] += 1
        edges = tuple(Operand(v.source, v.layout) for v in views)
        return builder.unique_node(ops.CustomOp(spec_id), edges, shape, dtype)

    @cached_property
    def _inferred(self) -> dict[str, tuple[tuple[int, ...], DType]]:
        """Shape and element type of every value for which both are static and supported."""
        from onnx import helper

        found: dict[str, tuple[tuple[int, ...], DType]] = {}
        for name, (element, shape) in static_types(self.model.proto).items():
            try:
                dtype = graph_dtype(helper.tensor_dtype_to_np_dtype(element))
            except (KeyError, ValueError, TypeError):  # an element type that this onnx does not know, or none
                continue
            if dtype is not None:
                found[name] = (shape, dtype)
        return found


def _has_subgraph(node: Any) -> bool:
    return any(a.type in (5, 10) for a in node.attribute)
