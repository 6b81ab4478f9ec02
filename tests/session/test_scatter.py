"""Models that write at computed positions, compiled and compared with onnxruntime: caches, masks, histograms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from workbench import CompileSession
from workbench.ir import llir

RNG = np.random.default_rng(3)
HEADS, WIDTH, LENGTH = 2, 8, 6


def written(path: Path, nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: dict[str, Any],
            weights: dict[str, np.ndarray]) -> Path:  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def peer(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def cache_step(path: Path, by_element: bool) -> Path:
    """One step of attention over a cache of LENGTH places: keys and values are written at `at`, places behind it are
    masked by an edit of the mask at a list of places (index_put)."""
    node = helper.make_node
    cache = (TensorProto.FLOAT, [1, HEADS, LENGTH, WIDTH])
    nodes = [node("MatMul", ["x", name], [f"{name}1"]) for name in ("wq", "wk", "wv")]
    nodes += [node("Reshape", [f"{name}1", "heads"], [f"{name}2"]) for name in ("wq", "wk", "wv")]
    for name, past in (("wk", "past_k"), ("wv", "past_v")):
        if by_element:
            nodes += [
                node("Expand", ["at", "one_place"], [f"{name}_at"]),
                node("ScatterElements", [past, f"{name}_at", f"{name}2"], [f"{name}_now"], axis=2),
            ]
        else:  # by (place), in a cache whose first axis is the place
            nodes += [
                node("Transpose", [past], [f"{name}_t"], perm=[2, 0, 1, 3]),
                node("Transpose", [f"{name}2"], [f"{name}_u"], perm=[2, 0, 1, 3]),
                node("Reshape", ["at", "one_by_one"], [f"{name}_at"]),
                node("ScatterND", [f"{name}_t", f"{name}_at", f"{name}_u"], [f"{name}_s"]),
                node("Transpose", [f"{name}_s"], [f"{name}_now"], perm=[1, 2, 0, 3]),
            ]
    nodes += [
        node("Identity", ["wk_now"], ["k"]),
        node("Identity", ["wv_now"], ["v"]),
        node("Transpose", ["wk_now"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["wq2", "kt"], ["scores"]),
        node("ScatterND", ["mask", "hidden", "minus"], ["edited"]),
        node("Add", ["scores", "edited"], ["masked"]),
        node("Softmax", ["masked"], ["shares"], axis=-1),
        node("MatMul", ["shares", "wv_now"], ["y"]),
    ]
    return written(
        path,
        nodes,
        {"x": (TensorProto.FLOAT, [1, 1, HEADS * WIDTH]), "at": (TensorProto.INT64, [1]), "past_k": cache,
         "past_v": cache, "hidden": (TensorProto.INT64, [LENGTH, 1]), "mask": (TensorProto.FLOAT, [LENGTH])},
        {"y": (TensorProto.FLOAT, [1, HEADS, 1, WIDTH]), "k": cache, "v": cache},
        {name: RNG.normal(0, 0.25, (HEADS * WIDTH, HEADS * WIDTH)).astype(np.float32) for name in ("wq", "wk", "wv")}
        | {"heads": np.array([1, HEADS, 1, WIDTH]), "one_place": np.array([1, HEADS, 1, WIDTH]),
           "one_by_one": np.array([1, 1]), "minus": np.full(LENGTH, -1e9, np.float32)},
    )  # fmt: skip


@pytest.mark.parametrize("by_element", [True, False], ids=["ScatterElements", "ScatterND"])
def test_a_cache_is_written_step_by_step(tmp_path: Path, by_element: bool) -> None:
    path = cache_step(tmp_path / "m.onnx", by_element)
    with CompileSession(path, limit=5, artifacts=str(tmp_path / "a")) as session:
        exe = session.run()
        (compiled,) = exe._compiled.values()
        modes = [k.mode for k in compiled.program.kernels if isinstance(k, llir.ScatterKernel)]
        assert modes == ["none"] * 3
    other = peer(path)
    state = {name: np.zeros((1, HEADS, LENGTH, WIDTH), np.float32) for name in ("past_k", "past_v")}
    for step in range(LENGTH):
        hidden = np.arange(step + 1, LENGTH) if step + 1 < LENGTH else np.array([], np.int64)
        given = {
            "x": RNG.standard_normal((1, 1, HEADS * WIDTH)).astype(np.float32),
            "at": np.array([step - LENGTH if step % 2 else step]),  # from the end too
            "hidden": np.resize(hidden if hidden.size else np.array([-LENGTH]), (LENGTH, 1)),
            "mask": np.zeros(LENGTH, np.float32),
        } | state
        found, wanted = exe.run(given), dict(zip(("y", "k", "v"), other.run(["y", "k", "v"], given), strict=True))
        for name, want in wanted.items():
            np.testing.assert_allclose(found[name], want, rtol=1e-4, atol=1e-5)
        state = {"past_k": found["k"], "past_v": found["v"]}
    assert np.count_nonzero(state["past_k"].any((0, 1, 3))) == LENGTH


@pytest.mark.parametrize("mode", ["none", "add", "mul", "max", "min"])
def test_rows_are_scattered_at_any_length(tmp_path: Path, mode: str) -> None:
    """As many writes as there are tokens, to rows that meet, into what a matmul made."""
    path = written(
        tmp_path / "m.onnx",
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Relu", ["tokens"], ["t"]),
            helper.make_node("ScatterND", ["h", "rows", "t"], ["s"], reduction=mode),
            helper.make_node("Tanh", ["s"], ["y"]),
        ],
        {"x": (TensorProto.FLOAT, ["n", 4]), "rows": (TensorProto.INT64, ["m", 1]),
         "tokens": (TensorProto.FLOAT, ["m", 5])},
        {"y": (TensorProto.FLOAT, ["n", 5])},
        {"w": RNG.standard_normal((4, 5)).astype(np.float32)},
    )  # fmt: skip
    with CompileSession(path, limit=5, dims={"n": 4, "m": 3}, artifacts=str(tmp_path / "a")) as session:
        exe = session.run()
    other = peer(path)
    for n, m in ((4, 3), (1, 7), (9, 1), (7, 64)):
        x, tokens = (RNG.standard_normal(shape).astype(np.float32) for shape in ((n, 4), (m, 5)))
        rows = RNG.permutation(max(n, m))[:m, None] % n if mode == "none" and m <= n else RNG.integers(-n, n, (m, 1))
        if mode == "none" and m > n:  # onnxruntime writes in any order: equal rows are to be equal
            tokens[:] = tokens[0]
        given = {"x": x, "rows": rows, "tokens": tokens}
        np.testing.assert_allclose(exe.run(given)["y"], other.run(["y"], given)[0], rtol=1e-4, atol=1e-5)
