"""The NumPy interpreter of HLIR: the oracle that every compiled result is compared with. Plain, not fast.

Sums accumulate in f64 (integers in i64). A sum over a product is a matrix product in f64 over what its operands do not
merely repeat, so that a matmul's product tensor is never held; a large operand is widened to f64 part by part.
Constants are loaded when they are first read, and dropped like any other value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir import ops
from workbench.ir.dtype import convert, is_float, least
from workbench.ir.hlir import Graph, Node, shape_values
from workbench.ir.weights import in_memory_form, load_constant

_WIDENED = 1 << 23
"""Elements of a matrix product's operand that are widened at a time."""

RunCustomOp = Callable[[Node, list[np.ndarray]], np.ndarray]


def interpret(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    dims: Mapping[str, int] | None = None,
    run_custom: RunCustomOp | None = None,
) -> dict[str, np.ndarray]:
    """The model's outputs by name. `inputs` are by input name; `dims` values the named dimensions.

    Raises KeyError for a missing input or dimension and ModelError for weights that are not there."""
    dims = graph.dims if dims is None else dims
    live = graph.live_from_outputs()
    values: dict[int, np.ndarray] = {}
    for node_id in graph.inputs:
        if node_id in live:
            node = graph[node_id]
            assert isinstance(node.op, ops.Input)
            values[node_id] = np.ascontiguousarray(inputs[node.op.name], node.dtype.numpy).reshape(-1)
    evaluate(graph, (n.id for n in graph if n.id in live), values, dims, run_custom)
    result: dict[str, np.ndarray] = {}
    for node_id in graph.outputs:
        node = graph[node_id]
        assert isinstance(node.op, ops.Output)
        result[node.op.name] = values[node_id].reshape(shape_values(node.shape, dims))
    return result


