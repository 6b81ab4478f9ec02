"""Where the graph is cut: automatic breaks on real models, explicit ones, and breaks by name."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoders import cached_decoder
from tests.small_graphs import constant, elementwise, linear, residual_mlp, whole
from workbench.chunking import breaks, find_breaks, group, split
from workbench.egraph.program import emit
from workbench.errors import WorkbenchError
from workbench.frontend import import_model
from workbench.ir import dtype as dt
from workbench.ir import layout as lay
from workbench.ir import ops
from workbench.ir.hlir import CustomOpSpec, Graph, Node, Operand

GraphOf = Callable[[str], Graph]
LLAMAS = ("llama3_tiny_4l_ts17", "llama3_tiny_4l_dynamo")
MODELS = (
    *LLAMAS,
    "gpt2_tiny_2l_ts17",
    "minilm_6l_ts17",
    "vit_tiny_4l_ts17",
    "whisper_encoder_tiny_2l_ts17",
    "mlp_ts17",
    "mlp_dynbatch_ts17",
)


def group_sizes(graph: Graph) -> list[int]:
    chunks = split(graph, find_breaks(graph, "auto"))
    return [len(g.members) for g in group([emit(graph, c.nodes, c.inputs, c.outputs).digest for c in chunks])]


def renamed(graph: Graph, seed: int) -> Graph:
    """The same graph under random names."""
    rng = random.Random(seed)
    other = Graph(dims=graph.dims, constants=graph.constants, custom_ops=graph.custom_ops)
    for node in graph:
        other.add(node.op, node.operands, node.shape, node.dtype, "".join(rng.choices("abc;\"\n(\\", k=9)))
    return other


@pytest.mark.parametrize("name", LLAMAS)
def test_a_llama_falls_into_attention_and_mlp_chunks(graph_of: GraphOf, name: str) -> None:
    graph = graph_of(name)
    sizes = group_sizes(graph)
    assert sum(sizes) == 9  # 4 layers of two cuts each
    assert sorted(sizes) == [1, 1, 3, 4]


@pytest.mark.parametrize("name", MODELS)
def test_names_have_no_say(graph_of: GraphOf, name: str) -> None:
    graph = graph_of(name)
    for seed in (0, 1):
        other = renamed(graph, seed)
        assert find_breaks(other, "auto") == find_breaks(graph, "auto")
        assert group_sizes(other) == group_sizes(graph)


@pytest.mark.parametrize(
    ("name", "layers"),
    [("gpt2_tiny_2l_ts17", 2), ("minilm_6l_ts17", 5), ("vit_tiny_4l_ts17", 4), ("whisper_encoder_tiny_2l_ts17", 2)],
)
def test_repeated_layers_form_a_group(graph_of: GraphOf, name: str, layers: int) -> None:
    assert max(group_sizes(graph_of(name))) == layers


@pytest.mark.parametrize("name", ["mlp_ts17", "mlp_dynbatch_ts17"])
def test_what_does_not_repeat_is_not_cut(graph_of: GraphOf, name: str) -> None:
    assert find_breaks(graph_of(name), "auto") == frozenset()


def heavy_chain(graph: Graph, heavy: set[int]) -> list[int]:
    """The dominators of the last heavy output among the heavy values, by networkx."""
    sinks = [o for o in graph.outputs if o in heavy]
    if not sinks:
        return []
    sink = max(sinks, key=lambda o: graph[o].operands[0].source)
    part: Any = nx.DiGraph(graph.nx.subgraph(heavy & (nx.ancestors(graph.nx, sink) | {sink})))
    part.add_edges_from([("start", n) for n in list(part) if part.in_degree(n) == 0])
    above = nx.immediate_dominators(part, "start")
    chain, at = [], above[sink]
    while at != "start":
        chain.append(at)
        at = above[at]
    return chain[::-1]


@pytest.mark.parametrize("name", MODELS)
def test_the_sweep_finds_the_dominators(graph_of: GraphOf, name: str) -> None:
    graph = graph_of(name)
    heavy = breaks.heavy_nodes(graph)
    assert breaks._dominator_chain(graph, heavy) == heavy_chain(graph, heavy)


@settings(max_examples=150)
@given(st.data())
def test_the_sweep_finds_the_dominators_of_any_graph(data: st.DataObject) -> None:
    graph = Graph()
    nodes = [graph.add(ops.Input("x"), [], (2,), dt.F32)]
    for _ in range(data.draw(st.integers(1, 14))):
        # mostly recent values, so that there are dominators at all
        recent = st.integers(max(0, len(nodes) - 3), len(nodes) - 1)
        left, right = data.draw(recent), data.draw(st.one_of(recent, st.integers(0, len(nodes) - 1)))
        nodes.append(elementwise(graph, "Add", nodes[left], nodes[right]))
    for node in {nodes[-1], data.draw(st.sampled_from(nodes))}:
        graph.add(ops.Output(f"y{node.id}"), [whole(node)], (2,), dt.F32)
    heavy = {n.id for n in graph if n.id > 0 and data.draw(st.integers(0, 9)) > 0} - {0}
    for node in graph:  # heaviness goes down the graph
        if any(o.source in heavy for o in node.operands):
            heavy.add(node.id)
    assert breaks._dominator_chain(graph, heavy) == heavy_chain(graph, heavy)


def test_a_decoder_with_a_cache_falls_into_its_layers(tmp_path: Path) -> None:
    """Positions come in as an input, so their angles are products; the present keys and values are outputs after the
    logits."""
    graph = import_model(cached_decoder(tmp_path / "m.onnx", layers=4)).graph
    assert group_sizes(graph) == [1, 4, 3, 1]


def test_a_cache_that_leaves_early_does_not_stop_the_cuts() -> None:
    graph = Graph("cached")
    rng = np.random.default_rng(0)
    x = graph.add(ops.Input("x"), [], (1, 4, 8), dt.F32)
    for i in range(4):
        key = linear(graph, x, constant(graph, rng.random((8, 8), np.float32)), f"layers.{i}.key")
        graph.add(ops.Output(f"cache{i}"), [whole(key)], key.shape, dt.F32)
        x = elementwise(graph, "Add", x, elementwise(graph, "Sqrt", key), label=f"layers.{i}.add")
    graph.add(ops.Output("y"), [whole(x)], x.shape, dt.F32)
    found = find_breaks(graph, "auto")
    assert [graph[n].label for n in sorted(found)] == [f"layers.{i}.add" for i in range(3)]


def with_break(label: str = "here") -> tuple[Graph, Node]:
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (4,), dt.F32, "x")
    broken = graph.add(ops.GraphBreak(), [whole(elementwise(graph, "Sqrt", x))], (4,), dt.F32, label)
    graph.add(ops.Output("y"), [whole(elementwise(graph, "Sin", broken, label="sin"))], (4,), dt.F32, "y")
    return graph, broken


def test_explicit_breaks_cut_unless_there_are_to_be_none() -> None:
    graph, broken = with_break()
    assert find_breaks(graph, "explicit") == {broken.id}
    assert find_breaks(graph, "auto") == {broken.id}
    assert find_breaks(graph, "none") == frozenset()
    assert find_breaks(graph, "sin") == {broken.id, broken.id + 1}
    assert [c.begins_at for c in split(graph, {broken.id})] == ["", "here"]
    assert find_breaks(residual_mlp(), "explicit") == frozenset()


def test_a_name_cuts_behind_the_last_primitive_that_bears_it() -> None:
    graph = residual_mlp(layers=3)
    found = find_breaks(graph, r"layers\.[01]\.relu$")
    assert sorted((graph[n].label, graph[n].name) for n in found) == [
        ("layers.0.relu", "Select"),
        ("layers.1.relu", "Select"),
    ]
    assert len(split(graph, found)) == 3


@pytest.mark.parametrize(
    ("pattern", "message"), [("(", "not a regular expression"), ("absent", "no node name matches")]
)
def test_a_bad_pattern_is_explained(pattern: str, message: str) -> None:
    with pytest.raises(WorkbenchError, match=message) as raised:
        find_breaks(residual_mlp(), pattern)
    assert "--breaks" in str(raised.value)


def test_inputs_and_outputs_are_never_cut_by_name() -> None:
    with pytest.raises(WorkbenchError, match="no node name matches"):
        find_breaks(residual_mlp(), "^[xy]$")


def test_the_same_layers_under_other_shapes_are_other_groups() -> None:
    assert group(["a", "b", "a", "c", "b", "a"]) == [
        replace(group(["a"])[0], members=(0, 2, 5)),
        replace(group(["b"])[0], index=1, representative=1, members=(1, 4)),
        replace(group(["c"])[0], index=2, representative=3, members=(3,)),
    ]
    assert group([]) == []


def test_a_sum_over_another_axis_of_a_scaled_tensor_is_no_contraction() -> None:
    """What dequantizes a mask and then counts it: the summed axis is read last, and is not the product's last."""
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (2, 5, 1), dt.F32)
    scale = constant(graph, np.asarray(0.5, np.float32))
    spread = Operand(scale.id, lay.expand(lay.contiguous(()), x.shape))
    scaled = graph.add(ops.Elementwise("Mul"), [whole(x), spread], x.shape, dt.F32)
    graph.add(ops.Reduce("SumReduce"), [Operand(scaled.id, lay.contiguous((2, 1, 5)))], (2, 1), dt.F32)
    matrix = constant(graph, np.ones((5, 3), np.float32))
    rows = graph.add(ops.Input("rows"), [], (2, 5), dt.F32)
    assert graph.contractions == frozenset()
    product = linear(graph, rows, matrix)
    assert graph.contractions == {product.id}


