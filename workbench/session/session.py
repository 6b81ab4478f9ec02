"""A session: the stages from an ONNX file to a verified executable, and the events they emit.

The command, the app (through the engine) and the Python API all run this class.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from loguru import logger

from workbench.chunking import Chunk, Group
from workbench.egraph.program import ChunkProgram
from workbench.egraph.rules import RuleFile, read_library
from workbench.egraph.saturate import Saturator
from workbench.errors import (
    RuleError,
    SessionError,
    UnavailableError,
    WorkbenchError,
    printable,
)
from workbench.frontend import Imported
from workbench.ir import ops
from workbench.ir.hlir import Graph
from workbench.ir.layout import show
from workbench.runtime import device_name, get_runtime
from workbench.runtime.device import DeviceWorker
from workbench.runtime.protocol import Runtime
from workbench.search.ledger import Ledger
from workbench.session import artifacts, known, verification
from workbench.session import events as ev
from workbench.session import saturation as sat
from workbench.session.chunk_values import ChunkValues, made_up_values, values_in
from workbench.session.chunk_verification import verify_chunks
from workbench.session.executable import Executable
from workbench.session.importing import imported
from workbench.session.leading import keep_kernel_times
from workbench.session.library import directories, place_of
from workbench.session.memory import WholeModel, weight_bytes
from workbench.session.points import Dims, Points
from workbench.session.recorded import Recorded, Stopped
from workbench.session.reference import (
    Expected,
    Given,
    Reference,
    check_expected,
    expected_of,
    find_given,
    interpret,
    representative_inputs,
)
from workbench.session.report import build_report
from workbench.session.search_stage import GroupBest, search_group
from workbench.session.sizes import given_dims, laid_out, point_infos
from workbench.session.spec import DEMO, SessionSpec, checked
from workbench.session.split_stage import cut_graph, emit_programs
from workbench.session.stitch_stage import stitch_chunks
from workbench.session.store import CANDIDATES, REPORT, check_writable, write_file
from workbench.session.verification import WrongResult
from workbench.targets import resolved

__all__ = ["CompileSession", "Stopped", "WrongResult"]


class CompileSession(Recorded):
    """One model on its way through the stages. Each stage can be called on its own, in order:

    `import_model`, `split`, `saturate`, `search`, `stitch`, `verify`; `run` calls them all. Use as a context manager,
    or call `close`. `on_event` is called with every event, on the thread that runs the stage.

    Raises WorkbenchError for options that cannot be, SessionError when the session directory is held by another
    process or was begun with other work. Nothing is on disk then."""

    def __init__(
        self,
        spec: SessionSpec | str | os.PathLike[str],
        on_event: Callable[[ev.AnyEvent], None] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(spec, SessionSpec):
            spec = SessionSpec(model=os.fspath(spec), **options)
        elif options:
            spec = msgspec.structs.replace(spec, **options)
        spec = checked(spec)
        self.target = resolved(spec.target)
        self._runtime: Runtime | None = None
        self._saturator: Saturator | None = None
        self.worker = DeviceWorker(self.target, spec.threads)

        self.imported: Imported | None = None
        self.chunks: list[Chunk] = []
        self.programs: list[ChunkProgram] = []
        self.groups: list[Group] = []
        self.saturated: dict[int, sat.GroupEGraph] = {}
        self.rules_in_use: tuple[RuleFile, ...] | None = None
        """The rule files of the last saturation that was completed."""
        self.best: dict[int, tuple[GroupBest, ...]] = {}
        """By group, its best at each point that it depends on, the representative's first."""
        self.executable: Executable | None = None
        self.expected: Expected | None = None
        self.points = Points({})
        self._references: dict[int, Reference] = {}
        """By place in `points.all()`. Only of the last one are the values at the chunks' boundaries kept."""
        self._whole: WholeModel | None = None

        super().__init__(spec, on_event)

    def _open_records(self) -> None:
        self.ledger = Ledger(self.store / CANDIDATES)
        self._closing.append(self.ledger.close)

    def _end_children(self) -> None:
        self.worker.close()
        if self._saturator is not None:
            self._saturator.close()

    @property
    def runtime(self) -> Runtime:
        """What plans, compiles and runs kernels for the target; made when first needed, since all up to the search
        works without. Raises UnavailableError where its kernels cannot run here."""
        if self._runtime is None:
            self._runtime = get_runtime(self.target, self.spec.threads)
        return self._runtime

    def _opened(self, resumed: bool) -> ev.SessionOpened:
        return ev.SessionOpened(
            model=self.spec.model,
            target=self.target,
            strategy=self.spec.strategy,
            seed=self.spec.seed,
            limit=self.spec.limit,
            breaks=self.spec.breaks,
            pid=os.getpid(),
            resumed=resumed,
            device=device_name(self.target),
        )

    @property
    def graph(self) -> Graph:
        """The model in HLIR. Raises SessionError before `import_model`."""
        if self.imported is None:
            raise SessionError("the model is not imported yet", "call import_model first")
        return self.imported.graph

    def import_model(self, given: Given | None = None) -> Graph:
        """ONNX to HLIR: shapes resolved, constants folded. The arrays to verify against are those `given`, or of the
        file that the options name, or of one beside the model. Raises ModelError, and InputError for arrays that were
        asked for and do not fit."""
        self._forget("import")
        with self._stage("import", printable(self.spec.model)):
            path = self._model_path()
            given = given or find_given(path, self.spec.expected)
            self.imported = imported(self.spec, path, None if given is None else given.input_shapes)
            graph = self.graph
            dims = given_dims(self.imported, self.spec)
            self.expected = None if given is None else expected_of(graph, given, dims)
            self.points = laid_out(graph, dims)
            self.emit(
                ev.GraphImported(
                    nodes=len(graph),
                    onnx_nodes=self.imported.onnx_nodes,
                    inputs=[_describe(graph, i) for i in graph.inputs],
                    outputs=[_describe(graph, o) for o in graph.outputs],
                    parameters=self.imported.parameters,
                    dims=dict(graph.dims),
                    points=point_infos(self.points),
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

    def split(self) -> list[Group]:
        """Break the graph into chunks, write their programs, group equal ones."""
        if self.imported is None:
            raise SessionError("the model is not imported yet", "call import_model first")
        self._forget("split")
        with self._stage("split"):
            self.chunks, cuts = cut_graph(self)
        with self._stage("emit"):
            self.programs, self.groups = emit_programs(self, self.chunks, cuts)
        return self.groups

    def library(self) -> tuple[RuleFile, ...]:
        """The rule files in use, those of the target. Raises RuleError."""
        own = Path(self.spec.egg) if self.spec.egg else None
        return read_library(own, [Path(r) for r in self.spec.rules], self.target)

    def saturate(self, fresh: bool = False) -> dict[int, sat.GroupEGraph]:
        """One saturated e-graph per group, by group index. A kept result of the same program and rules is used again
        unless `fresh`. Raises RuleError (file:line) and SaturationStopped; what an earlier call made stays then."""
        if not self.groups:
            raise SessionError("the graph is not split yet", "call split first")
        before = (self.saturated, self.best, self.executable)
        whole = len(self.saturated) == len(self.groups)
        try:
            self._saturate(fresh)
        except WorkbenchError:
            if whole:
                self.saturated, self.best, self.executable = before
            raise
        return self.saturated

    def _saturate(self, fresh: bool) -> None:
        files = self.library()
        self._forget("saturate")
        with self._stage("saturate", f"{len(self.groups)} groups"), self._saturator_of(files) as saturator:
            for done, g in enumerate(self.groups):
                self.checkpoint()
                self.emit(ev.StageProgress(stage="saturate", done=done, total=len(self.groups)))
                program = self.programs[g.representative]
                self.saturated[g.index] = sat.saturate_group(
                    self.store, saturator, files, self.target, g, program, self._emit_step, fresh=fresh
                )
            self.rules_in_use = files
        self._write_rule_report()

    def prepare_saturation(self) -> None:
        """Read the rules and start the process that saturates, which takes a while, during the import. Raises
        RuleError."""
        self._saturator_of(self.library()).prepare()

    def _saturator_of(self, files: Sequence[RuleFile]) -> Saturator:
        """The saturator over a library: the one prepared before, where it is that."""
        if self._saturator is None or self._saturator.files != files:
            if self._saturator is not None:
                self._saturator.close()
            self._saturator = Saturator(files, sat.limits_of(self.spec))
        return self._saturator

    def _emit_step(self, event: ev.AnyEvent) -> None:
        """Emit, and stop between two steps of a saturation when cancelled."""
        self.emit(event)
        self.checkpoint()

    def reference(self, point: int = 0, *, boundaries: bool = True) -> Reference:
        """What the interpreter makes of the given or representative inputs at a point, by its place in
        `points.all()`: the values of the outputs and, unless asked otherwise, at the boundaries of the chunks.

        Raises UnavailableError when weights are missing."""
        found = self._references.get(point)
        if found is None or (boundaries and not found.has_boundaries):
            self._check_weights()
            for other, kept in self._references.items():
                self._references[other] = kept.outputs_only(self.graph)
            expected, dims = self._expected_at(point), self.points.all()[point]
            inputs = expected.inputs if expected else representative_inputs(self.graph, self.spec.seed, dims)
            crossing = {i for c in self.chunks for i in (*c.inputs, *c.outputs)} - self.graph.constants.keys()
            found = self._references[point] = interpret(self.graph, inputs, crossing, self.checkpoint)
        return found

    def _expected_at(self, point: int) -> Expected | None:
        """What was given to verify against, where that is of this point."""
        if self.expected is None or check_expected(self.graph, self.expected) != self.points.all()[point]:
            return None
        return self.expected

    def _chunk_values(self, group: Group, point: int) -> ChunkValues:
        """What the candidates of a group are run on and held against at a point: its representative in a run of the
        whole model, or by itself where the weights are made up or that run does not fit into memory."""
        chunk = self.chunks[group.representative]
        if self._missing_weights or not self.whole.fits:
            dims = self.points.all()[point]
            return made_up_values(self.graph, chunk, dims, self.spec.seed, self.checkpoint)
        return values_in(self.reference(point), self.graph, chunk)

    @property
    def whole(self) -> WholeModel:
        """Whether the whole model can be run here; that is found out once for each import."""
        if self._whole is None:
            self._whole = WholeModel(weight_bytes(self.graph), self.runtime.memory_limit())
            if not self._whole.fits:
                logger.warning("{}: each group is run and verified by itself instead", self._whole.text)
        return self._whole

    @property
    def _missing_weights(self) -> list[str]:
        return self.imported.missing_weights if self.imported is not None else []

    def _check_weights(self) -> None:
        missing = self._missing_weights
        if missing and not self.spec.random_weights:
            raise UnavailableError(
                f"{len(missing)} weights are missing (first: '{printable(missing[0])}')",
                "profile with --random-weights, or put the weight file beside the model",
            )

    def search(self) -> dict[int, tuple[GroupBest, ...]]:
        """The best genomes of each group, by group index: one for each point that it depends on. Raises WorkbenchError
        when a group has nothing viable, and UnavailableError where kernels for the target cannot be profiled here."""
        if not self.saturated or len(self.saturated) < len(self.groups):
            raise SessionError("the groups are not saturated yet", "call saturate first")
        self._forget("search")
        with self._stage("search", self.spec.strategy):
            for saturated in self.saturated.values():
                _ = saturated.space  # says what has no kernel before anything is computed
            _ = self.runtime  # where it cannot be had, that is known before the interpreter runs
            self._check_weights()
            _ = self.whole  # what will not be run as a whole is said beforehand
            for point in range(len(self.points.all())):  # the outer loop: the boundary values of one are kept at a time
                for g in self.groups:
                    self._search_at(g, point)
        return self.best

    def _search_at(self, group: Group, point: int) -> None:
        """Search a group at a point, unless it was searched before at one that is the same to it."""
        dims = self.points.all()[point]
        place = self.points_of(group).place_of(dims)
        found = self.best.get(group.index, ())
        if place < len(found):
            return
        self.checkpoint()
        best = search_group(self, group, place, dims, self._chunk_values(group, point))
        known.remember(group, self.saturated[group.index], self.target, best)
        self.best[group.index] = (*found, best)

    def points_of(self, group: Group) -> Points:
        """The points that are not the same to a group: they differ in dimensions that its program has."""
        return self.points.of(self.programs[group.representative].dims)

    def search_checkpoint(self) -> bool:
        """Blocks while paused; False once cancelled."""
        self._running.wait()
        return not self._cancel.is_set()

    def stitch(self) -> Executable:
        """Each group's best re-applied to all its members, the chunks as one program, loaded."""
        if not self.best or len(self.best) < len(self.groups):
            raise SessionError("the groups have no best candidates yet", "call search first")
        self._forget("stitch")
        with self._stage("stitch"):
            self.executable = stitch_chunks(self)
        return self.executable

    def verify(self) -> ev.Verified:
        """The executable at every point against the interpreter, and against expected outputs where they are given;
        then its latency. The verdict is over all points. Where the whole model does not fit into memory, each group's
        best by itself.

        Raises WrongResult when they differ anywhere."""
        if self.executable is None:
            raise SessionError("nothing is compiled yet", "call stitch first")
        with self._stage("verify"):
            for point, dims in enumerate(self.points.all()):
                self.checkpoint()
                for told in self._verified(self.executable, point, dims):
                    self.emit(msgspec.structs.replace(told, point=point))
            self._write_artifacts(self.executable)
        whole = self.view.verified
        assert whole is not None
        if not whole.ok:
            raise verification.wrong(self.view)
        return whole

    def _verified(
        self, executable: Executable, point: int, dims: Mapping[str, int]
    ) -> Iterator[ev.Verified | ev.Measured]:
        if not self.whole.fits:
            yield from verify_chunks(self, dims)
            return
        reference = self.reference(point, boundaries=False)
        yield verification.verify(self.graph, executable, reference, self._expected_at(point))
        yield verification.measure(executable, reference.inputs, partial(keep_kernel_times, self, dims))

    def _artifact_directory(self) -> Path:
        return Path(self.spec.artifacts or artifacts.DEFAULT_DIRECTORY)

    def _write_rule_report(self) -> None:
        rows = {i: s.event.rules for i, s in self.saturated.items()}
        seconds = sum(s.event.seconds for s in self.saturated.values())
        self.store.write("rule_stats.txt", artifacts.rule_report(rows, seconds).encode())

    def _write_artifacts(self, executable: Executable | None) -> None:
        """All there is: without an executable, what saturation gave."""
        artifacts.write_all(
            self._artifact_directory(),
            self.graph,
            {n: c.index for c in self.chunks for n in c.nodes},
            self.programs,
            (self.store / "rule_stats.txt").read_bytes(),
            None if executable is None else executable.compiled(self.graph.dims),
        )

    def run(self, first: str = "import") -> Executable:
        """All stages from `first` on, and the report. Raises WorkbenchError; a cancelled run raises Stopped."""
        if first not in ev.STAGES:
            raise SessionError(f"'{printable(first)}' is not a stage", f"one of {', '.join(ev.STAGES)}")
        self._current = first
        with self.told():
            check_writable(self._artifact_directory())
            if first not in ("search", "stitch", "verify"):
                self.prepare_saturation()
            for stage in _CALLS[_CALLS.index("split" if first == "emit" else first) :]:
                match stage:
                    case "import":
                        self.import_model()
                    case "split":
                        self.split()
                    case "saturate":
                        self.saturate(fresh=first == "saturate")
                    case "search":
                        self._search_or_leave_artifacts()
                    case "stitch":
                        self.stitch()
                    case "verify":
                        self.verify()
        self.finish()
        assert self.executable is not None
        return self.executable

    def _search_or_leave_artifacts(self) -> None:
        try:
            self.search()
        except UnavailableError:  # no later stage will write them
            self._write_artifacts(None)
            raise

    @contextmanager
    def told(self) -> Iterator[None]:
        """What ends the work inside, a cancel or an error, is told by an event, and raised on."""
        try:
            yield
        except Stopped:
            self.emit(ev.Cancelled(stage=self._current))
            raise
        except WorkbenchError as error:
            if isinstance(error, WrongResult):
                self.finish()
            file, line = "", 0
            if isinstance(error, RuleError):
                file, line = place_of(error.message, directories(self.spec))
            kept = self._current == "saturate" and 0 < len(self.groups) == len(self.saturated)
            failed = ev.Failed(stage=self._current, message=error.message, hint=error.hint, file=file, line=line)
            self.emit(msgspec.structs.replace(failed, kept=kept))
            raise
        finally:
            self._cancel.clear()

    def finish(self) -> None:
        """Write the report and say that all is done."""
        report = build_report(self.view, self.spec, self.store.directory, self._artifact_directory())
        data = msgspec.json.format(msgspec.json.encode(report), indent=2)
        self.store.write(REPORT, data)
        write_file(self._artifact_directory() / REPORT, data)
        ok = self.view.verified is not None and self.view.verified.ok
        self.emit(ev.SessionFinished(ok=ok, seconds=self.view.now, report=str(self.store / REPORT)))

    def _forget(self, stage: str) -> None:
        """Drop what `stage` and those after it made. Raises SessionError when the session is closed."""
        self._check_open()
        first = ev.STAGES.index(stage)
        self.executable = None
        if first <= ev.STAGES.index("search"):
            self.best = {}
        if first <= ev.STAGES.index("saturate"):
            self.saturated = {}
        if first <= ev.STAGES.index("split"):
            self.chunks, self.programs, self.groups = [], [], []
            self._references = {}
        if first <= ev.STAGES.index("import"):
            self.imported = self.expected = self._whole = None

    def restart(self, stage: str, reason: str, new_seed: bool = False) -> None:
        """Forget `stage` and all after it, before a `run(stage)`: the next search tries and times everything anew."""
        seed = self.spec.seed + 1 if new_seed else self.spec.seed
        self.spec = msgspec.structs.replace(self.spec, seed=seed, run=self.spec.run + 1)
        self.store.write_spec(self.spec)
        self.emit(ev.Restarted(stage=stage, reason=reason, seed=seed))

    def earliest(self, stage: str) -> str:
        """`stage`, or an earlier one whose results are not there."""
        if self.imported is None:
            return "import"
        wanted = ev.STAGES.index(stage)
        for missing, first in (
            (not self.groups, "split"),
            (len(self.saturated) < len(self.groups), "saturate"),
            (len(self.best) < len(self.groups), "search"),
            (self.executable is None, "stitch"),
        ):
            if missing and ev.STAGES.index(first) < wanted:
                return first
        return stage

    def check_break(self, node: int) -> None:
        """Raises WorkbenchError where `toggle_break` would."""
        if not 0 <= node < len(self.graph) or isinstance(self.graph[node].op, ops.Input | ops.Constant | ops.Output):
            raise WorkbenchError(f"no break at node {node}", "a break needs a node that computes something")

    def toggle_break(self, node: int) -> None:
        """Turn the break behind HLIR node `node` on or off, for the next `run("split")`. Raises WorkbenchError."""
        self.check_break(node)
        toggled = set(self.spec.toggled) ^ {node}
        self.spec = msgspec.structs.replace(self.spec, toggled=tuple(sorted(toggled)))

    def search_id(self, group: Group, files_digest: str, point: Dims) -> str:
        """Names one search: what is searched, how, in which run, and at which of several points."""
        spec = self.spec
        text = f"{group.digest} {files_digest} {self.target} {spec.strategy} {spec.seed} {spec.run}"
        if point:
            text += f" {sorted(point.items())}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


_CALLS = ("import", "split", "saturate", "search", "stitch", "verify")
"""What `run` calls; `emit` is part of `split`."""


def _describe(graph: Graph, node_id: int) -> tuple[str, str, str]:
    node = graph[node_id]
    assert isinstance(node.op, ops.Input | ops.Output)
    return printable(node.op.name), show(node.shape), node.dtype.name
