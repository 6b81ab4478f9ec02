"""Operators on f16 and bf16: computed in f32, and rounded where the operator ends.

That is what ONNX's operators mean in half precision, and what onnxruntime and PyTorch do: an operator is one function,
which rounds once, not once per step of the way that it is computed. Weights and what goes from operator to operator
keep the model's dtype; sums accumulate in f32. The conversions are nodes like any other, so that rules and the search
see them: where a matmul's operands are converted is a choice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench.frontend.builder import Builder
from workbench.frontend.definitions import schema
from workbench.frontend.model_file import OnnxNode
from workbench.frontend.registry import standard
from workbench.frontend.values import Value, dtype_of, half_of
from workbench.ir.dtype import DType

NATIVE = frozenset(
    {
        # what moves elements, chooses between them or compares them
        "Concat", "DepthToSpace", "Expand", "Flatten", "Pad", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze",
        "Tile", "Transpose", "Unsqueeze", "Gather", "GatherElements", "GatherND", "OneHot", "ReverseSequence", "Trilu",
        "Scatter", "ScatterElements", "ScatterND", "TensorScatter", "Compress", "NonZero", "TopK", "Where", "Identity",
        "Dropout", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsInf", "IsNaN", "Max", "Min", "Clip",
        "Relu", "Abs", "Neg", "Sign", "Floor", "Ceil", "ArgMax", "ArgMin", "Hardmax", "ReduceMax", "ReduceMin",
        "MaxPool", "GlobalMaxPool", "MaxUnpool", "EyeLike", "Shape", "Size",
        # what is about types, or runs operators of its own
        "Cast", "CastLike", "BitCast", "If", "Loop", "Scan", "Optional", "OptionalGetElement", "OptionalHasElement",
        # what a single primitive computes, which rounds once, whose sums accumulate in f32
        "Add", "Sub", "Mul", "Sqrt", "Reciprocal", "Erf", "Round", "ReduceSum", "luminalGraphBreak",
    }
)  # fmt: skip
"""Operators that are lowered in half precision as they are."""


def widened(b: Builder, node: OnnxNode, inputs: list[Value | None]) -> list[Value | None]:
    """The inputs with those in half precision as f32; `inputs` itself where the operator takes them as they are."""
    if node.op_type in NATIVE or not any(half_of(x) for x in inputs):
        return inputs
    return [x if x is None or half_of(x) is None else b.cast(x, np.float32) for x in inputs]


def narrowed(
    b: Builder, node: OnnxNode, opset: int, inputs: Sequence[Value | None], results: Sequence[Value | None]
) -> tuple[Value | None, ...]:
    """The results, of which those in f32 that have the type of an input in half precision are rounded to it."""
    return tuple(
        x if x is None or to is None or dtype_of(x) != np.float32 else b.cast(x, to.numpy)
        for x, to in zip(results, _result_types(node, opset, inputs, len(results)), strict=True)
    )


def _result_types(
    node: OnnxNode, opset: int, inputs: Sequence[Value | None], count: int
) -> list[DType | None]:
    """The half that each output is of. An operator's schema says which inputs and outputs share a type; where the
    inputs of that type are absent, or there is no schema, it is the half that there is."""
    halves = [half_of(x) for x in inputs]
    first = next((h for h in halves if h), None)
    found = schema(standard(node.domain), node.op_type, opset)
    if found is None or not found.inputs:
        return [first] * count
    by_type: dict[str, DType | None] = {formal.type_str: first for formal in found.inputs[len(inputs) :]}
    for position, x in reversed(list(enumerate(inputs))):
        formal = found.inputs[min(position, len(found.inputs) - 1)]
        by_type[formal.type_str] = first if x is None else halves[position]
    outputs = found.outputs
    return [by_type.get(outputs[min(i, len(outputs) - 1)].type_str) for i in range(count)]
