"""ONNX's own node tests run through the importer and the interpreter, beside onnxruntime.

`python -m tests.frontend.conformance [OPERATOR ..]` (`make conformance`) prints the table, one line per operator."""

from __future__ import annotations

import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx

from workbench.errors import ModelError
from workbench.frontend import registry
from workbench.frontend.backend import prepare

CORE_TYPES = {onnx.TensorProto.FLOAT, onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.BOOL}
CORE_CASES = 984
"""Single-node cases of the standard domain whose tensors are all of CORE_TYPES, in onnx 1.23."""

NOT_PASSED = {
    "how many elements the result has depends on data": (
        *(
            f"test_nonmaxsuppression_{case}"
            for case in (
                "center_point_box_format", "flipped_coordinates", "identical_boxes", "iou_threshold_boundary",
                "limit_output_size", "single_box", "suppress_by_IOU", "suppress_by_IOU_and_scores", "two_batches",
                "two_classes",
            )
        ),
        "test_nonzero_example",
        *(
            f"test_unique_{case}"
            for case in (
                "length_1", "not_sorted_without_axis", "sorted_with_axis", "sorted_with_axis_3d",
                "sorted_with_negative_axis", "sorted_without_axis",
            )
        ),
    ),
    "random": (
        "test_bernoulli_seed",
        "test_training_dropout",
        "test_training_dropout_default",
        "test_training_dropout_default_mask",
        "test_training_dropout_mask",
    ),
    "expects the rounding of a float32 FFT, 2e-7, where the exact result is 0": (
        "test_dft_inverse",
        "test_dft_inverse_opset19",
    ),
}  # fmt: skip
"""Why which of the core cases are not passed. A case that passes must not be here."""

UNEXPECTED = "NOT EXPECTED"
REASONS = {case: reason for reason, cases in NOT_PASSED.items() for case in cases}


@dataclass(frozen=True, slots=True)
class Case:
    """One of ONNX's node tests. `core` says whether it is one of the 984."""

    name: str
    operator: str
    model: onnx.ModelProto
    data: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float
    core: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """`kind` is passed, failed or refused; `text` says how."""

    kind: str
    text: str = ""


@lru_cache(maxsize=1)
def cases() -> tuple[Case, ...]:
    """Every case of one node of the standard domain whose inputs and outputs are tensors."""
    from onnx.backend.test.loader import load_model_tests

    found = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for test in load_model_tests(kind="node"):
            model = test.model
            types = {_element_type(v) for v in (*model.graph.input, *model.graph.output)}
            if len(model.graph.node) != 1 or any(o.domain not in ("", "ai.onnx") for o in model.opset_import):
                continue
            if 0 in types:
                continue
            operator = model.graph.node[0].op_type
            core = types <= CORE_TYPES
            data = [tuple([_array(x) for x in side] for side in pair) for pair in test.data_sets]
            found.append(Case(test.name, operator, model, data, test.rtol, test.atol, core))
    return tuple(sorted(found, key=lambda case: (case.operator, case.name)))


def _array(x: Any) -> Any:
    """A tensor of a test's data, some of which are given as protobuf messages."""
    return onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x


def _element_type(value: onnx.ValueInfoProto) -> int:
    return value.type.tensor_type.elem_type if value.type.HasField("tensor_type") else 0


def family(operator: str) -> str:
    """The file that lowers an operator; '' when it has no row in the table."""
    row = registry.find("", operator, registry.MAX_OPSET)
    return row.lower.__module__.rpartition(".")[2] if row is not None else ""


Run = Callable[[Sequence[Any]], Sequence[np.ndarray]]


def outcome(case: Case, load: Callable[[onnx.ModelProto], Run]) -> Outcome:
    """What becomes of `case` when `load` makes something to run of its model."""
    try:
        run = load(case.model)
        results = [run(inputs) for inputs, _ in case.data]
    except ModelError as error:
        return Outcome("refused", str(error))
    except Exception as error:  # whatever a peer raises for an operator that it does not have
        if "NOT_IMPLEMENTED" in str(error) or "is not a registered" in str(error):
            return Outcome("refused", str(error))
        return Outcome("failed", f"{type(error).__name__}: {error}")
    for found, (_, wanted) in zip(results, case.data, strict=True):
        problem = _difference(found, wanted, case)
        if problem:
            return Outcome("failed", problem)
    return Outcome("passed")


