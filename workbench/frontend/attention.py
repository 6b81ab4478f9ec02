"""The attention operators of newer operator sets, as the primitives that older exports write out."""

from __future__ import annotations

import math

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend.builder import Builder
from workbench.frontend.contraction import contract
from workbench.frontend.indexing import gather
from workbench.frontend.movement import concat, pad_axes
from workbench.frontend.normalization import softmax_over
from workbench.frontend.reduction import greatest
from workbench.frontend.registry import operator
from workbench.frontend.values import NotLoweredError, Value, dims_array, dtype_of, rank_of, shape_of
from workbench.ir import expr as ex
from workbench.ir.expr import Expr, Z
from workbench.ir.layout import Dim


def _by_heads(b: Builder, x: Value, heads: int) -> Value:
    """[batch, length, heads*size] as [batch, heads, length, size]."""
    if rank_of(x) == 4:
        return x
    if not heads:
        raise ValueError("operands of rank 3 need the number of heads")
    n, length, hidden = shape_of(x)
    return b.transpose(b.reshape(x, (n, length, heads, ex.as_dim(ex.as_expr(hidden) // heads))), [0, 2, 1, 3])


def _merged(b: Builder, x: Value) -> Value:
    """[batch, heads, length, size] as [batch, length, heads*size]."""
    n, heads, length, size = shape_of(x)
    return b.reshape(b.transpose(x, [0, 2, 1, 3]), (n, length, ex.as_dim(ex.as_expr(heads) * size)))


def _repeated(b: Builder, x: Value, heads: Dim) -> Value:
    """Each key or value head as often as query heads share it."""
    n, own, length, size = shape_of(x)
    if own == heads:
        return x
    times = ex.as_dim(ex.as_expr(heads) // own)
    return b.reshape(b.expand(b.unsqueeze(x, [2]), (n, own, times, length, size)), (n, heads, length, size))


def _bias(
    b: Builder,
    mask: Value | None,
    lengths: Value | None,
    queries: Dim,
    keys: Dim,
    offset: Value,
    like: Value,
    causal: bool,
    window: tuple[int, int],
) -> Value | None:
    """What is added to the scores: 0 or the mask's own value where a key may be seen, else -inf."""
    key = b.iota(Z, (1, keys), np.int64)
    query = b.add(b.iota(Z, (queries, 1), np.int64), offset)
    seen: list[Value] = [ar.less_or_equal(b, key, query)] if causal else []
    left, right = window
    if left >= 0:
        seen.append(ar.less_or_equal(b, b.add(query, -left), key))
    if right >= 0:
        seen.append(ar.less_or_equal(b, key, b.add(query, right)))
    if lengths is not None:
        seen.append(b.less(key, b.reshape(lengths, (shape_of(lengths)[0], 1, 1, 1))))
    if mask is not None:
        short = ex.as_dim(ex.as_expr(keys) - shape_of(mask)[-1])
        if isinstance(short, Expr):
            raise NotLoweredError("a mask whose length is not that of the keys")
        fill = np.asarray(False) if dtype_of(mask) == np.bool_ else b.like(-math.inf, mask)
        mask = pad_axes(b, mask, [0] * rank_of(mask), [*([0] * (rank_of(mask) - 1)), short], "constant", fill)
        if dtype_of(mask) == np.bool_:
            seen.append(mask)
            mask = None
    if not seen:
        return mask
    allowed = seen[0]
    for more in seen[1:]:
        allowed = ar.logical_and(b, allowed, more)
    return b.select(allowed, b.like(0, like) if mask is None else mask, b.like(-math.inf, like))


@operator("Attention", since=23)
def attention(
    b: Builder,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    lengths: Value | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 0,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int = 1,
    left_window_size: int = -1,
    right_window_size: int = -1,
) -> tuple[Value, Value, Value, Value]:
    flat = rank_of(query) == 3
    q = _by_heads(b, query, q_num_heads)
    k, v = _by_heads(b, key, kv_num_heads), _by_heads(b, value, kv_num_heads)
    offset: Value = np.asarray(0)
    if past_key is not None and past_value is not None:
        offset = dims_array([shape_of(past_key)[2]]).reshape(())
        k, v = concat(b, past_key, k, axis=2), concat(b, past_value, v, axis=2)
    elif lengths is not None:
        offset = _offsets(b, lengths, shape_of(q)[2])
    heads, size = shape_of(q)[1], shape_of(q)[3]
    scores = contract(b, q, _repeated(b, k, heads))
    scores = b.mul(scores, 1 / math.sqrt(int(str(size))) if scale is None else scale)
    stages = [scores]
    if softcap:
        scores = b.mul(ar.tanh(b, b.mul(scores, 1 / softcap)), softcap)
    stages.append(scores)
    window = (left_window_size, right_window_size)
    queries, keys = shape_of(q)[2], shape_of(k)[2]
    bias = _bias(b, mask, lengths, queries, keys, offset, scores, bool(is_causal), window)
    if bias is not None:
        scores = b.add(scores, bias)
    stages.append(scores)
    weights = softmax_over(b, scores, 3)
    if bias is not None and _may_hide_all(mask, lengths, window):
        peak = b.unsqueeze(greatest(b, bias, [rank_of(bias) - 1]), [rank_of(bias) - 1])
        weights = b.select(b.less(b.like(-math.inf, peak), peak), weights, 0)
    stages.append(weights)
    y = contract(b, weights, b.swap_last(_repeated(b, v, heads)))
    return (_merged(b, y) if flat else y), k, v, stages[qk_matmul_output_mode]


def _offsets(b: Builder, lengths: Value, queries: Dim) -> Value:
    """How many keys come before the first query, per batch entry: [batch, 1, 1, 1]."""
    before = b.add(b.cast(lengths, np.int64), dims_array([-ex.as_expr(queries)]))
    return b.reshape(before, (shape_of(lengths)[0], 1, 1, 1))


def _may_hide_all(mask: Value | None, lengths: Value | None, window: tuple[int, int]) -> bool:
    """Whether a query may see no key at all; its result is then 0."""
    return mask is not None or lengths is not None or max(window) >= 0


@operator("RotaryEmbedding", since=23)
def rotary_embedding(
    b: Builder,
    x: Value,
    cos_cache: Value,
    sin_cache: Value,
    position: Value | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Value:
    heads = _by_heads(b, x, num_heads)
    size = int(str(shape_of(heads)[3]))
    turned = rotary_embedding_dim or size
    half = turned // 2
    if interleaved:
        first, second = (b.slice(heads, 3, start, 2, half) for start in (0, 1))
    else:
        first, second = (b.slice(heads, 3, start, 1, half) for start in (0, half))
    cos, sin = (c if position is None else gather(b, c, position) for c in (cos_cache, sin_cache))
    cos, sin = b.unsqueeze(cos, [1]), b.unsqueeze(sin, [1])
    real = ar.sub(b, b.mul(first, cos), b.mul(second, sin))
    imaginary = b.add(b.mul(first, sin), b.mul(second, cos))
    if interleaved:
        pairs = concat(b, b.unsqueeze(real, [4]), b.unsqueeze(imaginary, [4]), axis=4)
        result = b.reshape(pairs, (*shape_of(heads)[:3], turned))
    else:
        result = concat(b, real, imaginary, axis=3)
    if turned < size:
        result = concat(b, result, b.slice(heads, 3, turned, 1, size - turned), axis=3)
    return _merged(b, result) if rank_of(x) == 3 else result
