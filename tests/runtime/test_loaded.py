"""Loaded plans: what they are bound to, what they refuse, custom operators, profiles and devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from workbench.errors import InputError, UnavailableError, WorkbenchError
from workbench.ir import dtype as dt
from workbench.ir.hlir import CustomOpSpec
from workbench.ir.llir import Apply, Buffer, Load, MapKernel, OpaqueCall, Program, axis
from workbench.runtime import describe_devices, get_runtime
from workbench.runtime.compare import compare
from workbench.runtime.opaque import Evaluation
from workbench.runtime.protocol import NativeLaunch

RUNTIME = get_runtime("cpu")


def adding() -> Program:
    """out = x + weight, over 6 elements."""
    body = Apply("Add", (Load(0, axis(0), dt.F32), Load(1, axis(0), dt.F32)), dt.F32)
    buffers = [
        Buffer(0, dt.F32, 6, "input", 0),
        Buffer(1, dt.F32, 6, "constant", 1),
        Buffer(2, dt.F32, 6, "output", 2),
    ]
    return Program(buffers, [MapKernel(2, (6,), body, (2,))], [2])


def test_each_run_reads_its_own_inputs_and_returns_copies() -> None:
    loaded = RUNTIME.load(RUNTIME.plan(adding(), {}), {1: np.ones(6, np.float32)})
    first = loaded.run({0: np.zeros(6, np.float32)})[0]
    second = loaded.run({0: np.full(6, 4, np.float32)})[0]
    assert np.array_equal(first, np.ones(6))
    assert np.array_equal(second, np.full(6, 5))


def test_arrays_may_be_strided_or_misaligned() -> None:
    loaded = RUNTIME.load(RUNTIME.plan(adding(), {}), {1: np.arange(12, dtype=np.float32)[::2]})
    odd = np.frombuffer(b"\0" + np.ones(6, np.float32).tobytes(), np.float32, 6, 1)
    assert np.array_equal(loaded.run({0: odd})[0], np.arange(0, 12, 2) + 1)


@pytest.mark.parametrize("wrong", [np.zeros(5, np.float32), np.zeros(7, np.float32), np.zeros(6, np.float64)])
def test_arrays_of_another_size_or_dtype_are_refused(wrong: np.ndarray) -> None:
    plan = RUNTIME.plan(adding(), {})
    with pytest.raises(InputError, match="6 elements of f32"):
        RUNTIME.load(plan, {1: np.ones(6, np.float32)}).run({0: wrong})
    with pytest.raises(InputError, match="6 elements of f32"):
        RUNTIME.load(plan, {1: wrong})


def test_a_missing_array_is_named() -> None:
    loaded = RUNTIME.load(RUNTIME.plan(adding(), {}), {})
    with pytest.raises(InputError, match="buffer 1"):
        loaded.run({0: np.zeros(6, np.float32)})


def test_the_profile_has_a_row_per_kernel() -> None:
    loaded = RUNTIME.load(RUNTIME.plan(adding(), {}), {1: np.ones(6, np.float32)})
    ((name, calls, ms, flops, nbytes),) = loaded.profile_kernels({0: np.ones(6, np.float32)}, 3)
    assert (name, calls, flops, nbytes) == ("map Add 6", 1, 6, 72)
    assert 0 < ms < 10


def test_a_source_that_llvm_rejects_is_named_among_others() -> None:
    plan = RUNTIME.plan(adding(), {})
    broken = NativeLaunch("broken source", (2, 0), "broken", 0, 0)
    worse = structs.replace(
        plan, launches=(*plan.launches, broken), sources=plan.sources | {"broken source": "define void @k(ptr %p0 {"}
    )
    with pytest.raises(WorkbenchError, match="LLVM rejected kernel broken source"):
        RUNTIME.load(worse, {})


def custom(op_type: str, outputs: int = 1, runner: str = "onnxruntime", **attributes: object) -> list[CustomOpSpec]:
    """A node of operator `op_type` on one f32 matrix, as one custom operator per output."""
    import onnx

    names = [f"y{i}" for i in range(outputs)]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op_type, ["a"], names, **attributes)],
        "g",
        [onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [None, None])],
        [onnx.helper.make_empty_tensor_value_info(name) for name in names],
    )
    imports = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    return [CustomOpSpec("odd\n", op_type, model, i, runner) for i in range(outputs)]


@pytest.mark.parametrize("runner", ["onnxruntime", "reference"])
def test_custom_operators_run_on_the_host(runner: str) -> None:
    buffers = [Buffer(0, dt.F32, 6, "input", 0), Buffer(1, dt.F32, 6, "output", 1)]
    program = Program(buffers, [OpaqueCall(1, (2, 3), (0,), ((2, 3),), 7, (1,))], [1])
    (spec,) = custom("LpNormalization", 1, runner, axis=1)
    loaded = RUNTIME.load(RUNTIME.plan(program, {7: spec}), {})
    x = np.arange(1, 7, dtype=np.float32)
    rows = x.reshape(2, 3)
    np.testing.assert_allclose(loaded.run({0: x})[0].reshape(2, 3), rows / np.linalg.norm(rows, axis=1, keepdims=True))


def test_a_custom_operator_that_fails_or_is_unknown_is_an_error() -> None:
    buffers = [Buffer(0, dt.F32, 6, "input", 0), Buffer(1, dt.F32, 6, "output", 1)]
    program = Program(buffers, [OpaqueCall(1, (2, 3), (0,), ((2, 3),), 7, (1,))], [1])
    with pytest.raises(WorkbenchError, match="7"):
        RUNTIME.plan(program, {})
    for runner in ("onnxruntime", "reference"):
        (unknown,) = custom("NoSuchOperator", 1, runner)
        with pytest.raises(WorkbenchError, match=rf"custom odd\\n 2x3 failed in {runner}: .*NoSuchOperator") as error:
            RUNTIME.load(RUNTIME.plan(program, {7: unknown}), {}).run({0: np.zeros(6, np.float32)})
        assert "\n" not in str(error.value)
        (turned,) = custom("Transpose", 1, runner)  # of another shape than the program says
        loaded = RUNTIME.load(RUNTIME.plan(program, {7: turned}), {})
        with pytest.raises(WorkbenchError, match=r"custom odd\\n 2x3 (failed|gave \[3, 2\])"):
            loaded.run({0: np.zeros(6, np.float32)})


@pytest.mark.parametrize("runner", ["onnxruntime", "reference"])
def test_several_outputs_of_a_custom_operator_are_one_run(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = [Buffer(0, dt.F32, 6, "input", 0), Buffer(1, dt.F32, 2, "output", 1), Buffer(2, dt.F32, 4, "output", 2)]
    calls = [OpaqueCall(1 + i, (2, 1 + i), (0,), ((2, 3),), i, (1 + i,)) for i in range(2)]
    specs = dict(enumerate(custom("Split", 2, runner, axis=1, num_outputs=2)))
    specs = {0: replace(specs[0], output=1), 1: replace(specs[1], output=0)}  # the smaller part is the last
    runs: list[int] = []
    run = Evaluation.run

    def counted(self: Evaluation, operands: Sequence[np.ndarray]) -> None:
        runs.append(1)
        run(self, operands)

    monkeypatch.setattr(Evaluation, "run", counted)
    loaded = RUNTIME.load(RUNTIME.plan(Program(buffers, calls, [1, 2]), specs), {})
    for seed in range(2):
        x = np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32)
        last, first = loaded.run({0: x.reshape(-1)})
        np.testing.assert_array_equal(first.reshape(2, 2), x[:, :2])
        np.testing.assert_array_equal(last.reshape(2, 1), x[:, 2:])
    assert len(runs) == 2


def test_a_kernel_for_a_missing_dtype_is_refused_when_planned() -> None:
    buffers = [Buffer(0, dt.I64, 6, "input", 0), Buffer(1, dt.I64, 6, "output", 1)]
    kernel = MapKernel(1, (6,), Apply("Exp2", (Load(0, axis(0), dt.I64),), dt.I64), (1,))
    with pytest.raises(WorkbenchError, match="Exp2"):
        RUNTIME.plan(Program(buffers, [kernel], [1]), {})


def test_targets_that_are_not_there_say_so() -> None:
    with pytest.raises(UnavailableError, match="cuda"):
        get_runtime("cuda")
    with pytest.raises(WorkbenchError, match="tpu"):
        get_runtime("tpu")


def test_the_device_says_what_it_is() -> None:
    (device,) = describe_devices()
    assert device["target"] == "cpu"
    assert device["name"]
    assert isinstance(device["cores"], int)
    assert device["cores"] >= 1


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("got", "expected", "ok"),
    [
        ([1.0, 2.0], [1.0, 2.0001], True),
        ([1.0, 2.0], [1.0, 2.1], False),
        ([NAN, 1.0], [NAN, 1.0], True),
        ([NAN, 1.0], [0.0, 1.0], False),
        ([0.0, 1.0], [NAN, 1.0], False),
        ([INF, -INF], [INF, -INF], True),
        ([INF], [-INF], False),
        ([3e38], [INF], False),
        ([INF], [1.0], False),
        ([0.0], [0.0], True),
        ([], [], True),
    ],
)
def test_comparison_of_floats(got: list[float], expected: list[float], ok: bool) -> None:
    assert compare(np.array(got), np.array(expected), 1e-4, 1e-4)[0] is ok


def test_comparison_reports_the_largest_errors() -> None:
    ok, absolute, relative = compare(np.array([1.0, 8.0]), np.array([1.5, 10.0]), 1e-4, 1e-4)
    assert (ok, absolute, relative) == (False, 2.0, 0.2)


def test_integers_must_be_exact() -> None:
    big = np.array([2**62 + 1])
    assert not compare(big, big + 1, 0.0, 0.0)[0]
    assert compare(big, big, 0.0, 0.0) == (True, 0.0, 0.0)
    assert not compare(np.array([True]), np.array([False]), 0.0, 0.0)[0]
    assert not compare(np.zeros(2), np.zeros(3), 1.0, 1.0)[0]
