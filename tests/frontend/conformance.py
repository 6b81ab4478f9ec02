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
from workbench.ir import dtype as dt

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

NOT_PASSED_BEYOND = {
    "random": ("test_bernoulli", "test_bernoulli_double"),
    "expects bf16 rounded between the steps of the operator, which is twice as far from the exact result": (
        "test_attention_4d_causal_bf16",
        "test_attention_4d_causal_padded_kv_bf16",
    ),
    "how many elements the result has depends on data": ("test_unique_bfloat16_sorted_without_axis",),
    "reads a file of pixels": (
        *(f"test_image_decoder_decode_{case}_rgb" for case in ("bmp", "jpeg2k", "jpeg", "png", "pnm", "tiff", "webp")),
        "test_image_decoder_decode_jpeg_bgr",
        "test_image_decoder_decode_jpeg_grayscale",
    ),
}
"""The same of the cases of other element types that the workbench has."""

LACKING = {"FLOAT8": "float8", "FLOAT4": "4 bits and less", "INT4": "4 bits and less", "UINT4": "4 bits and less",
           "INT2": "4 bits and less", "UINT2": "4 bits and less", "STRING": "strings"}  # fmt: skip
"""Element types that the workbench lacks, by how their names begin, and what they are called here."""

UNEXPECTED = "NOT EXPECTED"
REASONS = {case: reason for reason, cases in NOT_PASSED.items() for case in cases}
REASONS_BEYOND = {case: reason for reason, cases in NOT_PASSED_BEYOND.items() for case in cases}


@dataclass(frozen=True, slots=True)
class Case:
    """One of ONNX's node tests. `core` says whether it is one of the 984; `types` are the names of the others that it
    has tensors of."""

    name: str
    operator: str
    model: onnx.ModelProto
    data: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float
    core: bool
    types: tuple[str, ...]

    @property
    def lacking(self) -> str:
        """The element types that it has and the workbench has not; '' where there are none."""
        found = {said for name in self.types for start, said in LACKING.items() if name.startswith(start)}
        return ", ".join(sorted(found))


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
            others = tuple(sorted(onnx.TensorProto.DataType.Name(t) for t in types - CORE_TYPES))
            data = [tuple([_array(x) for x in side] for side in pair) for pair in test.data_sets]
            found.append(Case(test.name, operator, model, data, test.rtol, test.atol, core, others))
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
    """What is wrong with the outputs; '' when nothing is. Halves may differ in the last place: ONNX's own results are
    rounded at every step, or once, as the author of a case had it."""
    for position, (got, want) in enumerate(zip(found, wanted, strict=True)):
        want = np.asarray(want)
        if got.dtype != want.dtype or got.shape != want.shape:
            return f"output {position} is {got.dtype} {got.shape}, not {want.dtype} {want.shape}"
        exact = want.dtype.kind not in "fV" and want.dtype.name not in ("bfloat16",)
        if exact and not np.array_equal(got, want):
            return f"output {position} differs"
        if not exact:
            a, b = got.astype(np.float64), want.astype(np.float64)
            rtol = max(case.rtol, 2 * dt.unit_roundoff(held)) if (held := dt.from_numpy(want.dtype)) else case.rtol
            if not np.allclose(a, b, rtol=rtol, atol=case.atol, equal_nan=True):
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
    """One line per operator, then the sums, also by element type, then why each case that is not passed is not."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    sums: Counter[str] = Counter()
    reasons: dict[str, list[str]] = defaultdict(list)
    others: dict[str, list[str]] = defaultdict(list)
    by_type: dict[str, Counter[str]] = defaultdict(Counter)
    for case in chosen:
        own, peer = outcome(case, ours), outcome(case, onnxruntimes)
        group = "core" if case.core else "more"
        for who, result in (("own", own), ("peer", peer)):
            rows[case.operator][f"{who} {group} {result.kind}"] += 1
            sums[f"{who} {group} {result.kind}"] += 1
            for name in [case.lacking] if case.lacking else case.types:
                by_type[name.lower()][f"{who} {group} {result.kind}"] += 1
        if case.core and own.kind != "passed":
            reasons[REASONS.get(case.name, f"{UNEXPECTED}: {own.text[:160]}")].append(case.name)
        elif own.kind != "passed":
            lacks = f"element types that the workbench has not: {case.lacking}" if case.lacking else ""
            others[lacks or REASONS_BEYOND.get(case.name, f"{UNEXPECTED}: {own.text[:160]}")].append(case.name)
    lines = [f"{'':27}{'f32, i32, i64, bool':^45}  {'other types':^45}"]
    columns = f"{'passed':>8}{'failed':>8}{'refused':>9}{'onnxruntime':>13}{'of':>7}"
    lines.append(f"{'operator':27}{columns}  {columns}")
    lines += [_row(name, rows[name], ("core", "more")) for name in sorted(rows)]
    lines += [_row("all", sums, ("core", "more")), "", f"{'cases with tensors of':27}{columns}"]
    lines += [_row(name, by_type[name], ("more",)) for name in sorted(by_type)]
    lines.append("")
    for reason, names in reasons.items():
        lines.append(f"{len(names):4} not passed: {reason}")
        lines += [f"       {name}" for name in names]
    lines += ["", "other types:"]
    for reason, names in others.items():
        lines.append(f"{len(names):4} not passed: {reason}")
        lines += [] if reason.startswith("element types") else [f"       {name}" for name in names]
    return "\n".join(lines)


def _row(name: str, counts: Counter[str], groups: Sequence[str]) -> str:
    shown = []
    for group in groups:
        own = [counts[f"own {group} {kind}"] for kind in ("passed", "failed", "refused")]
        cells = [*own, counts[f"peer {group} passed"], sum(own)]
        shown.append("".join(f"{c or '.':>{width}}" for c, width in zip(cells, (8, 8, 9, 13, 7), strict=True)))
    return f"{name:27}" + "  ".join(shown)


def main(operators: Sequence[str]) -> int:
    """Print the table. Returns 1 when a core case is not passed that NOT_PASSED does not name."""
    text = table(case for case in cases() if not operators or case.operator in operators)
    print(text)
    return int(UNEXPECTED in text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
