"""Damaged, contradictory and made-up models are read or refused in one line; `fuzz.py` beside this has the long run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.frontend.fuzz import MUTATIONS, results
from workbench.errors import ModelError
from workbench.frontend import import_model, lowering

COUNT = 360


def test_no_mutated_model_does_more_than_be_refused() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    bad = []
    for seed, kind, result, _ in results(0, COUNT):
        found[kind].add(result)
        if result not in ("read", "refused"):
            bad.append((seed, kind, result))
    assert not bad
    assert found.keys() == {"bits", "made up", *(mutation.__name__ for mutation in MUTATIONS)}
    assert all("refused" in kinds for kinds in found.values())
    assert sum("read" in kinds for kinds in found.values()) > 6, "models that are all refused test little"


def calling(callees: dict[str, list[str]], path: Path) -> Path:
    """A model that calls f0; each function calls others one after the other, or is a Relu."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    made = []
    for name, calls in callees.items():
        wires = ["a", *(f"t{i}" for i in range(len(calls) - 1)), "b"]
        nodes = [
            helper.make_node(callee, [source], [target], domain="" if callee == "Relu" else "local")
            for callee, source, target in zip(calls, wires, wires[1:], strict=False)
        ]
        made.append(helper.make_function("local", name, ["a"], ["b"], nodes, opsets))
    graph = helper.make_graph(
        [helper.make_node("f0", ["x"], ["y"], domain="local")],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])],
        [onnx.ValueInfoProto(name="y")],
    )
    path.write_bytes(helper.make_model(graph, functions=made, opset_imports=opsets).SerializeToString())
    return path


def test_functions_are_expanded_only_as_far_as_is_sane(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    assert len(import_model(calling({"f0": ["f1", "f1"], "f1": ["Relu"]}, path)).graph) > 2
    with pytest.raises(ModelError, match=r"function 'f\d' calls itself"):
        import_model(calling({"f0": ["f1"], "f1": ["f0"]}, path))
    doubling = {f"f{i}": [f"f{i + 1}"] * 2 for i in range(60)} | {"f60": ["Relu"]}
    with pytest.raises(ModelError, match="expand to more than the 200000 nodes"):
        import_model(calling(doubling, path))


def test_a_loop_that_would_never_end_is_refused(
    write_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowering, "MOST_INNER_NODES", 500)
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "s"], ["t"]), helper.make_node("Identity", ["c"], ["d"])],
        "g",
        [helper.make_tensor_value_info(name, 1, None) for name in ("i", "c", "s")],
        [onnx.ValueInfoProto(name=name) for name in ("d", "t")],
    )
    known = {"many": np.array(2**62), "on": np.array(True)}
    for condition in ("on", ""):
        path = write_model(
            [helper.make_node("Loop", ["many", condition, "x"], ["y"], body=body, name="loop")],
            {"x": (np.float32, (2,))},
            known=known,
        )
        with pytest.raises(ModelError, match=r"node 'loop' \(Loop\): loops of more than 500 nodes in all"):
            import_model(path)


HUGE = 2**31 - 1
X = {"x": (np.float32, (1, 4, 4, 4)), "r": (np.float32, (2, 4)), "i": (np.int64, (2,)), "s": (np.float32, (HUGE, 1, 3))}
BODY = helper.make_graph([], "g", [], [])


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (helper.make_node("Scan", ["x"], ["y"], body=BODY, num_scan_inputs=HUGE), "inputs to scan"),
        (helper.make_node("Split", ["x"], ["y"], num_outputs=HUGE), "parts for 1 outputs"),
        (helper.make_node("ReverseSequence", ["k", "i"], ["y"]), "axis 1 of a tensor of rank 0"),
        (helper.make_node("RoiAlign", ["x", "r", "i"], ["y"], output_height=HUGE, sampling_ratio=1), "samples"),
        (helper.make_node("LSTM", ["s", "w", "u"], ["y"], hidden_size=1), "a sequence of 2147483647 steps"),
        (helper.make_node("Concat", ["", "x"], ["y"], axis=0), "a required input is absent"),
        (helper.make_node("Concat", ["x"], ["y"], axis=1.5), "attribute 'axis' is of the wrong kind"),
    ],
    ids=lambda value: getattr(value, "op_type", None),
)
def test_sizes_are_checked_before_anything_is_made_of_them(
    made: onnx.NodeProto, text: str, write_model: Callable[..., Path]
) -> None:
    known = {"k": np.float32(1), "w": np.ones((1, 4, 3), np.float32), "u": np.ones((1, 4, 1), np.float32)}
    with pytest.raises(ModelError, match=text):
        import_model(write_model([made], X, known=known))


def test_a_model_that_crashes_the_shape_inference_is_refused(write_model: Callable[..., Path]) -> None:
    path = write_model([helper.make_node("RegexFullMatch", [""], ["y"], pattern="a", name="regex")], {"x": (bool, ())})
    with pytest.raises(ModelError, match="cannot be run as it is: onnx's shape inference or onnxruntime crashed"):
        import_model(path, allow_opaque=True)


def test_what_errors_quote_of_a_model_is_escaped_and_short(write_model: Callable[..., Path]) -> None:
    made = helper.make_node("Einsum", ["x"], ["y"], equation="\x1b[31m" + "i" * 5000)
    with pytest.raises(ModelError) as caught:
        import_model(write_model([made], X))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
