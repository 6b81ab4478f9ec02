"""From a graph to all that its e-graph can make of it: saturated spaces, genomes, and what they compute on the CPU."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from workbench.chunking import Chunk, split
from workbench.egraph.messages import StepDone
from workbench.egraph.program import ChunkProgram, emit
from workbench.egraph.saturate import Saturator
from workbench.egraph.snapshot import Snapshot
from workbench.ir import expr as ex
from workbench.ir import interpret, ops
from workbench.ir.hlir import Graph
from workbench.ir.llir import Program
from workbench.runtime import get_runtime
from workbench.search.binding import Binding, bind
from workbench.search.extract import extract
from workbench.search.placement import Rejected
from workbench.search.space import Genome, Space, build_space


@dataclass(frozen=True, slots=True)
class Case:
    """A chunk (by default the whole graph) with its saturated e-graph and how often each rule matched."""

    graph: Graph
    chunk: Chunk
    program: ChunkProgram
    space: Space
    matches: Mapping[str, int]


def matches_of(saturator: Saturator, text: str) -> tuple[dict[str, int], Snapshot]:
    """How often each rule matched, and the saturated e-graph."""
    steps: list[StepDone] = []
    result = saturator.saturate(text, steps.append)
    assert result.stopped == ""
    matches: dict[str, int] = {}
    for step in steps:
        for name, count in step.matches.items():
            matches[name] = matches.get(name, 0) + count
    return matches, Snapshot(result.snapshot)


def saturated(saturator: Saturator, graph: Graph, chunk: Chunk | None = None, target: str = "cpu") -> Case:
    """The case of `chunk`, or of the whole graph, with the kernels that `target` has."""
    if chunk is None:
        (chunk,) = split(graph, ())
    program = emit(graph, chunk.nodes, chunk.inputs, chunk.outputs)
    matches, snapshot = matches_of(saturator, program.text)
    return Case(graph, chunk, program, build_space(snapshot, program.root, target), matches)


def random_genome(space: Space, rng: random.Random) -> Genome:
    """One of the genomes of `space`."""
    return tuple(rng.randrange(len(space.options[c])) for c in space.genes)


def forced_genomes(space: Space, rng: random.Random) -> Iterator[Genome]:
    """A genome for every alternative of every gene, in which that gene counts."""
    for gene, eclass in enumerate(space.genes):
        for option in range(len(space.options[eclass])):
            for _ in range(20):
                genome = list(random_genome(space, rng))
                genome[gene] = option
                if gene in space.active_genes(tuple(genome)):
                    yield tuple(genome)
                    break


def extracted(case: Case, genome: Genome, dims: Mapping[str, int] | None = None) -> Program:
    """The program of a genome, bound to the case's own chunk. Raises Rejected."""
    program = extract(case.space, genome, case.graph.dims if dims is None else dims)
    return bind(program, Binding.of(case.program, case.chunk.outputs))


def computed(program: Program, values: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    """What `program` computes on the CPU from `values` (flat arrays by node)."""
    runtime = get_runtime("cpu", 1)
    loaded = runtime.load(runtime.plan(program, {}), {})
    return loaded.run({b.id: values[b.source] for b in program.buffers if b.role == "boundary"})


def kernels_of(program: Program) -> list[str]:
    """The kernels by kind, library calls with their layout."""
    return [getattr(k, "layout", type(k).__name__) for k in program.kernels]


def leaf_values(graph: Graph, dims: Mapping[str, int], seed: int = 0) -> dict[int, np.ndarray]:
    """Random inputs, and the constants, by node."""
    rng = np.random.default_rng(seed)
    values: dict[int, np.ndarray] = {}
    for node in graph:
        match node.op:
            case ops.Input():
                size = int(np.prod([ex.evaluate(d, dims) for d in node.shape], dtype=np.int64))
                if node.dtype.is_float:
                    values[node.id] = (rng.standard_normal(size) + 0.1).astype(node.dtype.numpy)
                elif node.dtype.name == "bool":
                    values[node.id] = rng.random(size) < 0.5
                elif node.dtype.itemsize == 1:
                    limits = np.iinfo(node.dtype.numpy)
                    values[node.id] = rng.integers(limits.min, limits.max, size, node.dtype.numpy, endpoint=True)
                else:
                    values[node.id] = rng.integers(1, 4, size).astype(node.dtype.numpy)
            case ops.Constant():
                data = graph.constants[node.id]
                assert isinstance(data, np.ndarray)
                values[node.id] = data.reshape(-1)
            case _:
                pass
    return values


def assert_computes_the_same(
    case: Case, genomes: Iterator[Genome] | list[Genome], dims: Mapping[str, int] | None = None, seed: int = 0
) -> list[list[str]]:
    """Run every genome that can be extracted and compare with the interpreter; the kernels that each ran."""
    dims = case.graph.dims if dims is None else dims
    values = leaf_values(case.graph, dims, seed)
    wanted = dict(values)
    interpret.evaluate(case.graph, case.chunk.nodes, wanted, dims, keep=[*values, *case.chunk.outputs])
    ran: list[list[str]] = []
    seen: set[str] = set()
    for genome in genomes:
        digest = case.space.digest(genome)
        if digest in seen:
            continue
        seen.add(digest)
        try:
            program = extracted(case, genome, dims)
        except Rejected as rejected:
            if rejected.reason not in ("kernel-size", "library-refuses"):
                raise
            continue
        for node_id, found in zip(case.chunk.outputs, computed(program, values), strict=True):
            assert_near(found, wanted[node_id])
        ran.append(kernels_of(program))
    assert ran
    return ran


def assert_near(found: np.ndarray, wanted: np.ndarray, steps: int = 64) -> None:
    """Equal but for rounding: a share of the largest value, since sums may be taken in any order."""
    assert found.dtype == wanted.dtype
    if found.dtype.kind != "f":
        np.testing.assert_array_equal(found, wanted)
        return
    finite = wanted[np.isfinite(wanted)]
    room = steps * float(np.finfo(wanted.dtype).eps) * float(np.max(np.abs(finite), initial=1e-30))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=room)
