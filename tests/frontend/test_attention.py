"""The attention operators against onnx's reference implementation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from workbench.frontend import import_model
from workbench.ir.hlir import is_contraction
from workbench.ir.interpret import interpret

WriteModel = Callable[..., Path]
RNG = np.random.default_rng(11)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


HEADS = {"q": f32(2, 4, 3, 8), "k": f32(2, 2, 5, 8), "v": f32(2, 2, 5, 6)}
FLAT = {"q": f32(2, 3, 32), "k": f32(2, 5, 16), "v": f32(2, 5, 12)}
PAST = {"pk": f32(2, 2, 4, 8), "pv": f32(2, 2, 4, 6)}


@pytest.mark.parametrize(
    ("names", "inputs", "attributes"),
    [
        ("q k v", HEADS, {}),
        ("q k v", HEADS, {"is_causal": 1, "scale": 0.3}),
        ("q k v", FLAT, {"q_num_heads": 4, "kv_num_heads": 2, "softcap": 2.0}),
        ("q k v m", {**HEADS, "m": RNG.random((3, 5)) < 0.5}, {}),
        ("q k v m", {**HEADS, "m": np.zeros((3, 5), bool)}, {}),
        ("q k v m", {**HEADS, "m": f32(2, 1, 3, 5)}, {"is_causal": 1}),
        ("q k v _ pk pv", {**HEADS, **PAST}, {"is_causal": 1}),
    ],
)
def test_attention_matches_the_reference(
    names: str, inputs: dict[str, np.ndarray], attributes: dict[str, Any], write_model: WriteModel
) -> None:
    operands = ["" if name == "_" else name for name in names.split()]
    path = write_model([helper.make_node("Attention", operands, ["y"], **attributes)], inputs, opset=23)
    (want,) = ReferenceEvaluator(onnx.load(path)).run(["y"], inputs)
    graph = import_model(path).graph
    np.testing.assert_allclose(interpret(graph, inputs)["y"], want, rtol=1e-4, atol=1e-6)
    assert sum(is_contraction(graph, node) for node in graph) == 2


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("part", [0, 4])
def test_rotary_embedding_matches_the_reference(interleaved: int, part: int, write_model: WriteModel) -> None:
    inputs = {
        "x": f32(2, 4, 3, 8),
        "c": f32(10, (part or 8) // 2),
        "s": f32(10, (part or 8) // 2),
        "p": np.array([[0, 1, 2], [7, 8, 9]]),
    }
    made = helper.make_node("RotaryEmbedding", list("xcsp"), ["y"], interleaved=interleaved, rotary_embedding_dim=part)
    path = write_model([made], inputs, opset=23)
    (want,) = ReferenceEvaluator(onnx.load(path)).run(["y"], inputs)
    np.testing.assert_allclose(interpret(import_model(path).graph, inputs)["y"], want, rtol=1e-5, atol=1e-6)
