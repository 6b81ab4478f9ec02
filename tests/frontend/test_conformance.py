"""ONNX's own node tests: all that are of float32, integers and bool pass, but for those with a reason."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.frontend.conformance import CORE_CASES, NOT_PASSED, REASONS, REASONS_BEYOND, cases, family, ours, outcome
from workbench.frontend import backend, operators

FAMILIES = (*operators.__all__, "")
"""The files of operators; '' is for what has no row: ONNX's own definitions, and what is not supported."""

WITHOUT_CORE_CASES = {"quantization"}
"""Families all of whose cases have tensors of other types; they have tests of their own."""

NEWEST = tuple(int(part) for part in onnx.__version__.split(".")[:2])


@pytest.mark.parametrize("name", FAMILIES, ids=lambda name: name or "without a row")
def test_onnx_node_tests_pass_but_for_those_with_a_reason(name: str) -> None:
    of_family = [case for case in cases() if case.core and family(case.operator) == name]
    results = {case.name: outcome(case, ours) for case in of_family}
    missed = {case: result.text for case, result in results.items() if result.kind != "passed"}
    listed = {case for case in results if case in REASONS}
    assert bool(of_family) != (name in WITHOUT_CORE_CASES)
    assert missed.keys() == listed, {case: missed.get(case, "passes now") for case in missed.keys() ^ listed}


def test_cases_of_other_element_types_pass_but_for_those_with_a_reason() -> None:
    """f16, bf16, f64 and all integers of 8 to 64 bits; what has other types is refused."""
    beyond = [case for case in cases() if not case.core]
    results = {case.name: outcome(case, ours) for case in beyond}
    missed = {case.name for case in beyond if not case.lacking and results[case.name].kind != "passed"}
    assert missed == set(REASONS_BEYOND), {name: results[name].text for name in missed ^ set(REASONS_BEYOND)}
    assert {results[case.name].kind for case in beyond if case.lacking} <= {"refused", "passed"}


def test_the_cases_are_all_there() -> None:
    core = [case.name for case in cases() if case.core]
    assert {family(case.operator) for case in cases()} == set(FAMILIES)
    assert set(REASONS) <= set(core)
    assert sum(len(names) for names in NOT_PASSED.values()) == len(REASONS) == 24
    if NEWEST == (1, 23):
        assert len(core) == CORE_CASES


def test_only_inputs_that_must_be_known_are() -> None:
    may_be_known = {operator: set() for operator in ("Add", "Gather", "ScatterND", "Clip", "LSTM", "GridSample")} | {
        "ReduceSum": {"axes"},
        "Slice": {"starts", "ends", "axes", "steps"},
        "OneHot": {"depth"},
        "Compress": {"condition"},
        "TopK": {"k"},
        "Loop": {"trip_count", "cond"},
    }
    known: dict[str, set[str]] = {operator: set() for operator in may_be_known}
    for case in cases():
        if case.core and case.operator in may_be_known:
            prepared = backend.prepare(case.model)
            prepared.run(case.data[0][0])
            known[case.operator] |= prepared.known
    assert known == may_be_known


def padded() -> onnx.ModelProto:
    given = [
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n"]),
        helper.make_tensor_value_info("pads", onnx.TensorProto.INT64, [2]),
    ]
    graph = helper.make_graph(
        [helper.make_node("Pad", ["x", "pads"], ["y"])], "g", given, [onnx.ValueInfoProto(name="y")]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def test_a_prepared_model_is_imported_again_when_a_known_input_changes() -> None:
    prepared = backend.prepare(padded())
    x = np.arange(3, dtype=np.float32)
    (first,) = prepared.run([x, np.array([1, 0])])
    np.testing.assert_array_equal(first, [0, 0, 1, 2])
    imported = prepared.imported({"x": x, "pads": np.array([1, 0])})
    assert prepared.known == {"pads"}
    assert prepared.imported({"x": x + 1, "pads": np.array([1, 0])}) is imported
    (second,) = prepared.run([np.arange(2, dtype=np.float32), np.array([0, 2])])
    np.testing.assert_array_equal(second, [0, 1, 0, 0])


def test_inputs_that_do_not_fit_are_named() -> None:
    prepared = backend.prepare(padded())
    for inputs, text in (
        ([np.zeros((2, 2), np.float32), np.array([0, 0])], "input 'x' has 1 axes; the array has 2"),
        ([np.zeros(2, np.float32), np.array([0, 0]), 1], "3 inputs; the model has 2"),
        ([None, np.array([0, 0])], "absent"),
    ):
        with pytest.raises(backend.WorkbenchError, match=text):
            prepared.run(inputs)


def test_one_node_runs_by_itself() -> None:
    node = helper.make_node("TopK", ["x", "k"], ["values", "places"])
    x = np.array([3.0, 9.0, 1.0, 9.0], np.float32)
    values, places = backend.run_node(node, [x, np.array([3])], opset_version=21)
    np.testing.assert_array_equal(values, [9, 9, 3])
    np.testing.assert_array_equal(places, [1, 3, 0])
    assert not backend.is_compatible(helper.make_model(helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3])], [onnx.ValueInfoProto(name="y")],
    )))  # fmt: skip
    assert backend.is_compatible(padded())
    assert backend.supports_device("CPU:0")
    assert not backend.supports_device("CUDA")
