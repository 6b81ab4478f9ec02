"""Counting n-grams of numbers."""

from __future__ import annotations

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend.builder import FOLD_LIMIT, Builder
from workbench.frontend.movement import concat
from workbench.frontend.registry import operator
from workbench.frontend.values import NotLoweredError, Value, dtype_of, fixed, rank_of, shape_of

_MOST_COMPARED = 1 << 26
_MOST_SKIPPED = 100


@operator("TfIdfVectorizer", since=9)
def tf_idf(
    b: Builder,
    x: Value,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: list[int],
    ngram_indexes: list[int],
    pool_int64s: list[int] | None = None,
    weights: list[float] | None = None,
) -> Value:
    if pool_int64s is None:
        raise NotLoweredError("n-grams of strings")
    if len(set(ngram_indexes)) != len(ngram_indexes):
        raise NotLoweredError("n-grams that share a column")
    if max_skip_count > _MOST_SKIPPED or not all(0 <= column < FOLD_LIMIT for column in ngram_indexes):
        raise NotLoweredError("gaps of more than a hundred items, or more than a million columns")
    rows = x if rank_of(x) == 2 else b.unsqueeze(x, [0])
    batch = shape_of(rows)[0]
    columns: list[Value] = []
    ends = [*ngram_counts[1:], len(pool_int64s)]
    for length, (start, end) in enumerate(zip(ngram_counts, ends, strict=True), 1):
        grams = np.asarray(pool_int64s[start:end], np.int64).reshape(-1, length)
        if not len(grams):
            continue
        counted = min_gram_length <= length <= max_gram_length
        skips = range(max_skip_count + 1 if length > 1 else 1)
        zero = b.expand(np.zeros((), np.float32), (batch, len(grams)))
        columns.append(_occurrences(b, rows, grams, skips) if counted else zero)
    counts = concat(b, *columns, axis=1)
    if mode != "TF":
        factors = np.ones(len(ngram_indexes), np.float32) if weights is None else np.asarray(weights, np.float32)
        there = counts if mode == "TFIDF" else b.cast(b.less(b.like(0, counts), counts), np.float32)
        counts = b.mul(there, factors)
    wide = concat(b, counts, b.expand(np.zeros((), np.float32), (batch, 1)), axis=1)
    source = np.full(max(ngram_indexes) + 1, len(ngram_indexes))
    source[ngram_indexes] = np.arange(len(ngram_indexes))
    y = b.take(wide, source, 1)
    return y if rank_of(x) == 2 else b.squeeze(y, [0])


def _occurrences(b: Builder, x: Value, grams: np.ndarray, skips: range) -> Value:
    """How often each of `grams` [grams, length] is in each row of `x`, with each number of items left out between."""
    count, (kinds, length) = fixed(shape_of(x)[1], "the number of items"), grams.shape
    total: Value = b.expand(np.zeros((), np.float32), (shape_of(x)[0], kinds))
    for skip in skips:
        places = count - (length - 1) * (skip + 1)
        if places < 1:
            break
        if places * kinds > _MOST_COMPARED:
            raise NotLoweredError("too many n-grams")
        hit: Value = np.asarray(True)
        for item in range(length):
            part = b.unsqueeze(b.slice(x, 1, item * (skip + 1), 1, places), [2])
            same = ar.equal(b, part, grams[:, item].astype(dtype_of(x)))
            hit = b.select(hit, same, False)
        total = b.add(total, b.reduce("SumReduce", b.cast(hit, np.float32), [1]))
    return total
