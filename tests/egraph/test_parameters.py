"""Chunks that differ in scalar constants alone: one program, in which those are inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.small_graphs import constant, elementwise, linear, whole
from workbench import CompileSession
from workbench.chunking import split
from workbench.egraph.parameters import emit_all
from workbench.egraph.program import ChunkProgram
from workbench.ir import dtype as dt
from workbench.ir import layout as lay
from workbench.ir import ops
from workbench.ir.hlir import Graph, Node, Operand

WIDTH = 4


def scaled(graph: Graph, name: str, x: Node, scalar: Node, label: str = "") -> Node:
    spread = Operand(scalar.id, lay.expand(lay.contiguous(()), x.shape))
    return graph.add(ops.Elementwise(name), [whole(x), spread], x.shape, dt.F32, label)


def layers(*scalars: tuple[float, float, float]) -> Graph:
    """(x @ w * first + second) * third, once for each of `scalars`; equal numbers are one constant, as in an import."""
    rng = np.random.default_rng(0)
    graph = Graph()
    made: dict[float, Node] = {}
    x = graph.add(ops.Input("x"), [], (3, WIDTH), dt.F32, "x")
    for i, numbers in enumerate(scalars):
        weight = constant(graph, rng.standard_normal((WIDTH, WIDTH), np.float32), f"w{i}")
        for number in numbers:
            if number not in made:
                made[number] = constant(graph, np.asarray(number, np.float32), "scalar")
        first, second, third = (made[number] for number in numbers)
        x = scaled(graph, "Mul", linear(graph, x, weight), first)
        x = scaled(graph, "Mul", scaled(graph, "Add", x, second), third, label=f"layer {i}")
    graph.add(ops.Output("y"), [whole(x)], x.shape, dt.F32)
    return graph


def programs_of(graph: Graph) -> list[ChunkProgram]:
    cuts = {n.id for n in graph if n.label.startswith("layer")}
    return emit_all(graph, [(c.nodes, c.inputs, c.outputs) for c in split(graph, cuts)])


def scalars_of(graph: Graph, program: ChunkProgram) -> list[float]:
    return [value for i in program.inputs if (value := graph.scalar(i)) is not None]


def test_scalars_in_which_chunks_differ_are_inputs() -> None:
    graph = layers((0.5, 7, 2), (0.25, 7, 3), (0.125, 7, 4))
    programs = programs_of(graph)
    assert len({p.digest for p in programs}) == 1
    assert [scalars_of(graph, p) for p in programs] == [[0.5, 2], [0.25, 3], [0.125, 4]]
    assert all('(Immediate "7.0" (F32))' in p.text and "0.125" not in p.text for p in programs)


def test_equal_layers_keep_their_scalars_in_place() -> None:
    graph = layers((0.5, 7, 2), (0.5, 7, 2))
    assert [scalars_of(graph, p) for p in programs_of(graph)] == [[], []]
    assert len({p.digest for p in programs_of(graph)}) == 1


def test_numbers_that_meet_by_chance_in_one_chunk_are_told_apart() -> None:
    graph = layers((0.5, 0.5, 2), (0.25, 3, 2))
    programs = programs_of(graph)
    assert len({p.digest for p in programs}) == 1
    assert [scalars_of(graph, p) for p in programs] == [[0.5, 0.5], [0.25, 3]]


def test_numbers_that_agree_in_every_chunk_are_one_input() -> None:
    graph = layers((0.5, 7, 0.5), (0.25, 7, 0.25))
    assert [scalars_of(graph, p) for p in programs_of(graph)] == [[0.5], [0.25]]


def test_another_structure_stays_a_group_of_its_own() -> None:
    graph = layers((0.5, 7, 2), (0.25, 7, 3))
    last = graph[graph[graph.outputs[0]].operands[0].source]
    graph.add(ops.Output("z"), [whole(elementwise(graph, "Sin", last))], last.shape, dt.F32)
    first, second, other = (p.digest for p in programs_of(graph))
    assert first == second != other


def test_a_searched_group_computes_each_member_with_its_own_scalars(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    nodes, weights, value = [], {}, "x"
    for i, numbers in enumerate([(0.5, 0.5, 2), (0.25, 7, 3), (0.125, 5, 4)]):
        weights[f"w{i}"] = rng.standard_normal((WIDTH, WIDTH), np.float32)
        names = [f"s{i}{k}" for k in range(3)]
        weights |= {name: np.asarray(number, np.float32) for name, number in zip(names, numbers, strict=True)}
        for op, other, result in zip(
            ("MatMul", "Mul", "Add", "Mul"), (f"w{i}", *names), (f"m{i}", f"n{i}", f"a{i}", f"y{i}"), strict=True
        ):
            nodes.append(helper.make_node(op, [value, other], [result], f"layer {i}" if result == f"y{i}" else result))
            value = result
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3, WIDTH]) for name in ("x", value)]
    graph = helper.make_graph(
        nodes, "g", ports[:1], ports[1:], [numpy_helper.from_array(a, name) for name, a in weights.items()]
    )
    path = tmp_path / "layers.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    x = rng.standard_normal((3, WIDTH), np.float32)
    with CompileSession(path, breaks="layer", limit=4) as session:
        session.run()
        assert [len(g.members) for g in session.groups] == [3]
        assert session.executable is not None
        (found,) = session.executable.run({"x": x}).values()
    wanted = x.astype(np.float64)
    for i in range(3):
        first, second, third = (weights[f"s{i}{k}"] for k in range(3))
        wanted = (wanted @ weights[f"w{i}"] * first + second) * third
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
