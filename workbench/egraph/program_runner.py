"""The parent side of running an egglog program: a child process with limits, killed where it does not stop itself."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from workbench import frames
from workbench.egraph.culprit import grown_fastest, named, ruleset_at_fault
from workbench.egraph.messages import (
    Culprit,
    PremiseCount,
    RuleInfo,
    StepBegun,
    StepDone,
    XrayBegun,
    XrayRefused,
    XrayResult,
)
from workbench.egraph.program_messages import (
    AskRule,
    CommandBegun,
    CommandDone,
    Ending,
    Halt,
    ProgramEnded,
    ProgramRequest,
    ProgramResponse,
    RulesDeclared,
    RunProgram,
    Stop,
)
from workbench.egraph.saturate import CRASH, XRAY_GRACE_SECONDS, XRAY_SECONDS, Limits, in_bytes
from workbench.egraph.stepping import MEMORY, NODES, SECONDS
from workbench.errors import InputError, ModelError, NotViableError, printable

PACKAGES = Path(__file__).resolve().parents[2]
"""Where this package is imported from."""
MAX_PROGRAM_BYTES = 64 << 20
POLL_SECONDS = 0.05
"""How often a wait looks whether it is cancelled."""
SNAPSHOT_SECONDS = 30.0
"""What taking a snapshot may take, at least."""
HALT_SECONDS = 1.0
"""What a child gets to come to the end of a step when it is cancelled."""
CANCELLED = "cancelled"
STARTING_SECONDS = 60.0
STARTING = "starting"
_OUT_OF_MEMORY = "memory allocation of"
_PANIC = "thread '"
_STACK = "overflowed its stack"
MOST_WARNINGS = 100


@dataclass(slots=True)
class Heard:
    """What a run has told so far: all there is where the child had to be killed."""

    rules: list[RuleInfo] = field(default_factory=list)
    combined: dict[str, list[str]] = field(default_factory=dict)
    steps: list[StepDone] = field(default_factory=list)
    commands: list[CommandDone] = field(default_factory=list)
    running: CommandBegun | None = None
    in_step: str | None = None
    """The ruleset of the step that has begun and not ended."""

    def hear(self, message: ProgramResponse) -> None:
        match message:
            case RulesDeclared(rules, combined):
                self.rules += rules
                self.combined = combined
            case CommandBegun():
                self.running, self.in_step = message, None
            case CommandDone():
                self.commands.append(message)
                self.running = self.in_step = None
            case StepBegun(ruleset):
                self.in_step = ruleset
            case StepDone():
                self.steps.append(message)
                self.in_step = None
            case _:
                pass


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that is over: how, and what was heard of it. `stopped` says in words what stopped it. Where the child had
    to be killed, the snapshot is of just before, or None where that could not be had again within the limits."""

    ended: ProgramEnded
    heard: Heard
    stopped: str
    warnings: list[str]
    culprit: Culprit | None = None
    """The rule that ran away, where a limit stopped the program."""


class _Died(Exception):
    """The child is gone."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit


def culprit_of(heard: Heard, limit: str) -> Culprit | None:
    """The rule for which a limit stopped a program: the only one of the ruleset that ran, or the one that grew fastest
    in it; None where no rule ran."""
    if limit == CANCELLED:
        return None
    steps = list(by_ruleset(heard))
    parts = heard.combined.get(heard.in_step, [heard.in_step]) if heard.in_step is not None else []
    own = [rule for rule in heard.rules if rule.ruleset in parts]
    if len(own) == 1:
        return named(own[0], f"is the only one of ruleset '{printable(own[0].ruleset, 40)}'")
    at_fault = parts or [r for r in [ruleset_at_fault(steps, by_time=limit == SECONDS)] if r is not None]
    grown = [c for ruleset in at_fault if (c := grown_fastest(steps, ruleset, heard.rules)) is not None]
    return max(grown, key=lambda c: c.growth or 0.0, default=None)


def by_ruleset(heard: Heard) -> Iterator[StepDone]:
    """The steps, those of a combined ruleset (or of a schedule that ran whole) taken apart by the rules' own."""
    ruleset_of = {rule.name: rule.ruleset for rule in heard.rules}
    for step in heard.steps:
        parts = heard.combined.get(step.ruleset, [step.ruleset])
        own = {ruleset_of.get(rule, step.ruleset) for rule in step.rule_seconds.keys() | step.matches.keys()}
        if own <= {step.ruleset} and parts == [step.ruleset]:
            yield step
            continue
        for ruleset in sorted(own | set(parts)):
            yield msgspec.structs.replace(
                step,
                ruleset=ruleset,
                matches={n: m for n, m in step.matches.items() if ruleset_of.get(n, step.ruleset) == ruleset},
                rule_seconds={n: s for n, s in step.rule_seconds.items() if ruleset_of.get(n, step.ruleset) == ruleset},
            )


