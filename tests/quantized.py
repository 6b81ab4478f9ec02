"""Quantized copies of models, made by onnxruntime's own quantizer, with what onnxruntime computes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

TYPES = {"u8": QuantType.QUInt8, "i8": QuantType.QInt8}


def dynamic(source: Path, target: Path, weights: str = "i8", operators: Sequence[str] = ("MatMul", "Gather")) -> None:
    """Activations are quantized as they come (DynamicQuantizeLinear), weights by their ranges."""
    quantize_dynamic(source, target, op_types_to_quantize=list(operators), weight_type=TYPES[weights])


def static(
    source: Path,
    target: Path,
    *,
    activations: str = "u8",
    weights: str = "i8",
    per_channel: bool = False,
    qdq: bool = True,
    operators: Sequence[str] | None = None,
) -> None:
    """Quantized by what the model computes of inputs drawn at random, as QuantizeLinear and DequantizeLinear around its
    operators, or as the QLinear forms of them."""
    quantize_static(
        source,
        target,
        _Drawn(source),
        quant_format=QuantFormat.QDQ if qdq else QuantFormat.QOperator,
        activation_type=TYPES[activations],
        weight_type=TYPES[weights],
        per_channel=per_channel,
        op_types_to_quantize=None if operators is None else list(operators),
    )


class _Drawn(CalibrationDataReader):  # type: ignore[misc]
    """Four sets of inputs of a model."""

    def __init__(self, model: Path) -> None:
        self.sets: Iterator[dict[str, np.ndarray]] = iter([drawn_inputs(model, seed) for seed in range(4)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.sets, None)


def drawn_inputs(model: Path, seed: int) -> dict[str, np.ndarray]:
    """Inputs by name: normal floats; integers below 2 in a mask, else below 400. Named dimensions are 3."""
    rng = np.random.default_rng(seed)
    inputs: dict[str, np.ndarray] = {}
    for value in onnx.load(model, load_external_data=False).graph.input:
        shape = [d.dim_value or 3 for d in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            inputs[value.name] = rng.standard_normal(shape, np.float32)
        else:
            inputs[value.name] = rng.integers(0, 2 if "mask" in value.name or "type" in value.name else 400, shape)
    return inputs


def beside(model: Path, seed: int = 9) -> None:
    """Write the .npz with inputs and what onnxruntime, its optimisations off, makes of them."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.read_bytes(), options, providers=["CPUExecutionProvider"])
    inputs = drawn_inputs(model, seed)
    outputs = session.run(None, inputs)
    arrays = {f"in_{name}": array for name, array in inputs.items()}
    arrays |= {f"out_{v.name}": array for v, array in zip(session.get_outputs(), outputs, strict=True)}
    np.savez(model.with_suffix(".npz"), **arrays)
