"""A session on one egglog program: it runs as egglog runs it, with what every rule does and costs on record.

The command and the app (through the engine) run this class, as they run CompileSession on a model.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from workbench.egraph.messages import StepDone
from workbench.egraph.program_messages import CommandBegun, CommandDone, ProgramResponse, RulesDeclared
from workbench.egraph.program_runner import CANCELLED, Heard, ProgramRunner, Ran
from workbench.egraph.snapshot import Snapshot, SnapshotData
from workbench.errors import InputError, NotViableError, RuleError, SessionError, WorkbenchError, printable
from workbench.session import events as ev
from workbench.session.egg_tables import function_rows, program_rule_rows, ruleset_rows
from workbench.session.recorded import Recorded, Stopped
from workbench.session.saturation import kept_name, limits_of
from workbench.session.spec import EGG, SessionSpec, checked
from workbench.session.store import REPORT

PROGRAM = "chunks/chunk_0.egg"
"""The text that ran last, in the session."""
PROGRAM_DIGEST = "program"
"""The digest of the one group, under which its e-graph is kept for the explorer."""
READ = "read"
"""The kind of command that reading a file counts as."""
ALL_STEPS = 500
"""The first steps are told one by one, later ones added up."""
STEP_SECONDS, TABLE_SECONDS = 0.1, 1.0
"""How often then, and how often the rule table is told while the program runs."""
TRIED = {"check", "prove", "fail", "run", "run-schedule", "extract", "multi-extract", "keep-best", "print"}
"""Kinds of commands that are well-formed when they fail: what they say is not so, or their rules went wrong."""


class ProgramFailed(NotViableError):
    """A check does not hold, a rule panicked, nothing can be extracted, or a limit stopped the program."""


class KeptProgram(msgspec.Struct, frozen=True):
    """The e-graph that a program left, as the explorer reads it."""

    event: ev.GroupSaturated
    snapshot: SnapshotData


def signature(runner: ProgramRunner) -> tuple[int, int, int]:
    """What tells, without reading it, that a program's file has changed; zeros where it is not there."""
    try:
        status = os.stat(os.path.join(runner.working, runner.path))
    except OSError:
        return (0, 0, 0)
    return status.st_ino, status.st_size, status.st_mtime_ns


