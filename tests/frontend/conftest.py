"""Models for the importer's tests: real ones looked up by name, and small ones written to a temporary folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests import models_at_hand

FindModel = Callable[[str], Path]
WriteModel = Callable[..., Path]


@pytest.fixture
def find_model() -> FindModel:
    """The path of a model by name; the test is skipped where no folder has it."""

    def find(name: str) -> Path:
        try:
            return models_at_hand.find(f"{name}.onnx")
        except FileNotFoundError as error:
            pytest.skip(str(error))

    return find


@pytest.fixture
def write_model(tmp_path: Path) -> WriteModel:
    """Writes a model of ONNX nodes and returns its path.

    `inputs` maps names to arrays or to (dtype, shape) pairs; `known` maps names to initializers."""

    def write(
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, Any],
        outputs: Sequence[str] = ("y",),
        known: Mapping[str, np.ndarray] | None = None,
        opset: int = 21,
        name: str = "model.onnx",
    ) -> Path:
        given = []
        for label, value in inputs.items():
            dtype, shape = (value.dtype, value.shape) if isinstance(value, np.ndarray) else value
            given.append(helper.make_tensor_value_info(label, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape))
        graph = helper.make_graph(
            list(nodes),
            "test",
            given,
            [onnx.ValueInfoProto(name=output) for output in outputs],
            [numpy_helper.from_array(array, label) for label, array in (known or {}).items()],
        )
        others = {"luminal": 1, "acme": 1, "ai.onnx.ml": 3}
        opsets = [helper.make_opsetid(domain, version) for domain, version in {"": opset, **others}.items()]
        path = tmp_path / name
        path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
        return path

    return write
