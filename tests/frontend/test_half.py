"""Operators on f16 and bf16: rounded once, where they end, weights kept as the model has them; beside onnxruntime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import helper

from workbench.frontend import import_model
from workbench.ir import dtype as dt
from workbench.ir.interpret import interpret

WriteModel = Callable[..., Path]
RNG = np.random.default_rng(11)


def f16(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RNG.standard_normal(shape) * scale).astype(np.float16)


CASES: list[tuple[str, list[np.ndarray], dict[str, Any]]] = [
    ("Exp", [f16(40, scale=3)], {}),
    ("Softmax", [f16(4, 300, scale=5)], {}),
    ("Tanh", [f16(200)], {}),
    ("Gelu", [f16(200)], {"approximate": "tanh"}),
    ("Div", [f16(200), f16(200) + np.float16(4)], {}),
    ("Pow", [np.abs(f16(200)) + np.float16(0.1), np.array([2.5], np.float16)], {}),
    ("LayerNormalization", [f16(4, 64, scale=30), f16(64), f16(64)], {}),
    ("ReduceMean", [f16(2, 5000) + np.float16(40)], {}),
    ("ReduceSum", [f16(2, 5000)], {}),
    ("MatMul", [f16(8, 400), f16(400, 8)], {}),
    ("Gemm", [f16(8, 400), f16(5, 400), f16(5)], {"transB": 1, "alpha": 0.5}),
    ("Conv", [f16(1, 3, 9, 9), f16(4, 3, 3, 3)], {"pads": [1, 1, 1, 1]}),
    ("AveragePool", [f16(1, 3, 8, 8)], {"kernel_shape": [2, 2]}),
    ("MaxPool", [f16(1, 3, 8, 8)], {"kernel_shape": [2, 2]}),
    ("Clip", [f16(50), np.array(-0.5, np.float16), np.array(0.5, np.float16)], {}),
]


@pytest.mark.parametrize(("op", "arrays", "attributes"), CASES, ids=[c[0] for c in CASES])
def test_operators_in_f16_are_onnxruntimes_to_the_last_place(
    op: str, arrays: list[np.ndarray], attributes: dict[str, Any], write_model: WriteModel
) -> None:
    """Two units in the last place of what is near the largest result: one operator, one rounding, on both sides."""
    inputs = {f"x{i}": a for i, a in enumerate(arrays)}
    path = write_model([helper.make_node(op, list(inputs), ["y"], **attributes)], inputs, opset=20)
    (wanted,) = onnxruntime.InferenceSession(str(path)).run(None, inputs)
    got = interpret(import_model(path).graph, inputs)["y"]
    assert got.dtype == np.float16
    size = np.abs(wanted.astype(np.float64))
    error = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
    assert np.all(error <= 4 * dt.unit_roundoff(dt.F16) * (size + size.max() / 64))


def test_a_bf16_operator_rounds_once(write_model: WriteModel) -> None:
    x = RNG.standard_normal(500).astype(ml_dtypes.bfloat16)
    graph = import_model(write_model([helper.make_node("Sigmoid", ["x"], ["y"])], {"x": x})).graph
    exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_array_equal(interpret(graph, {"x": x})["y"], exact.astype(ml_dtypes.bfloat16))


def test_bf16_is_taken_where_f16_is_though_the_operators_version_is_older(write_model: WriteModel) -> None:
    """Conv has bf16 from opset 22 on; files that exporters write do not wait for that."""
    x, w = (RNG.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((1, 2, 6, 6), (3, 2, 3, 3)))
    path = write_model([helper.make_node("Conv", ["x", "w"], ["y"])], {"x": x}, known={"w": w}, opset=18)
    got = interpret(import_model(path).graph, {"x": x})["y"]
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (2, 3))
    exact = np.einsum("bcijuv,ocuv->boij", windows, w.astype(np.float64))
    np.testing.assert_array_equal(got, exact.astype(ml_dtypes.bfloat16))


def test_a_mean_of_more_than_f16_can_sum_is_finite(write_model: WriteModel) -> None:
    x = np.full((1, 5000), 100, np.float16)
    graph = import_model(write_model([helper.make_node("ReduceMean", ["x"], ["y"])], {"x": x})).graph
    assert interpret(graph, {"x": x})["y"].item() == 100


def test_a_weight_stays_as_the_model_has_it_and_is_converted_by_a_node(write_model: WriteModel) -> None:
    weight = f16(80, 90)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    path = write_model(nodes, {"x": (np.float16, (4, 80))}, known={"w": weight})
    graph = import_model(path).graph
    (held,) = (n for n in graph if n.label == "w")
    assert held.dtype is dt.F16
    assert [graph[user].name for user in graph.consumers(held.id)] == ["Cast"]
    assert Counter(n.name for n in graph)["SumReduce"] == 1
    assert graph[graph.outputs[0]].dtype is dt.F16


def test_a_mixed_model_converts_where_it_says(write_model: WriteModel) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("Cast", ["square"], ["wide"], to=1),
        helper.make_node("Exp", ["wide"], ["grown"]),
        helper.make_node("Cast", ["grown"], ["back"], to=10),
        helper.make_node("Add", ["back", "x"], ["y"]),
    ]
    x = f16(300)
    path = write_model(nodes, {"x": x}, outputs=("y", "wide"))
    got = interpret(import_model(path).graph, {"x": x})
    wide = (x * x).astype(np.float32)
    np.testing.assert_array_equal(got["wide"], wide)
    assert (got["y"].dtype, got["wide"].dtype) == (np.float16, np.float32)
    np.testing.assert_allclose(got["y"], np.exp(wide).astype(np.float16) + x, rtol=2 * dt.unit_roundoff(dt.F16))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.uint64])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Mod"])
def test_narrow_and_unsigned_integers_are_onnxs(op: str, dtype: type, write_model: WriteModel) -> None:
    """What goes out of range wraps."""
    from onnx.reference import ReferenceEvaluator

    bits = np.iinfo(dtype)
    rng = np.random.default_rng(bits.bits)
    x = rng.integers(bits.min, bits.max, 200, dtype, endpoint=True)
    y = rng.integers(max(bits.min, -9), 9, 200, dtype)
    y[y == 0] = 1
    x[:2], y[:2] = bits.min, (bits.max, 1) if bits.min == 0 else (bits.max, -1)
    path = write_model([helper.make_node(op, ["x", "y"], ["z"])], {"x": x, "y": y}, outputs=("z",))
    with np.errstate(all="ignore"):
        (wanted,) = ReferenceEvaluator(str(path)).run(None, {"x": x, "y": y})
        if op == "Div":  # the reference rounds down; in Python, whose integers do not end
            toward = [abs(int(p)) // abs(int(q)) * (1 if (p < 0) == (q < 0) else -1) for p, q in zip(x, y, strict=True)]
            wanted = np.array([v & ((1 << bits.bits) - 1) for v in toward], f"u{x.itemsize}").view(dtype)
    np.testing.assert_array_equal(interpret(import_model(path).graph, {"x": x, "y": y})["z"], wanted)
