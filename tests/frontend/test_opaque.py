"""Operators that are not lowered become CustomOp nodes where they may."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from workbench.errors import ModelError
from workbench.frontend import import_model
from workbench.ir import ops
from workbench.ir.hlir import Node
from workbench.ir.interpret import interpret

WriteModel = Callable[..., Path]


ML = "ai.onnx.ml"


def write_thresholded(write_model: WriteModel, shape: tuple[int | str, ...] = (3, 2, 2)) -> Path:
    return write_model(
        [
            helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
            helper.make_node("Binarizer", ["t"], ["d"], name="bits", domain=ML, threshold=0.5),
            helper.make_node("Neg", ["d"], ["y"]),
        ],
        {"x": (np.float32, shape)},
    )


def test_an_opaque_operator_is_kept_whole_and_reads_contiguously(write_model: WriteModel) -> None:
    imported = import_model(write_thresholded(write_model), allow_opaque=True)
    graph = imported.graph
    (custom,) = [n for n in graph if isinstance(n.op, ops.CustomOp)]
    assert imported.unsupported == {"Binarizer": 1}
    assert custom.shape == (3, 2, 2)
    assert all(o.layout.is_contiguous for o in custom.operands)

    def run(node: Node, arrays: list[np.ndarray]) -> np.ndarray:
        assert isinstance(node.op, ops.CustomOp)
        spec = graph.custom_ops[node.op.id]
        proto = onnx.NodeProto.FromString(spec.node_proto)
        assert dict(spec.opsets)[""] == 21
        (result,) = ReferenceEvaluator(proto).run(None, dict(zip(proto.input, arrays, strict=True)))
        return np.asarray(result)

    x = np.random.default_rng(1).standard_normal((3, 2, 2)).astype(np.float32)
    wanted = -(x.transpose(0, 2, 1) > 0.5).astype(np.float32)
    np.testing.assert_array_equal(interpret(graph, {"x": x}, run_custom=run)["y"], wanted)


def test_an_opaque_operator_of_unknown_shape_is_refused(write_model: WriteModel) -> None:
    with pytest.raises(ModelError, match=r"unsupported operators: ai.onnx.ml::Binarizer x1 \(first: 'bits'\)"):
        import_model(write_thresholded(write_model, ("n", 2, 2)), allow_opaque=True)


def test_nothing_is_opaque_unless_asked_for(write_model: WriteModel) -> None:
    with pytest.raises(ModelError, match="opaque operators can be allowed"):
        import_model(write_thresholded(write_model))


def test_an_attribute_that_is_not_lowered_makes_the_node_opaque(write_model: WriteModel) -> None:
    path = write_model(
        [helper.make_node("Einsum", ["x", "x", "x"], ["y"], equation="ij,jk,kl->il")], {"x": (np.float32, (3, 3))}
    )
    assert "CustomOp" in {n.name for n in import_model(path, allow_opaque=True).graph}
    with pytest.raises(ModelError, match="the equation"):
        import_model(path)
