"""Half-precision copies of f32 models: weights, inputs, outputs and casts to f32 in another dtype."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from workbench.ir.dtype import DType


def in_half(model: onnx.ModelProto, dtype: DType, *, boundaries: bool = True) -> onnx.ModelProto:
    """`model` with `dtype` for f32 throughout. Without `boundaries` its inputs and outputs stay f32, and casts stand
    behind and before them."""
    element = helper.np_dtype_to_tensor_dtype(dtype.numpy)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    for tensor in graph.initializer:
        _convert(tensor, dtype)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _convert(attribute.t, dtype)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = element
    del graph.value_info[:]
    known = {t.name for t in graph.initializer}
    for value in [v for v in (*graph.input, *graph.output) if v.type.tensor_type.elem_type == TensorProto.FLOAT]:
        if boundaries or value.name in known:
            value.type.tensor_type.elem_type = element
        else:
            _cast_at(graph, value.name, element, any(v.name == value.name for v in graph.input))
    return made


def _convert(tensor: TensorProto, dtype: DType) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        with np.errstate(over="ignore"):
            array = numpy_helper.to_array(tensor).astype(dtype.numpy)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _cast_at(graph: onnx.GraphProto, name: str, element: int, is_input: bool) -> None:
    inner = f"{name}/half"
    for node in graph.node:
        names = node.input if is_input else node.output
        for position, used in enumerate(names):
            if used == name:
                names[position] = inner
    if is_input:
        graph.node.insert(0, helper.make_node("Cast", [name], [inner], to=element))
    else:
        graph.node.append(helper.make_node("Cast", [inner], [name], to=TensorProto.FLOAT))
