"""Messages between the session and the saturation child."""

from __future__ import annotations

import msgspec

from workbench.egraph.snapshot import SnapshotData


class LoadLibrary(msgspec.Struct, frozen=True, tag="load"):
    """(name, text) of each rule file, in loading order."""

    files: list[tuple[str, str]]


class Saturate(msgspec.Struct, frozen=True, tag="saturate"):
    """Run the schedule on `program` over the loaded library."""

    program: str
    max_nodes: int
    max_seconds: float


Request = LoadLibrary | Saturate


class RuleInfo(msgspec.Struct, frozen=True):
    """One parsed rule. `name` is unique: its own, or file:line where it has none."""

    name: str
    ruleset: str
    file: str
    line: int


class LibraryLoaded(msgspec.Struct, frozen=True, tag="loaded"):
    rules: list[RuleInfo]
    seconds: float


class StepBegun(msgspec.Struct, frozen=True, tag="begun"):
    """A ruleset is about to run: what is said of a step that never ends."""

    ruleset: str


class StepDone(msgspec.Struct, frozen=True, tag="step"):
    """One run of one ruleset: matches and seconds by rule, and the e-graph's size after it."""

    step: int
    ruleset: str
    seconds: float
    matches: dict[str, int]
    rule_seconds: dict[str, float]
    nodes: int


class Saturated(msgspec.Struct, frozen=True, tag="saturated"):
    """`engine_seconds` is time inside egglog's run, `total_seconds` all the child spent on this program."""

    snapshot: SnapshotData
    engine_seconds: float
    total_seconds: float
    stopped: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """egglog rejected the text; `message` begins with file:line."""

    message: str


Response = LibraryLoaded | StepBegun | StepDone | Saturated | Refused