def digest(text: str) -> str:
    """A name for the text of a program."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class EggSession(Recorded):
    """One .egg file; `run` runs it, again after `restart` with what the file holds then.

    Raises WorkbenchError for options that cannot be, and SessionError as Recorded does."""

    def __init__(self, spec: SessionSpec, on_event: Callable[[ev.AnyEvent], None] | None = None) -> None:
        spec = checked(msgspec.structs.replace(spec, kind=EGG))
        absolute = os.path.abspath(os.path.join(spec.working, spec.model))
        beside = os.path.relpath(absolute, spec.working)
        self.name = absolute if beside.startswith("..") else beside
        """The file as messages call it."""
        self.runner = ProgramRunner(self.name, spec.working, limits_of(spec), spec.allow_files)
        self.using = threading.Lock()
        """Held while the runner is used: by a run, or by a question."""
        self.ran: Ran | None = None
        self.file_ran: tuple[int, int, int] | None = None
        """The signature of the file as it was read last."""
        self._failed_at = ("", 0)
        self._reached = False
        """Whether the present run got as far as to run something."""
        self._text = ""
        """What `ran` is of."""
        self._stale = False
        """Whether the child has read something else since."""
        super().__init__(spec, on_event)

    def _end_children(self) -> None:
        self.runner.close()

    def _opened(self, resumed: bool) -> ev.SessionOpened:
        spec = self.spec
        return ev.SessionOpened(
            model=spec.model,
            target=EGG,
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
            self._reached = False
            self.file_ran = signature(self.runner)
            text = self.runner.read()
            self.store.write(PROGRAM, text.encode())
            self._tell_begin(text)
            teller = _Teller(self.emit)
            with self.using:
                ran = self.runner.run(text, teller.hear, self._cancel.is_set)
                self._stale = ran.ended.kind == READ and ran.ended.number == 0 and self.ran is not None
                if not self._stale:
                    self.ran, self._text = ran, text
            self._tell_end(ran, digest(text))
            self._raise_what_came(ran)
        self.emit(ev.SessionFinished(ok=True, seconds=self.view.now, report=str(self._write_report())))
        return ran

    def _tell_begin(self, text: str) -> None:
        """What the panes and the explorer know a program by: it is one chunk, in one group."""
        lines = len(text.splitlines())
        if not self.view.groups:
            chunk = ev.ChunkInfo(index=0, nodes=lines, inputs=[], outputs=[], begins_at="")
            self.emit(ev.ChunksSplit(chunks=[chunk], breaks=[], mode=""))
            group = ev.GroupInfo(index=0, representative=0, members=[0], nodes=lines, digest=PROGRAM_DIGEST)
            self.emit(ev.GroupsFormed(groups=[group]))
        self.emit(ev.ProgramRead(file=printable(self.name), lines=lines))

    def _tell_end(self, ran: Ran, text_digest: str) -> None:
        ended, heard = ran.ended, ran.heard
        if ended.kind == READ and ended.number == 0 and self.view.before is not None:
            return  # nothing ran: what the run before made stays in view
        self._reached = True
        snapshot = Snapshot(ended.snapshot) if ended.snapshot is not None else None
        nodes = snapshot.node_count if snapshot else heard.steps[-1].nodes if heard.steps else 0
        classes = snapshot.class_count if snapshot else 0
        saturated = ev.GroupSaturated(
            group=0,
            classes=classes,
            nodes=nodes,
            seconds=ended.engine_seconds,
            overhead_seconds=max(0.0, ended.total_seconds - ended.engine_seconds),
            rules=program_rule_rows(heard, snapshot),
            stopped=ran.stopped,
            culprit=None if ran.culprit is None else ev.Culprit(**msgspec.structs.asdict(ran.culprit)),
            rules_digest=text_digest,
        )
        if ended.snapshot is not None:
            kept = KeptProgram(saturated, ended.snapshot)
            self.store.write(kept_name(PROGRAM_DIGEST, EGG, "last"), msgspec.msgpack.encode(kept))
        self.emit(saturated)
        self.emit(
            ev.ProgramFinished(
                outcome=ended.outcome,
                error=printable(ended.error, 2000),
                stopped=ran.stopped,
                file=printable(ended.file),
                line=ended.line,
                commands=ended.number,
                steps=ended.steps,
                classes=classes,
                nodes=nodes,
                functions=function_rows(heard, ended.functions),
                rulesets=ruleset_rows(heard),
                warnings=ran.warnings,
                seconds=ended.engine_seconds,
            )
        )
        self._write_report()

    def _raise_what_came(self, ran: Ran) -> None:
        ended = ran.ended
        if ended.outcome == "stopped" and ended.limit == CANCELLED:
            raise Stopped
        place = f"{printable(ended.file)}:{ended.line}: " if ended.line else f"{printable(ended.file)}: "
        if ended.outcome == "failed":
            self._failed_at = (printable(ended.file), ended.line)
            kind = ProgramFailed if ended.kind in TRIED else RuleError
            raise kind(f"{place}{printable(ended.error, 2000)}")
        if ended.outcome == "stopped":
            culprit = f"; {ran.culprit.text}" if ran.culprit is not None else ""
            raise ProgramFailed(f"{place}stopped at its {ran.stopped}{culprit}", _hint(ended.limit))

    def _write_report(self) -> object:
        from workbench.session.egg_report import program_report

        report = program_report(self.view, self.spec, self.store.directory)
        self.store.write(REPORT, msgspec.json.format(msgspec.json.encode(report), indent=2))
        return self.store / REPORT

    @contextmanager
    def told(self) -> Iterator[None]:
        """What ends the work inside, a cancel or an error, is told by an event, and raised on."""
        try:
            yield
        except Stopped:
            self.emit(ev.Cancelled(stage="saturate"))
            raise
        except WorkbenchError as error:
            file, line = self._failed_at
            kept = not self._reached
            self.emit(
                ev.Failed(stage="saturate", message=error.message, hint=error.hint, file=file, line=line, kept=kept)
            )
            raise
        finally:
            self._cancel.clear()
            self._failed_at = ("", 0)

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
            if self._stale:
                self.runner.run(self._text)
                self._stale = False
            return ask_program(self.runner, self.ran.heard, question.rule, None)
        finally:
            self.using.release()


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
        self._step_at = self._table_at = self._place_at = 0.0
        self._place: CommandBegun | None = None
        """Where the program is, where that is not told yet."""

    def hear(self, message: ProgramResponse) -> None:
        self._heard.hear(message)
        self._tell_place()
        match message:
            case CommandBegun():
                self._place = message
                self._tell_place()
            case CommandDone():
                self._place = None
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
                if now > self._table_at:
                    self._tell_table(message.nodes)
                    self._table_at = time.monotonic() + max(TABLE_SECONDS, 20 * (time.monotonic() - now))
            case RulesDeclared():
                if not self._table_at:
                    self._table_at = time.monotonic() + TABLE_SECONDS
            case _:
                pass

    def _tell_place(self) -> None:
        """Tell where the program is, not too often."""
        now = time.monotonic()
        if self._place is not None and now - self._place_at > STEP_SECONDS:
            place, self._place, self._place_at = self._place, None, now
            self._emit(ev.ProgramAt(file=printable(place.file), line=place.line, kind=printable(place.kind, 40)))

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
                rebuild_seconds=sum(s.rebuild_seconds for s in self._waiting),
                sizes={printable(n): rows for s in self._waiting for n, rows in s.sizes.items()},
            )
        )
        self._waiting.clear()

    def _tell_table(self, nodes: int) -> None:
        rows = program_rule_rows(self._heard, None)
        self._emit(
            ev.GroupSaturated(
                group=0, classes=0, nodes=nodes, seconds=sum(r.seconds for r in rows), overhead_seconds=0.0, rules=rows
            )
        )
