"""Chunks: whatever is cut, computing chunk by chunk gives what computing the whole gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.small_graphs import constant, elementwise, linear, residual_mlp, whole
from workbench.chunking import find_breaks, output_value, split
from workbench.ir import dtype as dt
from workbench.ir import ops
from workbench.ir.hlir import CustomOpSpec, Graph
from workbench.session.reference import representative_inputs

GraphOf = Callable[[str], Graph]
Check = Callable[..., None]
Values = Callable[..., dict[int, np.ndarray]]
LLAMA = "llama3_tiny_4l_ts17"


@pytest.fixture(scope="module")
def llama(graph_of: GraphOf, all_values: Values, expected: Any) -> tuple[Graph, dict[int, np.ndarray]]:
    graph = graph_of(LLAMA)
    return graph, all_values(graph, expected(LLAMA)[0])


def test_a_cut_behind_any_node_changes_nothing(
    llama: tuple[Graph, dict[int, np.ndarray]], agrees_with_whole: Check
) -> None:
    graph, values = llama
    for node in graph:
        agrees_with_whole(graph, {node.id}, values if node.id % 17 == 0 else None)


def test_a_cut_behind_any_node_of_a_small_graph_changes_nothing(agrees_with_whole: Check, all_values: Values) -> None:
    graph = residual_mlp(layers=2)
    values = all_values(graph, representative_inputs(graph, 0))
    for node in graph:
        agrees_with_whole(graph, {node.id}, values)


def test_any_set_of_cuts_changes_nothing(llama: tuple[Graph, dict[int, np.ndarray]], agrees_with_whole: Check) -> None:
    graph, values = llama
    rng = np.random.default_rng(0)
    for count in (2, 8, 40, len(graph)):
        agrees_with_whole(graph, set(rng.choice(len(graph), count, replace=False).tolist()), values)


@pytest.mark.parametrize(
    "name", ["gpt2_tiny_2l_ts17", "vit_tiny_4l_ts17", "whisper_encoder_tiny_2l_ts17", "mlp_dynbatch_ts17"]
)
def test_automatic_cuts_change_nothing(
    graph_of: GraphOf, all_values: Values, agrees_with_whole: Check, name: str
) -> None:
    graph = graph_of(name)
    inputs = representative_inputs(graph, 0)
    agrees_with_whole(graph, find_breaks(graph, "auto"), all_values(graph, inputs))


@settings(max_examples=60)
@given(st.data())
def test_random_graphs_with_random_cuts(agrees_with_whole: Check, all_values: Values, data: st.DataObject) -> None:
    """Light and heavy values, dead ones, several outputs of the same value, outputs that copy inputs."""
    graph = Graph()
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    nodes = [graph.add(ops.Input("x"), [], (1, 2, 3), dt.F32), constant(graph, rng.random((1, 2, 3), np.float32))]
    weight = constant(graph, rng.random((3, 3), np.float32))
    for _ in range(data.draw(st.integers(1, 10))):
        picked = [nodes[data.draw(st.integers(0, len(nodes) - 1))] for _ in range(2)]
        match data.draw(st.sampled_from(("Add", "Mul", "Sqrt", "linear"))):
            case "linear":
                nodes.append(linear(graph, picked[0], weight))
            case "Sqrt":
                nodes.append(elementwise(graph, "Sqrt", picked[0]))
            case name:
                nodes.append(elementwise(graph, name, *picked))
    for i in range(data.draw(st.integers(1, 3))):
        source = nodes[data.draw(st.integers(0, len(nodes) - 1))]
        graph.add(ops.Output(f"y{i}"), [whole(source)], source.shape, dt.F32)
    cuts = data.draw(st.sets(st.integers(0, len(graph) - 1)))
    agrees_with_whole(graph, cuts, all_values(graph, {"x": rng.random((1, 2, 3), np.float32)}))


def test_a_light_value_that_is_cut_behind_crosses() -> None:
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (1, 2, 4), dt.F32)
    before = elementwise(graph, "Sqrt", x)
    embedded = elementwise(graph, "Sin", before, label="embed")
    y = elementwise(graph, "Add", embedded, before)
    graph.add(ops.Output("y"), [whole(y)], y.shape, dt.F32)
    first, second = split(graph, find_breaks(graph, "embed"))
    assert first.outputs == (embedded.id,)
    assert embedded.id in second.inputs
    assert before.id in first.nodes
    assert before.id in second.nodes


def test_light_values_are_computed_again_in_each_chunk() -> None:
    graph = Graph("rotary")
    rng = np.random.default_rng(0)
    x = graph.add(ops.Input("x"), [], (1, 4, 8), dt.F32)
    table = elementwise(graph, "Sin", constant(graph, rng.random((1, 4, 8), np.float32)), label="table")
    for i in range(3):
        x = elementwise(
            graph, "Add", table, linear(graph, x, constant(graph, rng.random((8, 8), np.float32))), label=f"add{i}"
        )
    graph.add(ops.Output("y"), [whole(x)], x.shape, dt.F32)
    chunks = split(graph, find_breaks(graph, "add[01]"))
    assert [table.id in c.nodes for c in chunks] == [True, True, True]
    assert all(table.id not in c.inputs + c.outputs for c in chunks)
    assert [c.begins_at for c in chunks] == ["", "add0", "add1"]


def test_a_light_output_is_computed_once() -> None:
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (1, 2, 4), dt.F32)
    light = elementwise(graph, "Sin", x, label="light")
    graph.add(ops.Output("s"), [whole(light)], light.shape, dt.F32)
    h = linear(graph, x, constant(graph, np.ones((4, 4), np.float32)), "a")
    y = elementwise(graph, "Add", h, light)
    graph.add(ops.Output("y"), [whole(y)], y.shape, dt.F32)
    first, second = split(graph, {h.id})
    assert light.id in first.outputs
    assert light.id in second.inputs
    assert light.id not in second.nodes


def test_outputs_that_are_inputs_or_constants_are_copied() -> None:
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (4,), dt.F32)
    c = constant(graph, np.ones(4, np.float32))
    y = elementwise(graph, "Sqrt", x)
    outputs = [graph.add(ops.Output(f"o{n.id}"), [whole(n)], (4,), dt.F32) for n in (x, c, y)]
    assert [output_value(graph, o.id) for o in outputs] == [outputs[0].id, outputs[1].id, y.id]
    (chunk,) = split(graph, ())
    assert set(chunk.outputs) == {outputs[0].id, outputs[1].id, y.id}
    assert set(chunk.nodes) == set(chunk.outputs)


def test_dead_nodes_are_in_no_chunk() -> None:
    graph = residual_mlp(layers=1)
    dead = elementwise(graph, "Sqrt", graph[graph.inputs[0]])
    assert all(dead.id not in c.nodes for c in split(graph, ()))


def test_a_custom_operator_is_run_once() -> None:
    graph = Graph()
    graph.custom_ops[0] = CustomOpSpec("Custom", "Custom", b"")
    x = graph.add(ops.Input("x"), [], (1, 2, 4), dt.F32)
    custom = graph.add(ops.CustomOp(0), [whole(x)], (1, 2, 4), dt.F32)
    weight = constant(graph, np.ones((4, 4), np.float32))
    first = elementwise(graph, "Add", linear(graph, custom, weight), custom)
    second = elementwise(graph, "Add", linear(graph, first, weight), custom)
    graph.add(ops.Output("y"), [whole(second)], second.shape, dt.F32)
    chunks = split(graph, {first.id})
    assert [custom.id in c.nodes for c in chunks] == [True, False]
    assert custom.id in chunks[1].inputs


def test_equal_layers_list_their_nodes_in_the_same_order() -> None:
    graph = residual_mlp(layers=4)
    chunks = split(graph, find_breaks(graph, r"layers\.\d\.add"))
    kinds = [[graph[n].name for n in c.nodes] for c in chunks]
    assert len(kinds) == 4
    assert kinds[0] == kinds[1] == kinds[2] == kinds[3]
