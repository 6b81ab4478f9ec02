"""Branches, loops and recurrent layers, against onnxruntime and in what they become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from workbench.errors import ModelError
from workbench.frontend import import_model
from workbench.frontend.values import NotKnownError
from workbench.ir.interpret import interpret

WriteModel = Callable[..., Path]
RNG = np.random.default_rng(11)
node = helper.make_node


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


STEP: dict[str, tuple[int, list[int]]] = {
    "i": (onnx.TensorProto.INT64, []),
    "on": (onnx.TensorProto.BOOL, []),
    "s": (onnx.TensorProto.FLOAT, [2]),
}


def subgraph(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], inputs: Sequence[str] = ()) -> onnx.GraphProto:
    return helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, *STEP[name]) for name in inputs],
        [onnx.ValueInfoProto(name=name) for name in outputs],
    )


def assert_as_onnxruntime(path: Path, inputs: dict[str, np.ndarray], **options: Any) -> None:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = interpret(import_model(path, **options).graph, inputs)
    for value, want in zip(session.get_outputs(), session.run(None, inputs), strict=True):
        np.testing.assert_allclose(found[value.name], want, rtol=1e-5, atol=1e-6, err_msg=value.name)


THEN = subgraph([node("Exp", ["x"], ["t"])], ["t"])
ELSE = subgraph([node("Neg", ["x"], ["e"])], ["e"])


@pytest.mark.parametrize("chosen", [True, False])
def test_a_branch_with_a_known_condition_vanishes(chosen: bool, write_model: WriteModel) -> None:
    made = node("If", ["c"], ["y"], then_branch=THEN, else_branch=ELSE)
    path = write_model([made], {"x": f32(2, 3)}, known={"c": np.array(chosen)})
    assert_as_onnxruntime(path, {"x": f32(2, 3)})
    assert "Select" not in {n.name for n in import_model(path).graph}


@pytest.mark.parametrize("chosen", [True, False])
def test_a_branch_on_a_computed_condition_is_a_choice_between_both(chosen: bool, write_model: WriteModel) -> None:
    made = node("If", ["c"], ["y"], then_branch=THEN, else_branch=ELSE)
    path = write_model([made], {"x": f32(2, 3), "c": np.array(chosen)})
    assert_as_onnxruntime(path, {"x": f32(2, 3), "c": np.array(chosen)})


def test_branches_of_different_shapes_need_the_condition(write_model: WriteModel) -> None:
    other = subgraph([node("ReduceSum", ["x"], ["e"], keepdims=0)], ["e"])
    path = write_model(
        [node("If", ["c"], ["y"], then_branch=THEN, else_branch=other)], {"x": f32(2), "c": np.array(True)}
    )
    with pytest.raises(NotKnownError, match="the branches differ in shape") as caught:
        import_model(path)
    assert caught.value.inputs == ("c",)
    graph = import_model(path, known={"c": np.array(False)}).graph
    assert [n.op.name for n in (graph[i] for i in graph.inputs)] == ["x"]


DOUBLING = subgraph(
    [
        node("Add", ["s", "x"], ["t"]),
        node("Mul", ["t", "t"], ["square"]),
        node("ReduceSum", ["t"], ["sum"], keepdims=0),
        node("Less", ["sum", "limit"], ["again"]),
    ],
    ["again", "t"],
    ["i", "on", "s"],
)


def test_a_loop_of_known_length_whose_end_is_computed_keeps_what_it_had(write_model: WriteModel) -> None:
    made = node("Loop", ["count", "on", "x"], ["y"], body=DOUBLING)
    for limit in (0.0, 5.0, 14.0, 1e9):
        known = {"count": np.array(5), "on": np.array(True), "limit": np.array(limit, np.float32)}
        path = write_model([made], {"x": f32(2)}, known=known)
        x = np.array([1.0, 2.0], np.float32)
        assert_as_onnxruntime(path, {"x": x})


def test_rows_of_a_loop_are_stacked_and_none_keep_their_shape(write_model: WriteModel) -> None:
    body = subgraph(
        [node("Add", ["s", "x"], ["t"]), node("Identity", ["on"], ["again"]), node("Mul", ["t", "t"], ["row"])],
        ["again", "t", "row"],
        ["i", "on", "s"],
    )
    for count in (0, 1, 4):
        path = write_model(
            [node("Loop", ["count", "", "x"], ["y", "rows"], body=body)],
            {"x": f32(2)},
            ["y", "rows"],
            {"count": np.array(count)},
        )
        graph = import_model(path).graph
        assert graph[graph.outputs[1]].shape == (count, 2)
        x = f32(2)
        found = interpret(graph, {"x": x})
        np.testing.assert_allclose(found["y"], x * (count + 1), rtol=1e-6)
        steps = np.arange(2, count + 2, dtype=np.float32)[:, None]
        np.testing.assert_allclose(found["rows"], (x * steps) ** 2, rtol=1e-5)


def test_a_loop_that_collects_rows_needs_to_know_when_it_ends(write_model: WriteModel) -> None:
    body = onnx.GraphProto()
    body.CopyFrom(DOUBLING)
    body.output.append(onnx.ValueInfoProto(name="square"))
    path = write_model(
        [node("Loop", ["count", "on", "x"], ["y", "rows"], body=body, name="loop")],
        {"x": f32(2)},
        ["y", "rows"],
        {"count": np.array(5), "on": np.array(True), "limit": np.array(3, np.float32)},
    )
    with pytest.raises(ModelError, match=r"node 'loop' \(Loop\): whether a loop goes on must be known"):
        import_model(path)


LAYERS = [
    ("LSTM", 4, {"direction": "bidirectional"}),
    ("LSTM", 4, {"direction": "reverse", "clip": 0.5}),
    ("LSTM", 4, {"input_forget": 1, "activations": ["HardSigmoid", "Softsign", "Tanh"]}),
    ("GRU", 3, {"direction": "bidirectional", "linear_before_reset": 1}),
    ("GRU", 3, {"activations": ["Sigmoid", "LeakyRelu"], "activation_alpha": [0.2]}),
    ("RNN", 1, {"direction": "bidirectional", "activations": ["Relu", "Tanh"]}),
]


@pytest.mark.parametrize(("name", "gates", "attributes"), LAYERS, ids=str)
@pytest.mark.parametrize("lengths", [False, True], ids=["whole", "of different lengths"])
def test_recurrent_layers(
    name: str, gates: int, attributes: dict[str, Any], lengths: bool, write_model: WriteModel
) -> None:
    ways, hidden, batch = (2 if attributes.get("direction") == "bidirectional" else 1), 3, 2
    known = {
        "w": f32(ways, gates * hidden, 5),
        "r": f32(ways, gates * hidden, hidden),
        "b": f32(ways, 2 * gates * hidden),
        "h": f32(ways, batch, hidden),
    }
    given = ["x", "w", "r", "b", "n" if lengths else "", "h"]
    if name == "LSTM":
        known |= {"c": f32(ways, batch, hidden), "p": f32(ways, 3 * hidden)}
        given += ["c", "p"]
    if lengths:
        known["n"] = np.array([4, 2], np.int32)
    outputs = ["y", "y_h", *(["y_c"] if name == "LSTM" else [])]
    made = node(name, given, outputs, hidden_size=hidden, **attributes)
    assert_as_onnxruntime(write_model([made], {"x": f32(4, batch, 5)}, outputs, known), {"x": f32(4, batch, 5)})


def test_a_named_sequence_is_fixed_at_its_value_and_other_dims_stay_named(write_model: WriteModel) -> None:
    known = {"w": f32(1, 6, 5), "r": f32(1, 6, 2)}
    made = node("GRU", ["x", "w", "r"], ["", "y"], hidden_size=2)
    path = write_model([made], {"x": (np.float32, ("seq", "batch", 5))}, known=known)
    imported = import_model(path, dims={"seq": 3, "batch": 2})
    assert imported.fixed_dims == {"seq": 3}
    assert imported.graph.dims == {"batch": 2}
    x = f32(3, 4, 5)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": x})
    np.testing.assert_allclose(interpret(imported.graph, {"x": x}, {"batch": 4})["y"], want, rtol=1e-5, atol=1e-6)
