"""A process of its own that says what small ONNX models yield and who can run them: on some malformed models ONNX's
shape inference does not raise but crashes, and onnxruntime may too.

Run as `python -m workbench.runtime.trial`; it reads one model (bytes) per message and answers with a `Trial`, see
`frames`.
"""

from __future__ import annotations

import re
import sys
from typing import Any, BinaryIO

import msgspec

from workbench import frames
from workbench.errors import printable
from workbench.runtime.opaque import available, prepared
from workbench.trials import Output, Trial

_LONGEST = 300


def tried(data: bytes) -> Trial:
    """What the model yields, as far as ONNX's shape inference or onnxruntime's knows, and the best that can run it."""
    import onnx

    proto = onnx.ModelProto.FromString(data)
    try:
        proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except Exception:  # of its own kinds; what it does not know, onnxruntime may
        proto = onnx.ModelProto.FromString(data)
    outputs = [_of_onnx(value.type) for value in proto.graph.output]
    carried = _carried(proto.graph)
    outputs = [_better(o, carried.get(v.name, o)) for o, v in zip(outputs, proto.graph.output, strict=True)]
    refusals: dict[str, str] = {}
    for runner in available():
        try:
            model = prepared(data, runner)
        except Exception as problem:  # each has its own
            said = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
            refusals[runner] = printable(said, _LONGEST)
            continue
        if runner == "onnxruntime":
            told = [_of_onnxruntime(o) for o in model.session.get_outputs()]  # type: ignore[attr-defined]
            outputs = [_better(a, b) for a, b in zip(outputs, told, strict=True)]
        return Trial(tuple(outputs), runner, refusals)
    return Trial(tuple(outputs), None, refusals)


def _of_onnx(kind: Any) -> Output:
    from onnx import TensorProto

    which = kind.WhichOneof("value")
    if which != "tensor_type":
        return Output(0, None, {"sequence_type": "a sequence", "optional_type": "an optional"}.get(which, "unknown"))
    tensor = kind.tensor_type
    element = tensor.elem_type
    known = element in TensorProto.DataType.values() and element != TensorProto.UNDEFINED
    name = TensorProto.DataType.Name(element).lower() if known else "unknown"
    dims = None
    if tensor.HasField("shape"):
        dims = tuple(
            d.dim_value if d.HasField("dim_value") else d.dim_param if d.HasField("dim_param") else None
            for d in tensor.shape.dim
        )
    return Output(element if known else 0, dims, name)


def _of_onnxruntime(output: Any) -> Output:
    from onnx import TensorProto

    found = re.fullmatch(r"tensor\((\w+)\)", output.type)
    if found is None:
        return Output(0, None, "a sequence" if output.type.startswith("seq") else printable(output.type, 60))
    element = TensorProto.DataType.Value(_ONNX_NAME.get(found[1], found[1].upper()))
    dims = tuple(d if isinstance(d, int | str) else None for d in output.shape)
    return Output(element, dims or None, found[1])  # it says () also of what it does not know


_ONNX_NAME = {"float16": "FLOAT16", "bfloat16": "BFLOAT16"}
"""What onnxruntime calls element types, where ONNX's name is not just its upper case."""


def _better(a: Output, b: Output) -> Output:
    """The one of two accounts that says more."""

    def known(x: Output) -> tuple[bool, int]:
        return x.element != 0, -1 if x.dims is None else sum(d is not None for d in x.dims)

    return b if known(b) > known(a) else a


def _carried(graph: Any) -> dict[str, Output]:
    """What a loop carries on keeps its type where the body yields what it was given: ONNX leaves that open."""
    types = {v.name: _of_onnx(v.type) for v in (*graph.input, *graph.value_info)}
    types |= {t.name: Output(t.data_type, tuple(t.dims), "") for t in graph.initializer}
    found: dict[str, Output] = {}
    for node in graph.node:
        if node.op_type != "Loop" or node.domain not in ("", "ai.onnx"):
            continue
        body = next(a.g for a in node.attribute if a.name == "body")
        for first, made, name in zip(node.input[2:], body.output[1:], node.output, strict=False):
            before, after = types.get(first), _of_onnx(made.type)
            same = before is not None and (before.element, before.dims) == (after.element, after.dims)
            if same and after.dims is not None and None not in after.dims:
                found[name] = after
    return found


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the other side closes the pipe."""
    decoder = msgspec.msgpack.Decoder(bytes)
    while True:
        try:
            data = decoder.decode(frames.receive(requests))
        except frames.Closed:
            return
        frames.send(answers, tried(data))


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
