"""The compiled model: checks inputs and runs. Code is specialised for the profiled values of the named dimensions; one
general code serves all others that take the same kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from loguru import logger

from workbench.chunking import Known, Parts, parts
from workbench.errors import UnavailableError, WorkbenchError
from workbench.ir import ops
from workbench.ir.hlir import Graph, shape_values
from workbench.ir.layout import show
from workbench.ir.llir import Buffer, Program, reads
from workbench.ir.weights import MadeUp, constant_source, in_memory_form, load_constant, place_in_file
from workbench.runtime.protocol import Loaded, Plan, Runtime, SharedArena, Template
from workbench.session.memory import gigabytes, weight_bytes
from workbench.session.reference import check_inputs

Arrays = Mapping[str, np.ndarray]
"""Arrays by the name of an input or output."""
Key = tuple[tuple[str, int], ...]
"""Values of the named dimensions, sorted by name."""
Choice = tuple[int, ...]
"""Of each group, at which of its points the kernels were found."""
KEPT = 16
"""Values of the named dimensions for which a plan is kept, beside the profiled ones; the oldest goes first."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of whole runs."""

    median: float
    p20: float
    p80: float
    runs: int


@dataclass(slots=True)
class Compiled:
    """The whole program for given values of the named dimensions, in its parts, of which `plan` is for the `rest`; its
    code and weights once they are `loaded`. Where that is `general`, the program's sizes are expressions over them."""

    program: Program
    parted: Parts
    plan: Plan
    general: bool = False
    loaded: Loaded | None = None

    @property
    def computed_once(self) -> frozenset[int]:
        """Places of the kernels in `program` that `plan` lacks: what they compute is there once it is loaded."""
        return self.parted.places


