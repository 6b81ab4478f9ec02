"""Quantized operators: exact in integers, ties to even, against onnxruntime and NumPy's division and rounding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests.frontend.conformance import cases, family, ours, outcome
from workbench.errors import ModelError
from workbench.frontend import import_model
from workbench.ir import dtype as dt
from workbench.ir import ops
from workbench.ir.hlir import Graph
from workbench.ir.interpret import interpret

WriteModel = Callable[..., Path]
RNG = np.random.default_rng(3)
U8, I8, F32, I32 = np.uint8, np.int8, np.float32, np.int32


def of(dtype: type, *shape: int) -> np.ndarray:
    """The whole range of an integer type, at random."""
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


def positive(*shape: int) -> np.ndarray:
    return RNG.uniform(0.01, 0.5, shape).astype(F32)


def computed(
    write_model: WriteModel,
    op: str,
    inputs: dict[str, Any],
    opset: int = 21,
    known: tuple[str, ...] = (),
    **attributes: Any,
) -> tuple[list[np.ndarray], list[np.ndarray], Graph]:
    """What the importer and the interpreter make of one operator, what onnxruntime makes of it, and the graph.
    Of its inputs, by name in their order, those in `known` are initializers and those that are None are absent."""
    outputs = ["result", "steps", "shift"] if op == "DynamicQuantizeLinear" else ["result"]
    names = [name if value is not None else "" for name, value in inputs.items()]
    given = {n: v for n, v in inputs.items() if v is not None and n not in known}
    node = helper.make_node(op, names, outputs, "node", **attributes)
    path = write_model([node], given, outputs, {n: inputs[n] for n in known}, opset)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    wanted = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(outputs, given)
    graph = import_model(path).graph
    found = interpret(graph, given)
    return [found[name] for name in outputs], wanted, graph


def assert_same(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_onnx_node_tests_of_types_that_there_are_pass() -> None:
    results = {c.name: outcome(c, ours) for c in cases() if family(c.operator) == "quantization"}
    assert {name: r.text for name, r in results.items() if r.kind == "failed"} == {}
    refused = [name for name, result in results.items() if result.kind == "refused"]
    assert all(any(t in name for t in ("int2", "int4", "float4", "e4m3fn", "e5m2")) for name in refused), refused
    assert len(results) - len(refused) == 26


@pytest.mark.parametrize("dtype", [U8, I8, np.uint16, np.int16], ids=lambda d: d.__name__)
@pytest.mark.parametrize("known", [(), ("scale", "zero")], ids=["computed", "known"])
def test_ties_and_what_is_out_of_range(write_model: WriteModel, dtype: type, known: tuple[str, ...]) -> None:
    scale, zero = np.asarray(F32(0.3)), np.asarray(of(dtype))
    steps = np.concatenate([np.arange(-400, 400) + 0.5, [0, 1e9, -1e9, np.inf, -np.inf, 70000, -70000.5]])
    x = (steps * np.float64(scale)).astype(F32)
    x = np.concatenate([x, np.nextafter(x, F32(0)), np.nextafter(x, F32(np.inf))])
    found, wanted, _ = computed(
        write_model, "QuantizeLinear", {"x": x, "scale": scale, "zero": zero}, known=known
    )
    limits = np.iinfo(dtype)
    with np.errstate(over="ignore"):
        own = np.clip(np.rint(x / scale).astype(np.float64) + float(zero), limits.min, limits.max).astype(dtype)
    np.testing.assert_array_equal(found[0], own)
    finite = np.abs(x) < 1e8  # beyond what an int32 holds, onnxruntime's vectors and its remainder differ
    np.testing.assert_array_equal(found[0][finite], wanted[0][finite])


@pytest.mark.parametrize("scale", [F32(1 / 3), F32(0.1), F32(1e-3), F32(7.7)])
def test_a_quotient_is_rounded_once(write_model: WriteModel, scale: np.float32) -> None:
    """A product with the reciprocal is another float for a third of all x, and now and then another integer."""
    x = (RNG.integers(-255, 255, 20000) * 0.5 * np.float64(scale)).astype(F32)
    found, wanted, _ = computed(write_model, "QuantizeLinear", {"x": x, "scale": np.asarray(scale)}, known=("scale",))
    assert_same(found, wanted)


@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
@pytest.mark.parametrize(
    ("axis", "block", "shape"),
    [(1, 0, (5,)), (-1, 0, (6,)), (0, 0, (2,)), (1, 2, (2, 3, 6)), (2, 3, (2, 5, 2)), (1, 0, (1,)), (1, 0, ())],
    ids=str,
)
def test_scales_along_an_axis_and_in_blocks(
    write_model: WriteModel, op: str, axis: int, block: int, shape: tuple[int, ...]
) -> None:
    x = RNG.standard_normal((2, 5, 6)).astype(F32) * 9 if op == "QuantizeLinear" else of(U8, 2, 5, 6)
    attributes = {"axis": axis} | ({"block_size": block} if block else {})
    inputs = {"x": x, "scale": positive(*shape), "zero": of(U8, *shape)}
    for known in ((), ("scale", "zero")):
        found, wanted, _ = computed(write_model, op, inputs, known=known, **attributes)
        assert_same(found, wanted)


def test_the_type_of_the_result(write_model: WriteModel) -> None:
    x = RNG.standard_normal((3, 4)).astype(F32) * 30
    scale = np.asarray(F32(0.5))
    for output, name in ((TensorProto.INT8, "int8"), (TensorProto.UINT16, "uint16")):
        found, wanted, _ = computed(write_model, "QuantizeLinear", {"x": x, "scale": scale}, output_dtype=output)
        assert found[0].dtype.name == name
        assert_same(found, wanted)
    found, wanted, _ = computed(write_model, "QuantizeLinear", {"x": x, "scale": scale})
    assert found[0].dtype == U8
    half = np.asarray(np.float16(0.1))
    found, wanted, _ = computed(write_model, "QuantizeLinear", {"x": x.astype(np.float16), "scale": half})
    assert_same(found, wanted)
    found, wanted, _ = computed(write_model, "DequantizeLinear", {"x": of(I8, 9), "scale": half, "zero": of(I8)})
    assert found[0].dtype == np.float16
    assert_same(found, wanted)
    found, wanted, _ = computed(write_model, "DequantizeLinear", {"x": of(I32, 9), "scale": scale})
    assert_same(found, wanted)


def test_a_symmetric_range_puts_the_zero_point_between_two_integers(write_model: WriteModel) -> None:
    for x in (RNG.standard_normal((4, 9)), [-1, 1, 0.3], [-3, 3], [2, 5, 3], [-4, -2], [-0.7, 0.7, 0.1]):
        found, wanted, _ = computed(write_model, "DynamicQuantizeLinear", {"x": np.asarray(x, F32)})
        assert_same(found, wanted)


def test_zeros_quantized_dynamically_are_zeros(write_model: WriteModel) -> None:
    (values, scale, zero), _, _ = computed(write_model, "DynamicQuantizeLinear", {"x": np.zeros(5, F32)})
    np.testing.assert_array_equal((values.astype(F32) - zero) * scale, np.zeros(5, F32))


@pytest.mark.parametrize(
    ("x", "y", "zeros"),
    [
        (of(U8, 4, 7), of(I8, 7, 5), (of(U8), of(I8))),
        (of(U8, 4, 7), of(U8, 7, 5), (of(U8), None)),
        (of(I8, 4, 7), of(I8, 7, 5), (None, None)),
        (of(U8, 2, 3, 4, 7), of(I8, 3, 7, 5), (of(U8), of(I8))),
        (of(U8, 4, 7), of(I8, 7, 5), (of(U8), of(I8, 5))),
        (np.full((2, 3000), 255, U8), np.full((3000, 2), -128, I8), (U8(0), I8(127))),  # beyond what f32 counts
    ],
    ids=["u8 i8", "u8 u8", "i8 i8", "batches", "per column", "long sums"],
)
def test_sums_of_products_are_exact(
    write_model: WriteModel, x: np.ndarray, y: np.ndarray, zeros: tuple[Any, Any]
) -> None:
    x_zero, y_zero = (None if z is None else np.asarray(z) for z in zeros)
    inputs = {"x": x, "y": y, "x_zero": x_zero, "y_zero": y_zero}
    found, wanted, _ = computed(write_model, "MatMulInteger", inputs, known=("y",))
    assert_same(found, wanted)
    wide = [a.astype(np.int64) - (0 if z is None else z.astype(np.int64)) for a, z in ((x, x_zero), (y, y_zero))]
    np.testing.assert_array_equal(found[0], np.matmul(*wide))


def test_zero_points_of_rows(write_model: WriteModel) -> None:
    x, y, zero = of(U8, 4, 7), of(U8, 7, 5), of(U8, 4)
    inputs = {"x": x, "y": y, "zero": zero}
    path = write_model([helper.make_node("MatMulInteger", list(inputs), ["result"])], inputs, ["result"])
    found = interpret(import_model(path).graph, inputs)["result"]
    np.testing.assert_array_equal(found, (x.astype(I32) - zero.astype(I32)[:, None]) @ y.astype(I32))


@pytest.mark.parametrize(
    "attributes",
    [{}, {"pads": [1, 0, 2, 1], "strides": [2, 1]}, {"group": 2, "dilations": [2, 1]}, {"auto_pad": "SAME_UPPER"}],
    ids=str,
)
def test_convolutions_of_integers(write_model: WriteModel, attributes: dict[str, Any]) -> None:
    x, weight = of(U8, 2, 4, 9, 8), of(U8, 6, 4 // attributes.get("group", 1), 3, 2)
    inputs = {"x": x, "weight": weight, "x_zero": np.asarray(of(U8)), "weight_zero": np.asarray(of(U8))}
    found, wanted, _ = computed(write_model, "ConvInteger", inputs, known=("weight",), **attributes)
    assert_same(found, wanted)


@pytest.mark.parametrize("channels", [False, True], ids=["per tensor", "per channel"])
def test_quantized_convolutions_and_products(write_model: WriteModel, channels: bool) -> None:
    def a(array: Any) -> np.ndarray:
        return np.asarray(array)

    shape = (6,) if channels else ()
    conv = {
        "x": of(U8, 1, 4, 9, 8), "x_scale": a(positive()), "x_zero": a(of(U8)),
        "weight": of(I8, 6, 4, 3, 3), "weight_scale": a(positive(*shape)), "weight_zero": np.zeros(shape, I8),
        "scale": a(F32(40.0)), "zero": a(of(U8)), "bias": RNG.integers(-9000, 9000, 6).astype(I32),
    }  # fmt: skip
    product = {
        "x": of(U8, 3, 5, 8), "x_scale": a(positive()), "x_zero": a(of(U8)),
        "weight": of(I8, 8, 6), "weight_scale": a(positive(*shape)), "weight_zero": np.zeros(shape, I8),
        "scale": a(F32(30.0)), "zero": a(of(U8)),
    }  # fmt: skip
    for op, inputs in (("QLinearConv", conv), ("QLinearMatMul", product)):
        known = tuple(name for name in inputs if name != "x")
        found, wanted, _ = computed(write_model, op, inputs, known=known)
        assert_same(found, wanted)


def test_weights_stay_as_narrow_as_they_are(write_model: WriteModel) -> None:
    for op, inputs in (
        ("DequantizeLinear", {"x": of(I8, 9, 8), "scale": positive(8), "zero": of(I8, 8)}),
        ("MatMulInteger", {"y": of(U8, 2, 9), "x": of(I8, 9, 8), "zero": np.asarray(of(U8))}),
    ):
        _, _, graph = computed(write_model, op, inputs, known=("x",))
        (weight,) = [n for n in graph if isinstance(n.op, ops.Constant) and n.shape == (9, 8)]
        assert weight.dtype is dt.I8
    large = of(I8, 300, 200)  # one that is folded where it is computed with as floats
    _, _, graph = computed(write_model, "DequantizeLinear", {"x": large, "scale": positive()}, known=("x", "scale"))
    assert graph.constants[next(n.id for n in graph if n.shape == (300, 200))].dtype == I8


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ({"x": of(U8, 2, 5), "scale": positive(3)}, {"axis": 1}, "scales or zero points"),
        ({"x": of(U8, 2, 5), "scale": positive(2, 2)}, {"axis": 1, "block_size": 2}, "blocks of 2"),
        ({"x": of(U8, 2, 5), "scale": positive(2)}, {"axis": 2}, "axis 2 of a tensor of rank 2"),
    ],
    ids=["length", "blocks", "axis"],
)
def test_what_does_not_fit_is_named(
    write_model: WriteModel, inputs: dict[str, np.ndarray], attributes: dict[str, int], message: str
) -> None:
    path = write_model([helper.make_node("DequantizeLinear", list(inputs), ["y"], "here", **attributes)], inputs)
    with pytest.raises(ModelError, match=message) as caught:
        import_model(path)
    assert "here" in str(caught.value)


def test_operators_of_onnxruntime_alone_come_with_advice(write_model: WriteModel) -> None:
    node = helper.make_node("QGemm", ["x"], ["y"], domain="com.microsoft")
    with pytest.raises(ModelError, match=r"com\.microsoft::QGemm") as caught:
        import_model(write_model([node], {"x": of(U8, 2, 2)}))
    assert "QDQ" in caught.value.hint