def test_a_custom_operator_is_no_contraction() -> None:
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (4,), dt.F32)
    graph.custom_ops[0] = CustomOpSpec("Custom", "Custom", b"")
    y = graph.add(ops.CustomOp(0), [whole(x)], (4,), dt.F32)
    graph.add(ops.Output("y"), [whole(y)], (4,), dt.F32)
    assert breaks.heavy_nodes(graph) == set()
    assert breaks.automatic_breaks(graph) == []


def custom_in_each_layer(layers: int = 4) -> Graph:
    """x + custom(x @ w) @ v for each layer."""
    rng, graph = np.random.default_rng(0), Graph()
    x = graph.add(ops.Input("x"), [], (1, 4, 8), dt.F32)
    for i in range(layers):
        w, v = (constant(graph, rng.standard_normal((8, 8)).astype(np.float32), n) for n in "wv")
        h = linear(graph, x, w, f"layers.{i}.up")
        graph.custom_ops[i] = CustomOpSpec(f"odd{i}", "Custom", b"")
        odd = graph.add(ops.CustomOp(i), [whole(h)], h.shape, dt.F32, f"layers.{i}.odd")
        x = elementwise(graph, "Add", linear(graph, odd, v, f"layers.{i}.down"), x, label=f"layers.{i}.add")
    graph.add(ops.Output("y"), [whole(x)], x.shape, dt.F32)
    return graph


