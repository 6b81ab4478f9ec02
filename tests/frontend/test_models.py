"""Real models: what is imported computes what onnxruntime computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.models_at_hand import computed
from workbench.frontend import coverage, import_model
from workbench.ir.hlir import is_contraction

SMALL = (
    "mlp_ts17",
    "mlp_dynbatch_ts17",
    "llama3_tiny_4l_ts17",
    "llama3_tiny_4l_dynamo",
    "minilm_6l_ts17",
    "gpt2_tiny_2l_ts17",
    "vit_tiny_4l_ts17",
    "whisper_encoder_tiny_2l_ts17",
)
LARGER = (  # the two largest, light_resnet50 and light_vgg19, are left to `make sweep`
    "mlp_dynamo",
    "minilm_6l_dynamo",
    "qwen2_tiny_2l_ts17",
    "qwen3_tiny_2l_dynamo",
    "gemma_tiny_2l_ts17",
    "resnet_small_ts17",
    "resnet_small_bn_ts13",
    "resnet_small_dynamo",
    "ppocr_cls_v2",
    "silero_vad_16k_sequence",
    "basic_pitch_nmp",
    "light_squeezenet",
    "light_bvlc_alexnet",
    "light_inception_v1",
)
GRAPH_ONLY = ("llama32_1b_16l_graph", "llama3_8b_32l_graph", "llama3_8b_32l_noopt_graph")

FindModel = Callable[[str], Path]


def assert_matches_onnxruntime(path: Path) -> None:
    """Import and interpret the model at `path`; compare with the outputs stored beside it."""
    _, found, expected = computed(path)
    assert found.keys() == expected.keys()
    for name, want in expected.items():
        assert found[name].shape == want.shape
        assert found[name].dtype == want.dtype
        tolerance = 1e-4 * np.abs(want).max() + 1e-4 * np.abs(want) if want.dtype.kind == "f" else 0
        assert (np.abs(found[name] - want) <= tolerance).all(), name


@pytest.mark.parametrize("name", SMALL)
def test_a_small_model_computes_what_onnxruntime_does(name: str, find_model: FindModel) -> None:
    assert_matches_onnxruntime(find_model(name))


@pytest.mark.models
@pytest.mark.parametrize("name", LARGER)
def test_a_larger_model_computes_what_onnxruntime_does(name: str, find_model: FindModel) -> None:
    assert_matches_onnxruntime(find_model(name))


@pytest.mark.models
@pytest.mark.parametrize("name", GRAPH_ONLY)
def test_a_model_without_weights_is_imported_and_names_them(name: str, find_model: FindModel) -> None:
    imported = import_model(find_model(name))
    assert imported.parameters > 1_000_000_000
    assert len(imported.missing_weights) > 100
    assert "Cast" not in {node.name for node in imported.graph}, "nothing needs a copy"


@pytest.mark.models
@pytest.mark.parametrize(
    ("name", "contractions"),
    [("light_squeezenet", 26), ("light_resnet50", 54), ("light_vgg19", 19), ("light_bvlc_alexnet", 8)],
)
def test_every_convolution_of_a_large_net_is_a_contraction(name: str, contractions: int, find_model: FindModel) -> None:
    graph = import_model(find_model(name)).graph
    assert sum(is_contraction(graph, node) for node in graph) == contractions


@pytest.mark.models
def test_both_exports_of_the_8b_model_have_the_same_structure(find_model: FindModel) -> None:
    optimized, raw = (import_model(find_model(f"llama3_8b_32l_{kind}")) for kind in ("graph", "noopt_graph"))
    assert _structure(optimized.graph) == _structure(raw.graph)


def test_both_exporters_give_the_same_structure(find_model: FindModel) -> None:
    scripted = import_model(find_model("llama3_tiny_4l_ts17")).graph
    traced = import_model(find_model("llama3_tiny_4l_dynamo")).graph
    assert len(scripted) == len(traced)
    assert _structure(scripted) == _structure(traced)


def test_every_layer_of_a_transformer_has_the_same_nodes(find_model: FindModel) -> None:
    graph = import_model(find_model("llama3_tiny_4l_ts17")).graph
    layers = [
        Counter((n.name, n.shape) for n in graph if f"layers.{layer}/" in n.label and n.name != "Constant")
        for layer in range(4)
    ]
    assert sum(layers[1].values()) > 40
    assert layers[1] == layers[2] == layers[3]


def test_every_operator_of_a_small_model_is_covered(find_model: FindModel) -> None:
    report = coverage(find_model("llama3_tiny_4l_ts17"))
    assert not report.unsupported
    assert sum(use.count for use in report.operators) <= 499


def _structure(graph: object) -> Counter[tuple[str, object, object]]:
    """What is computed, at which shapes and through which layouts, constants left aside."""
    return Counter(
        (node.name, node.shape, tuple(o.layout for o in node.operands))
        for node in graph  # type: ignore[attr-defined]
        if node.name != "Constant"
    )
