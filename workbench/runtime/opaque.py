"""Custom operators: one ONNX node, run on the host by onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from workbench.errors import WorkbenchError

IR_VERSION = 10


@lru_cache(maxsize=256)
def _evaluator(node_proto: bytes, opsets: tuple[tuple[str, int], ...], dtypes: tuple[str, ...]) -> tuple[Any, str]:
    import onnx
    from onnx.reference import ReferenceEvaluator

    node = onnx.NodeProto.FromString(node_proto)
    used = 0
    for position, name in enumerate(node.input):
        if name:
            node.input[position] = f"operand{used}"
            used += 1
    if used != len(dtypes):
        raise WorkbenchError(f"custom operator {node.op_type} takes {used} operands, not {len(dtypes)}")
    wanted = next(name for name in node.output if name)
    types = [onnx.helper.np_dtype_to_tensor_dtype(np.dtype(d)) for d in dtypes]
    inputs = [onnx.helper.make_tensor_value_info(f"operand{k}", t, None) for k, t in enumerate(types)]
    outputs = [onnx.helper.make_empty_tensor_value_info(wanted)]
    graph = onnx.helper.make_graph([node], "custom", inputs, outputs)
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
    return ReferenceEvaluator(model), wanted


def run_opaque(node_proto: bytes, opsets: tuple[tuple[str, int], ...], operands: Sequence[np.ndarray]) -> np.ndarray:
    """The first named output of a node. `operands` are those of its inputs that have a name, in order, in their shapes.

    Raises WorkbenchError for an operator that the evaluator does not know or that fails."""
    try:
        evaluator, wanted = _evaluator(node_proto, opsets, tuple(str(o.dtype) for o in operands))
        (result,) = evaluator.run([wanted], {f"operand{k}": o for k, o in enumerate(operands)})
    except WorkbenchError:
        raise
    except Exception as problem:
        raise WorkbenchError(f"custom operator failed: {type(problem).__name__}: {problem}") from problem
    return np.asarray(result)
