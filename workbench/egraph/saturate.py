"""The parent side of saturation: a child process with limits, one at a time, replaced when it has to be killed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from workbench import frames
from workbench.egraph.messages import (
    LibraryLoaded,
    LoadLibrary,
    PremiseCount,
    Refused,
    Response,
    RuleInfo,
    Saturate,
    Saturated,
    StepBegun,
    StepDone,
    XrayBegun,
    XrayRefused,
    XrayRequest,
    XrayResult,
)
from workbench.egraph.rules import RuleFile
from workbench.errors import InputError, NotViableError, RuleError, printable

XRAY_SECONDS = 2.0
XRAY_GRACE_SECONDS = 0.25
"""What the child may take beyond its time to say where it stopped."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one saturation: e-nodes, wall seconds, and bytes of address space of the child. The child stops itself between
    steps; one that does not within `grace_seconds` more is killed."""

    nodes: int = 2_000_000
    seconds: float = 120.0
    memory_bytes: int = 8 << 30
    grace_seconds: float = 5.0


class SaturationStopped(NotViableError):
    """A limit stopped the child inside a step, or it died."""


class Saturator:
    """Saturates programs over one rule library. `rules` lists every rule, whether it fires or not."""

    def __init__(self, files: Sequence[RuleFile], limits: Limits | None = None) -> None:
        self.files = files
        self.limits = limits or Limits()
        self._process: subprocess.Popen[bytes] | None = None
        self._rules: list[RuleInfo] | None = None
        """None until the child has said what it loaded."""
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
        self._rules = None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "workbench.egraph.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the parent, which ends the child
            env={**os.environ, "LUMINAL_SATURATION_BYTES": str(self.limits.memory_bytes)},
        )
        self._send(LoadLibrary([(f.name, f.text) for f in self.files]))

    def saturate(self, program: str, on_step: Callable[[StepDone], None] | None = None) -> Saturated:
        """Saturate one program.

        Raises RuleError when egglog rejects it, SaturationStopped when a step had to be killed."""
        self._start()
        self._send(Saturate(program, self.limits.nodes, self.limits.seconds))
        deadline = time.monotonic() + self.limits.seconds * 1.2 + self.limits.grace_seconds
        doing = "while it read the program"
        while True:
            match self._receive(deadline, doing):
                case StepBegun(ruleset):
                    doing = f"in ruleset '{ruleset}'"
                case StepDone() as step:
                    if on_step is not None:
                        on_step(step)
                case Saturated() as result:
                    return result
                case Refused(message):
                    self.close()  # a failing rule leaves partial writes
                    raise RuleError(message)
                case answer:
                    raise AssertionError(f"{type(answer).__name__} is no answer to a program")

    def xray(
        self, program: str, rule: str, node: str | None = None, seconds: float = XRAY_SECONDS
    ) -> XrayResult:
        """The funnel of a rule's premises on the saturated e-graph of `program`, for all e-classes or for that of the
        global variable `node`. The program is saturated again unless the child just did.

        Past `seconds` (the saturation apart) it ends with what was counted, and the child is ended too where it does
        not stop. Raises InputError for a rule or a node that is not there, and what `saturate` raises."""
        info = next((r for r in self.rules if r.name == rule), None)
        if info is None:
            raise InputError(f"there is no rule '{printable(rule)}'")
        self._send(XrayRequest(program, rule, node, self.limits.nodes, self.limits.seconds, seconds))
        deadline = time.monotonic() + self.limits.seconds * 1.2 + self.limits.grace_seconds
        doing, asking, fired = "while it read the program", False, 0
        counted: list[PremiseCount] = []
        while True:
            try:
                answer = self._receive(deadline, doing)
            except SaturationStopped:
                if not asking:
                    raise
                failing = next((i for i, p in enumerate(counted) if p.matches == 0), None)
                what = f"premise {len(counted) + 1}" if failing is None else "looking for the reason"
                word = f"{what} took more than {seconds:g} s or too much memory, and was ended"
                return XrayResult(
                    rule=rule, file=info.file, line=info.line, node=node, root="", premises=counted,
                    first_failing=failing, stopped=word, fired=fired, seconds=seconds,
                )  # fmt: skip
            match answer:
                case StepBegun(ruleset):
                    doing = f"in ruleset '{ruleset}'"
                case StepDone():
                    pass
                case XrayBegun(fired):
                    asking, deadline = True, time.monotonic() + seconds + XRAY_GRACE_SECONDS
                case PremiseCount():
                    counted.append(answer)
                case XrayResult():
                    return answer
                case XrayRefused(message):
                    raise InputError(message)
                case Refused(message):
                    self.close()
                    raise RuleError(message)
                case _:
                    raise AssertionError(f"{type(answer).__name__} is no answer to an X-ray")

    def _start(self) -> list[RuleInfo]:
        """The rules of the child, which runs then."""
        self.prepare()
        if self._rules is None:
            match self._receive(time.monotonic() + 60, "while it loaded the rules"):
                case LibraryLoaded(rules):
                    self._rules = rules
                case Refused(message):
                    self.close()
                    raise RuleError(message)
                case _:
                    raise AssertionError("the child answers a load with its rules")
        return self._rules

    def _send(self, message: LoadLibrary | Saturate | XrayRequest) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(frames.Closed):  # the answer says what happened
            frames.send(self._process.stdin, message)  # type: ignore[arg-type]

    def _receive(self, deadline: float, doing: str) -> Response:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            return self._decoder.decode(frames.receive(self._process.stdout, deadline))  # type: ignore[arg-type]
        except frames.TimedOut:
            self.close()
            raise SaturationStopped(
                f"saturation was stopped {doing}: one step ran past {self.limits.seconds:g} s", "raise --egg-seconds"
            ) from None
        except frames.Closed:
            status = self._process.wait()
            self.close()
            raise SaturationStopped(
                f"the saturation process died {doing} (status {status})",
                f"its memory limit is {self.limits.memory_bytes >> 30} GiB",
            ) from None

    def close(self) -> None:
        """End the child."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
