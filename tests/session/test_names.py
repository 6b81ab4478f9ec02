"""Names have no say: under random ones a model has the same primitives, breaks, chunks and groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.renamed_model import renamed
from workbench.frontend import import_model
from workbench.session.inspection import inspect_model, split_and_group
from workbench.session.spec import SessionSpec

Model = Callable[[str], Path]
SMALL = (
    "llama3_tiny_4l_ts17",
    "llama3_tiny_4l_dynamo",
    "gpt2_tiny_2l_ts17",
    "vit_tiny_4l_ts17",
    "whisper_encoder_tiny_2l_ts17",
    "minilm_6l_ts17",
    "mlp_dynbatch_ts17",
)
LARGER = (
    "llama3_8b_32l_graph",
    "llama3_8b_32l_noopt_graph",
    "llama32_1b_16l_graph",
    "minilm_6l_dynamo",
    "resnet_small_dynamo",
    "resnet_small_ts17",
    "silero_vad_16k_sequence",
    "ppocr_cls_v2",
)


def other(model: Path, folder: Path) -> Path:
    path = folder / "m.onnx"
    onnx.save(renamed(onnx.load(model, load_external_data=False), seed=7), path)
    return path


def found(path: Path) -> tuple[list[str], list[tuple[str, tuple[int, ...]]]]:
    """The primitives, in order; each group's digest and members."""
    graph = import_model(path).graph
    _, _, groups = split_and_group(graph)
    digest = {False: "", True: "same"}
    return [n.name for n in graph], [(g.digest if not graph.dims else digest[True], g.members) for g in groups]


def inspected(path: Path, scratch: Path) -> dict[str, Any]:
    """The inspection but for names and times."""
    result = inspect_model(SessionSpec(model=str(path)), scratch)
    graph = result["graph"]
    for key in ("seconds", "node_names"):
        del graph[key]
    for ports in (graph["inputs"], graph["outputs"]):
        for port in ports:
            del port["name"]
            if graph["dims"]:
                port["shape"] = "".join(c for c in port["shape"] if c in "[],0123456789")
    graph["breaks"] = len(graph["breaks"])
    graph["dims"], graph["fixed_dims"] = (sorted(graph[key].values()) for key in ("dims", "fixed_dims"))
    for use in result["operators"]:
        del use["first_node"]
    del result["model"]
    return result


@pytest.mark.parametrize("name", SMALL)
def test_a_model_under_random_names_falls_into_the_same_groups(model_path: Model, tmp_path: Path, name: str) -> None:
    path = model_path(name)
    assert found(other(path, tmp_path)) == found(path)


@pytest.mark.models
@pytest.mark.parametrize("name", LARGER)
def test_a_larger_model_under_random_names_too(model_path: Model, tmp_path: Path, name: str) -> None:
    path = model_path(name)
    assert found(other(path, tmp_path)) == found(path)


@pytest.mark.parametrize("name", ["llama3_tiny_4l_dynamo", "vit_tiny_4l_ts17"])
def test_an_inspection_differs_in_names_alone(model_path: Model, tmp_path: Path, name: str) -> None:
    path = model_path(name)
    assert inspected(other(path, tmp_path), tmp_path) == inspected(path, tmp_path)


@pytest.mark.models
def test_both_exports_of_the_8b_model_have_the_same_groups(model_path: Model) -> None:
    optimised, raw = (found(model_path(f"llama3_8b_32l_{kind}")) for kind in ("graph", "noopt_graph"))
    assert raw[1] == optimised[1]
    assert [len(members) for _, members in raw[1]] == [1, 32, 31, 1]
