"""Operators, one at a time, against onnxruntime: values given at run time, and again with everything known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from workbench.frontend import import_model
from workbench.ir.interpret import interpret

INF, NAN = np.inf, np.nan
RNG = np.random.default_rng(7)
SPECIAL = np.array([NAN, -INF, -2.5, -1.0, -0.0, 0.0, 1e-5, 0.5, 2.0, INF], np.float32)
MAX_OPSET = 22


@dataclass(frozen=True)
class Case:
    """One operator on `inputs` (run time) and `known` (initializers), in the order of `order` or of their names."""

    op: str
    inputs: dict[str, np.ndarray]
    known: dict[str, np.ndarray] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1
    note: str = ""

    def __str__(self) -> str:
        return f"{self.op}{self.opset} {self.note or ''.join(f'{k}={v} ' for k, v in self.attributes.items())}".strip()


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def i64(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


def grid() -> dict[str, np.ndarray]:
    """Every pair of the special values."""
    return {"a": SPECIAL[:, None] + np.zeros((1, 10), np.float32), "b": SPECIAL[None]}


COMPARISONS = [
    Case(op, grid(), note="of NaN, infinities and signed zeros")
    for op in ("Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal")
]
UNARY = [
    Case(op, {"a": SPECIAL}, opset=MAX_OPSET, note="of special values")
    for op in ("Relu", "Abs", "Neg", "Sign", "Tanh", "Sigmoid", "Erf", "Exp", "Log", "Sqrt", "Floor", "Ceil", "IsNaN")
]
ACTIVATIONS = [
    Case(op, {"a": np.linspace(-9, 9, 101, dtype=np.float32)}, opset=MAX_OPSET, note="over a range")
    for op in ("Tanh", "Sigmoid", "Gelu", "HardSwish", "HardSigmoid", "Softplus", "Elu", "Mish", "Round", "Softsign")
]
POWERS = [
    Case("Pow", {"a": f32(9)}, {"b": np.float32(exponent).reshape(())}, note=f"to the {exponent}")
    for exponent in (2, 3, 0.5, -1, -2, 1.5, 0, 7, 21)
]
SLICES = [
    Case(
        "Slice",
        {"a": f32(5, 7)},
        {"b": i64(*start), "c": i64(*end), "d": i64(0, 1), "e": i64(*step)},
        note=f"{start}:{end}:{step}",
    )
    for start, end, step in (
        ((1, 0), (4, 9999), (1, 2)),
        ((-1, 5), (-9999, 0), (-1, -2)),
        ((-3, -2), (9999, 2**62), (2, 1)),
        ((4, 3), (1, 3), (1, 1)),
    )
]
CONVOLUTIONS = [
    Case("Conv", {"a": f32(2, 4, 9, 8)}, {"b": f32(6, 4 // group, 3, 2), "c": f32(6)}, {"group": group, **attributes})
    for group in (1, 2)
    for attributes in (
        {},
        {"pads": [1, 0, 2, 1], "strides": [2, 1]},
        {"dilations": [2, 3], "pads": [1, 1, 1, 1]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER"},
    )
]
POOLS = [
    Case(op, {"a": f32(1, 3, 9, 8) - 3}, {}, {"kernel_shape": [3, 2], **attributes})
    for op in ("MaxPool", "AveragePool")
    for attributes in (
        {},
        {"pads": [1, 0, 1, 1], "strides": [2, 2]},
        {"strides": [2, 3], "ceil_mode": 1},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    )
]
REDUCTIONS = [
    Case(op, {"a": f32(3, 4, 5)}, {"b": i64(0, -1)}, {"keepdims": keepdims}, opset=18)
    for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceProd", "ReduceLogSumExp")
    for keepdims in (0, 1)
]
RESIZES = [
    Case("Resize", {"a": f32(1, 2, 4, 5)}, {"b": np.zeros(0, np.float32), "c": np.array([1, 1, *scale], np.float32)},
         {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": "floor"})
    for mode in ("nearest", "linear", "cubic")
    for coordinates in ("half_pixel", "align_corners", "asymmetric")
    for scale in ((2, 3), (0.55, 1.3))
    if (mode != "cubic" or coordinates == "half_pixel") and (coordinates != "align_corners" or scale == (2, 3))
]  # fmt: skip
MASKED = np.where(np.tri(4, 6, dtype=bool), f32(2, 4, 6), -INF).astype(np.float32)
CASES = [
    *COMPARISONS,
    *UNARY,
    *ACTIVATIONS,
    *POWERS,
    *SLICES,
    *CONVOLUTIONS,
    *POOLS,
    *REDUCTIONS,
    *RESIZES,
    Case("Max", grid(), note="keeps NaN"),
    Case("Min", grid(), note="keeps NaN"),
    Case("Clip", {"a": SPECIAL}, {"b": np.float32(-1), "c": np.float32(1)}),
    Case("Not", {"a": np.array([True, False])}),
    Case("Xor", {"a": np.array([[True], [False]]), "b": np.array([True, False])}),
    Case("Cos", {"a": np.linspace(-4000, 4000, 999, dtype=np.float32)}, note="of large angles"),
    Case("Softmax", {"a": MASKED}, note="of a causal mask"),
    Case("Softmax", {"a": f32(2, 3, 4)}, {}, {"axis": 1}, opset=11, note="over everything from axis 1 on"),
    Case("Softmax", {"a": f32(2, 3, 4)}, {}, {"axis": 1}, note="over axis 1"),
    Case("LogSoftmax", {"a": f32(2, 3, 4)}, {}, {"axis": 0}),
    Case("LayerNormalization", {"a": f32(2, 3, 8)}, {"b": f32(8), "c": f32(8)}, {"epsilon": 1e-3}),
    Case("LayerNormalization", {"a": f32(2, 3, 8)}, {"b": f32(3, 8)}, {"axis": 1}, outputs=3),
    Case("MatMul", {"a": f32(2, 1, 3, 5), "b": f32(4, 5, 6)}),
    Case("MatMul", {"a": f32(5), "b": f32(2, 5, 6)}, note="of a vector and matrices"),
    Case("MatMul", {"a": f32(2, 3, 5), "b": f32(5)}, note="of matrices and a vector"),
    Case("Gemm", {"a": f32(4, 3), "b": f32(5, 4)}, {"c": f32(5)},
         {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    Case("Einsum", {"a": f32(2, 3, 4), "b": f32(2, 5, 4)}, {}, {"equation": "bik,bjk->bij"}),
    Case("Einsum", {"a": f32(2, 1, 3, 4), "b": f32(2, 5, 4, 2)}, {}, {"equation": "...ij,...jk"}),
    Case("Einsum", {"a": f32(2, 4, 4)}, {}, {"equation": "...ii->...i"}),
    Case("Einsum", {"a": f32(4, 4), "b": f32(4)}, {}, {"equation": "ii,i->"}),
    Case("Gather", {"a": f32(5, 3), "b": i64([0, -1], [-5, 4])}, note="with negative positions"),
    Case("Gather", {"a": f32(5, 3)}, {"b": i64(4, 2, 0)}, note="of a known progression"),
    Case("Gather", {"a": f32(5, 3)}, {"b": np.array(-2)}, {"axis": 1}, note="of one known column"),
    Case("GatherElements", {"a": f32(4, 3), "b": i64([0, -1, 2], [3, 1, -4])}, {}, {"axis": 0}),
    Case("GatherND", {"a": f32(2, 3, 4), "b": i64([[0, 1]], [[1, -1]])}),
    Case("GatherND", {"a": f32(2, 3, 4), "b": i64([1], [2])}, {}, {"batch_dims": 1}),
    Case("ScatterND", {"a": f32(4, 3), "b": i64([1], [-1]), "c": f32(2, 3)}),
    Case("ScatterElements", {"a": f32(4, 3), "b": i64([1, -1, 0]), "c": f32(1, 3)}, {}, {"axis": 0}),
    *(
        case
        for mode in ("add", "mul", "max", "min")
        for case in (
            Case("ScatterND", {"a": f32(4, 3), "b": i64([1], [-1], [1]), "c": f32(3, 3)}, {}, {"reduction": mode},
                 opset=18, note=mode),
            Case("ScatterElements", {"a": f32(4, 3), "b": i64([1, -1], [1, 1]), "c": f32(2, 2)}, {},
                 {"axis": 1, "reduction": mode}, opset=18, note=mode),
        )
    ),
    Case("Concat", {"a": f32(2, 3), "b": f32(2, 1), "c": f32(2, 4)}, {}, {"axis": 1}),
    Case("Concat", {k: np.full((1, 2), v, np.float32) for k, v in zip("abcde", SPECIAL[[0, 1, 2, 5, 9]], strict=True)},
         {}, {"axis": 0}, note="of NaN and infinities"),
    Case("Pad", {"a": f32(2, 3)}, {"b": i64(0, 2, 1, -1), "c": np.float32(INF)}),
    Case("Pad", {"a": f32(2, 4)}, {"b": i64(1, 2, 0, 3)}, {"mode": "reflect"}),
    Case("Pad", {"a": f32(2, 4)}, {"b": i64(1, 2, 0, 3)}, {"mode": "edge"}),
    Case("Split", {"a": f32(2, 7)}, {"b": i64(3, 4)}, {"axis": 1}, outputs=2),
    Case("Split", {"a": f32(2, 7)}, {}, {"axis": 1, "num_outputs": 3}, opset=18, outputs=3),
    Case("Tile", {"a": f32(2, 3, 1)}, {"b": i64(2, 1, 4)}),
    Case("Expand", {"a": f32(3, 1)}, {"b": i64(2, 1, 4)}),
    Case("Reshape", {"a": f32(2, 3, 4)}, {"b": i64(0, -1)}),
    Case("Trilu", {"a": f32(2, 4, 5)}, {"b": np.array(-1)}, {"upper": 0}),
    Case("CumSum", {"a": f32(3, 4)}, {"b": np.array(1)}, {"reverse": 1}),
    Case("CumSum", {"a": f32(3, 4)}, {"b": np.array(-2)}, {"exclusive": 1}),
    Case("ArgMax", {"a": np.array([[1, 3, 3], [2, 2, 0]], np.float32)}, {}, {"axis": 1}),
    Case("Mod", {"a": i64(-7, 7, -7), "b": i64(3, -3, -3)}),
    Case("Mod", {"a": f32(4) * 9, "b": np.full(4, 2.5, np.float32)}, {}, {"fmod": 1}),
    Case("Where", {"a": np.array([True, False]), "b": f32(3, 1), "c": f32(2)}),
    Case("Cast", {"a": np.array([-1.9, 0.0, 2.7], np.float32)}, {}, {"to": 7}, note="to integers, toward zero"),
    Case("Cast", {"a": np.array([NAN, 0.0, -0.0, 0.3], np.float32)}, {}, {"to": 9}, note="to bool"),
    Case("ConvTranspose", {"a": f32(1, 4, 3, 4)}, {"b": f32(4, 3, 3, 2), "c": f32(6)},
         {"group": 2, "strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 0]}),
    Case("BatchNormalization", {"a": f32(2, 3, 4)}, {"b": f32(3), "c": f32(3), "d": f32(3), "e": f32(3) ** 2}),
]  # fmt: skip


def _paths(case: Case, write_model: Callable[..., Path], all_known: bool) -> tuple[Path, Sequence[str]]:
    names = sorted(case.inputs | case.known)
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, "node", **case.attributes)
    known = case.known | case.inputs if all_known else case.known
    return write_model([node], {} if all_known else case.inputs, outputs, known, case.opset), outputs


@pytest.mark.parametrize("all_known", [False, True], ids=["computed", "folded"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_operator_matches_onnxruntime(case: Case, all_known: bool, write_model: Callable[..., Path]) -> None:
    path, outputs = _paths(case, write_model, all_known)
    inputs = {} if all_known else case.inputs
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    expected = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(outputs, inputs)
    found = interpret(import_model(path).graph, inputs)
    for name, want in zip(outputs, expected, strict=True):
        assert found[name].dtype == want.dtype
        np.testing.assert_allclose(found[name], want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_folded_operator_leaves_only_constants(case: Case, write_model: Callable[..., Path]) -> None:
    path, _ = _paths(case, write_model, all_known=True)
    assert {node.name for node in import_model(path).graph} <= {"Constant", "Output"}


def test_tanh_keeps_the_digits_of_a_small_argument(write_model: Callable[..., Path]) -> None:
    x = np.float32(10.0) ** np.arange(-6, 1, 0.25, dtype=np.float32)
    path = write_model([helper.make_node("Tanh", ["x"], ["y"])], {"x": x})
    np.testing.assert_allclose(interpret(import_model(path).graph, {"x": x})["y"], np.tanh(x), rtol=2e-6)


@pytest.mark.parametrize("name", ["ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
def test_integers_are_reduced_through_floats(name: str, write_model: Callable[..., Path]) -> None:
    x = np.array([[3, 4], [6, 8]])
    made = helper.make_node(name, ["x"], ["y"], axes=[1], keepdims=0)
    graph = import_model(write_model([made], {"x": x}, opset=13)).graph
    wanted = {"ReduceL2": [5, 10], "ReduceLogSum": [1, 2], "ReduceLogSumExp": [4, 8]}[name]
    assert interpret(graph, {"x": x})["y"].tolist() == wanted
