"""What a person reads when a model cannot be imported: one line that says what is wrong and where."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from workbench.errors import ModelError
from workbench.frontend import coverage, import_model, supported_operators

WriteModel = Callable[..., Path]
node = helper.make_node
X = {"x": (np.float32, (2, 3))}


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        import_model(path, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert text.isprintable()
    return text


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.onnx").startswith("no such file: ")


def test_a_directory(tmp_path: Path) -> None:
    assert "is a directory" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"", "is empty"), (b"PK\x03\x04 hello", "not a readable ONNX model"), (b"\x08\x07", "not an ONNX model")],
)
def test_files_that_are_no_models(content: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(content)
    assert text in refusal(path)


def test_every_truncation_is_refused_or_read(write_model: WriteModel) -> None:
    path = write_model([node("MatMul", ["x", "w"], ["y"])], X, known={"w": np.ones((3, 4), np.float32)})
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with contextlib.suppress(ModelError):
            import_model(path)


@pytest.mark.parametrize("opset", [6, 99])
def test_an_opset_out_of_range_names_the_range(opset: int, write_model: WriteModel) -> None:
    made = node("Add", ["x", "x"], ["y"])  # broadcast by an attribute until opset 7
    assert f"uses opset {opset}; supported are 7 to " in refusal(write_model([made], X, opset=opset))


def test_an_old_opset_is_read_where_its_operators_have_not_changed(write_model: WriteModel) -> None:
    graph = import_model(write_model([node("Sqrt", ["x"], ["y"])], X, opset=6)).graph
    assert [n.name for n in graph] == ["Input", "Sqrt", "Output"]


def test_all_unsupported_operators_are_listed_with_counts_and_first_nodes(write_model: WriteModel) -> None:
    path = write_model(
        [
            node("Unique", ["x"], ["a"], name="first one"),
            node("Unique", ["a"], ["b"], name="second"),
            node("Swirl", ["b"], ["y"], name="odd\none", domain="acme"),
        ],
        X,
    )
    text = refusal(path)
    assert "unsupported operators: Unique x2 (first: 'first one'), acme::Swirl x1 (first: 'odd\\none')" in text


def test_coverage_reports_what_import_refuses(write_model: WriteModel) -> None:
    path = write_model([node("Sqrt", ["x"], ["a"]), node("Swirl", ["a"], ["y"], name="s", domain="acme")], X, opset=17)
    uses = {use.name: use for use in coverage(path).operators}
    assert (uses["Sqrt"].supported, uses["Sqrt"].opset, uses["Sqrt"].count) == (True, 17, 1)
    assert (uses["Swirl"].supported, uses["Swirl"].domain, uses["Swirl"].first_node) == (False, "acme", "s")


def test_what_a_subgraph_cannot_have_is_said_with_the_way_to_it(write_model: WriteModel) -> None:
    body = helper.make_graph([node("Unique", ["x"], ["t"], name="inner")], "g", [], [onnx.ValueInfoProto(name="t")])
    made = node("If", ["c"], ["y"], then_branch=body, else_branch=body, name="outer")
    assert "node 'outer' (If): node 'inner' (Unique): the operator is not supported" in refusal(
        write_model([made], X, known={"c": np.array(True)})
    )


def test_a_value_that_nothing_makes(write_model: WriteModel) -> None:
    path = write_model([node("Add", ["x", "ghost"], ["y"], name="sum")], X)
    assert refusal(path) == "node 'sum' (Add) reads 'ghost', which nothing makes"
    assert "output 'y' is made by no node" in refusal(write_model([node("Sqrt", ["x"], ["z"])], X))


def test_a_cycle(write_model: WriteModel) -> None:
    path = write_model([node("Add", ["x", "y"], ["t"], name="loop"), node("Sqrt", ["t"], ["y"])], X)
    assert refusal(path) == "the graph has a cycle through node 'loop' (Add)"


def test_nodes_out_of_order_are_no_error(write_model: WriteModel) -> None:
    path = write_model([node("Sqrt", ["t"], ["y"]), node("Sin", ["x"], ["t"])], X)
    assert [n.name for n in import_model(path).graph] == ["Input", "Sin", "Sqrt", "Output"]


@pytest.mark.parametrize(
    ("nodes", "outputs", "text"),
    [
        ([node("Sqrt", ["x"], ["y"])], ("y", "y"), "output 'y' appears twice"),
        ([node("Sqrt", ["x"], ["y"]), node("Sin", ["x"], ["y"])], ("y",), "node output 'y' appears twice"),
        ([node("Sqrt", ["x"], ["y"])], (), "has no outputs"),
    ],
)
def test_names_that_clash(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], text: str, write_model: WriteModel
) -> None:
    assert text in refusal(write_model(nodes, X, outputs))


@pytest.mark.parametrize(
    ("made", "inputs", "known", "text"),
    [
        (node("Add", ["x", "w"], ["y"], name="n"), X, {"w": np.ones(4, np.float32)}, "broadcast [2, 3] with [4]"),
        (node("Add", ["x", "w"], ["y"], name="n"), X, {"w": np.ones(3)}, "input 1 is double, one before it float"),
        (node("MatMul", ["x", "w"], ["y"], name="n"), X, {"w": np.ones((4, 5), np.float32)}, "cannot contract"),
        (node("Reshape", ["x", "w"], ["y"], name="n"), X, {"w": np.array([4, -1])}, "element counts differ"),
        (node("Transpose", ["x"], ["y"], name="n", perm=[0, 0]), X, {}, "no order of the axes"),
        (node("Softmax", ["x"], ["y"], name="n", axis=2), X, {}, "axis 2 of a tensor of rank 2"),
        (node("Concat", ["x", "x"], ["y"], name="n"), X, {}, "attribute 'axis' is absent"),
        (node("Sqrt", ["x"], ["y"], name="n", odd=1), X, {}, "attribute 'odd' is not supported"),
        (node("Sqrt", ["x", "x"], ["y"], name="n"), X, {}, "2 inputs"),
        (node("Gather", ["x", "w"], ["y"], name="n"), X, {"w": np.array([5])}, "position 5"),
        (node("ConstantOfShape", ["w"], ["y"], name="n"), X, {"w": np.array([2, -2])}, "negative extent"),
        (node("Expand", ["x", "s"], ["y"], name="n"), {**X, "s": (np.int64, (2,))}, {}, "must be known"),
        (node("NonZero", ["x"], ["y"], name="n"), X, {}, "depends on data"),
        (node("Dropout", ["x", "r", "t"], ["y"], name="n"), X, {"r": np.float32(0.5), "t": np.array(True)}, "random"),
    ],
    ids=str,
)  # fmt: skip
def test_a_node_that_makes_no_sense_is_named(
    made: onnx.NodeProto, inputs: Any, known: Any, text: str, write_model: WriteModel
) -> None:
    shown = refusal(write_model([made], inputs, known=known))
    assert shown.startswith(f"node 'n' ({made.op_type}): ")
    assert text in shown


def test_inputs_that_cannot_be_held(write_model: WriteModel) -> None:
    sqrt = [node("Sqrt", ["x"], ["y"])]
    eight = refusal(write_model(sqrt, {"x": (ml_dtypes.float8_e4m3fn, (2,))}))
    assert "input 'x' is float8e4m3fn, which is not supported (element types are f64, f32, f16, bf16" in eight
    assert "input 'x' has no shape" in refusal(write_model(sqrt, {"x": (np.float32, None)}))
    assert "input 'x' has the extent -7 on axis 1" in refusal(write_model(sqrt, {"x": (np.float32, (2, -7))}))


def _with_initializer(path: Path, change: Callable[[TensorProto], None]) -> Path:
    model = onnx.load(path, load_external_data=False)
    change(model.graph.initializer[0])
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("dims", "text"),
    [
        ([3, 5], "tensor 'w' declares [3, 5] float32 (60 bytes) but holds 48"),
        ([3, -4], "negative extent"),
        ([2**40, 2**40], "absurd size"),
        ([2**20, 2**20], "but holds 48"),
    ],
)
def test_an_initializer_that_declares_another_size(dims: list[int], text: str, write_model: WriteModel) -> None:
    path = write_model([node("MatMul", ["x", "w"], ["y"])], X, known={"w": np.ones((3, 4), np.float32)})

    def resize(tensor: TensorProto) -> None:
        tensor.dims[:] = dims

    assert text in refusal(_with_initializer(path, resize))


def test_a_typed_field_that_declares_another_size(write_model: WriteModel) -> None:
    path = write_model([node("MatMul", ["x", "w"], ["y"])], X, known={"w": np.ones((3, 4), np.float32)})

    def refill(tensor: TensorProto) -> None:
        tensor.ClearField("raw_data")
        tensor.dims[:] = [2**20, 2**20]
        tensor.float_data.extend([1.0, 2.0])

    assert "tensor 'w'" in refusal(_with_initializer(path, refill))


def test_the_table_lists_versions() -> None:
    table = {(domain, name): versions for domain, name, versions in supported_operators()}
    assert table["", "Softmax"] == (1, 13)
    assert table["luminal", "GraphBreak"] == (1,)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (node("Softmax", ["i"], ["y"]), "input 0 is int64; it may be"),
        (node("Add", ["x", "i"], ["y"]), "input 1 is int64, one before it float"),
        (node("Gather", ["x", "x"], ["y"]), "input 1 is float; it may be int32, int64"),
        (node("SpaceToDepth", ["x"], ["y"], blocksize=-1), "a result of shape"),
    ],
)
def test_types_and_extents_that_cannot_be_are_refused(
    made: onnx.NodeProto, text: str, write_model: Callable[..., Path]
) -> None:
    inputs = {"x": (np.float32, (1, 2, 4, 4)), "i": (np.int64, (1, 2, 4, 4))}
    with pytest.raises(ModelError, match=text):
        import_model(write_model([made], inputs))
