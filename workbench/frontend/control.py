"""Control flow: branches chosen or selected from, loops unrolled; and optional values, which are there or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend.body import Body
from workbench.frontend.builder import Builder
from workbench.frontend.movement import concat
from workbench.frontend.registry import operator
from workbench.frontend.values import (
    NotKnownError,
    NotLoweredError,
    Value,
    as_ints,
    dtype_of,
    fixed,
    normalize_axis,
    rank_of,
    shape_of,
)

_MOST_STEPS = 1 << 20
_MOST_GUARDED_STEPS = 4096
"""Steps of a loop that are all computed because which of them count is only known at run time."""


@operator("If")
def branch(b: Builder, condition: Value, *, then_branch: Body, else_branch: Body) -> tuple[Value | None, ...]:
    if isinstance(condition, np.ndarray):
        return then_branch() if condition.reshape(-1)[0] else else_branch()
    try:
        yes, no = then_branch(), else_branch()
    except NotLoweredError as error:
        raise NotKnownError(f"the condition must be known, for {error.message}", condition) from error
    if not _alike(yes, no):
        raise NotKnownError("the condition must be known: the branches differ in shape or type", condition)
    chosen = b.reshape(condition, ())
    return tuple(b.select(chosen, y, n) for y, n in zip(yes, no, strict=True) if y is not None and n is not None)


def _alike(some: Sequence[Value | None], others: Sequence[Value | None]) -> bool:
    """Whether all values are there, and pairwise of the same shape and type."""
    return len(some) == len(others) and all(
        x is not None and y is not None and shape_of(x) == shape_of(y) and dtype_of(x) == dtype_of(y)
        for x, y in zip(some, others, strict=True)
    )


@operator("Loop")
def loop(
    b: Builder, count: Value | None = None, condition: Value | None = None, *state: Value | None, body: Body
) -> tuple[Value | None, ...]:
    steps = _MOST_STEPS if count is None else as_ints(count, "the number of steps")[0]
    going: Value = np.asarray(True) if condition is None else b.reshape(condition, ())
    width = len(state)
    rows: list[list[Value]] = [[] for _ in range(body.outputs - 1 - width)]
    for step in range(max(0, steps)):
        if isinstance(going, np.ndarray) and not going:
            break
        if not isinstance(going, np.ndarray) and (rows or steps > _MOST_GUARDED_STEPS):
            raise NotKnownError("whether a loop goes on must be known", going)
        again, *results = body(np.asarray(step), going, *state)
        state, going = _advanced(b, going, state, results[:width], again)
        for row, result in zip(rows, results[width:], strict=True):
            row.append(_present(result))
    if any(not row for row in rows):
        last = body(np.asarray(0), going, *state)[1 + width :]
        return (*state, *(_no_rows(_present(x)) for x in last))
    return (*state, *(_stacked(b, row, 0) for row in rows))


def _advanced(
    b: Builder, going: Value, state: Sequence[Value | None], new: Sequence[Value | None], again: Value | None
) -> tuple[tuple[Value | None, ...], Value]:
    """State and condition after a step that counts only if `going`."""
    on: Value = np.asarray(True) if again is None else b.reshape(again, ())
    if isinstance(going, np.ndarray):
        return tuple(new), on
    if not _alike(state, new):
        raise NotKnownError("whether a loop goes on must be known: its values change in shape", going)
    kept = tuple(b.select(going, _present(x), _present(y)) for x, y in zip(new, state, strict=True))
    return kept, ar.logical_and(b, going, on)


def _present(x: Value | None) -> Value:
    if x is None:
        raise ValueError("a subgraph leaves one of its outputs away")
    return x


def _no_rows(x: Value) -> Value:
    return np.zeros((0, *(fixed(d, "the shape of no rows") for d in shape_of(x))), dtype_of(x))


def _stacked(b: Builder, rows: Sequence[Value], axis: int) -> Value:
    return concat(b, *(b.unsqueeze(row, [axis]) for row in rows), axis=axis)


@operator("Scan", since=9)
def scan(
    b: Builder,
    *inputs: Value,
    body: Body,
    num_scan_inputs: int,
    scan_input_axes: list[int] | None = None,
    scan_input_directions: list[int] | None = None,
    scan_output_axes: list[int] | None = None,
    scan_output_directions: list[int] | None = None,
) -> tuple[Value | None, ...]:
    if not 0 < num_scan_inputs <= len(inputs):
        raise ValueError(f"{num_scan_inputs} of {len(inputs)} inputs to scan")
    width = len(inputs) - num_scan_inputs
    state: tuple[Value | None, ...] = inputs[:width]
    scanned = inputs[width:]
    axes = [
        normalize_axis(a, rank_of(x)) for a, x in zip(scan_input_axes or [0] * len(scanned), scanned, strict=True)
    ]
    backward = scan_input_directions or [0] * len(scanned)
    lengths = {fixed(shape_of(x)[a], "the length of a scan") for a, x in zip(axes, scanned, strict=True)}
    if len(lengths) != 1:
        raise ValueError(f"sequences of {len(lengths)} different lengths")
    length = lengths.pop()
    columns: list[list[Value]] = [[] for _ in range(body.outputs - width)]
    for step in range(length):
        elements = [
            b.squeeze(b.slice(x, axis, length - 1 - step if back else step, 1, 1), [axis])
            for x, axis, back in zip(scanned, axes, backward, strict=True)
        ]
        results = body(*state, *elements)
        state = results[:width]
        for column, result in zip(columns, results[width:], strict=True):
            column.append(_present(result))
    if not length and columns:
        raise NotLoweredError("a scan over nothing")
    places, turned = scan_output_axes or [0] * len(columns), scan_output_directions or [0] * len(columns)
    joined = [
        _stacked(b, column[::-1] if back else column, normalize_axis(axis, rank_of(column[0]) + 1))
        for column, axis, back in zip(columns, places, turned, strict=True)
    ]
    return (*state, *joined)


@operator("Scan")
def batched_scan(
    b: Builder,
    lengths: Value | None = None,
    *inputs: Value,
    body: Body,
    num_scan_inputs: int,
    directions: list[int] | None = None,
) -> tuple[Value | None, ...]:
    """Until opset 9 the first axis of everything is a batch, each entry of which is scanned by itself."""
    if lengths is not None:
        raise NotLoweredError("sequences of different lengths in one batch")
    batch = fixed(shape_of(inputs[0])[0], "the size of a batch")
    entries = [
        scan(
            b,
            *(b.squeeze(b.slice(x, 0, entry, 1, 1), [0]) for x in inputs),
            body=body,
            num_scan_inputs=num_scan_inputs,
            scan_input_directions=directions,
        )
        for entry in range(batch)
    ]
    return tuple(_stacked(b, [_present(x) for x in column], 0) for column in zip(*entries, strict=True))


@operator("Optional", since=15)
def optional(b: Builder, x: Value | None = None) -> Value | None:
    return x


@operator("OptionalHasElement", since=15)
def has_element(b: Builder, x: Value | None = None) -> Value:
    return np.asarray(x is not None)


@operator("OptionalGetElement", since=15)
def get_element(b: Builder, x: Value) -> Value:
    return x
