"""Weights outside the model file: mapped lazily, confined to the model's folder, made up where they are missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.external_data_helper import set_external_data

from workbench.errors import ModelError
from workbench.frontend import import_model
from workbench.ir.hlir import Graph
from workbench.ir.interpret import interpret
from workbench.ir.weights import ExternalData, RandomData, load_constant

WriteModel = Callable[..., Path]
SQUARE = np.random.default_rng(4).standard_normal((80, 80)).astype(np.float32)
WEIGHT = np.random.default_rng(3).standard_normal((64, 128)).astype(np.float32)


def write_external(
    write_model: WriteModel, location: str = "w.bin", length: int | None = None, offset: int = 4
) -> Path:
    path = write_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (np.float32, (2, 64))}, known={"w": WEIGHT}
    )
    model = onnx.load(path)
    set_external_data(model.graph.initializer[0], location, offset, WEIGHT.nbytes if length is None else length)
    model.graph.initializer[0].ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    return path


def the_constant(graph: Graph) -> int:
    (node_id,) = graph.constants
    return node_id


def test_external_data_is_mapped_and_right(write_model: WriteModel, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"skip" + WEIGHT.tobytes())
    graph = import_model(write_external(write_model)).graph
    x = np.ones((2, 64), np.float32)
    np.testing.assert_allclose(interpret(graph, {"x": x})["y"], x @ WEIGHT, rtol=1e-5)
    loaded = load_constant(graph, the_constant(graph))
    np.testing.assert_array_equal(loaded, WEIGHT)
    base: object = loaded
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


def test_a_missing_file_is_named_and_loading_it_is_an_error(write_model: WriteModel) -> None:
    imported = import_model(write_external(write_model))
    constant = the_constant(imported.graph)
    assert imported.missing_weights == ["w"]
    assert isinstance(imported.graph.constants[constant], ExternalData)
    with pytest.raises(ModelError, match=r"the weights of 'w' are in w\.bin, which is missing"):
        load_constant(imported.graph, constant)


def test_a_file_that_comes_later_is_found(write_model: WriteModel, tmp_path: Path) -> None:
    graph = import_model(write_external(write_model)).graph
    (tmp_path / "w.bin").write_bytes(b"skip" + WEIGHT.tobytes())
    np.testing.assert_array_equal(load_constant(graph, the_constant(graph)), WEIGHT)


def test_made_up_weights_are_small_and_the_same_every_time(write_model: WriteModel) -> None:
    path = write_external(write_model)
    graphs = [import_model(path, random_weights=True).graph for _ in range(2)]
    first, second = (load_constant(g, the_constant(g)) for g in graphs)
    assert isinstance(graphs[0].constants[the_constant(graphs[0])], RandomData)
    np.testing.assert_array_equal(first, second)
    assert first.dtype == np.float32
    assert 0.019 < first.std() < 0.021


@pytest.mark.parametrize(
    "location",
    [
        "../w.bin", "/etc/passwd", "a/../../w.bin", "", ".", "..", "//etc/passwd", "./..//w.bin", "a\0b", "\0",
        "a/../..",
    ],
)  # fmt: skip
def test_data_outside_the_folder_is_refused(location: str, write_model: WriteModel) -> None:
    with pytest.raises(ModelError, match="lies outside the model's folder"):
        import_model(write_external(write_model, location))


def test_a_link_that_leaves_the_folder_is_refused(
    write_model: WriteModel, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "w.bin"
    elsewhere.write_bytes(b"skip" + WEIGHT.tobytes())
    (tmp_path / "w.bin").symlink_to(elsewhere)
    with pytest.raises(ModelError, match="lies outside the model's folder"):
        import_model(write_external(write_model))


def test_a_file_that_is_too_short_or_a_length_that_does_not_fit(write_model: WriteModel, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"skip" + WEIGHT.tobytes()[:-1])
    with pytest.raises(ModelError, match=r"ends at byte 32772 of w\.bin, which has 32771"):
        import_model(write_external(write_model))
    with pytest.raises(ModelError, match=r"declares \[64, 128\] float32 \(32768 bytes\) but holds 100"):
        import_model(write_external(write_model, length=100))


@pytest.mark.parametrize("location", ["file:///etc/passwd", "https://example.org/w.bin", "~/w.bin", "$HOME/w.bin", "*"])
def test_no_location_is_more_than_a_path_in_the_folder(location: str, write_model: WriteModel, tmp_path: Path) -> None:
    path = write_external(write_model, location)
    (data,) = import_model(path).graph.constants.values()
    assert isinstance(data, ExternalData)
    assert data.path.is_relative_to(tmp_path)


@pytest.mark.parametrize(
    ("location", "message"), [("circle", "cannot be found"), ("n" * 300, "cannot (be found|read)"), ("folder", "")]
)
def test_what_is_no_file_is_missing_or_an_error(
    location: str, message: str, write_model: WriteModel, tmp_path: Path
) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "folder").mkdir()
    path = write_external(write_model, location)
    if message:
        with pytest.raises(ModelError, match=message):
            import_model(path)
    else:
        assert import_model(path).missing_weights == ["w"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("offset", "-4", "but holds"),
        ("length", "-32768", "but holds -32768"),
        ("offset", "four", "no integer"),
        ("length", "1e3", "no integer"),
        ("offset", "9" * 30, "ends at byte 10000"),
        ("offset", str(1 << 62), "ends at byte 461168"),
        ("offset", "9" * 5000, "no integer"),
    ],
)
def test_places_that_are_none(key: str, value: str, message: str, write_model: WriteModel, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"skip" + WEIGHT.tobytes())
    path = write_external(write_model)
    model = onnx.load(path, load_external_data=False)
    (entry,) = (e for e in model.graph.initializer[0].external_data if e.key == key)
    entry.value = value
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=message):
        import_model(path)


def test_weights_may_overlap_and_lie_at_any_byte(write_model: WriteModel, tmp_path: Path) -> None:
    path = write_model(
        [helper.make_node("MatMul", ["x", "v"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])],
        {"x": (np.float32, (2, 80))}, known={"v": SQUARE, "w": SQUARE},
    )  # fmt: skip
    model = onnx.load(path)
    for tensor, offset in zip(model.graph.initializer, (1, 5), strict=True):
        set_external_data(tensor, "w.bin", offset, SQUARE.nbytes)
        tensor.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    data = b"-" + SQUARE.tobytes() + b"\0\0\0\0"
    (tmp_path / "w.bin").write_bytes(data)
    v, w = (np.frombuffer(data[at : at + SQUARE.nbytes], np.float32).reshape(80, 80) for at in (1, 5))
    x = np.ones((2, 80), np.float32)
    np.testing.assert_allclose(interpret(import_model(path).graph, {"x": x})["y"], x @ v @ w, rtol=1e-4, atol=1e-3)


def test_a_file_that_changed_since_the_import_is_told(write_model: WriteModel, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"skip" + WEIGHT.tobytes())
    graph = import_model(write_external(write_model)).graph
    (tmp_path / "w.bin").write_bytes(b"short")
    with pytest.raises(ModelError, match=r"w\.bin, which holds weights, changed since the model was opened"):
        interpret(graph, {"x": np.ones((2, 64), np.float32)})


def test_parameters_count_the_float_initializers(write_model: WriteModel) -> None:
    assert import_model(write_external(write_model)).parameters == WEIGHT.size


def test_importing_the_package_does_not_import_onnx() -> None:
    code = "import sys, workbench.frontend; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
