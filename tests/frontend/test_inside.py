"""Large weights inside a model file stay there; whatever else the file says is as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from workbench.errors import ModelError
from workbench.frontend import import_model
from workbench.frontend.inside import LEAST_BYTES, OWN_FILE, without_weights
from workbench.ir.interpret import interpret
from workbench.ir.weights import place_in_file

WriteModel = Callable[..., Path]
RNG = np.random.default_rng(5)
WIDE = RNG.standard_normal((512, 600), np.float32)
TALL = RNG.standard_normal((600, 3), np.float32)
X = RNG.standard_normal((2, 512), np.float32)
NODES = [helper.make_node("MatMul", ["x", "wide"], ["h"]), helper.make_node("MatMul", ["h", "tall"], ["y"])]


def written(write_model: WriteModel) -> Path:
    path = write_model(NODES, {"x": X}, known={"wide": WIDE, "tall": TALL})
    assert path.stat().st_size > 1 << 20
    return path


def test_a_large_weight_is_a_view_of_the_model_file(write_model: WriteModel) -> None:
    path = written(write_model)
    graph = import_model(path).graph
    (large,) = (c for c in graph.constants.values() if isinstance(c, np.ndarray) and c.size == WIDE.size)
    place = place_in_file(large)
    assert place is not None
    assert place.path == path
    np.testing.assert_array_equal(large, WIDE)
    np.testing.assert_allclose(interpret(graph, {"x": X})["y"], X @ WIDE @ TALL, rtol=1e-3, atol=1e-2)


def test_what_is_left_says_the_same_but_for_the_data(write_model: WriteModel) -> None:
    data = written(write_model).read_bytes()
    left = without_weights(memoryview(data))
    assert left is not None
    assert len(left) < len(data) - WIDE.nbytes + 200
    before, after = onnx.load_from_string(data), onnx.load_from_string(left)
    tensor = after.graph.initializer[[t.name for t in after.graph.initializer].index("wide")]
    at = {entry.key: entry.value for entry in tensor.external_data}
    assert at["location"] == OWN_FILE
    np.testing.assert_array_equal(np.frombuffer(data, np.float32, WIDE.size, int(at["offset"])), WIDE.reshape(-1))
    tensor.CopyFrom(numpy_helper.from_array(WIDE, "wide"))
    assert after == before


@pytest.mark.parametrize("cut", [1, 1000, WIDE.nbytes, WIDE.nbytes + 300])
def test_a_truncated_file_is_said_to_be_one(cut: int, write_model: WriteModel) -> None:
    path = written(write_model)
    path.write_bytes(path.read_bytes()[:-cut] if cut < WIDE.nbytes else path.read_bytes()[: -cut + 1] + b"\xff" * cut)
    with pytest.raises(ModelError, match=r"model\.onnx is not a readable ONNX model"):
        import_model(path)


def test_data_of_another_size_than_declared_is_refused(write_model: WriteModel) -> None:
    path = written(write_model)
    model = onnx.load(path)
    (tensor,) = (t for t in model.graph.initializer if t.name == "wide")
    tensor.dims[0] = 511
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=r"'wide' declares \[511, 600\] float32 \(1226400 bytes\) but holds 1228800"):
        import_model(path)


@pytest.mark.parametrize("kind", ["packed", "external", "small", "two graphs"])
def test_other_tensors_stay_as_they_are(kind: str, write_model: WriteModel) -> None:
    model = onnx.load(written(write_model))
    tensor = model.graph.initializer[0]
    if kind == "packed":
        tensor.data_type = onnx.TensorProto.UINT4
    elif kind == "external":
        tensor.external_data.add(key="location", value="w")
    elif kind == "small":
        tensor.raw_data = b"\0" * (LEAST_BYTES - 1)
    data = model.SerializeToString()
    if kind == "two graphs":  # a parser merges them
        data += onnx.ModelProto(graph=onnx.GraphProto(name="again")).SerializeToString()
    assert without_weights(memoryview(data)) is None


def test_no_model_may_name_itself_where_it_does_not_hold_weights(write_model: WriteModel) -> None:
    model = onnx.load(written(write_model))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=OWN_FILE)
    with pytest.raises(ModelError, match="lies outside the model's folder"):
        import_model(model)
