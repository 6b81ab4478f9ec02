"""Decoders as exporters write them, compiled once: a growing cache step by step, and any length of the sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.decoders import HEAD_DIM, KV_HEADS, LAYERS, VOCABULARY, cached_decoder, traced_decoder
from workbench import CompileSession, Executable, compile_onnx
from workbench.errors import InputError
from workbench.frontend import import_model
from workbench.ir.interpret import interpret
from workbench.session import verification
from workbench.session.reference import check_inputs

Arrays = Mapping[str, np.ndarray]


@pytest.fixture
def one_thread() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return options


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Executable]:
    """A decoder whose mask has a length of its own name, compiled for generation at two lengths of the past."""
    path = cached_decoder(tmp_path_factory.mktemp("masked") / "decoder.onnx", "total_sequence_length")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "LATENCY_SECONDS", 0.01)
        return path, compiled(path, {"sequence_length": 1, "past_sequence_length": (8, 64)})


def compiled(path: Path, dims: Mapping[str, Any]) -> Executable:
    return compile_onnx(path, limit=2, dims=dict(dims), artifacts=str(path.parent / "a"))


def past_of(present: Arrays, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The present tensors under the names that the next step takes them by: the third part is key or value."""
    return {name: present[f"present.{i // 2}.{'key' if 'key' in name else 'value'}"] for i, name in enumerate(names)}


def generate(path: Path, exe: Executable, batch: int, lengths: Sequence[int], options: Any) -> None:
    """Feed random tokens, so many a step, from an empty cache; every step against onnxruntime and the interpreter."""
    peer = onnxruntime.InferenceSession(path, options)
    inputs = [i.name for i in peer.get_inputs()]
    outputs = [o.name for o in peer.get_outputs()]
    caches = [name for name in inputs if "past" in name]
    assert len(caches) == 2 * LAYERS
    graph = import_model(path).graph
    rng = np.random.default_rng(batch)
    past = {name: np.zeros((batch, KV_HEADS, 0, HEAD_DIM), np.float32) for name in caches}
    done = 0
    for step, seq in enumerate(lengths):
        given: dict[str, np.ndarray] = {"input_ids": rng.integers(0, VOCABULARY, (batch, seq)), **past}
        if "attention_mask" in inputs:
            given["attention_mask"] = np.ones((batch, done + seq), np.int64)
            given["position_ids"] = np.tile(np.arange(done, done + seq), (batch, 1))
        got = exe.run(given)
        wanted = dict(zip(outputs, peer.run(outputs, given), strict=True))
        assert_same(got, wanted)
        if step in (0, 1, len(lengths) - 1):
            assert_same(got, interpret(graph, given, check_inputs(graph, given)[1]))
        past, done = past_of(got, caches), done + seq
    assert done == sum(lengths)
    assert past[caches[0]].shape[2] == done


def assert_same(got: Arrays, wanted: Arrays) -> None:
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        assert got[name].shape == array.shape, name
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-4 * max(1e-3, np.abs(array).max()))


def test_a_cache_grows_over_twenty_steps_from_nothing(masked: tuple[Path, Executable], one_thread: Any) -> None:
    generate(*masked, 1, [1] * 20, one_thread)
    generate(*masked, 2, [7, 1, 3, 1], one_thread)


def test_a_cache_without_names_grows_as_well(tmp_path: Path, one_thread: Any) -> None:
    path = traced_decoder(tmp_path / "decoder.onnx", True, "", "", "")
    generate(path, compiled(path, {"past_0_key_2": 8}), 2, [3, 1, 1], one_thread)


def test_a_padded_prompt_is_masked(masked: tuple[Path, Executable], one_thread: Any) -> None:
    path, exe = masked
    rng = np.random.default_rng(0)
    cache = np.zeros((2, KV_HEADS, 0, HEAD_DIM), np.float32)
    given = {
        "input_ids": rng.integers(0, VOCABULARY, (2, 5)),
        "attention_mask": np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]),
        "position_ids": np.array([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]),
        **{f"past_key_values.{i}.{part}": cache for i in range(LAYERS) for part in ("key", "value")},
    }
    peer = onnxruntime.InferenceSession(path, one_thread)
    outputs = [o.name for o in peer.get_outputs()]
    assert_same(exe.run(given), dict(zip(outputs, peer.run(outputs, given), strict=True)))
    with pytest.raises(InputError, match=r"'attention_mask' has shape \[2, 4\].*\[2, 5\] beside the other inputs"):
        exe.run(given | {"attention_mask": np.ones((2, 4), np.int64)})
    with pytest.raises(InputError, match=r"dimension 'past_sequence_length' the value 3, another input 0"):
        exe.run(given | {"past_key_values.1.value": np.zeros((2, KV_HEADS, 3, HEAD_DIM), np.float32)})


def test_one_compile_is_right_at_every_length(tmp_path: Path, one_thread: Any) -> None:
    path = traced_decoder(tmp_path / "decoder.onnx", False)
    options: dict[str, Any] = {"limit": 2, "artifacts": str(tmp_path / "a"), "dims": {"seq": (1, 16, 128)}}
    with CompileSession(path, **options) as session:
        exe = session.run()
        assert [p.dims for p in session.view.graph.points] == [{"seq": n} for n in (1, 16, 128)]  # type: ignore[union-attr]
        assert all(p.verified is not None and p.verified.ok for p in session.view.points.values())
    peer = onnxruntime.InferenceSession(path, one_thread)
    rng = np.random.default_rng(1)
    for seq, batch in ((1, 1), (7, 1), (16, 1), (128, 1), (7, 3), (45, 2), (46, 2)):
        ids = rng.integers(0, VOCABULARY, (batch, seq))
        assert_same(exe.run({"input_ids": ids}), {"logits": peer.run(["logits"], {"input_ids": ids})[0]})
