"""Small decoders with a key-value cache, built as exporters write them: dynamic batch, sequence and past.

`cached_decoder` is as Optimum and ONNX Runtime GenAI have it (token ids, a mask over past and new, positions, a pair of
past tensors a layer, and as many present ones), `traced_decoder` as TorchScript traces it (everything from shapes:
Shape, Gather, Unsqueeze, Concat, Reshape; positions and the mask from Range)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY, POSITIONS = 2, 4, 2, 8, 50, 64
HIDDEN = HEADS * HEAD_DIM
LEAST = float(np.finfo(np.float32).min)


@dataclass(slots=True)
class Net:
    """An ONNX graph as it grows."""

    seed: int = 5
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def __call__(self, op: str, *operands: str, result: str = "", **attributes: Any) -> str:
        """Add a node; returns the name of its result."""
        result = result or f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(operands), [result], name=f"/{result}", **attributes))
        return result

    def ints(self, *values: int) -> str:
        """A constant of int64, with one axis."""
        return self.tensor(f"ints_{'_'.join(map(str, values))}", np.array(values, np.int64))

    def scalar(self, value: float | int) -> str:
        """A constant without axes: int64 or f32."""
        dtype = np.int64 if isinstance(value, int) else np.float32
        return self.tensor(f"scalar_{value}", np.array(value, dtype))

    def tensor(self, name: str, values: np.ndarray) -> str:
        self.tensors[name] = values
        return name

    def weight(self, name: str, *shape: int) -> str:
        return self.tensor(name, (self.random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))

    def dim(self, x: str, axis: int) -> str:
        """An extent of `x`, as TorchScript takes it: without axes."""
        return self("Gather", self("Shape", x), self.scalar(axis))

    def joined(self, *parts: str | int) -> str:
        """A shape of extents, each known or without axes."""
        pieces = [self.ints(p) if isinstance(p, int) else self("Unsqueeze", p, self.ints(0)) for p in parts]
        return self("Concat", *pieces, axis=0)

    def save(self, path: Path, inputs: Sequence[Any], outputs: Sequence[Any]) -> Path:
        given = [numpy_helper.from_array(values, name) for name, values in self.tensors.items()]
        graph = helper.make_graph(self.nodes, path.stem, list(inputs), list(outputs), given)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        path.write_bytes(model.SerializeToString())
        return path


def norm(net: Net, x: str, name: str) -> str:
    square = net("Pow", x, net.scalar(2.0))
    mean = net("ReduceMean", square, axes=[-1])
    normal = net("Div", x, net("Sqrt", net("Add", mean, net.scalar(1e-5))))
    return net("Mul", normal, net.tensor(name, (1 + 0.1 * net.random.standard_normal(HIDDEN)).astype(np.float32)))


def rotated(net: Net, x: str, cos: str, sin: str) -> str:
    first = net("Slice", x, net.ints(0), net.ints(HEAD_DIM // 2), net.ints(3))
    second = net("Slice", x, net.ints(HEAD_DIM // 2), net.ints(2**63 - 1), net.ints(3))
    turned = net("Concat", net("Neg", second), first, axis=-1)
    return net("Add", net("Mul", x, cos), net("Mul", turned, sin))


def rope(net: Net, positions: str) -> tuple[str, str]:
    """cos and sin, [batch, 1, seq, HEAD_DIM], of positions [batch, seq] or [1, seq]."""
    frequencies = 10000.0 ** -(np.arange(0, HEAD_DIM, 2, dtype=np.float32) / HEAD_DIM)
    inverse = net.tensor("inverse_frequencies", frequencies[None, :, None])
    at = net("Cast", net("Unsqueeze", positions, net.ints(1)), to=TensorProto.FLOAT)
    angles = net("Transpose", net("MatMul", net("Expand", inverse, batch_shape(net, positions)), at), perm=[0, 2, 1])
    both = net("Unsqueeze", net("Concat", angles, angles, axis=-1), net.ints(1))
    return net("Cos", both), net("Sin", both)


def batch_shape(net: Net, positions: str) -> str:
    """[batch, 1, 1] as `Expand` takes it."""
    return net.joined(net.dim(positions, 0), 1, 1)


def heads(net: Net, x: str, name: str, count: int, batch: str, seq: str) -> str:
    """[batch, seq, HIDDEN] -> [batch, count, seq, HEAD_DIM]"""
    flat = net("MatMul", x, net.weight(name, HIDDEN, count * HEAD_DIM))
    return net("Transpose", net("Reshape", flat, net.joined(batch, seq, count, HEAD_DIM)), perm=[0, 2, 1, 3])


def shared(net: Net, x: str, batch: str) -> str:
    """Each key or value head repeated for its query heads, as torch's repeat_kv: [batch, KV_HEADS, n, HEAD_DIM] ->
    [batch, HEADS, n, HEAD_DIM]"""
    length = net.dim(x, 2)
    apart = net("Unsqueeze", x, net.ints(2))
    wanted = net.joined(batch, KV_HEADS, HEADS // KV_HEADS, length, HEAD_DIM)
    ones = net("ConstantOfShape", net.ints(5), value=helper.make_tensor("one", TensorProto.INT64, [1], [1]))
    given = net("Mul", ones, net.scalar(-1))
    sizes = net("Where", net("Equal", wanted, given), ones, wanted)
    return net("Reshape", net("Expand", apart, sizes), net.joined(batch, HEADS, length, HEAD_DIM))


def layer(net: Net, i: int, x: str, past: tuple[str, str] | None, mask: str, turn: tuple[str, str]) -> str:
    batch, seq = net.dim(x, 0), net.dim(x, 1)
    normal = norm(net, x, f"norm{i}")
    q = rotated(net, heads(net, normal, f"q{i}", HEADS, batch, seq), *turn)
    k = rotated(net, heads(net, normal, f"k{i}", KV_HEADS, batch, seq), *turn)
    v = heads(net, normal, f"v{i}", KV_HEADS, batch, seq)
    if past is not None:
        k = net("Concat", past[0], k, axis=2, result=f"present.{i}.key")
        v = net("Concat", past[1], v, axis=2, result=f"present.{i}.value")
    scores = net("MatMul", q, net("Transpose", shared(net, k, batch), perm=[0, 1, 3, 2]))
    scaled = net("Add", net("Mul", scores, net.scalar(HEAD_DIM**-0.5)), mask)
    mixed = net("MatMul", net("Softmax", scaled, axis=-1), shared(net, v, batch))
    merged = net("Reshape", net("Transpose", mixed, perm=[0, 2, 1, 3]), net.joined(batch, seq, HIDDEN))
    x = net("Add", x, net("MatMul", merged, net.weight(f"o{i}", HIDDEN, HIDDEN)))
    up = net("MatMul", norm(net, x, f"norm_mlp{i}"), net.weight(f"up{i}", HIDDEN, 2 * HIDDEN))
    active = net("Mul", up, net("Sigmoid", up))
    return net("Add", x, net("MatMul", active, net.weight(f"down{i}", 2 * HIDDEN, HIDDEN)))


def head(net: Net, x: str) -> str:
    return net("MatMul", norm(net, x, "norm"), net.weight("head", HIDDEN, VOCABULARY), result="logits")


def causal(net: Net, seq: str, past: str) -> str:
    """[1, 1, seq, past + seq]: 0 where a position may be seen, else the least f32."""
    total = net("Add", past, seq)
    columns = net("Range", net.scalar(0), total, net.scalar(1))
    rows = net("Unsqueeze", net("Range", past, total, net.scalar(1)), net.ints(1))
    hidden = net("Where", net("Greater", columns, rows), net.scalar(LEAST), net.scalar(0.0))
    return net("Unsqueeze", hidden, net.ints(0, 1))


def cached_decoder(path: Path, total: str = "past_sequence_length + sequence_length", layers: int = LAYERS) -> Path:
    """`total` is what the mask's last axis and the present tensors' lengths are called."""
    net = Net()
    batch, seq, past = "batch_size", "sequence_length", "past_sequence_length"
    new = net.dim("input_ids", 1)
    before = net.dim("past_key_values.0.key", 2)
    kept = net("Cast", net("Unsqueeze", "attention_mask", net.ints(1, 2)), to=TensorProto.FLOAT)
    padding = net("Mul", net("Sub", net.scalar(1.0), kept), net.scalar(LEAST))
    mask = net("Max", net("Add", causal(net, new, before), padding), net.scalar(LEAST))
    x = net("Gather", net.weight("embedding", VOCABULARY, HIDDEN), "input_ids")
    turn = rope(net, "position_ids")
    for i in range(layers):
        x = layer(net, i, x, (f"past_key_values.{i}.key", f"past_key_values.{i}.value"), mask, turn)
    head(net, x)
    info = helper.make_tensor_value_info
    inputs = [
        info("input_ids", TensorProto.INT64, [batch, seq]),
        info("attention_mask", TensorProto.INT64, [batch, total]),
        info("position_ids", TensorProto.INT64, [batch, seq]),
    ]
    outputs = [info("logits", TensorProto.FLOAT, [batch, seq, VOCABULARY])]
    for i in range(layers):
        for part in ("key", "value"):
            shape = [batch, KV_HEADS, past, HEAD_DIM]
            inputs.append(info(f"past_key_values.{i}.{part}", TensorProto.FLOAT, shape))
            outputs.append(info(f"present.{i}.{part}", TensorProto.FLOAT, [batch, KV_HEADS, total, HEAD_DIM]))
    return net.save(path, inputs, outputs)


def traced_decoder(path: Path, cache: bool, seq: str = "seq", past: str = "past", batch: str = "batch") -> Path:
    """With a `cache`, the past's length is that of the first past tensor; without, it is 0. Names may be ''."""
    net = Net()
    new = net.dim("input_ids", 1)
    before = net.dim("past_0_key", 2) if cache else net.scalar(0)
    positions = net("Unsqueeze", net("Range", before, net("Add", before, new), net.scalar(1)), net.ints(0))
    x = net("Gather", net.weight("embedding", VOCABULARY, HIDDEN), "input_ids")
    turn = rope(net, positions)
    mask = causal(net, new, before)
    for i in range(LAYERS):
        x = layer(net, i, x, (f"past_{i}_key", f"past_{i}_value") if cache else None, mask, turn)
    head(net, x)
    info = helper.make_tensor_value_info
    inputs = [info("input_ids", TensorProto.INT64, [batch or None, seq or None])]
    outputs = [info("logits", TensorProto.FLOAT, [batch or None, seq or None, VOCABULARY])]
    for i in range(LAYERS if cache else 0):
        for part in ("key", "value"):
            shape = [batch or None, KV_HEADS, past or None, HEAD_DIM]
            inputs.append(info(f"past_{i}_{part}", TensorProto.FLOAT, shape))
            outputs.append(info(f"present.{i}.{part}", TensorProto.FLOAT, [batch or None, KV_HEADS, None, HEAD_DIM]))
    return net.save(path, inputs, outputs)
