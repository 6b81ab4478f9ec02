"""Quantized models end to end: made by onnxruntime, right against it and the interpreter, their layers grouped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests import models_at_hand, quantized
from tests.small_graphs import byte_matmul
from workbench import CompileSession
from workbench.ir import dtype as dt
from workbench.ir import ops
from workbench.ir.hlir import Graph
from workbench.session.headless import run_model
from workbench.session.inspection import split_and_group
from workbench.session.reference import representative_inputs
from workbench.session.spec import SessionSpec

from .conftest import Command

Make = Callable[[Path, Path], None]
LLAMA, MINILM, VIT = "llama3_tiny_4l_dynamo", "minilm_6l_ts17", "vit_tiny_4l_ts17"
RESNET = "resnet_small_ts17"


def static(**options: object) -> Make:
    return lambda source, target: quantized.static(source, target, **options)  # type: ignore[arg-type]


def dynamic(**options: object) -> Make:
    return lambda source, target: quantized.dynamic(source, target, **options)  # type: ignore[arg-type]


MODELS: dict[str, tuple[str, Make, list[int]]] = {
    "mlp, dynamic": ("mlp_ts17", dynamic(), [1]),
    "mlp, QDQ": ("mlp_ts17", static(), [1]),
    "llama, dynamic": (LLAMA, dynamic(), [1, 4, 3, 1]),
    "vit, QDQ": (VIT, static(), [1, 4, 3, 1]),
    "resnet, QLinearConv": (RESNET, static(qdq=False, operators=["Conv"]), [1, 2, 1, 1]),
}
"""Compiled: the model, how it is quantized, and the members of its groups."""
GROUPED: dict[str, tuple[str, Make, list[int]]] = {
    "llama, dynamic, u8 weights": (LLAMA, dynamic(weights="u8"), [1, 4, 3, 1]),
    "llama, QDQ": (LLAMA, static(), [1, 3, 3, 1]),
    "minilm, QLinearMatMul": (MINILM, static(qdq=False, operators=["MatMul"]), [1, 5, 5, 1]),
    "minilm, dynamic": (MINILM, dynamic(), [1, 5, 5, 1]),
    "minilm, QDQ": (MINILM, static(), [1, 5, 5, 1]),
    "gpt2, dynamic": ("gpt2_tiny_2l_ts17", dynamic(operators=["MatMul", "Gemm", "Gather"]), [1, 2, 1, 1]),
    "resnet, QDQ, i8 per channel": (RESNET, static(activations="i8", per_channel=True), [1, 2, 1, 1]),
}
"""Imported, interpreted and grouped only."""


def made(name: str, make: Make, folder: Path) -> Path:
    try:
        source = models_at_hand.find(f"{name}.onnx")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    target = folder / "quantized.onnx"
    make(source, target)
    quantized.beside(target)
    return target


@pytest.mark.parametrize("which", MODELS)
def test_a_quantized_model_is_right_and_its_layers_share_a_search(which: str, tmp_path: Path) -> None:
    path = made(*MODELS[which][:2], tmp_path)
    with CompileSession(path, limit=4 if "mlp" in which else 2) as session:
        session.run()
        assert [len(g.members) for g in session.groups] == MODELS[which][2]
        verdict = session.view.verified
        assert verdict is not None
        assert verdict.ok
        assert "npz" in verdict.reference
        kept = {n.dtype for n in session.graph if isinstance(n.op, ops.Constant) and len(n.shape) > 1}
        assert dt.I8 in kept


@pytest.mark.parametrize("which", GROUPED)
def test_quantized_layers_are_found(which: str, tmp_path: Path) -> None:
    path = made(*GROUPED[which][:2], tmp_path)
    imported, found, wanted = models_at_hand.computed(path)
    _, _, groups = split_and_group(imported.graph)
    assert [len(g.members) for g in groups] == GROUPED[which][2]
    for name, array in wanted.items():  # where a rounding went another way, a step or two of the quantization
        assert np.abs(found[name] - array).max() <= 0.05 * np.abs(array).max()


def test_inspect_names_the_operators_and_counts_the_weights(luminal: Command, tmp_path: Path) -> None:
    path = made("mlp_ts17", dynamic(), tmp_path)
    status, out, _ = luminal("inspect", str(path), "--json")
    found = json.loads(out)
    assert status == 0
    assert {"DynamicQuantizeLinear", "MatMulInteger"} <= {o["name"] for o in found["operators"] if o["supported"]}
    assert found["graph"]["parameters"] > 15000


def test_run_says_when_outputs_are_of_another_model(tmp_path: Path) -> None:
    path = made("mlp_ts17", static(), tmp_path)
    with np.load(path.with_suffix(".npz")) as stored:
        arrays = {name: stored[name] for name in stored.files}
    spec = SessionSpec(model=str(path), target="cpu", limit=2)
    verdicts = []
    for factor in (1.0, 1.2):
        np.savez(tmp_path / "given.npz", **{n: a * np.float32(factor) if n[0] == "o" else a for n, a in arrays.items()})
        _, wrong = run_model(spec, str(tmp_path / "given.npz"), str(tmp_path / "out.npz"), search_again=False)
        verdicts.append(wrong)
    assert verdicts[0] is None
    assert verdicts[1] is not None
    assert "where a rounding is close" in str(verdicts[1])


def test_a_model_of_bytes_is_verified_over_their_range() -> None:
    drawn = representative_inputs(byte_matmul(20, 4, 20, left=dt.U8, right=dt.I8), seed=0)
    assert drawn["x"].dtype == np.uint8
    assert drawn["x"].min() < 20
    assert drawn["x"].max() > 235
    assert drawn["w"].min() < -60 < 60 < drawn["w"].max()


def integer_layers(graph: Graph) -> int:
    return sum(graph[n].dtype is dt.I32 for n in graph.contractions)


def test_integer_products_count_as_contractions(tmp_path: Path) -> None:
    graph = models_at_hand.computed(made("mlp_ts17", dynamic(), tmp_path))[0].graph
    assert integer_layers(graph) == len(graph.contractions) == 4