@dataclass(slots=True)
class Executable:
    """A verified model. `run` takes and gives arrays by the model's own names."""

    graph: Graph
    runtime: Runtime
    chosen: Callable[[Mapping[str, int]], Choice]
    """Which kernels a run takes at given values of the named dimensions."""
    stitched: Callable[[Choice, Mapping[str, int]], Program]
    """The whole program of chosen kernels for given values of the named dimensions; without any, for all values."""
    refused: dict[Choice, str] = field(default_factory=dict)
    """Why there is no general code, where there is none: then each value is compiled for."""
    _compiled: dict[Key, Compiled] = field(default_factory=dict)
    """The specialised ones."""
    _plans: dict[Key, Compiled] = field(default_factory=dict)
    """Those of the general code, the least recently used first."""
    _general: dict[Choice, tuple[Program, Parts, Template]] = field(default_factory=dict)
    _bound: dict[int, tuple[Parts, dict[int, np.ndarray]]] = field(default_factory=dict)
    """The parts of a general code, and what its plans read beside inputs, by the id of the parts."""
    _arena: SharedArena | None = None
    _constants: dict[int, np.ndarray] = field(default_factory=dict)
    """Flat data of Constant nodes, shared by all that is compiled: views of the mapped file where that will do."""
    _known: Known = field(default_factory=dict)
    _computed: dict[int, np.ndarray] = field(default_factory=dict)
    """The same of what is computed of them once, by its number in `_known`."""

    @property
    def inputs(self) -> dict[str, str]:
        """What the model takes: name to `[shape] dtype`."""
        return {
            n.op.name: f"{show(n.shape)} {n.dtype}"
            for n in (self.graph[i] for i in self.graph.inputs)
            if isinstance(n.op, ops.Input)
        }

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name. Raises InputError for inputs that do not fit the model."""
        checked, dims = check_inputs(self.graph, inputs)
        compiled = self.compiled(dims)
        flat = self.load(compiled).run(self._bindings(compiled.program, checked))
        result: dict[str, np.ndarray] = {}
        for node_id, array in zip(self.graph.outputs, flat, strict=True):
            node = self.graph[node_id]
            assert isinstance(node.op, ops.Output)
            result[node.op.name] = array.reshape(shape_values(node.shape, dims))
        return result

    def compiled(self, dims: Mapping[str, int]) -> Compiled:
        """The program and plan for `dims`, made on first use: what is specialised for them where there is
        such, else the general code. Raises NotViableError where kernels do not work for these values."""
        key = tuple(sorted(dims.items()))
        found = self._compiled.get(key) or self._plans.pop(key, None)
        if found is None:
            found = self._by_general_code(dims) or self._specialised(self.stitched(self.chosen(dims), dims))
        if key not in self._compiled:
            self._plans[key] = found
            while len(self._plans) > KEPT:
                del self._plans[next(iter(self._plans))]
        return found

    def specialise(self, dims: Mapping[str, int]) -> Compiled:
        """As `compiled`, but code for these values alone, which stays."""
        key = tuple(sorted(dims.items()))
        found = self._compiled.get(key)
        if found is None:
            found = self._compiled[key] = self._specialised(self.stitched(self.chosen(dims), dims))
        return found

    def generalise(self, choice: Choice) -> bool:
        """Write the general code of chosen kernels, if that is not done yet. False where there can be none: `refused`
        says why."""
        if choice not in self._general and choice not in self.refused:
            try:
                program = self.stitched(choice, {})
                parted = self._parts(program)
                template = self.runtime.template(parted.rest, self.graph.custom_ops)
                self._general[choice] = program, parted, template
            except WorkbenchError as error:
                self.refused[choice] = str(error)
                logger.warning("no code for all values of the dimensions, each is compiled for: {}", error)
        return choice in self._general

    def _by_general_code(self, dims: Mapping[str, int]) -> Compiled | None:
        choice = self.chosen(dims)
        if not dims or not self.generalise(choice):
            return None
        program, parted, template = self._general[choice]
        try:
            plan = template.plan(dims)
        except WorkbenchError as error:
            given = ", ".join(f"{n}={v}" for n, v in dims.items())
            logger.warning("the general code does not work for {}, which is compiled for: {}", given, error)
            return None
        return Compiled(program, parted, plan, general=True)

    def _specialised(self, program: Program) -> Compiled:
        parted = self._parts(program)
        return Compiled(program, parted, self.runtime.plan(parted.rest, self.graph.custom_ops))

    def load(self, compiled: Compiled) -> Loaded:
        """The code of `compiled` with the weights bound, loaded on first use.

        Raises UnavailableError, before any is taken, when there is not the memory for them."""
        if compiled.loaded is None:
            if self.graph.dims and self._arena is None:
                self._arena = self.runtime.shared_arena()
            compiled.loaded = self.runtime.load(compiled.plan, self._weights(compiled), self._arena)
        return compiled.loaded

    def _weights(self, compiled: Compiled) -> dict[int, np.ndarray]:
        """All that a plan reads beside its inputs, by buffer; once for all plans of a general code."""
        parted = compiled.parted
        known = self._bound.get(id(parted))
        if known is not None:
            if self._arena is None or compiled.plan.arena_bytes > self._arena.nbytes:
                self._check_memory(compiled)
            return known[1]
        self._check_memory(compiled)
        once = self._computed_once(parted)
        weights = self._constants_of(parted.rest, parted.same)
        weights |= {b: once[other] for b, other in parted.same.items()}
        if compiled.general:
            self._bound[id(parted)] = parted, weights
        return weights

    def _check_memory(self, compiled: Compiled) -> None:
        parted = compiled.parted
        read = {b.source for b in (*_constants_in(parted.once), *_constants_in(parted.rest)) if b.id not in parted.same}
        sources = [constant_source(self.graph, i) for i in read - self._constants.keys()]
        needed = compiled.plan.arena_bytes + parted.nbytes + sum(map(_taken, sources))
        if needed > (allowed := self.runtime.memory_limit()):
            raise UnavailableError(
                f"a run of the whole model takes {gigabytes(needed)} of memory, {gigabytes(allowed)} can be had",
                "run it on a machine with more",
            )

    def _parts(self, program: Program) -> Parts:
        return parts(program, self._known, self.runtime.memory_limit() - weight_bytes(self.graph))

    def _computed_once(self, parted: Parts) -> dict[int, np.ndarray]:
        """The outputs of what is computed once, by buffer; those that are known from another program are not again."""
        if not self._computed.keys() >= set(parted.number.values()):
            plan = self.runtime.plan(parted.once, self.graph.custom_ops)
            arrays = self.runtime.load(plan, self._constants_of(parted.once, {})).run({})
            for buffer, array in zip(parted.once.outputs, arrays, strict=True):
                self._computed.setdefault(parted.number[buffer], array)
        return {buffer: self._computed[number] for buffer, number in parted.number.items()}

    def _constants_of(self, program: Program, besides: Collection[int]) -> dict[int, np.ndarray]:
        """The data of the constants that `program` reads, by buffer, but for the buffers `besides`."""
        return {b.id: self._constant(b.source) for b in _constants_in(program) if b.id not in besides}

    def _constant(self, node_id: int) -> np.ndarray:
        known = self._constants.get(node_id)
        if known is None:
            data = in_memory_form(load_constant(self.graph, node_id), self.graph[node_id].dtype)
            known = self._constants[node_id] = data
        return known

    def _bindings(self, program: Program, inputs: Mapping[str, np.ndarray]) -> dict[int, np.ndarray]:
        bindings: dict[int, np.ndarray] = {}
        for buffer in program.buffers:
            if buffer.role == "input":
                op = self.graph[buffer.source].op
                assert isinstance(op, ops.Input)
                bindings[buffer.id] = np.ascontiguousarray(inputs[op.name]).reshape(-1)
        return bindings

    def measure(self, inputs: Mapping[str, np.ndarray], seconds: float, least: int = 10) -> Latency:
        """Latency of whole runs: a warm-up, then about `seconds`, and at least `least` runs, or 3 of those that take
        longer than `seconds`."""
        checked, dims = check_inputs(self.graph, inputs)
        compiled = self.compiled(dims)
        bindings = self._bindings(compiled.program, checked)
        loaded = self.load(compiled)
        began = time.perf_counter()
        loaded.run(bindings)
        if time.perf_counter() - began > seconds:
            least = min(least, 3)
        else:
            loaded.run(bindings)
        times: list[float] = []
        until = time.perf_counter() + seconds
        while len(times) < least or (time.perf_counter() < until and len(times) < 2000):
            began = time.perf_counter()
            loaded.run(bindings)
            times.append((time.perf_counter() - began) * 1e3)
        p20, median, p80 = (float(v) for v in np.percentile(times, [20, 50, 80]))
        return Latency(median, p20, p80, len(times))

    def launch_times(self, inputs: Mapping[str, np.ndarray], runs: int) -> tuple[Compiled, list[float]]:
        """The whole program for these inputs, and the milliseconds of each of its launches, medians over `runs`."""
        checked, dims = check_inputs(self.graph, inputs)
        compiled = self.compiled(dims)
        return compiled, self.load(compiled).launch_times(self._bindings(compiled.program, checked), runs)


def _constants_in(program: Program) -> list[Buffer]:
    """The constants that a program reads."""
    read = set(program.outputs).union(*map(reads, program.kernels))
    return [b for b in program.buffers if b.role == "constant" and b.id in read]


def _taken(source: np.ndarray | MadeUp) -> int:
    """Bytes of memory that a constant takes beside its file."""
    mapped = not isinstance(source, MadeUp) and source.flags.aligned and place_in_file(source) is not None
    return 0 if mapped else source.nbytes
