"""ONNX's own shape inference, in a process of its own: on some malformed models it does not raise but crashes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from workbench.errors import ModelError, printable

_PATIENCE = 120
"""Seconds."""
_CHILD = """
import json, sys
import onnx

proto = onnx.shape_inference.infer_shapes(onnx.ModelProto.FromString(sys.stdin.buffer.read()))
found = []
for value in (*proto.graph.value_info, *proto.graph.output):
    tensor = value.type.tensor_type
    if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
        found.append((value.name, tensor.elem_type, [d.dim_value for d in tensor.shape.dim]))
print(json.dumps(found))
"""


def static_types(proto: Any) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Element type (TensorProto.DataType) and shape of every value of the model for which both are static.

    Raises ModelError when they cannot be inferred."""
    command = [sys.executable, "-P", "-c", _CHILD]  # -P: nothing is imported from the folder this runs in
    try:
        done = subprocess.run(command, input=proto.SerializeToString(), capture_output=True, timeout=_PATIENCE)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise ModelError(f"the shapes of opaque operators cannot be inferred: {printable(str(error))}") from error
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = printable(lines[-1]) if lines else "onnx's shape inference crashed on this model"
        raise ModelError(f"the shapes of opaque operators cannot be inferred: {reason}")
    return {name: (element, tuple(shape)) for name, element, shape in json.loads(done.stdout)}
