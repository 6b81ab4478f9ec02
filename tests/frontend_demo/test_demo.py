"""The demo model is valid ONNX, the same each time, and computes the Llama that it says it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from workbench.frontend import demo


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo.write_demo(tmp_path_factory.mktemp("demo") / "folder" / "demo.onnx")


@pytest.fixture(scope="module")
def weights(path: Path) -> dict[str, np.ndarray]:
    tensors = onnx.load(path).graph.initializer
    return {t.name: numpy_helper.to_array(t).astype(np.float64) for t in tensors}


def by_onnxruntime(path: Path, ids: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["logits"], {"input_ids": ids})[0]


def rms_norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale


def rotated(x: np.ndarray) -> np.ndarray:
    """RoPE as its paper has it: feature pair (i, i + half) is a complex number turned by position * theta^(-i/half)."""
    half = x.shape[-1] // 2
    turns = np.exp(1j * np.arange(len(x))[:, None] * 10000.0 ** -(np.arange(half) / half))
    pairs = (x[:, :half] + 1j * x[:, half:]) * turns
    return np.concatenate([pairs.real, pairs.imag], -1)


def attention(x: np.ndarray, w: dict[str, np.ndarray], scope: str) -> np.ndarray:
    """Head by head and token by token: no mask, a token just does not look at later ones."""
    q, k, v = (x @ w[f"{scope}.{p}_proj.weight"] for p in "qkv")
    heads = []
    for head in range(8):
        own, shared = slice(head * 16, head * 16 + 16), slice(head // 2 * 16, head // 2 * 16 + 16)
        queries, keys, values = rotated(q[:, own]), rotated(k[:, shared]), v[:, shared]
        rows = []
        for token in range(len(x)):
            score = np.exp(keys[: token + 1] @ queries[token] / 4.0)
            rows.append(score / score.sum() @ values[: token + 1])
        heads.append(np.array(rows))
    return np.concatenate(heads, -1) @ w[f"{scope}.o_proj.weight"]


def llama(ids: np.ndarray, w: dict[str, np.ndarray]) -> np.ndarray:
    x = w["embed_tokens.weight"][ids]
    for layer in range(4):
        scope = f"layers.{layer}"
        x = x + attention(rms_norm(x, w[f"{scope}.input_layernorm.weight"]), w, f"{scope}.self_attn")
        y = rms_norm(x, w[f"{scope}.post_attention_layernorm.weight"])
        gate, up = (y @ w[f"{scope}.mlp.{p}_proj.weight"] for p in ("gate", "up"))
        x = x + gate / (1 + np.exp(-gate)) * up @ w[f"{scope}.mlp.down_proj.weight"]
    return rms_norm(x, w["norm.weight"]) @ w["lm_head.weight"]


def test_the_model_passes_the_onnx_checker_and_is_small(path: Path) -> None:
    onnx.checker.check_model(onnx.load(path), full_check=True)
    assert path.stat().st_size < 3_100_000
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_logits_are_those_of_an_independent_llama(path: Path, weights: dict[str, np.ndarray]) -> None:
    ids = demo.demo_inputs()["input_ids"]
    logits = by_onnxruntime(path, ids)
    assert logits.shape == (1, 16, 512)
    wanted = llama(ids[0], weights)
    assert np.abs(wanted).max() > 1, "logits this small would hide errors"
    np.testing.assert_allclose(logits[0], wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_a_token_does_not_change_what_comes_before_it(path: Path) -> None:
    ids = demo.demo_inputs()["input_ids"]
    other = ids.copy()
    other[0, 9] = (other[0, 9] + 1) % demo.VOCABULARY
    logits, changed = by_onnxruntime(path, ids), by_onnxruntime(path, other)
    np.testing.assert_array_equal(logits[:, :9], changed[:, :9])
    assert np.abs(logits - changed)[:, 9:].max(-1).min() > 1e-3


def test_the_same_bytes_and_inputs_come_out_each_time(path: Path, tmp_path: Path) -> None:
    assert demo.write_demo(tmp_path / "again.onnx").read_bytes() == path.read_bytes()
    np.testing.assert_array_equal(demo.demo_inputs()["input_ids"], demo.demo_inputs()["input_ids"])
    assert demo.demo_inputs()["input_ids"].dtype == np.int64


def test_nodes_are_named_for_their_place_in_the_net(path: Path) -> None:
    names = [node.name for node in onnx.load(path).graph.node]
    assert len(names) == len(set(names))
    for layer in range(4):
        assert f"/layers.{layer}/self_attn/q_proj/MatMul" in names


def test_every_layer_has_the_same_nodes_in_the_same_order(path: Path) -> None:
    layers: dict[str, list[tuple[str, str]]] = {}
    for node in onnx.load(path).graph.node:
        if node.name.startswith("/layers."):
            layer, _, rest = node.name.removeprefix("/layers.").partition("/")
            layers.setdefault(layer, []).append((rest, node.op_type))
    first, *others = layers.values()
    assert len(others) == 3
    assert all(other == first for other in others)
