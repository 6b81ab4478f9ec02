"""The built-in demo model: a small Llama with random weights, written as an ONNX file."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

LAYERS = 4
HEADS = 8
KV_HEADS = 4
HEAD_DIM = 16
HIDDEN = HEADS * HEAD_DIM
INTERMEDIATE = 256
VOCABULARY = 512
SEQUENCE = 16
EPSILON = 1e-5
ROPE_THETA = 10000.0
OPSET = 18
SEED = 7


@dataclass(slots=True)
class _Net:
    """An ONNX graph as it grows. Values are known by name."""

    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED))
    nodes: list[Any] = field(default_factory=list)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)

    def apply(self, op: str, name: str, *operands: str, result: str = "", **attributes: Any) -> str:
        """Add the node `name`; returns the name of its result."""
        from onnx import helper

        result = result or f"{name}_output_0"
        self.nodes.append(helper.make_node(op, list(operands), [result], name=name, **attributes))
        return result

    def tensor(self, name: str, values: Any, dtype: type = np.float32) -> str:
        """Add a constant, unless one of that name is there; returns its name."""
        self.tensors.setdefault(name, np.asarray(values, dtype))
        return name

    def weight(self, name: str, rows: int, columns: int) -> str:
        """Add a random matrix that keeps the size of what it multiplies."""
        return self.tensor(name, self.random.standard_normal((rows, columns)) / np.sqrt(rows))


def write_demo(path: Path) -> Path:
    """Write the demo model to `path` (about 3 MB, the same bytes each time) and return it.

    `input_ids` int64 [1, SEQUENCE] -> `logits` f32 [1, SEQUENCE, VOCABULARY]."""
    from onnx import TensorProto, helper, numpy_helper

    net = _Net()
    logits = _llama(net, "input_ids")
    graph = helper.make_graph(
        net.nodes,
        "demo",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, SEQUENCE])],
        [helper.make_tensor_value_info(logits, TensorProto.FLOAT, [1, SEQUENCE, VOCABULARY])],
        [numpy_helper.from_array(values, name) for name, values in net.tensors.items()],
    )
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8, producer_name="luminal-tui")

    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")  # others may be reading the file at `path`
    unfinished.write_bytes(model.SerializeToString(deterministic=True))
    return unfinished.replace(path)


def demo_inputs() -> dict[str, np.ndarray]:
    """Inputs for the demo model: `input_ids`, int64 [1, SEQUENCE]."""
    ids = np.random.default_rng(SEED).integers(0, VOCABULARY, (1, SEQUENCE), dtype=np.int64)
    return {"input_ids": ids}


def _llama(net: _Net, ids: str) -> str:
    """Token ids to logits. [1, SEQUENCE] -> [1, SEQUENCE, VOCABULARY]."""
    table = net.tensor("embed_tokens.weight", net.random.standard_normal((VOCABULARY, HIDDEN)))
    hidden = net.apply("Gather", "/embed_tokens/Gather", table, ids)
    for layer in range(LAYERS):
        scope = f"/layers.{layer}"
        attended = _attention(net, f"{scope}/self_attn", _rms_norm(net, f"{scope}/input_layernorm", hidden))
        hidden = net.apply("Add", f"{scope}/Add", hidden, attended)
        fed = _gated_mlp(net, f"{scope}/mlp", _rms_norm(net, f"{scope}/post_attention_layernorm", hidden))
        hidden = net.apply("Add", f"{scope}/Add_1", hidden, fed)
    head = net.weight("lm_head.weight", HIDDEN, VOCABULARY)
    return net.apply("MatMul", "/lm_head/MatMul", _rms_norm(net, "/norm", hidden), head, result="logits")


def _parameter(scope: str) -> str:
    """The name of the parameter that the nodes in `scope` use: `/a/b` has `a.b.weight`."""
    return f"{scope[1:]}.weight".replace("/", ".")


def _linear(net: _Net, scope: str, x: str, inputs: int, outputs: int) -> str:
    """x @ weight, without bias."""
    return net.apply("MatMul", f"{scope}/MatMul", x, net.weight(_parameter(scope), inputs, outputs))


def _rms_norm(net: _Net, scope: str, x: str) -> str:
    """x / sqrt(mean(x*x) + EPSILON) * scale, over the last axis (Zhang and Sennrich 2019, arXiv:1910.07467)."""
    square = net.apply("Pow", f"{scope}/Pow", x, net.tensor("two", 2.0))
    mean = net.apply("ReduceMean", f"{scope}/ReduceMean", square, net.tensor("last_axis", [-1], np.int64), keepdims=1)
    shifted = net.apply("Add", f"{scope}/Add", mean, net.tensor("epsilon", EPSILON))
    root = net.apply("Sqrt", f"{scope}/Sqrt", shifted)
    normal = net.apply("Mul", f"{scope}/Mul", x, net.apply("Reciprocal", f"{scope}/Reciprocal", root))
    scale = 1 + 0.1 * net.random.standard_normal(HIDDEN)
    return net.apply("Mul", f"{scope}/Mul_1", normal, net.tensor(_parameter(scope), scale))


def _attention(net: _Net, scope: str, x: str) -> str:
    """Causal attention of HEADS query heads over KV_HEADS shared key and value heads (GQA), positions by RoPE."""
    q = _heads(net, f"{scope}/q_proj", x, HEADS)
    k = _heads(net, f"{scope}/k_proj", x, KV_HEADS)
    v = _heads(net, f"{scope}/v_proj", x, KV_HEADS)
    q = _rotate(net, f"{scope}/q_rope", q)
    k = _share(net, f"{scope}/k_share", _rotate(net, f"{scope}/k_rope", k))
    v = _share(net, f"{scope}/v_share", v)

    transposed = net.apply("Transpose", f"{scope}/Transpose", k, perm=[0, 1, 3, 2])
    scores = net.apply("MatMul", f"{scope}/MatMul", q, transposed)
    scaled = net.apply("Mul", f"{scope}/Mul", scores, net.tensor("attention_scale", HEAD_DIM**-0.5))
    # As exporters write it: the least f32 rather than -inf, so that a fully masked row would stay finite.
    future = np.triu(np.full((1, 1, SEQUENCE, SEQUENCE), np.finfo(np.float32).min), k=1)
    masked = net.apply("Add", f"{scope}/Add", scaled, net.tensor("causal_mask", future))
    weights = net.apply("Softmax", f"{scope}/Softmax", masked, axis=-1)
    mixed = net.apply("MatMul", f"{scope}/MatMul_1", weights, v)

    by_token = net.apply("Transpose", f"{scope}/Transpose_1", mixed, perm=[0, 2, 1, 3])
    merged = net.apply("Reshape", f"{scope}/Reshape", by_token, net.tensor("hidden_shape", [1, -1, HIDDEN], np.int64))
    return _linear(net, f"{scope}/o_proj", merged, HIDDEN, HIDDEN)


def _heads(net: _Net, scope: str, x: str, heads: int) -> str:
    """A projection cut into heads: [1, SEQUENCE, HIDDEN] -> [1, heads, SEQUENCE, HEAD_DIM]."""
    projected = _linear(net, scope, x, HIDDEN, heads * HEAD_DIM)
    shape = net.tensor(f"{heads}_heads_shape", [1, -1, heads, HEAD_DIM], np.int64)
    return net.apply(
        "Transpose", f"{scope}/Transpose", net.apply("Reshape", f"{scope}/Reshape", projected, shape), perm=[0, 2, 1, 3]
    )


def _rotate(net: _Net, scope: str, x: str) -> str:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864) of a head in halves: x*cos + rotate_half(x)*sin."""
    frequencies = ROPE_THETA ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = np.tile(np.outer(np.arange(SEQUENCE), frequencies), 2)[None, None]
    axis = net.tensor("last_axis", [-1], np.int64)
    start, middle = net.tensor("zero", [0], np.int64), net.tensor("half_head", [HEAD_DIM // 2], np.int64)
    end = net.tensor("end", [np.iinfo(np.int64).max], np.int64)

    first = net.apply("Slice", f"{scope}/Slice", x, start, middle, axis)
    second = net.apply("Slice", f"{scope}/Slice_1", x, middle, end, axis)
    half_turned = net.apply("Concat", f"{scope}/Concat", net.apply("Neg", f"{scope}/Neg", second), first, axis=-1)
    kept = net.apply("Mul", f"{scope}/Mul", x, net.tensor("rope_cos", np.cos(angles)))
    turned = net.apply("Mul", f"{scope}/Mul_1", half_turned, net.tensor("rope_sin", np.sin(angles)))
    return net.apply("Add", f"{scope}/Add", kept, turned)


def _share(net: _Net, scope: str, x: str) -> str:
    """Each key or value head repeated for its group of query heads: KV_HEADS -> HEADS."""
    group = HEADS // KV_HEADS
    grouped = net.tensor("group_shape", [1, KV_HEADS, group, SEQUENCE, HEAD_DIM], np.int64)
    flat = net.tensor("shared_shape", [1, HEADS, SEQUENCE, HEAD_DIM], np.int64)
    apart = net.apply("Unsqueeze", f"{scope}/Unsqueeze", x, net.tensor("group_axis", [2], np.int64))
    return net.apply("Reshape", f"{scope}/Reshape", net.apply("Expand", f"{scope}/Expand", apart, grouped), flat)


def _gated_mlp(net: _Net, scope: str, x: str) -> str:
    """down(silu(gate(x)) * up(x)) (SwiGLU, Shazeer 2020, arXiv:2002.05202)."""
    gate = _linear(net, f"{scope}/gate_proj", x, HIDDEN, INTERMEDIATE)
    sigmoid = net.apply("Sigmoid", f"{scope}/act_fn/Sigmoid", gate)
    silu = net.apply("Mul", f"{scope}/act_fn/Mul", gate, sigmoid)
    gated = net.apply("Mul", f"{scope}/Mul", silu, _linear(net, f"{scope}/up_proj", x, HIDDEN, INTERMEDIATE))
    return _linear(net, f"{scope}/down_proj", gated, INTERMEDIATE, HIDDEN)