def read_program(path: Path) -> str:
    """The text of a program. Raises ModelError for a file that cannot be read."""
    shown = printable(str(path))
    try:
        if path.is_dir():
            raise ModelError(f"{shown} is a directory, not an .egg file")
        if path.exists() and not path.is_file():
            raise ModelError(f"{shown} is not a regular file")
        if path.stat().st_size > MAX_PROGRAM_BYTES:
            raise ModelError(f"{shown}: over {MAX_PROGRAM_BYTES >> 20} MiB, too large for a program")
        return path.read_bytes().decode()
    except FileNotFoundError:
        raise ModelError(f"no such file: {shown}") from None
    except UnicodeDecodeError:
        raise ModelError(f"{shown}: not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {shown}: {getattr(error, 'strerror', None) or error}") from None


class ProgramRunner:
    """Runs one file, again and again as it changes, and answers questions about what the last run left.

    `path` is as the user gave it; files that the program names are relative to `working`, as for egglog. One thread at
    a time."""

    def __init__(self, path: str, working: str, limits: Limits, allow_files: bool = False) -> None:
        self.path = path
        self.working = working
        self.limits = limits
        self.allow_files = allow_files
        self.written: list[str] = []
        self._request: RunProgram | None = None
        """The last run, as the child can repeat it."""
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._errors_from = 0
        """Where in it the words of the present run begin."""
        self._decoder: msgspec.msgpack.Decoder[ProgramResponse] = msgspec.msgpack.Decoder(ProgramResponse)
        self._paused_at: float | None = None
        self._paused_seconds = 0.0

    def __enter__(self) -> ProgramRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self) -> str:
        """The program's text as it is now. Raises ModelError."""
        return read_program(Path(self.working) / self.path)

    def run(
        self,
        text: str,
        on_message: Callable[[ProgramResponse], None] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Ran:
        """Run `text`. Errors of the program, limits and cancelling are outcomes, not exceptions."""
        directory = os.path.dirname(os.path.realpath(os.path.join(self.working, self.path)))
        self._request = request = RunProgram(
            name=self.path,
            text=text,
            directory=directory,
            allow_files=self.allow_files,
            written=self.written,
            max_nodes=self.limits.nodes,
        )
        heard = Heard()

        def hear(message: ProgramResponse) -> None:
            heard.hear(message)
            if on_message is not None:
                on_message(message)

        began = time.monotonic()
        try:
            ended = self._run(request, hear, cancelled)
        except _Died as death:
            warnings, words = self._warnings(), f"{self._in_words(death.limit)}{self._where(heard)}"
            before = self._before(heard, death.limit, time.monotonic() - began)
            return Ran(before, heard, words, warnings, culprit_of(heard, death.limit))
        self.written = ended.written
        if ended.outcome != "stopped":
            return Ran(ended, heard, "", self._warnings())
        return Ran(ended, heard, self._in_words(ended.limit), self._warnings(), culprit_of(heard, ended.limit))

    def _before(self, heard: Heard, limit: str, seconds: float) -> ProgramEnded:
        """The e-graph as it was before what had to be killed, had again by a second run."""
        assert self._request is not None
        begun = heard.running.number if heard.running is not None else 0
        stop = Stop(begun + 1, len(heard.steps)) if heard.in_step is not None else Stop(begun)
        running = heard.running
        again: ProgramEnded | None = None
        self._request = msgspec.structs.replace(self._request, stop=stop)
        if limit != CANCELLED:
            with contextlib.suppress(_Died):
                again = self._run(self._request, lambda _: None, lambda: False)
        return ProgramEnded(
            outcome="stopped",
            limit=limit,
            file=running.file if running else self.path,
            line=running.line if running else 0,
            kind=running.kind if running else "",
            number=begun,
            steps=len(heard.steps),
            snapshot=again.snapshot if again else None,
            functions=again.functions if again else [],
            engine_seconds=sum(s.seconds + s.rebuild_seconds for s in heard.steps),
            total_seconds=seconds,
            written=self.written,
        )

    def _run(
        self, request: RunProgram, hear: Callable[[ProgramResponse], None], cancelled: Callable[[], bool]
    ) -> ProgramEnded:
        self._start()
        assert self._errors is not None
        self._errors_from = self._errors.seek(0, os.SEEK_END)
        self._send(request)
        self._paused_seconds = 0.0
        deadline = time.monotonic() + self.limits.seconds
        asked, reason = False, SECONDS
        ending: ProgramEnded | None = None
        while True:
            try:
                message = self._receive(deadline, cancelled if not asked and ending is None else None)
            except _Died:
                if ending is None:
                    raise
                return ending  # there was no room for the snapshot
            if isinstance(message, Ending):
                ending = message.ended
                deadline = time.monotonic() - self._away() + max(SNAPSHOT_SECONDS, self.limits.seconds)
                continue
            if message is None:
                if ending is not None:
                    self.close()
                    return ending
                if asked:
                    self.close()
                    raise _Died(reason)
                if cancelled():
                    self.resume()
                    reason, seconds = CANCELLED, HALT_SECONDS
                else:
                    seconds = self.limits.grace_seconds
                deadline = time.monotonic() - self._away() + seconds
                self._send(Halt(reason))
                asked = True
                continue
            if isinstance(message, ProgramEnded):
                self._paused_seconds = 0.0
                return message
            hear(message)

    def xray(self, rule: str, node: str | None = None, seconds: float = XRAY_SECONDS) -> XrayResult:
        """The funnel of a rule's premises on what the last run left. Past `seconds` it ends with what was counted.

        Raises InputError for a rule or node that is not there, NotViableError where there is no e-graph."""
        if self._request is None:
            raise InputError("the program has not run yet")
        if self._process is None or self._process.poll() is not None:
            try:
                self._run(self._request, lambda _: None, lambda: False)
            except _Died as death:
                raise NotViableError(f"there is no e-graph to ask: {self._in_words(death.limit)}") from None
        self._send(AskRule(rule, node, seconds))
        until = time.monotonic() + seconds + XRAY_GRACE_SECONDS + self.limits.grace_seconds
        counted: list[PremiseCount] = []
        fired = 0
        while True:
            try:
                message = self._receive(until)
                if message is None:
                    self.close()
                    raise _Died(SECONDS)
            except _Died:
                failing = next((i for i, p in enumerate(counted) if p.matches == 0), None)
                what = f"premise {len(counted) + 1}" if failing is None else "looking for the reason"
                return XrayResult(
                    rule=rule, file="", line=0, node=node, root="", premises=counted, first_failing=failing,
                    stopped=f"{what} took more than {seconds:g} s or too much memory, and was ended",
                    fired=fired, seconds=seconds,
                )  # fmt: skip
            match message:
                case XrayBegun(fired):
                    until = time.monotonic() + seconds + XRAY_GRACE_SECONDS
                case PremiseCount():
                    counted.append(message)
                case XrayResult():
                    return message
                case XrayRefused(said):
                    raise InputError(said)
                case _:
                    raise AssertionError(f"{type(message).__name__} is no answer to an X-ray")

    def pause(self) -> None:
        """Hold the child where it is; the time limit waits too."""
        if self._paused_at is None and self._process is not None:
            self._paused_at = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        if self._paused_at is not None:
            self._paused_seconds += time.monotonic() - self._paused_at
            self._paused_at = None
            if self._process is not None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(signal.SIGCONT)

    def _away(self) -> float:
        """Seconds of this run spent in pauses."""
        now = time.monotonic() - self._paused_at if self._paused_at is not None else 0.0
        return self._paused_seconds + now

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._errors = tempfile.TemporaryFile("a+b")  # noqa: SIM115  # a pipe that nobody reads would fill and hold the child
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "workbench.egraph.program_child"],  # -P: no modules from `working`
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            cwd=self.working,
            start_new_session=True,  # Ctrl-C is for the parent, which ends the child
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, (str(PACKAGES), os.environ.get("PYTHONPATH")))),
                "LUMINAL_SATURATION_BYTES": str(self.limits.memory_bytes),
                "RUST_BACKTRACE": "0",
            },
        )
        if self._receive(time.monotonic() + STARTING_SECONDS) is None:
            self.close()
            raise _Died(STARTING)

    def _send(self, message: ProgramRequest) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(frames.Closed):  # the answer says what happened
            frames.send(self._process.stdin, message)  # type: ignore[arg-type]

    def _receive(self, deadline: float, cancelled: Callable[[], bool] | None = None) -> ProgramResponse | None:
        """The next message; None past the deadline (pauses apart), or once cancelled. Raises _Died when the child is
        gone."""
        assert self._process is not None
        pipe = self._process.stdout
        assert pipe is not None
        while True:
            there = select.select([pipe], [], [], POLL_SECONDS)[0]
            if (cancelled is not None and cancelled()) or time.monotonic() - self._away() > deadline:
                return None
            if there:
                break
        try:
            return self._decoder.decode(frames.receive(pipe))  # type: ignore[arg-type]
        except frames.Closed:
            raise _Died(self._cause_of_death()) from None

    def _cause_of_death(self) -> str:
        assert self._process is not None
        self._process.wait()
        said = self._said()
        self.close(keep_errors=True)
        return MEMORY if _OUT_OF_MEMORY in said or "MemoryError" in said else CRASH

    def _said(self) -> str:
        if self._errors is None:
            return ""
        self._errors.seek(self._errors_from)
        return self._errors.read(1 << 20).decode(errors="replace")

    def _warnings(self) -> list[str]:
        """What the engine said aside, without its words on panics."""
        lines = [line.strip() for line in self._said().splitlines()]
        kept = [line for line in lines if line and not line.startswith((_PANIC, "note: ", "stack backtrace"))]
        return [printable(line, 400) for line in kept[:MOST_WARNINGS]]

    def _where(self, heard: Heard) -> str:
        if heard.in_step is not None:
            name = f" of ruleset '{printable(heard.in_step, 40)}'" if heard.in_step else ""
            return f" inside a step{name}"
        return f" inside ({printable(heard.running.kind, 40)} ..)" if heard.running else " while it was read"

    def _in_words(self, limit: str) -> str:
        said = {
            NODES: f"node limit ({self.limits.nodes})",
            SECONDS: f"time limit ({self.limits.seconds:g} s)",
            MEMORY: f"memory limit ({in_bytes(self.limits.memory_bytes)})",
            CANCELLED: CANCELLED,
            STARTING: f"{STARTING_SECONDS:g} s without its process having started",
        }
        if limit in said:
            return said[limit]
        return "a crash of the engine" + (", whose stack ran over" if _STACK in self._said() else "")

    def kill(self) -> None:
        """End the child under whoever waits for it, from any thread."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self, keep_errors: bool = False) -> None:
        """End the child."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        if self._errors is not None and not keep_errors:
            self._errors.close()
            self._errors = None
