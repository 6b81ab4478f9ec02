"""The parent side of saturation: a child process with limits, one at a time, replaced when it has to be killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

import msgspec

from workbench import frames
from workbench.egraph.culprit import grown_fastest, named, ruleset_at_fault
from workbench.egraph.messages import (
    Culprit,
    LibraryLoaded,
    LoadLibrary,
    PremiseCount,
    Probe,
    ProbeBegun,
    Probed,
    ProbeDone,
    Refused,
    Request,
    Response,
    RuleInfo,
    Saturate,
    Saturated,
    StepBegun,
    StepDone,
    Stepped,
    XrayBegun,
    XrayRefused,
    XrayRequest,
    XrayResult,
)
from workbench.egraph.rules import RuleFile
from workbench.egraph.stepping import MEMORY, SECONDS
from workbench.errors import InputError, NotViableError, RuleError, printable

XRAY_SECONDS = 2.0
XRAY_GRACE_SECONDS = 0.25
"""What the child may take beyond its time to say where it stopped."""
CRASH = "crash"
LOADING_SECONDS = 60.0
WRITING_SECONDS = 120.0
"""What the child may take to write down an e-graph."""
AGAIN = 2.0
"""How many times the time limit a saturation may take that is known to end within it."""
RUNAWAY = 1.5
"""Growth from run to run from which a rule is taken for the one that ran away without being run alone."""
SHORTEST_PROBE, LONGEST_PROBE = 0.5, 10.0
"""Seconds that a rule run alone may take."""
_ENDS = {SECONDS: "does not come back within {seconds} s", MEMORY: "runs out of memory"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one saturation: e-nodes, wall seconds, and bytes of address space of the child. The child stops itself between
    steps; one that does not within `grace_seconds` more is killed."""

    nodes: int = 2_000_000
    seconds: float = 120.0
    memory_bytes: int = 8 << 30
    grace_seconds: float = 5.0


def in_bytes(amount: int) -> str:
    """An amount of memory in a unit that suits it."""
    return f"{amount / (1 << 30):.3g} GiB" if amount >= 1 << 30 else f"{amount / (1 << 20):.3g} MiB"


class SaturationStopped(NotViableError):
    """A limit stopped the child inside a step of `ruleset`, or it died there, after `steps` steps; `ruleset` is empty
    where it was before any step. `limit` names the limit."""

    def __init__(self, message: str, hint: str, limit: str, ruleset: str = "", steps: int = 0) -> None:
        super().__init__(message, hint)
        self.limit = limit
        self.ruleset = ruleset
        self.steps = steps


@dataclass(slots=True)
class _Doing:
    """What the child is at, and until when it may be (time.monotonic)."""

    deadline: float
    ruleset: str = ""
    steps: int = 0

    def hear(self, message: StepBegun | StepDone) -> None:
        if isinstance(message, StepBegun):
            self.ruleset = message.ruleset
        else:
            self.steps += 1


