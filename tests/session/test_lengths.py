"""Models of any length: compiled once, run at lengths that were not compiled for, without compiling again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.dynamic_models import VOCABULARY, empty_cache, next_cache, write_decoder
from workbench import CompileSession, compile_onnx
from workbench.errors import WorkbenchError
from workbench.ir.interpret import interpret
from workbench.ir.llir import Program
from workbench.runtime.cpu import CpuRuntime
from workbench.runtime.cpu.jit import kernels_compiled
from workbench.runtime.protocol import Template
from workbench.session.executable import KEPT, Executable
from workbench.session.report import as_text, build_report

Dims = dict[str, int]


def compiled(path: Path, tmp_path: Path, **dims: int) -> Executable:
    return compile_onnx(path, limit=1, dims=dims, artifacts=str(tmp_path / "artifacts"))


def reference(path: Path) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


def tokens(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, VOCABULARY, (1, count))


def test_a_decoder_runs_at_every_length(tmp_path: Path) -> None:
    path = write_decoder(tmp_path / "decoder.onnx", cached=False)
    exe, expected = compiled(path, tmp_path, seq=16), reference(path)
    counts = []
    for length in (16, 1, 7, 16, 128, 7):
        inputs = {"input_ids": tokens(length)}
        got = exe.run(inputs)["logits"]
        np.testing.assert_allclose(got, expected(inputs)["logits"], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got, interpret(exe.graph, inputs, {"seq": length})["logits"], rtol=1e-4, atol=1e-5)
        counts.append(kernels_compiled())
        assert exe.compiled({"seq": length}).general == (length != 16)
    assert counts[1] > counts[0]  # the general code, at the first other length
    assert len(set(counts[1:])) == 1


def test_a_cache_grows_step_by_step(tmp_path: Path) -> None:
    """From nothing: each step is right, and none after the first that has something in its cache compiles anything."""
    path = write_decoder(tmp_path / "decoder.onnx", cached=True)
    exe, expected = compiled(path, tmp_path, seq=1, past=8), reference(path)
    ids, cache, counts = tokens(20), empty_cache(), []
    for step in range(20):
        inputs = {"input_ids": ids[:, step : step + 1], **cache}
        got, wanted = exe.run(inputs), expected(inputs)
        for name, array in wanted.items():
            np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5)
        cache = next_cache(got)
        counts.append(kernels_compiled())
    assert counts[1] == counts[-1]
    whole = write_decoder(tmp_path / "whole.onnx", cached=False)
    at_once = reference(whole)({"input_ids": ids})["logits"]
    np.testing.assert_allclose(got["logits"][0, 0], at_once[0, -1], rtol=1e-4, atol=1e-5)


def test_plans_are_kept_for_some_lengths_only(model_path: Callable[[str], Path], tmp_path: Path) -> None:
    exe = compiled(model_path("mlp_dynbatch_ts17"), tmp_path, batch=4)
    first = exe.compiled({"batch": 4})
    for rows in range(1, 3 * KEPT):
        exe.compiled({"batch": rows})
    assert exe.compiled({"batch": 4}) is first
    assert len(exe._plans) == KEPT
    exe.run({"x": np.ones((5, 32), np.float32)})
    before = kernels_compiled()
    x = np.ones((2, 32), np.float32)
    got, wanted = exe.run({"x": x}), interpret(exe.graph, {"x": x}, {"batch": 2})
    for name, array in wanted.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-6)
    assert kernels_compiled() == before


def test_without_general_code_each_length_is_compiled_for(
    model_path: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: CpuRuntime, program: Program, custom_ops: object) -> Template:
        raise WorkbenchError("no such kernel")

    path = model_path("mlp_dynbatch_ts17")
    options: dict[str, Any] = {"limit": 1, "dims": {"batch": 4}}
    with CompileSession(path, artifacts=str(tmp_path / "a"), **options) as session:
        session.run()
        report = build_report(session.view, session.spec, tmp_path, tmp_path)
        assert report["other_dims"] == {"general": True, "refused": ""}
        assert "other values of batch: one code for all" in as_text(report)
    monkeypatch.setattr(CpuRuntime, "template", refuse)
    with CompileSession(path, artifacts=str(tmp_path / "b"), **options) as session:
        exe = session.run()
        report = build_report(session.view, session.spec, tmp_path, tmp_path)
        assert report["other_dims"] == {"general": False, "refused": "no such kernel"}
        assert "other values of batch: each is compiled for (no such kernel)" in as_text(report)
    x = np.ones((3, 32), np.float32)
    got, wanted = exe.run({"x": x}), interpret(exe.graph, {"x": x}, {"batch": 3})
    for name, array in wanted.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-6)
    assert list(exe.refused.values()) == ["no such kernel"]
    assert not exe.compiled({"batch": 3}).general
