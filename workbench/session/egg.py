"""A session on one egglog program: it runs as egglog runs it, with what every rule does and costs on record.

The command and the app (through the engine) run this class, as they run CompileSession on a model.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from workbench.egraph.messages import StepDone
from workbench.egraph.program_messages import CommandDone, ProgramResponse, RulesDeclared
from workbench.egraph.program_runner import CANCELLED, Heard, ProgramRunner, Ran
from workbench.egraph.saturate import Limits
from workbench.egraph.snapshot import Snapshot, SnapshotData
from workbench.errors import InputError, NotViableError, RuleError, SessionError, WorkbenchError, printable
from workbench.session import events as ev
from workbench.session.egg_tables import function_rows, program_rule_rows, ruleset_rows
from workbench.session.recorded import Recorded, Stopped
from workbench.session.spec import EGG, SessionSpec, checked
from workbench.session.store import REPORT

PROGRAM = "chunks/chunk_0.egg"
"""The text that ran last, in the session."""
SNAPSHOT = "snapshots/program.msgpack"
ALL_STEPS = 500
"""The first steps are told one by one, later ones added up."""
STEP_SECONDS, TABLE_SECONDS = 0.1, 1.0
"""How often then, and how often the rule table is told while the program runs."""
TRIED = {"check", "prove", "fail", "run", "run-schedule", "extract", "multi-extract", "keep-best", "print"}
"""Kinds of commands that are well-formed when they fail: what they say is not so, or their rules went wrong."""


class ProgramFailed(NotViableError):
    """A check does not hold, a rule panicked, nothing can be extracted, or a limit stopped the program."""


class EggSession(Recorded):
    """One .egg file; `run` runs it, again after `restart` with what the file holds then.

    Raises WorkbenchError for options that cannot be, and SessionError as Recorded does."""

    def __init__(self, spec: SessionSpec, on_event: Callable[[ev.AnyEvent], None] | None = None) -> None:
        spec = checked(msgspec.structs.replace(spec, kind=EGG, target=EGG_TARGET))
        absolute = os.path.abspath(os.path.join(spec.working, spec.model))
        beside = os.path.relpath(absolute, spec.working)
        self.name = absolute if beside.startswith("..") else beside
        """The file as messages call it."""
        usual = Limits()
        limits = Limits(
            nodes=usual.nodes if spec.egg_nodes is None else spec.egg_nodes,
            seconds=usual.seconds if spec.egg_seconds is None else spec.egg_seconds,
            memory_bytes=usual.memory_bytes if spec.egg_memory is None else spec.egg_memory,
        )
        self.runner = ProgramRunner(self.name, spec.working, limits, spec.allow_files)
        self.using = threading.Lock()
        """Held while the runner is used: by a run, or by a question."""
        self.ran: Ran | None = None
        super().__init__(spec, on_event)

    def _end_children(self) -> None:
        self.runner.close()

    def _opened(self, resumed: bool) -> ev.SessionOpened:
        spec = self.spec
        return ev.SessionOpened(
            model=spec.model,
            target=EGG_TARGET,
            strategy="",
            seed=spec.seed,
            limit=0,
            breaks="",
            pid=os.getpid(),
            resumed=resumed,
            kind=EGG,
        )

    def pause(self) -> None:
        """Hold the engine where it is until `resume`; the time limit waits too."""
        super().pause()
        self.runner.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        self.runner.resume()
        super().resume()

    def cancel(self) -> None:
        """Stop the program; what was told stays."""
        self.runner.resume()
        super().cancel()

    def run(self, first: str = "saturate") -> Ran:
        """Run the file as it is now, whatever stage is asked for. Raises ProgramFailed or RuleError for how it came
        out, ModelError for a file that cannot be read, Stopped when cancelled."""
        with self.told(), self._stage("saturate", printable(self.name)):
            text = self.runner.read()
            self.store.write(PROGRAM, text.encode())
            self.emit(ev.ProgramRead(file=printable(self.name), lines=len(text.splitlines())))
            teller = _Teller(self.emit)
            with self.using:
                ran = self.ran = self.runner.run(text, teller.hear, self._cancel.is_set)
            if ran.ended.snapshot is not None:
                self.store.write(SNAPSHOT, msgspec.msgpack.encode(ran.ended.snapshot))
            self._tell_end(ran)
        self.emit(ev.SessionFinished(ok=True, seconds=self.view.now, report=str(self._write_report())))
        return ran

    def _tell_end(self, ran: Ran) -> None:
        ended, heard = ran.ended, ran.heard
        snapshot = Snapshot(ended.snapshot) if ended.snapshot is not None else None
        nodes = heard.steps[-1].nodes if heard.steps else 0
        self.emit(
            ev.GroupSaturated(
                group=0,
                classes=snapshot.class_count if snapshot else 0,
                nodes=snapshot.node_count if snapshot else nodes,
                seconds=ended.engine_seconds,
                overhead_seconds=max(0.0, ended.total_seconds - ended.engine_seconds),
                rules=program_rule_rows(heard),
                stopped=ran.stopped,
            )
        )
        self.emit(
            ev.ProgramFinished(
                outcome=ended.outcome,
                error=printable(ended.error, 2000),
                stopped=ran.stopped,
                file=printable(ended.file),
                line=ended.line,
                commands=ended.number,
                steps=ended.steps,
                classes=snapshot.class_count if snapshot else 0,
                nodes=snapshot.node_count if snapshot else nodes,
                functions=function_rows(heard, ended.functions),
                rulesets=ruleset_rows(heard),
                warnings=ran.warnings,
                seconds=ended.engine_seconds,
            )
        )
        if ended.outcome == "stopped" and ended.limit == CANCELLED:
            raise Stopped
        if ended.outcome != "ok":
            self._write_report()
            where = f"{printable(ended.file)}:{ended.line}: " if ended.line else f"{printable(ended.file)}: "
            if ended.outcome == "failed":
                kind = ProgramFailed if ended.kind in TRIED else RuleError
                raise kind(f"{where}{printable(ended.error, 2000)}")
            raise ProgramFailed(f"{where}stopped at its {ran.stopped}", _hint(ended.limit))

    def _write_report(self) -> object:
        from workbench.session.egg_report import program_report

        report = program_report(self.view, self.spec, self.store.directory)
        self.store.write(REPORT, msgspec.json.format(msgspec.json.encode(report), indent=2))
        return self.store / REPORT

    def snapshot(self) -> SnapshotData | None:
        """The e-graph that the last run left; None where there is none."""
        return self.ran.ended.snapshot if self.ran is not None else None

    @contextmanager
    def told(self) -> Iterator[None]:
        """What ends the work inside, a cancel or an error, is told by an event, and raised on."""
        try:
            yield
        except Stopped:
            self.emit(ev.Cancelled(stage="saturate"))
            raise
        except WorkbenchError as error:
            self.emit(ev.Failed(stage="saturate", message=error.message, hint=error.hint))
            raise
        finally:
            self._cancel.clear()

    def restart(self, stage: str, reason: str, new_seed: bool = False) -> None:
        """Forget the last run, before another."""
        self.spec = msgspec.structs.replace(self.spec, run=self.spec.run + 1)
        self.store.write_spec(self.spec)
        self.emit(ev.Restarted(stage="saturate", reason=reason, seed=self.spec.seed))

    def earliest(self, stage: str) -> str:
        """The stage that a rerun begins with: there is one."""
        return "saturate"

    def check_break(self, node: int) -> None:
        """Raises InputError: a program has no breaks."""
        raise InputError("an egglog program has no graph to break")

    def toggle_break(self, node: int) -> None:
        """Raises InputError: a program has no breaks."""
        self.check_break(node)

    def xray(self, question: ev.Xray) -> ev.XrayDone:
        """How far a rule's premises hold on what the program left. Raises InputError for a rule that is not there, and
        SessionError while the program runs."""
        from workbench.session.egg_xray import ask_program

        if not self.using.acquire(blocking=False):
            raise SessionError("the program is running", "ask again when it has run")
        try:
            if self.ran is None:
                raise SessionError("the program has not run yet", "s runs it")
            return ask_program(self.runner, self.ran.heard, question.rule, None)
        finally:
            self.using.release()


EGG_TARGET = "auto"
"""A program is compiled for nothing; the spec wants a target."""


def _hint(limit: str) -> str:
    match limit:
        case "nodes" | "seconds" | "memory":
            return f"raise --egg-{limit}; what was reached can be looked at"
        case _:
            return ""


class _Teller:
    """Makes events of what a run tells, not too many of them."""

    def __init__(self, emit: Callable[[ev.AnyEvent], None]) -> None:
        self._emit = emit
        self._heard = Heard()
        self._waiting: list[StepDone] = []
        self._step_at = self._table_at = 0.0

    def hear(self, message: ProgramResponse) -> None:
        self._heard.hear(message)
        match message:
            case CommandDone():
                self._flush()
                self._emit(
                    ev.ProgramCommand(
                        number=message.number,
                        file=printable(message.file),
                        line=message.line,
                        kind=printable(message.kind, 40),
                        text=printable(message.text, 400),
                        outputs=message.outputs,
                        seconds=message.seconds,
                        steps=message.steps,
                    )
                )
            case StepDone():
                self._waiting.append(message)
                now = time.monotonic()
                if len(self._heard.steps) <= ALL_STEPS or now - self._step_at > STEP_SECONDS:
                    self._step_at = now
                    self._flush()
                if now - self._table_at > TABLE_SECONDS:
                    self._table_at = now
                    self._tell_table(message.nodes)
            case RulesDeclared():
                if not self._table_at:
                    self._table_at = time.monotonic()
            case _:
                pass

    def _flush(self) -> None:
        if not self._waiting:
            return
        last = self._waiting[-1]
        rulesets = {s.ruleset for s in self._waiting}
        self._emit(
            ev.SaturationStep(
                group=0,
                step=last.step,
                ruleset=printable(last.ruleset, 80) if len(rulesets) == 1 else "",
                seconds=sum(s.seconds for s in self._waiting),
                matches=sum(sum(s.matches.values()) for s in self._waiting),
                nodes=last.nodes,
            )
        )
        self._waiting.clear()

    def _tell_table(self, nodes: int) -> None:
        rows = program_rule_rows(self._heard)
        self._emit(
            ev.GroupSaturated(
                group=0, classes=0, nodes=nodes, seconds=sum(r.seconds for r in rows), overhead_seconds=0.0, rules=rows
            )
        )