def _difference(found: Sequence[np.ndarray], wanted: Sequence[Any], case: Case) -> str:
    """What is wrong with the outputs; '' when nothing is."""
    for position, (got, want) in enumerate(zip(found, wanted, strict=True)):
        want = np.asarray(want)
        if got.dtype != want.dtype or got.shape != want.shape:
            return f"output {position} is {got.dtype} {got.shape}, not {want.dtype} {want.shape}"
        exact = want.dtype.kind not in "fV" and want.dtype.name not in ("bfloat16",)
        if exact and not np.array_equal(got, want):
            return f"output {position} differs"
        if not exact:
            a, b = got.astype(np.float64), want.astype(np.float64)
            if not np.allclose(a, b, rtol=case.rtol, atol=case.atol, equal_nan=True):
                with np.errstate(invalid="ignore"):
                    return f"output {position} differs by {np.nanmax(np.abs(a - b)):.3g}"
    return ""


def ours(model: onnx.ModelProto) -> Run:
    """The importer and the interpreter."""
    return prepare(model).run  # type: ignore[no-any-return]


def onnxruntimes(model: onnx.ModelProto) -> Run:
    """onnxruntime on the CPU, its optimisations off."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [v.name for v in session.get_inputs()]
    return lambda inputs: session.run(None, {n: x for n, x in zip(names, inputs, strict=False) if x is not None})


def table(chosen: Iterable[Case]) -> str:
    """One line per operator, then the sums, then why each core case that is not passed is not."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    sums: Counter[str] = Counter()
    reasons: dict[str, list[str]] = defaultdict(list)
    others: Counter[str] = Counter()
    for case in chosen:
        own, peer = outcome(case, ours), outcome(case, onnxruntimes)
        group = "core" if case.core else "more"
        for who, result in (("own", own), ("peer", peer)):
            rows[case.operator][f"{who} {group} {result.kind}"] += 1
            sums[f"{who} {group} {result.kind}"] += 1
        if case.core and own.kind != "passed":
            reasons[REASONS.get(case.name, f"{UNEXPECTED}: {own.text[:160]}")].append(case.name)
        elif own.kind != "passed":
            others[_other_types(case) if own.kind == "refused" else f"failed: {case.name}: {own.text[:120]}"] += 1
    lines = [f"{'':27}{'f32, i32, i64, bool':^46}  {'other types':^28}"]
    lines.append(f"{'operator':27}{'passed':>8}{'failed':>8}{'refused':>9}{'onnxruntime':>13}{'of':>7}"
                 f"  {'passed':>8}{'onnxruntime':>13}{'of':>7}")  # fmt: skip
    lines += [_row(name, rows[name]) for name in sorted(rows)]
    lines += [_row("all", sums), ""]
    for reason, names in reasons.items():
        lines.append(f"{len(names):4} not passed: {reason}")
        lines += [f"       {name}" for name in names]
    lines += ["", "other types, not passed:"]
    lines += [f"{count:4} {reason}" for reason, count in others.most_common()]
    return "\n".join(lines)


def _other_types(case: Case) -> str:
    """The element types beyond the core ones of a case that is refused, such as `refused: uint8`."""
    types = {_element_type(v) for v in (*case.model.graph.input, *case.model.graph.output)} - CORE_TYPES
    return "refused: " + ", ".join(sorted(onnx.TensorProto.DataType.Name(t).lower() for t in types))


def _row(name: str, counts: Counter[str]) -> str:
    of = {group: sum(counts[f"own {group} {kind}"] for kind in ("passed", "failed", "refused"))
          for group in ("core", "more")}  # fmt: skip
    cells = [counts["own core passed"], counts["own core failed"], counts["own core refused"]]
    cells += [counts["peer core passed"], of["core"], counts["own more passed"], counts["peer more passed"], of["more"]]
    widths = (8, 8, 9, 13, 7, 10, 13, 7)
    return f"{name:27}" + "".join(f"{cell or '.':>{width}}" for cell, width in zip(cells, widths, strict=True))


def main(operators: Sequence[str]) -> int:
    """Print the table. Returns 1 when a core case is not passed that NOT_PASSED does not name."""
    text = table(case for case in cases() if not operators or case.operator in operators)
    print(text)
    return int(UNEXPECTED in text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
