"""Shape arithmetic and constants vanish at import; nothing large is made on the way."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from workbench.errors import ModelError
from workbench.frontend import import_model
from workbench.ir.hlir import is_contraction
from workbench.ir.interpret import interpret

WriteModel = Callable[..., Path]
node = helper.make_node


def names(path: Path) -> Counter[str]:
    return Counter(n.name for n in import_model(path).graph)


def test_a_reshape_by_computed_shape_is_a_layout(write_model: WriteModel) -> None:
    path = write_model(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("Unsqueeze", ["n", "zeros"], ["n1"]),
            node("Concat", ["n1", "rest"], ["to"], axis=0),
            node("Reshape", ["x", "to"], ["r"]),
            node("Transpose", ["r"], ["t"], perm=[0, 2, 1, 3]),
            node("Neg", ["t"], ["y"]),
        ],
        {"x": (np.float32, (2, 6, 8))},
        known={"zero": np.array(0), "zeros": np.array([0]), "rest": np.array([-1, 4, 2])},
    )
    assert names(path) == Counter(Input=1, Constant=1, Mul=1, Output=1)


def test_equal_constants_are_one_node(write_model: WriteModel) -> None:
    path = write_model(
        [node("Mul", ["x", "a"], ["t"]), node("Mul", ["t", "b"], ["y"])],
        {"x": (np.float32, (2, 3))},
        known={"a": np.float32(0.5), "b": np.float32(0.5)},
    )
    assert names(path)["Constant"] == 1


def test_the_same_computation_is_made_once(write_model: WriteModel) -> None:
    path = write_model(
        [node("Sin", ["x"], ["a"]), node("Sin", ["x"], ["b"]), node("Add", ["a", "b"], ["y"])],
        {"x": (np.float32, (4,))},
    )
    assert names(path)["Sin"] == 1


def test_dead_nodes_go_and_unused_inputs_stay(write_model: WriteModel) -> None:
    path = write_model(
        [node("Sin", ["x"], ["dead"]), node("Sqrt", ["x"], ["y"])],
        {"x": (np.float32, (4,)), "unused": (np.int64, (2,))},
    )
    assert names(path) == Counter(Input=2, Sqrt=1, Output=1)


def test_operators_that_only_dead_nodes_use_do_not_matter(write_model: WriteModel) -> None:
    path = write_model(
        [node("NonMaxSuppression", ["x"], ["dead"]), node("Sqrt", ["x"], ["y"])], {"x": (np.float32, (4,))}
    )
    assert names(path)["Sqrt"] == 1


def test_a_gigantic_fill_is_a_view_of_one_element(write_model: WriteModel) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = write_model(
        [
            node("ConstantOfShape", ["shape"], ["fill"]),
            node("Slice", ["fill", "at", "to"], ["part"]),
            node("Add", ["x", "part"], ["y"]),
        ],
        {"x": (np.float32, (2, 3))},
        known={"shape": np.array([10**6, 10**6]), "at": np.array([5, 5]), "to": np.array([7, 8])},
    )
    assert names(path)["Add"] == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_a_gigantic_range_is_an_iota(write_model: WriteModel) -> None:
    path = write_model(
        [node("Range", ["a", "b", "c"], ["r"]), node("Slice", ["r", "at", "to"], ["y"])],
        {"x": (np.float32, (2,))},
        known={k: np.array(v) for k, v in {"a": 3, "b": 10**12, "c": 2}.items()}
        | {"at": np.array([10**9]), "to": np.array([10**9 + 3])},
    )
    graph = import_model(path).graph
    assert "Iota" in {n.name for n in graph}


def test_half_precision_of_few_elements_folds(write_model: WriteModel) -> None:
    path = write_model(
        [node("Cast", ["h"], ["f"], to=1), node("Mul", ["x", "f"], ["y"])],
        {"x": (np.float32, (3,))},
        known={"h": np.array([1, 2, 3], np.float16)},
    )
    assert interpret(import_model(path).graph, {"x": np.ones(3)})["y"].tolist() == [1, 2, 3]


def test_a_type_that_the_graph_cannot_hold_is_refused_by_name(write_model: WriteModel) -> None:
    path = write_model([node("Cast", ["x"], ["y"], name="to eight", to=17)], {"x": (np.float32, (3,))})
    with pytest.raises(ModelError, match="node 'to eight' \\(Cast\\): float8_e4m3fn values are not supported"):
        import_model(path)


def test_an_output_always_reads_front_to_back(write_model: WriteModel) -> None:
    path = write_model(
        [node("Transpose", ["x"], ["y"]), node("Identity", ["x"], ["same"])],
        {"x": (np.float32, (2, 3))},
        outputs=("y", "same"),
    )
    graph = import_model(path).graph
    for node_id in graph.outputs:
        (operand,) = graph[node_id].operands
        assert operand.layout.is_contiguous
        assert graph[operand.source].name == "Cast"


def test_a_graph_break_stays(write_model: WriteModel) -> None:
    path = write_model(
        [node("GraphBreak", ["x"], ["t"], domain="luminal"), node("Sqrt", ["t"], ["y"])], {"x": (np.float32, (4,))}
    )
    assert names(path)["GraphBreak"] == 1


def test_a_batched_matmul_keeps_its_leading_axes(write_model: WriteModel) -> None:
    path = write_model(
        [node("MatMul", ["x", "w"], ["y"])],
        {"x": (np.float32, (1, 16, 8))},
        known={"w": np.ones((8, 4), np.float32)},
    )
    graph = import_model(path).graph
    (product,) = [n for n in graph if n.name == "Mul"]
    assert product.shape == (1, 16, 4, 8)
    left, right = (o.layout for o in product.operands)
    assert [str(s) for s in left.strides] == ["0", "z*8", "0", "z"]
    assert [str(s) for s in right.strides] == ["0", "0", "z", "z*4"]


def test_labels_and_input_names_are_verbatim(write_model: WriteModel) -> None:
    path = write_model([node("Sqrt", ["in:0"], ["y"], name="/a/b\x1b[31m")], {"in:0": (np.float32, (4,))})
    graph = import_model(path).graph
    assert graph[graph.inputs[0]].op.name == "in:0"  # type: ignore[union-attr]
    assert "/a/b\x1b[31m" in {n.label for n in graph}


def test_a_filled_weight_is_still_a_matmul_and_holds_one_number(write_model: WriteModel) -> None:
    path = write_model(
        [node("ConstantOfShape", ["shape"], ["w"]), node("Gemm", ["x", "w"], ["y"], transB=1)],
        {"x": (np.float32, (2, 50_000))},
        known={"shape": np.array([40_000, 50_000])},
    )
    graph = import_model(path).graph
    assert sum(is_contraction(graph, n) for n in graph) == 1
    (weight,) = (data for data in graph.constants.values() if isinstance(data, np.ndarray) and data.ndim == 2)
    assert weight.shape == (40_000, 50_000)
    assert weight.strides == (0, 0)
