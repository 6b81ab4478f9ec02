"""Messages between the session and the child that runs a whole egglog program."""

from __future__ import annotations

from typing import Literal

import msgspec

from workbench.egraph.messages import PremiseCount, RuleInfo, StepBegun, StepDone, XrayBegun, XrayRefused, XrayResult
from workbench.egraph.snapshot import SnapshotData

Outcome = Literal["ok", "failed", "stopped"]


class Stop(msgspec.Struct, frozen=True):
    """Where to stop: how many commands may begin, and how many steps may be made."""

    commands: int
    steps: int | None = None


class RunProgram(msgspec.Struct, frozen=True, kw_only=True, tag="run_program"):
    """Run the program `text` of the file `name` in a new e-graph. Files are touched only below `directory`, and those
    in `written` may be written to again, unless `allow_files`. `stop` repeats a run up to a point, without writing."""

    name: str
    text: str
    directory: str
    allow_files: bool
    written: list[str] = []
    max_nodes: int
    stop: Stop | None = None


class Halt(msgspec.Struct, frozen=True, tag="halt"):
    """Stop before the next step or command, for `reason`."""

    reason: str


class AskRule(msgspec.Struct, frozen=True, tag="ask_rule"):
    """X-ray a rule on the e-graph that the program left, at the global variable `node` or at all e-classes."""

    rule: str
    node: str | None
    seconds: float


ProgramRequest = RunProgram | Halt | AskRule


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The child has started."""


class CommandBegun(msgspec.Struct, frozen=True, tag="command_begun"):
    """A command is about to run: what is said of one that never ends. `number` counts all commands from 0."""

    number: int
    file: str
    line: int
    kind: str


class CommandDone(msgspec.Struct, frozen=True, kw_only=True, tag="command_done"):
    """A command that did more than declare. `outputs` are egglog's own words, each cut at a limit that it names."""

    number: int
    file: str
    line: int
    kind: str
    text: str
    outputs: list[str]
    seconds: float
    steps: int


class RulesDeclared(msgspec.Struct, frozen=True, tag="rules_declared"):
    """Rules since the last of these, and the rulesets of each combined ruleset."""

    rules: list[RuleInfo]
    combined: dict[str, list[str]]


class FunctionInfo(msgspec.Struct, frozen=True):
    """A function as the program left it. `kind` is constructor, function or relation."""

    name: str
    kind: str
    inputs: list[str]
    output: str
    rows: int


class ProgramEnded(msgspec.Struct, frozen=True, kw_only=True, tag="program_ended"):
    """How the program ended. `error` says what failed, without the place; `limit` what stopped it (nodes, memory, or
    the reason of a Halt). `number` is that of the command it ended in. `written` are files that it made."""

    outcome: Outcome
    error: str = ""
    file: str = ""
    line: int = 0
    kind: str = ""
    limit: str = ""
    number: int = 0
    steps: int = 0
    snapshot: SnapshotData | None
    functions: list[FunctionInfo]
    engine_seconds: float
    total_seconds: float
    written: list[str]


class Ending(msgspec.Struct, frozen=True, tag="ending"):
    """The program is over; a snapshot of what it left is being taken. `ended` is all but that."""

    ended: ProgramEnded


ProgramResponse = (
    Ready
    | Ending
    | CommandBegun
    | CommandDone
    | RulesDeclared
    | StepBegun
    | StepDone
    | ProgramEnded
    | XrayBegun
    | PremiseCount
    | XrayResult
    | XrayRefused
)
