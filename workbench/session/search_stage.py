"""The search stage of one group: bind its representative's inputs to the device, evaluate, report every candidate."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from loguru import logger

from workbench.chunking import Chunk, Group, Parts, parts
from workbench.errors import NotViableError
from workbench.ir import ops
from workbench.ir.hlir import Graph
from workbench.ir.llir import Program
from workbench.ir.weights import constant_source
from workbench.runtime.compare import Tolerance
from workbench.runtime.protocol import Plan, Profile, ProfileOptions, Rejection, memory_fits
from workbench.search.binding import Binding, bind
from workbench.search.extract import fitted
from workbench.search.ledger import Entry
from workbench.search.search import Outcome, search
from workbench.search.space import Genome
from workbench.search.strategies import make_strategy
from workbench.session import events as ev
from workbench.session.chunk_values import ChunkValues
from workbench.session.leading import forget_leading, keep_leading
from workbench.session.points import as_text
from workbench.session.rounding import undecided_values
from workbench.session.tolerances import tolerance

if TYPE_CHECKING:
    from workbench.runtime.device import DeviceWorker
    from workbench.session.session import CompileSession


class NoCandidate(NotViableError):
    """A search ended without one right candidate."""


@dataclass(frozen=True, slots=True)
class GroupBest:
    """The fastest right genome of a group, in milliseconds for one chunk, where the named dimensions that the group has
    are `dims`."""

    genome: Genome
    ms: float
    first_ms: float
    dims: Mapping[str, int] = field(default_factory=dict)


class DeviceEvaluator:
    """A group on the device: its representative's boundary values and weights bound, candidates run against its
    outputs. What was bound for another point goes."""

    def __init__(
        self,
        session: CompileSession,
        worker: DeviceWorker,
        group: Group,
        dims: Mapping[str, int],
        values: ChunkValues,
    ) -> None:
        chunk = session.chunks[group.representative]
        program = session.programs[group.representative]
        self.session, self.worker = session, worker
        self.binding = Binding.of(program, chunk.outputs)
        self.key = f"group-{group.digest}"
        graph = session.graph
        arrays = {
            str(i): constant_source(graph, i) if isinstance(graph[i].op, ops.Constant) else values.boundary[i]
            for i in program.inputs
        }
        self.tolerances = _tolerances(graph, chunk, values, dims)
        worker.bind(self.key, arrays, values.outputs, self.tolerances)
        self.custom_ops = graph.custom_ops
        self.members = len(group.members)
        self.constants = _constants(session, group)
        self._parted: tuple[Program, Parts] | None = None

    def memory_fits(self, program: Program) -> tuple[bool, int, int]:
        runtime, parted = self.session.runtime, self._parts(program)
        allowed = self._allowed()
        kept = parted.nbytes
        fits, needed = memory_fits(runtime, parted.rest, allowed - kept)
        return fits, needed + kept, allowed

    def plan(self, program: Program) -> Plan:
        return self.session.runtime.plan(self._parts(program).rest, self.custom_ops)

    def evaluate(self, plan: Plan, options: ProfileOptions, kernel_runs: int = 0) -> Profile | Rejection:
        assert self._parted is not None
        _, parted = self._parted
        given = ("boundary", "constant")
        bindings = {b.id: str(b.source) for b in parted.rest.buffers if b.role in given and b.id not in parted.same}
        once = self.session.runtime.plan(parted.once, self.custom_ops) if parted.once.kernels else None
        return self.worker.evaluate(self.key, plan, bindings, options, kernel_runs, once=once)

    def _allowed(self) -> int:
        return self.session.spec.memory_limit or self.session.runtime.memory_limit()

    def _parts(self, program: Program) -> Parts:
        """The candidate's kernels for the representative, without what the whole program will compute but once: for
        each member of the group, which is what limits it."""
        if self._parted is None or self._parted[0] is not program:
            bound = bind(program, self.binding)
            bound.buffers = [replace(b, role="constant") if b.source in self.constants and b.role == "boundary" else b
                             for b in bound.buffers]  # fmt: skip
            self._parted = program, parts(bound, {}, self._allowed() // self.members)
        return self._parted[1]


def _constants(session: CompileSession, group: Group) -> set[int]:
    """The boundary inputs of the representative that stand for constants in every member."""
    graph = session.graph
    inputs = zip(*(session.programs[member].inputs for member in group.members), strict=True)
    alike = [all(isinstance(graph[i].op, ops.Constant) for i in those) for those in inputs]
    own = session.programs[group.representative].inputs
    return {i for i, constant in zip(own, alike, strict=True) if constant}


def _tolerances(graph: Graph, chunk: Chunk, values: ChunkValues, dims: Mapping[str, int]) -> list[Tolerance]:
    """What each output of the chunk may be off by, given what comes in."""
    constants = [i for i in chunk.inputs if isinstance(graph[i].op, ops.Constant)]
    wanted = dict(zip(chunk.outputs, values.outputs, strict=True))
    undecided = undecided_values(graph, [*constants, *chunk.nodes], values.boundary, wanted, dims)
    inside = set(chunk.nodes)
    return [replace(tolerance(graph, o, inside), undecided=undecided[o]) for o in chunk.outputs]


@contextmanager
def on_device(
    session: CompileSession, group: Group, dims: Mapping[str, int], values: ChunkValues
) -> Iterator[DeviceEvaluator]:
    """A group bound to the device worker for as long as this lasts, with its `values` where the named dimensions are
    `dims`: what it takes there is given back."""
    evaluator = DeviceEvaluator(session, session.worker, group, dims, values)
    try:
        yield evaluator
    finally:
        session.worker.release(evaluator.key)


def search_group(
    session: CompileSession, group: Group, place: int, dims: Mapping[str, int], values: ChunkValues
) -> GroupBest:
    """Search one group and return its best, at the values `dims` of the named dimensions: `place` among those that
    are not the same to it. `values` are its representative's there. Raises Stopped when cancelled; what was tried is
    in the ledger.

    Raises NoCandidate with the reasons when nothing right was found."""
    saturated = session.saturated[group.index]
    space = saturated.space
    spec = session.spec
    points = session.points_of(group)
    point = points.named(dims)
    seed = spec.seed * 1_000_003 + group.index
    strategy = make_strategy(spec.strategy, space, seed, lambda genome: fitted(space, genome, dims))
    session.emit(
        ev.SearchStarted(
            group=group.index,
            point=place,
            dims=point,
            ranges=points.ranges(dims),
            limit=spec.limit,
            choices=len(space.genes),
            space_log10=round(space.size_log10, 2),
            members=len(group.members),
        )
    )
    forget_leading(session.store, group, session.target, place)
    began = time.perf_counter()
    outcome = Outcome()
    with on_device(session, group, dims, values) as evaluator:
        for entry, state in search(
            space,
            strategy,
            evaluator,
            limit=spec.limit,
            dims=dims,
            ledger=session.ledger,
            search_id=session.search_id(group, saturated.rules_digest, point),
            checkpoint=session.search_checkpoint,
        ):
            outcome = state
            session.emit(_event(group.index, place, entry))
            if state.best_index == entry.index and entry.ms is not None and state.first_ms is not None:
                assert state.best is not None
                keep_leading(session, group, state.best, entry.index, entry.ms, place)
                session.emit(
                    ev.BestImproved(
                        group=group.index, point=place, index=entry.index, ms=entry.ms, first_ms=state.first_ms
                    )
                )
    session.emit(
        ev.SearchFinished(
            group=group.index,
            point=place,
            candidates=outcome.candidates,
            profiled=outcome.profiled,
            rejected=dict(outcome.rejected),
            first_ms=outcome.first_ms,
            best_ms=outcome.best_ms,
            seconds=time.perf_counter() - began,
        )
    )
    session.checkpoint()
    where = f" at {as_text(point)}" if point else ""
    if outcome.best is None or outcome.best_ms is None or outcome.first_ms is None:
        reasons = ", ".join(f"{r} {n}" for r, n in outcome.rejected.items()) or "none were proposed"
        raise NoCandidate(
            f"group {group.index}{where}: none of {outcome.candidates} candidates was right ({reasons})",
            "the reasons are in candidates.jsonl of the session",
        )
    logger.info(
        "group {}{}: {:.4g} ms, first {:.4g} ms, {} candidates, {} profiled",
        group.index, where, outcome.best_ms, outcome.first_ms, outcome.candidates, outcome.profiled,
    )  # fmt: skip
    own = session.programs[group.representative].dims
    at = {name: value for name, value in dims.items() if name in own}
    return GroupBest(outcome.best, outcome.best_ms, outcome.first_ms, at)


def _event(group: int, point: int, entry: Entry) -> ev.CandidateEvaluated:
    return ev.CandidateEvaluated(
        group=group,
        point=point,
        index=entry.index,
        genome=entry.genome,
        parent=entry.parent,
        generation=entry.generation,
        step=entry.step,
        reason=entry.reason,
        detail=entry.detail,
        ms=entry.ms,
        p20_ms=entry.p20_ms,
        p80_ms=entry.p80_ms,
        memory_bytes=entry.memory_bytes,
        kernels=entry.kernels,
        seconds=entry.seconds,
    )
