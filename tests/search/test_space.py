"""Which e-nodes can be chosen, and what a genome says."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest

from tests.choices import Case, extracted, random_genome, saturated
from tests.small_graphs import elementwise, residual_mlp, whole
from workbench.chunking import split
from workbench.egraph.program import emit
from workbench.egraph.rules import library_directory, read_library
from workbench.egraph.saturate import Saturator
from workbench.egraph.snapshot import Builder, Snapshot
from workbench.ir import dtype as dt
from workbench.ir import ops
from workbench.ir.hlir import Graph
from workbench.search.extract import extract
from workbench.search.placement import Rejected
from workbench.search.space import NothingViable, build_space, value_children


def test_without_dtypes_nothing_is_viable_and_the_message_says_so(tmp_path: Path) -> None:
    shutil.copytree(library_directory(), tmp_path / "egg")
    (tmp_path / "egg" / "dtype.egg").unlink()
    graph = residual_mlp(layers=1)
    (chunk,) = split(graph, ())
    program = emit(graph, chunk.nodes, chunk.inputs, chunk.outputs)
    with Saturator(read_library(tmp_path / "egg")) as saturator:
        snapshot = Snapshot(saturator.saturate(program.text).snapshot)
    with pytest.raises(NothingViable, match=r"no valid graph: nothing computes .* \(\$t\d+ in the program\)") as raised:
        build_space(snapshot, program.root)
    assert "dtype" in raised.value.hint


def test_one_missing_rule_is_named_by_its_operator(tmp_path: Path) -> None:
    shutil.copytree(library_directory(), tmp_path / "egg")
    lowering = tmp_path / "egg" / "lower.egg"
    kept = [line for line in lowering.read_text().splitlines() if '"lower Sin to a map"' not in line]
    lowering.write_text("\n".join(kept))
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (4,), dt.F32, "x")
    y = elementwise(graph, "Sqrt", elementwise(graph, "Sin", elementwise(graph, "Exp2", x)))
    graph.add(ops.Output("y"), [whole(y)], (4,), dt.F32)
    (chunk,) = split(graph, ())
    program = emit(graph, chunk.nodes, chunk.inputs, chunk.outputs)
    with Saturator(read_library(tmp_path / "egg")) as saturator:
        snapshot = Snapshot(saturator.saturate(program.text).snapshot)
    with pytest.raises(NothingViable, match=r"nothing computes Sin \(\$t2 in the program\)"):
        build_space(snapshot, program.root)


def test_only_what_rests_on_viable_values_is_an_option(layer: Case) -> None:
    space = layer.space
    for eclass, nodes in enumerate(space.options):
        for node in nodes:
            assert space.snapshot.class_of(node) == eclass
            assert all(space.options[c] for c in value_children(space.snapshot, node))


def test_genes_are_the_choices_that_can_be_reached(layer: Case) -> None:
    space = layer.space
    assert all(len(space.options[c]) > 1 for c in space.genes)
    assert space.size_log10 > 0
    rng = random.Random(0)
    reached = {g for _ in range(200) for g in space.active_genes(random_genome(space, rng))}
    assert reached == set(range(len(space.genes)))


def test_a_digest_is_about_the_genes_that_count(layer: Case) -> None:
    space = layer.space
    rng = random.Random(0)
    idle = 0
    for _ in range(50):
        genome = random_genome(space, rng)
        active = space.active_genes(genome)
        for gene, eclass in enumerate(space.genes):
            changed = list(genome)
            changed[gene] = (genome[gene] + 1) % len(space.options[eclass])
            if gene in active:
                assert space.digest(tuple(changed)) != space.digest(genome)
            else:
                idle += 1
                assert space.digest(tuple(changed)) == space.digest(genome)
    assert idle


def test_genomes_of_one_digest_are_one_program(layer: Case) -> None:
    space = layer.space
    rng = random.Random(1)
    programs: dict[str, object] = {}
    for _ in range(100):
        genome = random_genome(space, rng)
        kernels = extracted(layer, genome).kernels
        assert programs.setdefault(space.digest(genome), kernels) == kernels
    assert len(programs) > 5


def snapshot_of(lines: dict[str, list[tuple[str, list[str | int | float]]]], sorts: dict[str, str]) -> Snapshot:
    """A snapshot by hand: the e-nodes of each e-class; children are names of e-classes, or literals."""
    builder = Builder.empty()
    number = {name: i for i, name in enumerate(sorts)}
    builder.class_sort.extend(sorts.values())
    for owner, nodes in lines.items():
        for op, children in nodes:
            if op not in builder.ops:
                builder.ops.append(op)
            builder.node_op.append(builder.ops.index(op))
            builder.node_class.append(number[owner])
            for child in children:
                if child in number:
                    builder.children.append(number[str(child)])
                else:
                    builder.literals.append(child)
                    builder.children.append(-len(builder.literals))
            builder.child_start.append(len(builder.children))
            builder.subsumed.append(0)
    builder.variables.update({"$root": number["root"]})
    return Snapshot(builder.finish())


SORTS = {
    "root": "IRList", "nil": "IRList", "x": "IR", "a": "IR", "b": "IR", "load_x": "Elem", "load_a": "Elem",
    "load_b": "Elem", "shape": "EList", "four": "Expression", "z": "Expression", "zero": "Expression", "end": "EList",
    "view": "EList", "f32": "DType",
}  # fmt: skip
LEAVES: dict[str, list[tuple[str, list[str | int | float]]]] = {
    "root": [("RCons", ["a", "shape", "nil"])],
    "nil": [("RNil", [])],
    "four": [("MNum", [4])],
    "zero": [("MNum", [0])],
    "z": [("MIter", [])],
    "end": [("ENil", [])],
    "shape": [("ECons", ["four", "end"])],
    "view": [("ECons", ["z", "end"])],
    "f32": [("F32", [])],
    "x": [("Input", [0, "", "f32", "shape"])],
    "load_x": [("Load", ["x", "view", "zero"])],
    "load_a": [("Load", ["a", "view", "zero"])],
    "load_b": [("Load", ["b", "view", "zero"])],
}


def test_buffers_that_need_each_other_are_a_cycle() -> None:
    """a is a copy of x or of b; b is a copy of a."""
    snapshot = snapshot_of(
        LEAVES
        | {
            "a": [("Map", ["shape", "load_x", "f32"]), ("Map", ["shape", "load_b", "f32"])],
            "b": [("Map", ["shape", "load_a", "f32"])],
        },
        SORTS,
    )
    space = build_space(snapshot, "$root")
    (gene,) = space.genes
    assert gene == list(SORTS).index("a")
    assert len(extract(space, (0,), {}).kernels) == 1
    with pytest.raises(Rejected, match="circle") as raised:
        extract(space, (1,), {})
    assert raised.value.reason == "cycle"


def test_elements_that_need_each_other_are_a_cycle() -> None:
    """An element of x, or itself computed in place of a load."""
    snapshot = snapshot_of(
        LEAVES
        | {
            "load_x": [*LEAVES["load_x"], ("Inline", ["load_x", "shape", "view", "zero"])],
            "a": [("Map", ["shape", "load_x", "f32"])],
            "b": [("Map", ["shape", "load_x", "f32"])],
        },
        SORTS,
    )
    space = build_space(snapshot, "$root")
    outcomes = set()
    for option in range(2):
        try:
            extract(space, (option,), {})
            outcomes.add("program")
        except Rejected as rejected:
            outcomes.add(rejected.reason)
    assert outcomes == {"program", "cycle"}


def test_what_rests_on_itself_alone_is_not_viable() -> None:
    nodes = LEAVES | {
        "a": [("Map", ["shape", "load_b", "f32"])],
        "b": [("Map", ["shape", "load_a", "f32"])],
    }
    with pytest.raises(NothingViable, match=re.escape("nothing computes")):
        build_space(snapshot_of(nodes, SORTS), "$root")


def test_an_output_that_is_an_input_is_rejected() -> None:
    nodes = LEAVES | {"root": [("RCons", ["x", "shape", "nil"])]}
    space = build_space(snapshot_of(nodes, SORTS), "$root")
    with pytest.raises(Rejected, match="nothing copies it"):
        extract(space, (), {})


def test_a_graph_without_breaks_may_be_deep(saturator: Saturator) -> None:
    graph = Graph()
    value = graph.add(ops.Input("x"), [], (2, 3), dt.F32, "x")
    for _ in range(900):
        value = elementwise(graph, "Sin", value)
    graph.add(ops.Output("y"), [whole(value)], (2, 3), dt.F32)
    case = saturated(saturator, graph)
    load = tuple(
        next(i for i, n in enumerate(case.space.options[c]) if case.space.snapshot.op(n) != "Inline")
        for c in case.space.genes
    )
    assert len(extracted(case, load).kernels) == 900
    inlined = tuple(
        next(i for i, n in enumerate(case.space.options[c]) if case.space.snapshot.op(n) == "Inline")
        for c in case.space.genes
    )
    with pytest.raises(Rejected, match="too much is inlined") as raised:
        extracted(case, inlined)
    assert raised.value.reason == "kernel-size"
