"""Transformers with operators that are not lowered: told beforehand, compiled around, right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from workbench import CompileSession
from workbench.errors import WorkbenchError
from workbench.ir import llir, ops

Command = Callable[..., tuple[int, str, str]]
Model = Callable[[str], Path]


def with_other_activations(source: Path, path: Path, activation: str, domain: str, attribute: str) -> Path:
    """The model with each layer's activation replaced by an operator with an attribute of its own."""
    model = onnx.load(source)
    changed = [n for n in model.graph.node if n.op_type in ("Sigmoid", "Tanh", "Erf")]
    for layer, node in enumerate(changed):
        node.op_type, node.domain = activation, domain
        node.attribute.append(helper.make_attribute(attribute, 0.5 + 0.25 * layer))
    model.opset_import.append(helper.make_opsetid(domain, 1))
    onnx.save(model, path)
    return path


def peer(path: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, inputs))


def test_inspect_says_what_would_be_opaque(luminal: Command, model_path: Model, tmp_path: Path) -> None:
    path = with_other_activations(
        model_path("llama3_tiny_4l_ts17"), tmp_path / "m.onnx", "QuickGelu", "com.microsoft", "alpha"
    )
    status, out, _ = luminal("inspect", str(path), "--json")
    found = json.loads(out)
    assert status == 0
    assert (found["opaque_allowed"], found["refused"]) == (False, None)
    assert [use["node"] for use in found["opaque"]] == [f"/lm/model/layers.{i}/mlp/act_fn/Sigmoid" for i in range(4)]
    assert {(use["operator"], use["runner"], use["why"], use["onnx_nodes"]) for use in found["opaque"]} == {
        ("com.microsoft::QuickGelu", "onnxruntime", "the operator is not supported", 1)
    }
    chunks = [use["chunk"] for use in found["opaque"]]
    (own,) = [g for g in found["graph"]["groups"] if set(chunks) & set(g["members"])]
    assert (own["members"], own["nodes"]) == (chunks, 1)
    assert sorted(len(g["members"]) for g in found["graph"]["groups"]) == [1, 1, 3, 4, 4, 4]
    status, out, _ = luminal("inspect", str(path))
    assert "with --allow-opaque (compile refuses without): 4 nodes not lowered" in out
    assert "(com.microsoft::QuickGelu) by onnxruntime: the operator is not supported" in out
    status, out, err = luminal("compile", str(path))
    assert (status, out) == (2, "")
    (said,) = [line for line in err.splitlines() if "unsupported" in line]
    assert "com.microsoft::QuickGelu x4" in said
    assert "--allow-opaque: onnxruntime would run '/lm/model/layers.0/mlp/act_fn/Sigmoid'" in said
    assert "and 1 more, and the rest is compiled around that" in said


@pytest.mark.parametrize(
    ("model", "activation", "domain", "attribute", "layers"),
    [
        ("llama3_tiny_4l_ts17", "QuickGelu", "com.microsoft", "alpha", 4),
        ("gpt2_tiny_2l_ts17", "Binarizer", "ai.onnx.ml", "threshold", 2),
    ],
)
def test_a_transformer_is_compiled_around_its_opaque_operators(
    model: str, activation: str, domain: str, attribute: str, layers: int, model_path: Model, tmp_path: Path
) -> None:
    path = with_other_activations(model_path(model), tmp_path / "m.onnx", activation, domain, attribute)
    with CompileSession(path, limit=2, allow_opaque=True, artifacts=str(tmp_path / "a")) as session:
        exe = session.run()
        graph = session.graph
        (own,) = [
            g
            for g in session.groups
            if isinstance(graph[session.chunks[g.representative].nodes[0]].op, ops.CustomOp)
        ]
        assert len(own.members) == layers
        assert all(len(session.chunks[m].nodes) == 1 for m in own.members)
        assert max(len(g.members) for g in session.groups if g is not own) == layers
        assert session.best[own.index][0].ms > 0
    (compiled,) = exe._compiled.values()
    calls = [k for k in compiled.program.kernels if isinstance(k, llir.OpaqueCall)]
    assert [graph.custom_ops[k.custom_id].name for k in calls] == [
        node.name for node in onnx.load(path).graph.node if node.op_type == activation
    ]
    assert len({graph.custom_ops[k.custom_id].model for k in calls}) == layers  # each with its own attribute
    report = json.loads((tmp_path / "a" / "report.json").read_text())
    custom = [k for k in report["kernels"] if k["name"].startswith("custom ")]
    assert len(custom) == layers
    assert all(k["ms"] > 0 for k in custom)
    for seed in range(2):
        given = {"input_ids": np.random.default_rng(seed).integers(0, 500, (1, 16))}
        np.testing.assert_allclose(exe.run(given)["logits"], peer(path, given)[0], rtol=1e-3, atol=1e-4)


def test_an_operator_that_fails_in_a_run_is_named_in_one_line(tmp_path: Path) -> None:
    make, value = helper.make_node, helper.make_tensor_value_info
    graph = helper.make_graph(
        [make("SequenceConstruct", ["x", "x"], ["pair"]), make("SequenceAt", ["pair", "at"], ["e"], name="pick\n"),
         make("Relu", ["e"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, [3]), value("at", TensorProto.INT64, [])],
        [value("y", TensorProto.FLOAT, [3])],
    )  # fmt: skip
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    with CompileSession(path, limit=1, allow_opaque=True, artifacts=str(tmp_path / "a")) as session:
        exe = session.run()
    x = np.array([-1, 0, 2], np.float32)
    np.testing.assert_array_equal(exe.run({"x": x, "at": np.array(0)})["y"], np.maximum(x, 0))
    with pytest.raises(WorkbenchError, match=r"custom pick\\n 3 failed in onnxruntime: ") as error:
        exe.run({"x": x, "at": np.array(7)})
    assert "\n" not in str(error.value)


def test_named_dimensions_go_through_an_opaque_operator(tmp_path: Path) -> None:
    make, value = helper.make_node, helper.make_tensor_value_info
    w = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    graph = helper.make_graph(
        [make("MatMul", ["x", "w"], ["h"]), make("QuickGelu", ["h"], ["g"], domain="com.microsoft", alpha=2.0),
         make("MatMul", ["g", "w"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, ["b", "s", 8])],
        [value("y", TensorProto.FLOAT, ["b", "s", 8])],
        [onnx.numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    path = tmp_path / "m.onnx"
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    options = {"dims": {"b": 2, "s": 3}, "limit": 2, "allow_opaque": True, "artifacts": str(tmp_path / "a")}
    with CompileSession(path, **options) as session:
        exe = session.run()
    for shape in ((2, 3, 8), (1, 7, 8), (3, 1, 8)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(exe.run({"x": x})["y"], peer(path, {"x": x})[0], rtol=1e-4, atol=1e-5)