class Saturator:
    """Saturates programs over one rule library, the rules named in `without` left out. `rules` lists every rule,
    whether it fires or not."""

    def __init__(self, files: Sequence[RuleFile], limits: Limits | None = None, without: Sequence[str] = ()) -> None:
        self.files = files
        self.without = without
        self.limits = limits or Limits()
        self._process: subprocess.Popen[bytes] | None = None
        self._rules: list[RuleInfo] | None = None
        """None until the child has said what it loaded."""
        self._complaints: IO[bytes] | None = None
        """What the engine says on its own when it crashes; a terminal that shows an app is no place for it."""
        self._decoder: msgspec.msgpack.Decoder[Response] = msgspec.msgpack.Decoder(Response)

    def __enter__(self) -> Saturator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def rules(self) -> list[RuleInfo]:
        """Every rule of the library. Starts the child; raises RuleError (file:line) for a malformed file."""
        return self._start()

    def prepare(self) -> None:
        """Start the child without waiting for it, while there is other work to do."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._rules = None
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "workbench.egraph.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the parent, which ends the child
            env={**os.environ, "LUMINAL_SATURATION_BYTES": str(self.limits.memory_bytes), "RUST_BACKTRACE": "0"},
        )
        self._send(LoadLibrary([(f.name, f.text) for f in self.files], list(self.without)))

    def saturate(self, program: str, on_step: Callable[[StepDone], None] | None = None) -> Saturated:
        """Saturate one program. Where a limit ends it, `stopped` says so and `culprit` names the rule that ran away.
        When a step has to be killed, that is with the e-graph as it was before that step.

        Raises RuleError when egglog rejects it, SaturationStopped when even the program is more than the limits
        allow."""
        steps: list[StepDone] = []

        def hear(step: StepDone) -> None:
            steps.append(step)
            if on_step is not None:
                on_step(step)

        request = Saturate(program, self.limits.nodes, self.limits.seconds)
        try:
            result = self._saturated(request, hear)
        except SaturationStopped as death:
            if not death.ruleset:
                raise
            result = self._before(request, death)
            culprit = self._culprit_inside(program, steps[: result.steps], death)
            word = f"{self._limit_in_words(death.limit)} inside a step of ruleset '{printable(death.ruleset, 40)}'"
            return msgspec.structs.replace(result, limit=death.limit, stopped=word, culprit=culprit)
        if not result.limit:
            return result
        at_fault = ruleset_at_fault(steps, by_time=result.limit == SECONDS)
        culprit = grown_fastest(steps, at_fault, self.rules) if at_fault else None
        return msgspec.structs.replace(result, stopped=self._limit_in_words(result.limit), culprit=culprit)

    def _saturated(self, request: Saturate, hear: Callable[[StepDone], None]) -> Saturated:
        self._start()
        self._send(request)
        doing = self._doing(request.max_seconds)
        while True:
            match self._receive(doing):
                case StepBegun() as begun:
                    doing.hear(begun)
                case StepDone() as step:
                    doing.hear(step)
                    hear(step)
                case Stepped():
                    doing.deadline = time.monotonic() + WRITING_SECONDS
                case Saturated() as result:
                    return result
                case answer:
                    raise AssertionError(f"{type(answer).__name__} is no answer to a program")

    def _before(self, request: Saturate, death: SaturationStopped) -> Saturated:
        """What there was before the step that had to be killed, or, where that is too much as well, earlier."""
        for steps in dict.fromkeys((death.steps, death.steps * 3 // 4, death.steps // 2, 0)):
            # It took less than the limit before; it may take a little more now.
            again = msgspec.structs.replace(request, max_steps=steps, max_seconds=AGAIN * request.max_seconds)
            done: list[StepDone] = []
            with contextlib.suppress(SaturationStopped):
                result = self._saturated(again, done.append)
                return msgspec.structs.replace(result, steps=len(done))
        raise death

    def _culprit_inside(self, program: str, steps: Sequence[StepDone], death: SaturationStopped) -> Culprit | None:
        """The rule for which a step had to be killed: the only one of the ruleset, the one that grew before, or the one
        that does not come back alone."""
        own = [r for r in self.rules if r.ruleset == death.ruleset]
        if len(own) == 1:
            return named(own[0], f"is the only one of ruleset '{printable(death.ruleset, 40)}'")
        grown = grown_fastest(steps, death.ruleset, own)
        if grown is not None and grown.growth is not None and grown.growth >= RUNAWAY:
            return grown
        seconds = min(LONGEST_PROBE, max(SHORTEST_PROBE, self.limits.seconds / 4))
        return self._probed(program, own, death.steps, seconds) or grown

    def _probed(self, program: str, rules: Sequence[RuleInfo], steps: int, seconds: float) -> Culprit | None:
        """The first of the rules that does not come back within `seconds`, run alone after `steps` steps; if all do,
        the one that took longest."""
        self._start()
        longest = AGAIN * self.limits.seconds
        self._send(Probe(program, [r.name for r in rules], self.limits.nodes, longest, steps))
        doing = self._doing(longest)
        running: RuleInfo | None = None
        done: list[tuple[float, int, RuleInfo]] = []
        while True:
            try:
                answer = self._receive(doing)
            except SaturationStopped as death:
                if running is None:
                    return None
                how = _ENDS.get(death.limit, "crashes the engine").format(seconds=f"{seconds:g}")
                return named(running, f"{how}, run alone")
            match answer:
                case StepBegun() | StepDone():
                    doing.hear(answer)
                case ProbeBegun(rule):
                    running = next(r for r in rules if r.name == rule)
                    doing.deadline = time.monotonic() + seconds
                case ProbeDone(_, matches, took):
                    assert running is not None
                    done.append((took, matches, running))
                    doing.deadline = time.monotonic() + self.limits.grace_seconds
                case Probed():
                    took, matches, slowest = max(done, key=lambda each: each[:2])
                    return named(slowest, f"took longest, run alone: {took:.3g} s for {matches:,} matches")
                case _:
                    raise AssertionError(f"{type(answer).__name__} is no answer to a probe")

    def _limit_in_words(self, limit: str) -> str:
        limits = self.limits
        match limit:
            case "nodes":
                return f"node limit ({limits.nodes})"
            case "seconds":
                return f"time limit ({limits.seconds:g} s)"
            case "memory":
                return f"memory limit ({in_bytes(limits.memory_bytes)})"
            case _:
                return "a crash of the engine"

    def xray(
        self,
        program: str,
        rule: str,
        node: str | None = None,
        seconds: float = XRAY_SECONDS,
        max_steps: int | None = None,
    ) -> XrayResult:
        """The funnel of a rule's premises on the saturated e-graph of `program`, for all e-classes or for that of the
        global variable `node`. The program is saturated again unless the child just did, for `max_steps` steps where
        given; when a step has to be killed, up to that step.

        Past `seconds` (the saturation apart) it ends with what was counted, and the child is ended too where it does
        not stop. Raises InputError for a rule or a node that is not there, and what `saturate` raises."""
        info = next((r for r in self.rules if r.name == rule), None)
        if info is None:
            raise InputError(f"there is no rule '{printable(rule)}'")
        longest = self.limits.seconds * (1 if max_steps is None else AGAIN)
        request = XrayRequest(program, rule, node, self.limits.nodes, longest, seconds, max_steps)
        try:
            return self._xrayed(request, info)
        except SaturationStopped as death:
            if not death.ruleset or max_steps is not None:
                raise
            again = AGAIN * request.max_seconds
            return self._xrayed(msgspec.structs.replace(request, max_steps=death.steps, max_seconds=again), info)

    def _xrayed(self, request: XrayRequest, info: RuleInfo) -> XrayResult:
        self._start()
        self._send(request)
        doing, asking, fired = self._doing(request.max_seconds), False, 0
        counted: list[PremiseCount] = []
        while True:
            try:
                answer = self._receive(doing)
            except SaturationStopped:
                if not asking:
                    raise
                failing = next((i for i, p in enumerate(counted) if p.matches == 0), None)
                what = f"premise {len(counted) + 1}" if failing is None else "looking for the reason"
                word = f"{what} took more than {request.seconds:g} s or too much memory, and was ended"
                return XrayResult(
                    rule=info.name, file=info.file, line=info.line, node=request.node, root="", premises=counted,
                    first_failing=failing, stopped=word, fired=fired, seconds=request.seconds,
                )  # fmt: skip
            match answer:
                case StepBegun() | StepDone():
                    doing.hear(answer)
                case XrayBegun(fired):
                    asking, doing.deadline = True, time.monotonic() + request.seconds + XRAY_GRACE_SECONDS
                case PremiseCount():
                    counted.append(answer)
                case XrayResult():
                    return answer
                case XrayRefused(message):
                    raise InputError(message)
                case _:
                    raise AssertionError(f"{type(answer).__name__} is no answer to an X-ray")

    def _start(self) -> list[RuleInfo]:
        """The rules of the child, which runs then."""
        self.prepare()
        if self._rules is None:
            match self._receive(_Doing(time.monotonic() + LOADING_SECONDS), "while it loaded the rules"):
                case LibraryLoaded(rules):
                    self._rules = rules
                case _:
                    raise AssertionError("the child answers a load with its rules")
        return self._rules

    def _doing(self, seconds: float) -> _Doing:
        return _Doing(time.monotonic() + seconds * 1.2 + self.limits.grace_seconds)


    def _send(self, message: Request) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(frames.Closed):  # the answer says what happened
            frames.send(self._process.stdin, message)  # type: ignore[arg-type]

    def _receive(self, doing: _Doing, what: str = "while it read the program") -> Response:
        """The child's next answer. Raises RuleError for a refusal and SaturationStopped when it died or is killed."""
        assert self._process is not None
        assert self._process.stdout is not None
        if doing.ruleset:
            what = f"in ruleset '{doing.ruleset}'"
        try:
            frame = frames.receive(self._process.stdout, doing.deadline)  # type: ignore[arg-type]
        except frames.TimedOut:
            self.close()
            raise SaturationStopped(
                f"saturation was stopped {what}: it ran past {self.limits.seconds:g} s",
                "raise --egg-seconds", SECONDS, doing.ruleset, doing.steps,
            ) from None  # fmt: skip
        except frames.Closed:
            status, said = self._process.wait(), self._last_words()
            self.close()
            # An allocation that fails aborts; a kernel short of memory kills.
            limit = MEMORY if -status in (signal.SIGABRT, signal.SIGKILL) else CRASH
            raise self._died(f"died {what} (status {status}{said})", doing, limit) from None
        answer = self._decoder.decode(frame)
        if isinstance(answer, Refused):
            self.close()  # a failing rule leaves partial writes
            if answer.out_of_memory:
                raise self._died(f"ran out of memory {what}", doing, MEMORY)
            raise RuleError(answer.message)
        return answer

    def _last_words(self) -> str:
        """What the engine said of its end."""
        assert self._complaints is not None
        self._complaints.seek(0)
        lines = self._complaints.read(1 << 16).decode(errors="replace").splitlines()
        said = next((line.strip() for line in lines if re.search("failed|panic|overflow", line)), "")
        return f": {printable(said, 100)}" if said else ""

    def _died(self, how: str, doing: _Doing, limit: str) -> SaturationStopped:
        room = f"its memory limit is {in_bytes(self.limits.memory_bytes)}: raise --egg-memory"
        hint = room if limit == MEMORY else "an overflow of the stack, if the program nests deeply"
        return SaturationStopped(f"the saturation process {how}", hint, limit, doing.ruleset, doing.steps)

    def close(self) -> None:
        """End the child."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, self._complaints):
                if pipe is not None:
                    pipe.close()
