"""A small decoder of any length, as exporters write it: with or without a key-value cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, HEAD_DIM, LAYERS, VOCABULARY = 2, 16, 2, 48
HIDDEN = HEADS * HEAD_DIM


@dataclass(slots=True)
class _Net:
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))
    nodes: list[Any] = field(default_factory=list)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)

    def __call__(self, op: str, *operands: str, result: str = "", **attributes: Any) -> str:
        """Add a node; the name of its result."""
        name = result or f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(operands), [name], name=f"/{name}", **attributes))
        return name

    def tensor(self, name: str, values: Any, dtype: type = np.float32) -> str:
        self.tensors.setdefault(name, np.asarray(values, dtype))
        return name

    def weight(self, name: str, rows: int, columns: int) -> str:
        return self.tensor(name, self.random.standard_normal((rows, columns)) / np.sqrt(rows))


def write_decoder(path: Path, cached: bool) -> Path:
    """`input_ids` i64 [1, seq] to `logits` [1, seq, VOCABULARY]: causal attention with rotary positions. With a cache,
    also `past_key_N` and `past_value_N` [1, HEADS, past, HEAD_DIM] to `present_..` of past+seq. The weights are the
    same in both."""
    net = _Net()
    one, zero = net.tensor("one", 1, np.int64), net.tensor("zero", 0, np.int64)
    seq = net("Gather", net("Shape", "input_ids"), one, axis=0)
    past = zero
    if cached:
        past = net("Gather", net("Shape", "past_key_0"), net.tensor("two", 2, np.int64), axis=0)
    total = net("Add", past, seq)
    own, all_of = net("Range", past, total, one), net("Range", zero, total, one)
    rows = net("Unsqueeze", own, net.tensor("axes_1", [1], np.int64))
    mask = net("Where", net("LessOrEqual", all_of, rows), net.tensor("open", 0.0), net.tensor("shut", -1e9))
    frequencies = net.tensor("frequencies", 100.0 ** -(np.arange(HEAD_DIM) % (HEAD_DIM // 2) / (HEAD_DIM // 2)))
    angles = net("Mul", net("Cast", rows, to=TensorProto.FLOAT), frequencies)
    turn = net("Cos", angles), net("Sin", angles)

    outputs: list[tuple[str, list[Any]]] = []
    x = net("Gather", net.weight("embed", VOCABULARY, HIDDEN), "input_ids")
    for layer in range(LAYERS):
        normal = _rms_norm(net, f"norm_{layer}", x)
        q, k, v = (_heads(net, normal, f"{name}_{layer}") for name in ("q", "k", "v"))
        q, k = _rotated(net, q, turn), _rotated(net, k, turn)
        if cached:
            k = net("Concat", f"past_key_{layer}", k, axis=2, result=f"present_key_{layer}")
            v = net("Concat", f"past_value_{layer}", v, axis=2, result=f"present_value_{layer}")
            outputs += [(name, [1, HEADS, "total", HEAD_DIM]) for name in (k, v)]
        products = net("MatMul", q, net("Transpose", k, perm=[0, 1, 3, 2]))
        scores = net("Mul", products, net.tensor("scale", HEAD_DIM**-0.5))
        mixed = net("MatMul", net("Softmax", net("Add", scores, mask), axis=-1), v)
        whole = net.tensor("whole", [1, -1, HIDDEN], np.int64)
        merged = net("Reshape", net("Transpose", mixed, perm=[0, 2, 1, 3]), whole)
        x = net("Add", x, net("MatMul", merged, net.weight(f"o_{layer}", HIDDEN, HIDDEN)))
        up = net("MatMul", _rms_norm(net, f"norm_mlp_{layer}", x), net.weight(f"up_{layer}", HIDDEN, 2 * HIDDEN))
        down = net.weight(f"down_{layer}", 2 * HIDDEN, HIDDEN)
        x = net("Add", x, net("MatMul", net("Mul", up, net("Sigmoid", up)), down))
    net("MatMul", _rms_norm(net, "norm_last", x), net.weight("head", HIDDEN, VOCABULARY), result="logits")

    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "seq"])]
    if cached:
        inputs += [
            helper.make_tensor_value_info(f"past_{kind}_{layer}", TensorProto.FLOAT, [1, HEADS, "past", HEAD_DIM])
            for layer in range(LAYERS)
            for kind in ("key", "value")
        ]
    given = [("logits", [1, "seq", VOCABULARY]), *outputs]
    graph = helper.make_graph(
        net.nodes,
        "decoder",
        inputs,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in given],
        [numpy_helper.from_array(values, name) for name, values in net.tensors.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def empty_cache(length: int = 0) -> dict[str, np.ndarray]:
    """Inputs for a past of `length` zeros."""
    nothing = np.zeros((1, HEADS, length, HEAD_DIM), np.float32)
    return {f"past_{kind}_{layer}": nothing for layer in range(LAYERS) for kind in ("key", "value")}


def next_cache(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The cache that a step leaves, as inputs of the next."""
    return {name.replace("present", "past"): array for name, array in outputs.items() if name != "logits"}


def _rms_norm(net: _Net, name: str, x: str) -> str:
    mean = net("ReduceMean", net("Mul", x, x), net.tensor("last", [-1], np.int64), keepdims=1)
    root = net("Sqrt", net("Add", mean, net.tensor("epsilon", 1e-5)))
    return net("Mul", net("Div", x, root), net.tensor(name, 1 + 0.1 * net.random.standard_normal(HIDDEN)))


def _heads(net: _Net, x: str, name: str) -> str:
    """[1, seq, HIDDEN] to [1, HEADS, seq, HEAD_DIM]."""
    projected = net("MatMul", x, net.weight(name, HIDDEN, HIDDEN))
    parted = net("Reshape", projected, net.tensor("parts", [1, -1, HEADS, HEAD_DIM], np.int64))
    return net("Transpose", parted, perm=[0, 2, 1, 3])


def _rotated(net: _Net, x: str, turn: tuple[str, str]) -> str:
    """Rotary positions of a head in halves."""
    start, middle = net.tensor("start", [0], np.int64), net.tensor("middle", [HEAD_DIM // 2], np.int64)
    end, last = net.tensor("end", [1 << 40], np.int64), net.tensor("last", [-1], np.int64)
    first, second = net("Slice", x, start, middle, last), net("Slice", x, middle, end, last)
    other = net("Concat", net("Neg", second), first, axis=-1)
    return net("Add", net("Mul", x, turn[0]), net("Mul", other, turn[1]))
