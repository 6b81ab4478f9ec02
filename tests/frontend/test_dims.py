"""Named dimensions stay symbolic, and the graph is right at every value of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from workbench.errors import ModelError
from workbench.frontend import import_model
from workbench.ir.expr import var
from workbench.ir.interpret import interpret

WriteModel = Callable[..., Path]
node = helper.make_node


def run(path: Path, x: np.ndarray, **dims: int) -> np.ndarray:
    return interpret(import_model(path).graph, {"x": x}, dims)["y"]


def test_a_named_dimension_has_the_given_representative_value(write_model: WriteModel) -> None:
    path = write_model([node("Sqrt", ["x"], ["y"])], {"x": (np.float32, ("batch", 3))})
    graph = import_model(path, dims={"batch": 4}).graph
    assert graph.dims == {"batch": 4}
    assert graph[graph.inputs[0]].shape == (var("batch"), 3)


def test_a_dimension_without_a_value_is_represented_by_1(write_model: WriteModel) -> None:
    path = write_model([node("Sqrt", ["x"], ["y"])], {"x": (np.float32, ("batch", None))})
    assert import_model(path).graph.dims == {"batch": 1, "x_1": 1}


def test_shapes_of_inputs_give_values_where_options_do_not(write_model: WriteModel) -> None:
    path = write_model([node("Mul", ["x", "w"], ["y"])], {"x": (np.float32, ("b", "s", 3)), "w": (np.float32, (3,))})
    assert import_model(path, dims={"b": 2}, input_shapes={"x": (5, 7, 3)}).graph.dims == {"b": 2, "s": 7}
    assert import_model(path, input_shapes={"x": (5, 7), "w": (4,)}).graph.dims == {"b": 1, "s": 1}


def test_names_are_made_safe_and_stay_distinct(write_model: WriteModel) -> None:
    path = write_model([node("Sqrt", ["x"], ["y"])], {"x": (np.float32, ("z", "a b", "a/b", "?", "#0"))})
    graph = import_model(path, dims={"z": 2, "a/b": 5}).graph
    assert graph.dims == {"z_": 2, "a_b": 1, "a_b_2": 5, "x_3": 1, "_0": 1}


def test_a_value_for_a_dimension_that_is_not_there_is_an_error(write_model: WriteModel) -> None:
    path = write_model([node("Sqrt", ["x"], ["y"])], {"x": (np.float32, ("batch", 3))})
    with pytest.raises(ModelError, match="no dimension 'seq' \\(it has: batch\\)"):
        import_model(path, dims={"seq": 4})
    with pytest.raises(ModelError, match="must be at least 1"):
        import_model(path, dims={"batch": 0})


@pytest.mark.parametrize("n", [1, 2, 5])
def test_attention_over_a_named_length_is_right_at_every_length(n: int, write_model: WriteModel) -> None:
    """Heads split and merged by computed shapes, a causal mask from a range, a softmax, a mean."""
    path = write_model(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "one"], ["n"]),
            node("Range", ["zero", "n", "one"], ["at"]),
            node("Unsqueeze", ["at", "ones"], ["rows"]),
            node("LessOrEqual", ["at", "rows"], ["seen"]),
            node("Reshape", ["x", "split"], ["h"]),
            node("Transpose", ["h"], ["q"], perm=[0, 2, 1, 3]),
            node("Transpose", ["h"], ["k"], perm=[0, 2, 3, 1]),
            node("MatMul", ["q", "k"], ["scores"]),
            node("Where", ["seen", "scores", "least"], ["masked"]),
            node("Softmax", ["masked"], ["p"]),
            node("MatMul", ["p", "q"], ["o"]),
            node("Transpose", ["o"], ["t"], perm=[0, 2, 1, 3]),
            node("Reshape", ["t", "merge"], ["m"]),
            node("ReduceMean", ["m", "ones"], ["mean"]),
            node("Sub", ["m", "mean"], ["y"]),
        ],
        {"x": (np.float32, (2, "n", 8))},
        known={
            "zero": np.array(0),
            "one": np.array(1),
            "ones": np.array([1]),
            "split": np.array([0, 0, 2, 4]),
            "merge": np.array([0, -1, 8]),
            "least": np.float32(-np.inf),
        },
    )
    x = np.random.default_rng(n).standard_normal((2, n, 8)).astype(np.float32)
    heads = x.reshape(2, n, 2, 4).transpose(0, 2, 1, 3)
    scores = np.where(np.tri(n, dtype=bool), heads @ heads.swapaxes(2, 3), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    merged = (weights @ heads).transpose(0, 2, 1, 3).reshape(2, n, 8)
    np.testing.assert_allclose(run(path, x, n=n), merged - merged.mean(1, keepdims=True), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n", [1, 3, 4])
def test_joining_padding_and_last_rows_of_a_named_length(n: int, write_model: WriteModel) -> None:
    path = write_model(
        [
            node("Concat", ["c", "x", "x"], ["j"], axis=0),
            node("Pad", ["j", "pads", "fill"], ["p"]),
            node("Gather", ["x", "last"], ["r"]),
            node("Add", ["p", "r"], ["y"]),
        ],
        {"x": (np.float32, ("n", 2))},
        known={
            "c": np.full((1, 2), np.inf, np.float32),
            "pads": np.array([1, 0, 2, 0]),
            "fill": np.float32(-7),
            "last": np.array([-1]),
        },
    )
    x = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
    joined = np.concatenate([np.full((1, 2), np.inf), x, x])
    expected = np.pad(joined, [(1, 2), (0, 0)], constant_values=-7) + x[-1]
    np.testing.assert_array_equal(run(path, x, n=n), expected)


@pytest.mark.parametrize("n", [2, 5])
def test_slices_of_a_named_length(n: int, write_model: WriteModel) -> None:
    path = write_model(
        [
            node("Slice", ["x", "one", "end"], ["tail"]),
            node("Slice", ["x", "zero", "minus"], ["head"]),
            node("Slice", ["x", "minus", "start", "axes", "minus"], ["back"]),
            node("Sub", ["tail", "head"], ["d"]),
            node("Concat", ["d", "back"], ["y"], axis=0),
        ],
        {"x": (np.float32, ("n", 2))},
        known={
            "zero": np.array([0]),
            "one": np.array([1]),
            "minus": np.array([-1]),
            "end": np.array([2**63 - 1]),
            "start": np.array([-(2**63)]),
            "axes": np.array([0]),
        },
    )
    x = np.random.default_rng(n).standard_normal((n, 2)).astype(np.float32)
    np.testing.assert_allclose(run(path, x, n=n), np.concatenate([x[1:] - x[:-1], x[::-1]]), rtol=1e-6)


def test_a_structure_that_depends_on_a_dimension_is_refused(write_model: WriteModel) -> None:
    path = write_model(
        [node("Slice", ["x", "zero", "four"], ["y"])],
        {"x": (np.float32, ("n", 2))},
        known={"zero": np.array([0]), "four": np.array([4])},
    )
    with pytest.raises(ModelError, match="depends on whether 4 <= n"):
        import_model(path)


def test_a_reshape_that_does_not_divide_is_refused(write_model: WriteModel) -> None:
    path = write_model(
        [node("Reshape", ["x", "to"], ["y"])], {"x": (np.float32, ("n", 3))}, known={"to": np.array([4, -1])}
    )
    with pytest.raises(ModelError, match="cannot reshape"):
        import_model(path)


def test_a_shape_is_an_output_like_any_other(write_model: WriteModel) -> None:
    path = write_model(
        [
            node("Shape", ["x"], ["y"]),
            node("Size", ["x"], ["size"]),
            node("Cast", ["size"], ["f"], to=1),
            node("ReduceSum", ["x"], ["sum"], keepdims=0),
            node("Div", ["sum", "f"], ["mean"]),
        ],
        {"x": (np.float32, ("n", 3, "m"))},
        outputs=("y", "mean"),
    )
    x = np.random.default_rng(5).standard_normal((4, 3, 2)).astype(np.float32)
    found = interpret(import_model(path).graph, {"x": x}, {"n": 4, "m": 2})
    assert found["y"].tolist() == [4, 3, 2]
    np.testing.assert_allclose(found["mean"], x.mean(), rtol=1e-5)


def test_shape_arithmetic_beside_other_integers_takes_their_type(write_model: WriteModel) -> None:
    path = write_model(
        [
            node("Shape", ["x"], ["s"], start=0, end=1),
            node("Cast", ["s"], ["n"], to=6),
            node("Add", ["x", "n"], ["y"]),
        ],
        {"x": (np.int32, ("n",))},
    )
    assert run(path, np.array([1, 2, 3], np.int32), n=3).tolist() == [4, 5, 6]


def test_two_names_of_one_dimension_become_one(write_model: WriteModel) -> None:
    """A mask over past and new has a name of its own for their sum; two inputs without names are joined."""
    path = write_model(
        [node("Concat", ["past", "new"], ["all"], axis=1), node("Mul", ["all", "mask"], ["y"])],
        {
            "mask": (np.float32, (None, "total")),
            "past": (np.float32, ("batch", "past")),
            "new": (np.float32, (None, None)),
        },
    )
    imported = import_model(path, dims={"past": 3, "new_1": 2})
    assert imported.graph.dims == {"mask_0": 1, "past": 3, "new_1": 2}
    assert {name: str(extent) for name, extent in imported.equal_dims.items()} == {
        "batch": "mask_0",
        "new_0": "mask_0",
        "total": "new_1+past",
    }
    rng = np.random.default_rng(3)
    for batch, past, new in ((1, 1, 1), (2, 0, 3), (3, 4, 1)):
        shapes = {"mask": (batch, past + new), "past": (batch, past), "new": (batch, new)}
        given = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        found = interpret(imported.graph, given, {"mask_0": batch, "past": past, "new_1": new})["y"]
        np.testing.assert_array_equal(found, np.concatenate([given["past"], given["new"]], 1) * given["mask"])


def test_a_value_of_either_name_is_taken_and_must_fit_the_others(write_model: WriteModel) -> None:
    path = write_model(
        [node("Concat", ["a", "b"], ["all"], axis=1), node("Mul", ["all", "mask"], ["y"])],
        {"a": (np.float32, ("n", "p")), "b": (np.float32, ("m", "q")), "mask": (np.float32, ("n", "total"))},
    )
    assert import_model(path, dims={"m": 4}).graph.dims == {"n": 4, "p": 1, "q": 1}
    assert import_model(path, dims={"n": 4, "p": 3, "q": 2, "total": 5}).graph.dims == {"n": 4, "p": 3, "q": 2}
    for dims, said in (
        ({"n": 4, "m": 2}, "'m' is given as 2, but the model uses it as n, which is 4"),
        ({"p": 2, "total": 9}, r"'total' is given as 9, but the model uses it as p\+q, which is 3"),
    ):
        with pytest.raises(ModelError, match=said):
            import_model(path, dims=dims)


def test_extents_that_no_name_makes_equal_are_refused(write_model: WriteModel) -> None:
    for shape, said in ((("n", 3), r"cannot broadcast \[n, 2\] with \[n, 3\]"), (("n", "n"), None)):
        path = write_model(
            [node("Add", ["x", "w"], ["y"])], {"x": (np.float32, ("n", 2)), "w": (np.float32, shape)}
        )
        with pytest.raises(ModelError, match=said or "cannot broadcast"):
            import_model(path)


def test_reshapes_and_products_over_two_names(write_model: WriteModel) -> None:
    path = write_model(
        [
            node("Shape", ["like"], ["s"], start=0, end=1),
            node("Concat", ["s", "rest"], ["to"], axis=0),
            node("Reshape", ["x", "to"], ["r"]),
            node("Transpose", ["w"], ["t"], perm=[1, 0]),
            node("MatMul", ["t", "x"], ["y"]),
        ],
        {"x": (np.float32, ("n", 6)), "like": (np.float32, ("m", 5)), "w": (np.float32, ("k", 2))},
        known={"rest": np.array([2, 3])},
        outputs=("r", "y"),
    )
    imported = import_model(path, dims={"n": 3})
    assert imported.graph.dims == {"n": 3}
    assert sorted(imported.equal_dims) == ["k", "m"]
