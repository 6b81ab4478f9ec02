"""Weights that are mapped, made up, missing or larger than the memory: what is compiled, compared and said then."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import set_external_data

from workbench import CompileSession
from workbench.errors import UnavailableError
from workbench.frontend.builder import SMALL
from workbench.ir.weights import place_in_file
from workbench.runtime.cpu import CpuRuntime
from workbench.runtime.wire import Request
from workbench.session.chunk_values import made_up_values
from workbench.session.executable import Executable
from workbench.session.verification import WrongResult

from .conftest import Command

Model = Callable[[str], Path]
WEIGHTS = "weights.bin"


def outside(model: Path, folder: Path, *, with_file: bool = True, align: int = 64) -> Path:
    """A copy of a model whose weights of at least 1,000 bytes lie in a file beside it, or would."""
    proto = onnx.load(model)
    data = b""
    for tensor in proto.graph.initializer:
        raw = onnx.numpy_helper.to_array(tensor).tobytes()
        if len(raw) >= 1000:
            data += b"\0" * (-len(data) % align)
            set_external_data(tensor, WEIGHTS, len(data), len(raw))
            tensor.ClearField("raw_data")
            data += raw
    folder.mkdir(exist_ok=True)
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    if with_file:
        (folder / WEIGHTS).write_bytes(data)
    return path


def session_of(path: Path, tmp_path: Path, **options: object) -> CompileSession:
    return CompileSession(str(path), limit=2, session=str(tmp_path / "s"), artifacts=str(tmp_path / "a"), **options)


def test_weights_in_a_file_are_views_of_it_in_what_is_run(model_path: Model, tmp_path: Path) -> None:
    path = outside(model_path("mlp_ts17"), tmp_path / "m")
    with session_of(path, tmp_path, expected=str(model_path("mlp_ts17").with_suffix(".npz"))) as session:
        executable = session.run()
        assert session.view.verified is not None
        assert "mlp_ts17.npz" in session.view.verified.reference
    large = [a for a in executable._constants.values() if a.size > SMALL]
    assert large
    assert all(place_in_file(a) is not None for a in large)


def test_without_weights_all_up_to_the_search_is_there_and_the_rest_is_said(
    luminal: Command, model_path: Model, tmp_path: Path
) -> None:
    path = outside(model_path("llama3_tiny_4l_dynamo"), tmp_path / "m", with_file=False)
    status, out, err = luminal("compile", str(path), "--artifacts", str(tmp_path / "a"), "--json")
    assert status == 2
    assert "weights are missing" in err
    assert "--random-weights" in err
    assert {g["search"] for g in json.loads(out)["groups"]} == {None}
    assert all(g["egraph"]["nodes"] for g in json.loads(out)["groups"])
    assert {p.name for p in (tmp_path / "a").iterdir()} >= {"HLIR.dot", "hlir_chunk_0.egg", "rule_stats.txt"}


def test_a_model_without_weights_has_the_groups_of_the_same_with_them(model_path: Model, tmp_path: Path) -> None:
    digests = []
    for name, there in (("with", True), ("without", False)):
        path = outside(model_path("llama3_tiny_4l_dynamo"), tmp_path / name, with_file=there)
        with session_of(path, tmp_path / name) as session:
            session.import_model()
            digests.append([(g.digest, g.members) for g in session.split()])
    assert digests[0] == digests[1]


def test_a_model_larger_than_the_memory_is_searched_and_verified_chunk_by_chunk(
    luminal: Command, model_path: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = outside(model_path("llama3_tiny_4l_dynamo"), tmp_path / "m", with_file=False)
    monkeypatch.setattr(CpuRuntime, "memory_limit", lambda self: 500_000)
    monkeypatch.setattr(Executable, "run", None)  # the whole is not run
    options = ("--random-weights", "--limit", "2", "--artifacts", str(tmp_path / "a"), "--json")
    status, out, err = luminal("compile", str(path), *options)
    assert status == 0, err
    assert "the whole model takes 1.0 MB of memory, 0.5 MB can be had" in err
    report = json.loads(out)
    assert report["verify"]["ok"]
    assert report["verify"]["reference"].startswith("interpreter, one chunk of each group")
    assert 0 < report["verify"]["max_rel_err"] < 1e-4
    assert report["latency_ms"]["summed"]
    assert report["latency_ms"]["median"] > sum(len(g["members"]) for g in report["groups"]) * 1e-3
    assert sum(k["calls"] for k in report["kernels"]) > 9


def test_a_wrong_kernel_is_found_chunk_by_chunk(
    model_path: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuRuntime, "memory_limit", lambda self: 500_000)
    with session_of(model_path("mlp_ts17"), tmp_path) as session:
        session.import_model()
        session.split()
        monkeypatch.setattr(CpuRuntime, "memory_limit", lambda self: 50_000)
        session.saturate()
        session.search()
        session.stitch()
        assert not session.whole.fits
        evaluate = session.worker.evaluate

        def against_others(key: str, *arguments: Any, **options: Any) -> object:
            bound = session.worker._bound[key]
            session.worker.bind(key, bound.arrays, [o + 1 for o in bound.expected])
            return evaluate(key, *arguments, **options)

        monkeypatch.setattr(session.worker, "evaluate", against_others)
        with pytest.raises(WrongResult, match=r"one chunk of each group .*group 0: wrong"):
            session.verify()


def test_a_run_that_does_not_fit_is_refused_before_memory_is_taken(
    model_path: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = outside(model_path("mlp_ts17"), tmp_path / "m", with_file=False)
    with session_of(path, tmp_path, random_weights=True) as session:
        executable = session.run()
    fresh = Executable(executable.graph, executable.runtime, executable.chosen, executable.stitched)
    monkeypatch.setattr(CpuRuntime, "memory_limit", lambda self: 50_000)
    with pytest.raises(UnavailableError, match=r"takes 0\.\d MB of memory, 0\.1 MB can be had"):
        fresh.run({"x": np.zeros((4, 32), np.float32)})
    assert not fresh._constants


def test_values_made_up_for_a_chunk_are_finite_and_follow_from_the_seed(model_path: Model, tmp_path: Path) -> None:
    with session_of(model_path("llama3_tiny_4l_dynamo"), tmp_path) as session:
        session.import_model()
        session.split()
        for chunk in session.chunks[:3]:
            first, again = (made_up_values(session.graph, chunk, {}, 3, lambda: None) for _ in range(2))
            other = made_up_values(session.graph, chunk, {}, 4, lambda: None)
            for a, b, c in zip(first.outputs, again.outputs, other.outputs, strict=True):
                assert np.isfinite(a).all()
                np.testing.assert_array_equal(a, b)
                assert not np.array_equal(a, c)


def test_the_device_maps_weights_for_itself(
    model_path: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes through the pipe does not grow with the weights."""
    path = outside(model_path("mlp_ts17"), tmp_path / "m", align=1)
    with session_of(path, tmp_path) as session:
        session.import_model()
        session.split()
        session.saturate()
        sent: list[int] = []
        send = session.worker._send

        def counted(request: Request, arrays: Sequence[np.ndarray] = ()) -> None:
            sent.extend(a.size for a in arrays)
            send(request, arrays)

        monkeypatch.setattr(session.worker, "_send", counted)
        monkeypatch.setattr("workbench.runtime.device._BY_PLACE", 1000)
        session.search()
    assert 0 < max(sent) <= SMALL
    assert max(session.graph[i].shape for i in session.graph.constants) > (64, 64)
