"""A session: the stages from an ONNX file to a verified executable, and the events they emit.

The command, the app (through the engine) and the Python API all run this class.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from loguru import logger

from workbench import chunking
from workbench.chunking import Chunk, Group
from workbench.egraph.program import ChunkProgram, emit
from workbench.egraph.rules import RuleFile, read_library
from workbench.egraph.saturate import Limits, Saturator
from workbench.errors import ModelError, NotViableError, SessionError, WorkbenchError, printable
from workbench.frontend import Imported, import_model, load_constant
from workbench.ir import ops
from workbench.ir.dtype import from_numpy
from workbench.ir.hlir import Graph
from workbench.ir.layout import show
from workbench.ir.llir import Program
from workbench.runtime import get_runtime
from workbench.runtime.device import DeviceWorker
from workbench.runtime.compare import compare, default_tolerance
from workbench.runtime.protocol import Runtime
from workbench.search.extract import Binding, bind, extract
from workbench.search.ledger import Ledger
from workbench.search.space import Genome, Space
from workbench.session import artifacts
from workbench.session import events as ev
from workbench.session import known
from workbench.session import saturation as sat
from workbench.session.executable import Executable
from workbench.session.log import open_log
from workbench.session.reference import (
    Expected,
    check_inputs,
    read_expected,
    reference_values,
    representative_inputs,
)
from workbench.session.rows import node_rows
from workbench.session.search_stage import GroupBest, search_group
from workbench.session.spec import DEMO, SessionSpec
from workbench.session.store import CANDIDATES, EVENTS, LOG, REPORT, SessionStore, new_session_directory
from workbench.session.view import SessionView


class Stopped(Exception):
    """The user cancelled the running work."""


class WrongResult(NotViableError):
    """The compiled model does not compute what it should."""


class CompileSession:
    """One model on its way through the stages. Each stage can be called on its own, in order:

    `import_model`, `split`, `saturate`, `search`, `stitch`, `verify`; `run` calls them all. Use as a context manager,
    or call `close`. `on_event` is called with every event, on the thread that runs the stage.

    Raises SessionError when the session directory is held by another process."""

    def __init__(
        self,
        spec: SessionSpec | str,
        on_event: Callable[[ev.AnyEvent], None] | None = None,
        **options: Any,
    ) -> None:
        if isinstance(spec, str):
            spec = SessionSpec(model=spec, **options)
        elif options:
            spec = msgspec.structs.replace(spec, **options)
        self.spec = spec
        self.on_event = on_event
        self.view = SessionView()
        directory = Path(spec.session) if spec.session else new_session_directory(spec.model)
        self.store = SessionStore(directory)
        self.store.acquire()
        self._resumed = self._resume_from_disk()
        self._origin = time.monotonic() - self.view.now
        self._events: IO[bytes] = self._open_events()
        self._close_log = open_log(self.store / LOG, self._log_line)
        self.ledger = Ledger(self.store / CANDIDATES)
        self.store.write_spec(self.spec)
        self._cancel = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self.runtime: Runtime = get_runtime(spec.target, spec.threads)
        self.worker = DeviceWorker(self.runtime.name, spec.threads)

        self.imported: Imported | None = None
        self.chunks: list[Chunk] = []
        self.programs: list[ChunkProgram] = []
        self.groups: list[Group] = []
        self.saturated: dict[int, sat.GroupEGraph] = {}
        self.best: dict[int, GroupBest] = {}
        self.executable: Executable | None = None
        self.expected: Expected | None = None
        self._reference: dict[int, np.ndarray] = {}
        self._emit_opened()

    def __enter__(self) -> CompileSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child processes and give the directory back."""
        self.worker.close()
        self.ledger.close()
        self._close_log()
        self._events.close()
        self.store.release()

    def _resume_from_disk(self) -> bool:
        """Fold the events of an earlier process in, so that the clock goes on; its spec must be for the same work."""
        lines = self.store.read_events()
        if not lines:
            return False
        old = self.store.read_spec()
        changed = [f for f in ("model", "breaks", "dims", "rules", "egg") if getattr(old, f) != getattr(self.spec, f)]
        if changed:
            raise SessionError(
                f"{self.store.directory}: this session was started with another {' and '.join(changed)}",
                "use another --session directory",
            )
        self.spec = msgspec.structs.replace(self.spec, run=old.run, toggled=old.toggled)
        for line in lines:
            self.view.apply(ev.decode(line))
        return True

    def _open_events(self) -> IO[bytes]:
        path = self.store / EVENTS
        try:
            whole = path.stat().st_size if path.exists() else 0
            handle = path.open("ab")
            if whole:
                handle.truncate(path.read_bytes().rfind(b"\n") + 1)
            return handle
        except OSError as error:
            raise SessionError(f"{path}: cannot be written: {error.strerror}") from None

    def _emit_opened(self) -> None:
        self.emit(
            ev.SessionOpened(
                model=self.spec.model,
                target=self.runtime.name,
                strategy=self.spec.strategy,
                seed=self.spec.seed,
                limit=self.spec.limit,
                breaks=self.spec.breaks,
                pid=os.getpid(),
                resumed=self._resumed,
                device=self.runtime.name,
            )
        )

    def emit(self, event: ev.AnyEvent) -> None:
        """Stamp an event, write it down, fold it into the view, tell the listener."""
        event = msgspec.structs.replace(event, at=round(time.monotonic() - self._origin, 6))
        try:
            self._events.write(ev.encode(event) + b"\n")
            self._events.flush()
        except OSError as error:
            raise SessionError(f"{EVENTS}: cannot be written: {error.strerror}", "free some disk space") from None
        self.view.apply(event)
        if self.on_event is not None:
            self.on_event(event)

    def _log_line(self, level: str, module: str, message: str) -> None:
        self.emit(ev.LogLine(level=level, module=module, message=printable(message, 2000)))

    @contextmanager
    def _stage(self, name: str, detail: str = "") -> Iterator[None]:
        self.checkpoint()
        began = time.perf_counter()
        self.emit(ev.StageStarted(stage=name, detail=detail))
        logger.debug("stage {} begins {}", name, detail)
        try:
            yield
        finally:
            self.emit(ev.StageFinished(stage=name, seconds=time.perf_counter() - began))

    def pause(self) -> None:
        """Stop before the next candidate until `resume`."""
        if self._running.is_set():
            self._running.clear()
            self.emit(ev.Paused())

    def resume(self) -> None:
        """Go on after `pause`."""
        if not self._running.is_set():
            self._running.set()
            self.emit(ev.Resumed())

    def cancel(self) -> None:
        """Stop the running work at the next checkpoint; what was reached stays."""
        self._cancel.set()
        self._running.set()

    def checkpoint(self) -> None:
        """Blocks while paused; raises Stopped once cancelled."""
        if not self._running.is_set():
            self._running.wait()
        if self._cancel.is_set():
            raise Stopped

    @property
    def graph(self) -> Graph:
        """The model in HLIR. Raises SessionError before `import_model`."""
        if self.imported is None:
            raise SessionError("the model is not imported yet", "call import_model first")
        return self.imported.graph

    def import_model(self) -> Graph:
        """ONNX to HLIR: shapes resolved, constants folded. Raises ModelError."""
        with self._stage("import", printable(self.spec.model)):
            path = self._model_path()
            self.imported = import_model(
                path,
                dims=self.spec.dims,
                random_weights=self.spec.random_weights,
                allow_opaque=self.spec.allow_opaque,
            )
            graph = self.graph
            unknown = [d for d in self.spec.dims if d not in graph.dims]
            if unknown:
                known = ", ".join(graph.dims) or "none"
                raise ModelError(f"--dim: the model has no dimension '{unknown[0]}'", f"its named dimensions: {known}")
            self.expected = self._find_expected(path)
            self.emit(
                ev.GraphImported(
                    nodes=len(graph),
                    onnx_nodes=self.imported.onnx_nodes,
                    inputs=[_describe(graph, i) for i in graph.inputs],
                    outputs=[_describe(graph, o) for o in graph.outputs],
                    parameters=self.imported.parameters,
                    dims=dict(graph.dims),
                )
            )
            logger.info("{} ONNX nodes became {} primitives", self.imported.onnx_nodes, len(graph))
        return graph

    def _model_path(self) -> Path:
        if self.spec.model != DEMO:
            return Path(self.spec.model)
        from workbench.frontend.demo import write_demo

        path = self.store / "demo.onnx"
        return path if path.exists() else write_demo(path)

    def _find_expected(self, path: Path) -> Expected | None:
        """Inputs and outputs to verify against: the file asked for, or one beside the model of the same name."""
        if self.spec.expected is not None:
            found = read_expected(Path(self.spec.expected))
            check_inputs(self.graph, found.inputs)
            return found
        beside = path.with_suffix(".npz")
        if not beside.exists():
            return None
        try:
            found = read_expected(beside)
            _, dims = check_inputs(self.graph, found.inputs)
        except WorkbenchError as error:
            logger.warning("{} is not used: {}", beside.name, error)
            return None
        for name in self.graph.dims:  # what the user did not fix is taken from the given inputs
            if name not in self.spec.dims:
                self.graph.dims[name] = dims[name]
        return found

    def split(self) -> list[Group]:
        """Break the graph into chunks, write their programs, group equal ones."""
        graph = self.graph
        with self._stage("split"):
            cuts = set(chunking.find_breaks(graph, self.spec.breaks)) ^ set(self.spec.toggled)
            self.chunks = chunking.split(graph, cuts)
            self.emit(
                ev.ChunksSplit(
                    chunks=[
                        ev.ChunkInfo(c.index, len(c.nodes), list(c.inputs), list(c.outputs), printable(c.begins_at))
                        for c in self.chunks
                    ],
                    breaks=sorted(cuts),
                    mode=self.spec.breaks,
                )
            )
        with self._stage("emit"):
            self.programs = [emit(graph, c.nodes, c.inputs, c.outputs) for c in self.chunks]
            for chunk, program in zip(self.chunks, self.programs, strict=True):
                self.store.write(f"chunks/chunk_{chunk.index}.egg", program.text.encode())
                rows = node_rows(graph, chunk, program, cuts)
                self.store.write(f"chunks/chunk_{chunk.index}.json", msgspec.json.encode(rows))
            self.groups = chunking.group([p.digest for p in self.programs])
            self.emit(
                ev.GroupsFormed(
                    groups=[
                        ev.GroupInfo(
                            g.index, g.representative, list(g.members), len(self.chunks[g.representative].nodes), g.digest
                        )
                        for g in self.groups
                    ]
                )
            )
            logger.info("{} chunks in {} groups", len(self.chunks), len(self.groups))
        return self.groups

    def library(self) -> tuple[RuleFile, ...]:
        """The rule files in use. Raises RuleError."""
        own = Path(self.spec.egg) if self.spec.egg else None
        return read_library(own, [Path(r) for r in self.spec.rules])

    def saturate(self, fresh: bool = False) -> dict[int, sat.GroupEGraph]:
        """One saturated e-graph per group, by group index. A kept result of the same program and rules is used again
        unless `fresh`. Raises RuleError (file:line) and SaturationStopped."""
        files = self.library()
        with self._stage("saturate", f"{len(self.groups)} groups"), Saturator(files, Limits()) as saturator:
            for done, g in enumerate(self.groups):
                self.checkpoint()
                self.emit(ev.StageProgress(stage="saturate", done=done, total=len(self.groups)))
                program = self.programs[g.representative]
                self.saturated[g.index] = sat.saturate_group(
                    self.store, saturator, files, g, program, self.emit, fresh=fresh
                )
        self._write_rule_report()
        return self.saturated

    def _reference_run(self) -> dict[int, np.ndarray]:
        """What the interpreter makes of the representative inputs, at every chunk's boundary. Computed once."""
        if self._reference:
            return self._reference
        graph = self.graph
        if self.imported is not None and self.imported.missing_weights:
            count = len(self.imported.missing_weights)
            raise ModelError(
                f"{count} weights are missing (first: '{printable(self.imported.missing_weights[0])}')",
                "profile with --random-weights, or put the weight file beside the model",
            )
        inputs = self.expected.inputs if self.expected else representative_inputs(graph, self.spec.seed)
        checked, dims = check_inputs(graph, inputs)
        keep = {i for c in self.chunks for i in (*c.inputs, *c.outputs)} | set(graph.outputs)

        def progress(done: int, total: int) -> None:
            if done % 64 == 0:
                self.checkpoint()

        self._reference = reference_values(
            graph, checked, dims, keep, lambda i: load_constant(graph, i), progress, self._run_custom
        )
        self._reference_inputs = checked
        return self._reference

    def _run_custom(self, node: Any, operands: list[np.ndarray]) -> np.ndarray:
        from workbench.runtime.opaque import run_opaque

        spec = self.graph.custom_ops[node.op.id]
        return run_opaque(spec.node_proto, spec.opsets, operands)

    def search(self) -> dict[int, GroupBest]:
        """The best genome of each group, by group index. Raises WorkbenchError when a group has nothing viable."""
        with self._stage("search", self.spec.strategy):
            reference = self._reference_run()
            self.best = {}
            for g in self.groups:
                self.checkpoint()
                self.best[g.index] = search_group(self, g, reference)
                known.remember(g, self.saturated[g.index], self.runtime.name, self.graph.dims, self.best[g.index])
        return self.best

    def search_checkpoint(self) -> bool:
        """Blocks while paused; False once cancelled."""
        self._running.wait()
        return not self._cancel.is_set()

    def stitch(self) -> Executable:
        """Each group's best re-applied to all its members, the chunks as one program, loaded."""
        graph = self.graph
        with self._stage("stitch"):
            group_of = {c: g.index for g in self.groups for c in g.members}
            spaces: dict[int, Space] = {i: s.space for i, s in self.saturated.items()}
            genomes: dict[int, Genome] = {i: b.genome for i, b in self.best.items()}
            chunks, programs = list(self.chunks), list(self.programs)

            def stitched(dims: Any) -> Program:
                extracted = {i: extract(spaces[i], genomes[i], dims) for i in spaces}
                members = [
                    bind(extracted[group_of[c.index]], Binding.of(p, c.outputs))
                    for c, p in zip(chunks, programs, strict=True)
                ]
                return chunking.stitch(graph, chunks, members)

            self.executable = Executable(graph, self.runtime, stitched, lambda i: load_constant(graph, i))
            compiled = self.executable.compiled(graph.dims)
            self.emit(
                ev.Stitched(
                    kernels=len(compiled.program.kernels),
                    buffers=len(compiled.program.buffers),
                    arena_bytes=compiled.plan.arena_bytes,
                )
            )
        return self.executable

    def verify(self) -> ev.Verified:
        """The executable against the interpreter, and against expected outputs where they are given; then its latency.

        Raises WrongResult when they differ."""
        if self.executable is None:
            raise SessionError("nothing is compiled yet", "call stitch first")
        with self._stage("verify"):
            reference = self._reference_run()
            inputs = self._reference_inputs
            got = self.executable.run(inputs)
            wanted = {}
            for node_id in self.graph.outputs:
                op = self.graph[node_id].op
                assert isinstance(op, ops.Output)
                wanted[op.name] = reference[node_id]
            checks = [(name, got[name], array) for name, array in wanted.items()]
            origin = "interpreter"
            if self.expected and self.expected.outputs:
                origin = f"interpreter and {printable(self.expected.origin)}"
                checks += [(n, got[n], a) for n, a in self.expected.outputs.items() if n in got]
            verdict = _compare_all(checks, origin)
            self.emit(verdict)
            latency = self.executable.measure(inputs)
            self.emit(
                ev.Measured(
                    median=latency.median,
                    p20=latency.p20,
                    p80=latency.p80,
                    runs=latency.runs,
                    kernels=[
                        ev.KernelRow(n, calls, ms, flops / max(ms, 1e-9) / 1e6, size / max(ms, 1e-9) / 1e6)
                        for n, calls, ms, flops, size in self.executable.kernel_profile(inputs)
                    ],
                )
            )
            self._write_artifacts()
        if not verdict.ok:
            raise WrongResult(
                f"the compiled model is wrong: largest relative error {verdict.max_rel_err:.3g} against the "
                f"{verdict.reference}"
            )
        return verdict

    def _artifact_directory(self) -> Path:
        return Path(self.spec.artifacts or artifacts.DEFAULT_DIRECTORY)

    def _write_rule_report(self) -> None:
        rows = {i: s.event.rules for i, s in self.saturated.items()}
        seconds = sum(s.event.seconds for s in self.saturated.values())
        self.store.write("rule_stats.txt", artifacts.rule_report(rows, seconds).encode())

    def _write_artifacts(self) -> None:
        assert self.executable is not None
        directory = self._artifact_directory()
        chunk_of = {n: c.index for c in self.chunks for n in c.nodes}
        artifacts.write_hlir_dot(directory, self.graph, chunk_of)
        artifacts.write_programs(directory, self.programs)
        rules = (self.store / "rule_stats.txt").read_bytes()
        artifacts.write_file(directory / "rule_stats.txt", rules)
        compiled = self.executable.compiled(self.graph.dims)
        artifacts.write_llir_dot(directory, compiled.program)
        artifacts.write_sources(directory, compiled.plan.sources, "ll")

    def run(self, first: str = "import") -> Executable:
        """All stages from `first` on, and the report. Raises WorkbenchError; a cancelled run raises Stopped."""
        self._cancel.clear()
        try:
            for stage in _CALLS[ev.STAGES.index(first) :]:
                match stage:
                    case "import":
                        self.import_model()
                    case "split":
                        self._reference = {}
                        self.split()
                    case "saturate":
                        self.saturated = {}
                        self.saturate(fresh=first == "saturate")
                    case "search":
                        self.search()
                    case "stitch":
                        self.stitch()
                    case "verify":
                        self.verify()
        except Stopped:
            self.emit(ev.Cancelled(stage=self.view.stage))
            raise
        except WorkbenchError as error:
            if self.executable is not None and self.view.measured is not None:
                self._finish()
            self.emit(ev.Failed(stage=self.view.stage, message=error.message, hint=error.hint))
            raise
        self._finish()
        assert self.executable is not None
        return self.executable

    def _finish(self) -> None:
        from workbench.session.report import build_report

        report = build_report(self.view, self.spec, self.store.directory, self._artifact_directory())
        data = msgspec.json.format(msgspec.json.encode(report), indent=2)
        self.store.write(REPORT, data)
        artifacts.write_file(self._artifact_directory() / REPORT, data)
        ok = bool(self.view.verified and self.view.verified.ok)
        self.emit(ev.SessionFinished(ok=ok, seconds=self.view.now, report=str(self.store / REPORT)))

    def restart(self, stage: str, reason: str, new_seed: bool = False) -> None:
        """Forget `stage` and all after it, before a `run(stage)`: the next search tries and times everything anew."""
        seed = self.spec.seed + 1 if new_seed else self.spec.seed
        self.spec = msgspec.structs.replace(self.spec, seed=seed, run=self.spec.run + 1)
        self.store.write_spec(self.spec)
        self.emit(ev.Restarted(stage=stage, reason=reason, seed=seed))

    def toggle_break(self, node: int) -> None:
        """Turn the break behind HLIR node `node` on or off, for the next `run("split")`. Raises WorkbenchError."""
        if not 0 <= node < len(self.graph) or isinstance(self.graph[node].op, ops.Input | ops.Constant | ops.Output):
            raise WorkbenchError("a break needs a node that computes something")
        toggled = set(self.spec.toggled) ^ {node}
        self.spec = msgspec.structs.replace(self.spec, toggled=tuple(sorted(toggled)))

    def search_id(self, group: Group, files_digest: str) -> str:
        """Names one search: what is searched, how, and in which run."""
        text = f"{group.digest} {files_digest} {self.runtime.name} {self.spec.strategy} {self.spec.seed} {self.spec.run}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


_CALLS = ("import", "split", "", "saturate", "search", "stitch", "verify")
"""What `run` calls for each of STAGES; `emit` is part of `split`."""


def _describe(graph: Graph, node_id: int) -> tuple[str, str, str]:
    node = graph[node_id]
    assert isinstance(node.op, ops.Input | ops.Output)
    return printable(node.op.name), show(node.shape), node.dtype.name


def _compare_all(checks: list[tuple[str, np.ndarray, np.ndarray]], origin: str) -> ev.Verified:
    ok, worst, relative = True, 0.0, 0.0
    for _, got, wanted in checks:
        dtype = from_numpy(got.dtype)
        assert dtype is not None
        tolerance = default_tolerance(dtype)
        right, absolute, scaled = compare(got, wanted, tolerance.rtol, tolerance.atol_scale)
        ok, worst, relative = ok and right, max(worst, absolute), max(relative, scaled)
    return ev.Verified(ok=ok, max_abs_err=worst, max_rel_err=relative, reference=origin)
