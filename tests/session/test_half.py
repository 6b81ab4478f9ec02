"""Half-precision models end to end: dtypes kept, right against onnxruntime or the f32 model, tolerances by dtype."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from tests.half_models import in_half
from workbench import compile_onnx
from workbench.errors import InputError
from workbench.ir import dtype as dt
from workbench.ir import llir, ops
from workbench.ir.dtype import DType
from workbench.ir.hlir import Graph, Operand
from workbench.ir.layout import contiguous
from workbench.runtime.compare import compare, default_tolerance
from workbench.runtime.cpu.plan import launch_buffers
from workbench.session.headless import run_model
from workbench.session.spec import SessionSpec
from workbench.session.tolerances import tolerance

Arrays = dict[str, np.ndarray]
Expected = Callable[[str], tuple[Arrays, Arrays]]


def written(
    name: str, dtype: DType, model_path: Callable[[str], Path], folder: Path, *, boundaries: bool = True
) -> Path:
    path = folder / f"{name}_{dtype}.onnx"
    onnx.save(in_half(onnx.load(model_path(name)), dtype, boundaries=boundaries), path)
    return path


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("mlp_ts17", dt.F16), ("mlp_ts17", dt.BF16), ("llama3_tiny_4l_dynamo", dt.F16), ("minilm_6l_ts17", dt.BF16)],
    ids=str,
)
def test_models_in_half_precision_are_right(
    name: str, dtype: DType, model_path: Callable[[str], Path], expected: Expected, tmp_path: Path
) -> None:
    """Inputs of f32 are rounded; the outputs are halves, and onnxruntime's (of f16; bf16 it has not) or those of the
    f32 model, to the tolerance of the dtype."""
    path = written(name, dtype, model_path, tmp_path)
    inputs, outputs = expected(name)
    got = compile_onnx(str(path), target="cpu", limit=2).run(inputs)
    allowed = default_tolerance(dtype)
    wanted = outputs
    if dtype is dt.F16:
        given = {k: v.astype(np.float16) if v.dtype == np.float32 else v for k, v in inputs.items()}
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        wanted = dict(zip(outputs, session.run(list(outputs), given), strict=True))
    for output, array in wanted.items():
        assert got[output].dtype == dtype.numpy
        assert compare(got[output], array, allowed.rtol, allowed.atol_scale)[0]


def test_an_f32_model_that_computes_in_bf16_is_compared_as_bf16(
    model_path: Callable[[str], Path], expected: Expected, tmp_path: Path
) -> None:
    path = written("mlp_ts17", dt.BF16, model_path, tmp_path, boundaries=False)
    inputs, outputs = expected("mlp_ts17")
    given = {f"in_{n}": a for n, a in inputs.items()} | {f"out_{n}": a for n, a in outputs.items()}
    np.savez(tmp_path / "given.npz", **given)
    spec = SessionSpec(model=str(path), target="cpu", limit=3)
    summary, wrong = run_model(
        spec, str(tmp_path / "given.npz"), str(tmp_path / "out.npz"), search_again=True
    )
    assert wrong is None
    assert summary["matches_expected"]
    assert summary["max_rel_err"] > default_tolerance(dt.F32).atol_scale  # for f32 it would be wrong
    with np.load(tmp_path / "out.npz") as made:
        assert {made[n].dtype for n in made.files} == {np.dtype(np.float32)}


def test_bf16_goes_through_npz_files(tmp_path: Path) -> None:
    """Outputs are written as f32; inputs may be f32, or what NumPy makes of bf16 that is saved."""
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32).astype(dt.BF16.numpy), "w")
    value = helper.np_dtype_to_tensor_dtype(dt.BF16.numpy)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", value, (3, 4))],
        [helper.make_tensor_value_info("y", value, (3, 4))],
        [weight],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((3, 4), np.float32)
    rounded = x.astype(dt.BF16.numpy)
    for saved in (x, rounded):
        np.savez(tmp_path / "in.npz", x=saved)
        spec = SessionSpec(model=str(tmp_path / "m.onnx"), target="cpu", limit=2)
        _, wrong = run_model(spec, str(tmp_path / "in.npz"), str(tmp_path / "out.npz"), search_again=False)
        assert wrong is None
        with np.load(tmp_path / "out.npz") as made:
            assert made["y"].dtype == np.float32
            np.testing.assert_array_equal(made["y"], rounded.astype(np.float32))
    np.savez(tmp_path / "in.npz", x=x.astype(np.float64))
    with pytest.raises(InputError, match="input 'x' is float64, the model takes bfloat16"):
        run_model(spec, str(tmp_path / "in.npz"), str(tmp_path / "out.npz"), search_again=False)


def test_the_tolerance_is_that_of_the_coarsest_dtype_computed_with() -> None:
    def cast(source: int, dtype: DType) -> int:
        return graph.add(ops.Cast(dtype), [Operand(source, contiguous((4,)))], (4,), dtype).id

    graph = Graph()
    given = graph.add(ops.Input("x"), [], (4,), dt.BF16).id
    wide = cast(given, dt.F32)
    half = cast(wide, dt.F16)
    back = cast(half, dt.F32)
    assert tolerance(graph, wide).dtype == "f32"  # an input is given: whoever computes with it has the same
    assert tolerance(graph, back) == default_tolerance(dt.F16)
    assert tolerance(graph, back, inside={back}) == default_tolerance(dt.F32)
    assert tolerance(graph, cast(back, dt.I32)).atol_scale == 0
    assert str(tolerance(graph, back)) == "0.0039 relative, f16"


def test_weights_are_converted_once_for_all_runs_and_dimensions(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    path = written("mlp_dynbatch_ts17", dt.F16, model_path, tmp_path)
    made = compile_onnx(str(path), target="cpu", limit=1)
    compiled = made.compiled({"batch": 4})
    (weight,) = (b.id for b in compiled.program.buffers if b.dtype is dt.F16 and b.elements == 128 * 64)
    (converts,) = (i for i, k in enumerate(compiled.program.kernels) if weight in llir.reads(k))
    assert converts in compiled.computed_once
    assert not any(weight in launch_buffers(launch) for launch in compiled.plan.launches)
    x = np.random.default_rng(0).standard_normal((9, 32)).astype(np.float16)
    (wanted,) = onnxruntime.InferenceSession(str(path)).run(None, {"x": x})
    for rows in (4, 9, 1):
        np.testing.assert_allclose(made.run({"x": x[:rows]})["probs"], wanted[:rows], atol=2e-3)
