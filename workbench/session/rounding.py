"""What hangs on roundings to integers that are too close to call, in quantized models.

A value near the middle between two integers goes to one or the other by its last bits, which depend on the order of a
sum; the whole step between them then goes through all that follows, and no fixed tolerance explains it. So the
interpreter runs again, with everything that it rounds moved up, and down, by as much as floats differ that were
computed in another order. By how much results change then is how much they may differ on these very inputs: by nothing
where no rounding is close, as in sums of integers, which must be exact.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

from workbench.ir import dtype as dt
from workbench.ir import ops
from workbench.ir.hlir import Graph
from workbench.ir.interpret import evaluate
from workbench.runtime.compare import ROUNDINGS, default_tolerance
from workbench.session.reference import Reference, custom_runner, interpret

MARGIN = 2.0
"""Roundings are moved one way all together; of those that really go another way, some go up and some down."""


def rounds(graph: Graph, nodes: Iterable[int]) -> bool:
    """Whether floats are rounded to integers in one of `nodes`."""
    return any(graph[i].op == ops.Elementwise("Round") and graph[i].dtype.is_float for i in nodes)


def undecided_outputs(graph: Graph, reference: Reference) -> dict[int, float]:
    """By how much each output of the model may differ, by Output node."""
    nodes = graph.live_from_outputs()
    wanted = {o: reference.values[o] for o in graph.outputs}

    def moved(nudge: float) -> Mapping[int, np.ndarray]:
        return interpret(graph, reference.inputs, (), lambda: None, nudge).values

    return _changes(graph, nodes, wanted, moved)


def undecided_values(
    graph: Graph,
    nodes: Collection[int],
    given: Mapping[int, np.ndarray],
    wanted: Mapping[int, np.ndarray],
    dims: Mapping[str, int],
) -> dict[int, float]:
    """By how much each value of `wanted`, by node, may differ when `nodes` are computed from the `given` values, which
    are the same for all that compute them."""

    def moved(nudge: float) -> Mapping[int, np.ndarray]:
        values = dict(given)
        evaluate(graph, nodes, values, dims, custom_runner(graph), [*given, *wanted], nudge=nudge)
        return values

    return _changes(graph, nodes, wanted, moved)


def _changes(
    graph: Graph,
    nodes: Collection[int],
    wanted: Mapping[int, np.ndarray],
    moved: Callable[[float], Mapping[int, np.ndarray]],
) -> dict[int, float]:
    noise = _noise(graph, nodes)
    if not noise:
        return dict.fromkeys(wanted, 0.0)
    runs = [moved(noise), moved(-noise)]
    return {node: MARGIN * max(_distance(run[node], value) for run in runs) for node, value in wanted.items()}


def _noise(graph: Graph, nodes: Collection[int]) -> float:
    """How far apart, as a share of the largest, floats are that were computed in another order; 0 where none of `nodes`
    rounds floats to integers."""
    if not rounds(graph, nodes):
        return 0.0
    halves = [default_tolerance(dtype).atol_scale for dtype in {graph[i].dtype for i in nodes} if dtype.is_half]
    return max([ROUNDINGS * dt.unit_roundoff(dt.F32), *halves])


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference between finite elements."""
    x, y = a.reshape(-1).astype(np.float64), b.reshape(-1).astype(np.float64)
    both = np.isfinite(x) & np.isfinite(y)
    return float(np.abs(x[both] - y[both]).max()) if both.any() else 0.0