def evaluate(
    graph: Graph,
    order: Iterable[int],
    values: dict[int, np.ndarray],
    dims: Mapping[str, int],
    run_custom: RunCustomOp | None = None,
    keep: Collection[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
    nudge: float = 0.0,
) -> None:
    """Compute the nodes of `order` (topological) that `values` lacks; `values` maps node id to a flat array.

    A product that only feeds a sum is not stored, unless `keep` names it. With `keep`, values of other nodes are
    dropped after their last use. `progress` is told (nodes done, nodes in all). What is rounded to integers is first
    moved by `nudge` times the largest magnitude in it."""
    wanted = list(order)
    inside = set(wanted)
    fused = {n for n in wanted if _is_fused_product(graph, graph[n], inside)} - set(keep or ())
    last_use: dict[int, int] = {}
    """Place in the order where each value is read last."""
    for place, node_id in enumerate(wanted):
        for operand in graph[node_id].operands:
            last_use[operand.source] = place
            if operand.source in fused:  # what reads a product that is not stored reads the product's operands
                last_use |= {o.source: place for o in graph[operand.source].operands}
    dying: dict[int, list[int]] = {}
    for source, place in last_use.items():
        dying.setdefault(place, []).append(source)
    for done, node_id in enumerate(wanted):
        if progress is not None:
            progress(done, len(wanted))
        if keep is not None:
            for source in dying.get(done - 1, ()):
                if source not in keep:
                    values.pop(source, None)
        if node_id in values or node_id in fused:
            continue
        node = graph[node_id]
        with np.errstate(all="ignore"):
            values[node_id] = _node_value(graph, node, values, dims, run_custom, nudge)


def _is_fused_product(graph: Graph, node: Node, inside: set[int]) -> bool:
    users = list(graph.consumers(node.id))
    return (
        node.op == ops.Elementwise("Mul")
        and bool(users)
        and all(u in inside and graph[u].op == ops.Reduce("SumReduce") for u in users)
    )


def _node_value(
    graph: Graph,
    node: Node,
    values: dict[int, np.ndarray],
    dims: Mapping[str, int],
    run_custom: RunCustomOp | None,
    nudge: float,
) -> np.ndarray:
    target = node.dtype.numpy
    match node.op:
        case ops.Constant():
            return in_memory_form(load_constant(graph, node.id), node.dtype)
        case ops.Input(name):
            raise KeyError(name)
        case ops.Iota(value):
            count = int(np.prod(shape_values(node.shape, dims), dtype=np.int64))
            at = ex.evaluate(value, {**dims, ex.ITER: np.arange(count, dtype=np.int64)})
            return np.broadcast_to(np.asarray(at), (count,)).astype(target)
        case ops.Cast() | ops.Output() | ops.GraphBreak():
            return np.array(convert(_read(node, 0, values, dims), target)).reshape(-1)
        case ops.Elementwise(name):
            arrays = [_read(node, i, values, dims) for i in range(len(node.operands))]
            if nudge and name == "Round":
                arrays = [_moved(array, nudge) for array in arrays]
            return np.asarray(ops.ELEMENTWISE[name].compute(*arrays)).astype(target, copy=False).reshape(-1)
        case ops.Gather(axis):
            index, data = _read(node, 0, values, dims), _read(node, 1, values, dims)
            if not data.shape[axis]:
                return np.zeros(index.size, data.dtype)
            clamped = np.clip(index, 0, data.shape[axis] - 1)
            return np.take_along_axis(data, clamped.astype(np.int64), axis).reshape(-1)
        case ops.Scatter(mode):
            data, index, update = (_read(node, i, values, dims) for i in range(3))
            return ops.scatter(data, index, update, mode)
        case ops.Reduce(name):
            return _reduce(graph, node, name, values, dims)
        case ops.CustomOp():
            if run_custom is None:
                raise ValueError(f"nothing runs the custom operator '{node.label}' here")
            operands = [_read(node, i, values, dims) for i in range(len(node.operands))]
            return np.ascontiguousarray(run_custom(node, operands), target).reshape(-1)


def _read(node: Node, position: int, values: Mapping[int, np.ndarray], dims: Mapping[str, int]) -> np.ndarray:
    operand = node.operands[position]
    return lay.read(values[operand.source], operand.layout, dims)


def _reduce(
    graph: Graph, node: Node, name: str, values: Mapping[int, np.ndarray], dims: Mapping[str, int]
) -> np.ndarray:
    operand = node.operands[0]
    if operand.source not in values:
        return _reduce_product(graph, node, values, dims)
    data = lay.read(values[operand.source], operand.layout, dims)
    if name == "MaxReduce":
        return np.max(data, axis=-1, initial=least(node.dtype)).astype(node.dtype.numpy).reshape(-1)
    wide = np.float64 if node.dtype.is_float else np.int64
    return np.sum(data, axis=-1, dtype=wide).astype(node.dtype.numpy).reshape(-1)


def _reduce_product(graph: Graph, node: Node, values: Mapping[int, np.ndarray], dims: Mapping[str, int]) -> np.ndarray:
    """Sum over a product that was not stored."""
    view = node.operands[0].layout
    product = graph[node.operands[0].source]
    left, right = (lay.read(values[o.source], o.layout, dims) for o in product.operands)
    if view == lay.contiguous(product.shape) and left.ndim and left.size:
        return _contracted(left, right).astype(node.dtype.numpy).reshape(-1)
    whole = np.ascontiguousarray(_wide(left) * _wide(right)).reshape(-1)
    return np.sum(lay.read(whole, view, dims), axis=-1).astype(node.dtype.numpy).reshape(-1)


def _contracted(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The sum over the last axis of left * right, as one matrix product per combination of the axes that both vary
    along. What an operand merely repeats is not copied."""
    repeats = [[n > 1 and s == 0 for n, s in zip(x.shape, x.strides, strict=True)] for x in (left, right)]
    axes = range(left.ndim - 1)
    rows = [a for a in axes if repeats[1][a] and not repeats[0][a]]
    columns = [a for a in axes if repeats[0][a] and not repeats[1][a]]
    same = [a for a in axes if repeats[0][a] and repeats[1][a]]
    batch = [a for a in axes if a not in rows and a not in columns and a not in same]
    a, b = (
        x[tuple(slice(0, 1) if drop[i] and i < x.ndim - 1 else slice(None) for i in range(x.ndim))]
        for x, drop in zip((left, right), repeats, strict=True)
    )
    depth = left.shape[-1]
    shape = [1 if i in same else left.shape[i] for i in (*batch, *same, *rows, *columns)]
    heads = math.prod(left.shape[i] for i in batch)
    a = a.transpose(*batch, *same, *rows, *columns, left.ndim - 1).reshape(heads, -1, depth)
    b = b.transpose(*batch, *same, *columns, *rows, left.ndim - 1).reshape(heads, -1, depth)
    result = _products(a, b).reshape(shape).transpose(np.argsort([*batch, *same, *rows, *columns]))
    return np.broadcast_to(result, left.shape[:-1])


def _products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b transposed, for each of the first axis, in f64 or i64. The operand with more rows is widened by parts."""
    if a.shape[1] > b.shape[1]:
        return _products(b, a).swapaxes(1, 2)
    heads, count, depth = b.shape
    step = max(1, _WIDENED // max(1, heads * depth))
    few = _wide(a)
    parts = [np.matmul(few, _wide(b[:, at : at + step]).swapaxes(1, 2)) for at in range(0, max(count, 1), step)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)


def _moved(array: np.ndarray, nudge: float) -> np.ndarray:
    """Floats moved by `nudge` times the largest of their magnitudes."""
    wide = array.astype(np.float64)
    size = np.abs(wide[np.isfinite(wide)])
    return (wide + nudge * size.max()).astype(array.dtype) if size.size else array


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64 if is_float(array.dtype) else np.int64)

