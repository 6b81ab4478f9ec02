"""The compiled model: checks inputs, runs, and recompiles for other values of the named dimensions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from workbench.ir import ops
from workbench.ir.hlir import Graph, shape_values
from workbench.ir.layout import show
from workbench.ir.llir import Buffer, Program
from workbench.runtime.protocol import Loaded, Plan, Runtime
from workbench.session.reference import check_inputs

Arrays = Mapping[str, np.ndarray]
"""Arrays by the name of an input or output."""
KEPT = 16
"""Values of the named dimensions for which code is kept; the oldest goes first."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of whole runs."""

    median: float
    p20: float
    p80: float
    runs: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """The whole program for given values of the named dimensions, and its loaded code."""

    program: Program
    plan: Plan
    loaded: Loaded


@dataclass(slots=True)
class Executable:
    """A verified model. `run` takes and gives arrays by the model's own names."""

    graph: Graph
    runtime: Runtime
    stitched: Callable[[Mapping[str, int]], Program]
    """The whole program for given values of the named dimensions."""
    constant: Callable[[int], np.ndarray]
    _compiled: dict[tuple[tuple[str, int], ...], Compiled] = field(default_factory=dict)
    _constants: dict[int, np.ndarray] = field(default_factory=dict)
    """Flat data of Constant nodes, shared by all that is compiled."""

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
        flat = compiled.loaded.run(self._bindings(compiled.program, checked))
        result: dict[str, np.ndarray] = {}
        for node_id, array in zip(self.graph.outputs, flat, strict=True):
            node = self.graph[node_id]
            assert isinstance(node.op, ops.Output)
            result[node.op.name] = array.reshape(shape_values(node.shape, dims))
        return result

    def compiled(self, dims: Mapping[str, int]) -> Compiled:
        """The program, plan and loaded code for `dims`, made on first use."""
        key = tuple(sorted(dims.items()))
        found = self._compiled.get(key)
        if found is None:
            program = self.stitched(dims)
            plan = self.runtime.plan(program, custom_op_table(self.graph))
            constants = {b.id: self._constant(b) for b in program.buffers if b.role == "constant"}
            found = Compiled(program, plan, self.runtime.load(plan, constants))
            while len(self._compiled) >= KEPT:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[key] = found
        return found

    def _constant(self, buffer: Buffer) -> np.ndarray:
        known = self._constants.get(buffer.source)
        if known is None:
            known = np.ascontiguousarray(self.constant(buffer.source), buffer.dtype.numpy).reshape(-1)
            self._constants[buffer.source] = known
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
        """Latency of whole runs: a warm-up, then at least `least` runs and about `seconds`."""
        checked, dims = check_inputs(self.graph, inputs)
        compiled = self.compiled(dims)
        bindings = self._bindings(compiled.program, checked)
        for _ in range(3):
            compiled.loaded.run(bindings)
        times: list[float] = []
        until = time.perf_counter() + seconds
        while len(times) < least or (time.perf_counter() < until and len(times) < 2000):
            began = time.perf_counter()
            compiled.loaded.run(bindings)
            times.append((time.perf_counter() - began) * 1e3)
        p20, median, p80 = (float(v) for v in np.percentile(times, [20, 50, 80]))
        return Latency(median, p20, p80, len(times))

    def launch_times(self, inputs: Mapping[str, np.ndarray]) -> tuple[Compiled, list[float]]:
        """The whole program for these inputs, and the milliseconds of each of its launches."""
        checked, dims = check_inputs(self.graph, inputs)
        compiled = self.compiled(dims)
        return compiled, compiled.loaded.launch_times(self._bindings(compiled.program, checked), 20)


def custom_op_table(graph: Graph) -> dict[int, tuple[str, bytes, tuple[tuple[str, int], ...]]]:
    """Custom operators as a runtime takes them."""
    return {i: (spec.name, spec.node_proto, spec.opsets) for i, spec in graph.custom_ops.items()}