@pytest.mark.parametrize("mode", ["auto", "explicit", r"add$"])
def test_custom_operators_are_chunks_of_their_own_and_layers_stay_alike(mode: str) -> None:
    graph = custom_in_each_layer()
    chunks = split(graph, find_breaks(graph, mode))
    alone = [c for c in chunks if any(isinstance(graph[n].op, ops.CustomOp) for n in c.nodes)]
    assert [len(c.nodes) for c in alone] == [1] * 4
    programs = [emit(graph, c.nodes, c.inputs, c.outputs) for c in chunks]
    groups = group([p.digest for p in programs])
    assert len([g for g in groups if chunks[g.representative] in alone]) == 1
    assert len(groups) <= 5  # with a first and a last part that may be others
    assert find_breaks(graph, "none") == frozenset()


def test_chunks_of_different_custom_operators_are_no_group() -> None:
    graph = custom_in_each_layer()
    graph.custom_ops[2] = CustomOpSpec("odd2", "Other", b"")
    chunks = split(graph, find_breaks(graph, "auto"))
    groups = group([emit(graph, c.nodes, c.inputs, c.outputs).digest for c in chunks])
    members = [
        len(g.members)
        for g in groups
        if isinstance(graph[chunks[g.representative].nodes[0]].op, ops.CustomOp)
    ]
    assert sorted(members) == [1, 3]


def test_blocks_that_all_differ_are_parted_before_a_chunk_grows_too_large() -> None:
    graph = narrowing(layers=20)
    found = sorted(find_breaks(graph, "auto"))
    chunks = split(graph, found)
    counts = [sum(n in graph.contractions for n in c.nodes) for c in chunks]
    assert sum(counts) == 20
    assert max(counts) == breaks.MOST_CONTRACTIONS
    assert find_breaks(narrowing(layers=breaks.MOST_CONTRACTIONS), "auto") == frozenset()


def narrowing(layers: int) -> Graph:
    """Layers of which no two have the same shape."""
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (1, 4, 40), dt.F32)
    for layer in range(layers):
        weight = constant(graph, np.ones((40 - layer, 39 - layer), np.float32))
        x = elementwise(graph, "Sqrt", linear(graph, x, weight))
    graph.add(ops.Output("y"), [whole(x)], x.shape, dt.F32)
    return graph
