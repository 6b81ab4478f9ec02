"""Messages between the session and the saturation child."""

from __future__ import annotations

import msgspec

from workbench.egraph.snapshot import SnapshotData


class LoadLibrary(msgspec.Struct, frozen=True, tag="load"):
    """(name, text) of each rule file, in loading order. The rules named in `without` are left out."""

    files: list[tuple[str, str]]
    without: list[str] = []


class Saturate(msgspec.Struct, frozen=True, tag="saturate"):
    """Run the schedule on `program` over the loaded library, or the first `max_steps` steps of it."""

    program: str
    max_nodes: int
    max_seconds: float
    max_steps: int | None = None


class XrayRequest(msgspec.Struct, frozen=True, tag="xray"):
    """X-ray `rule` on the saturated e-graph of `program`, for all e-classes or for that of the global variable `node`.

    The e-graph of the program saturated last is used again; else the program is saturated first, within the limits.
    `seconds` bounds the X-ray alone."""

    program: str
    rule: str
    node: str | None
    max_nodes: int
    max_seconds: float
    seconds: float
    max_steps: int | None = None


class Probe(msgspec.Struct, frozen=True, tag="probe"):
    """Run each of `rules` alone on the e-graph of `program` after `max_steps` steps: which of them does not come
    back?"""

    program: str
    rules: list[str]
    max_nodes: int
    max_seconds: float
    max_steps: int | None


Request = LoadLibrary | Saturate | XrayRequest | Probe


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
    """One run of one ruleset: matches and seconds by rule, and the e-graph's size after it. `rebuild_seconds` is time
    behind the rules: merging what they made and restoring congruence. `added` is by how many e-nodes the e-graph grew;
    `sizes` are the rows of each function, of those whose number changed since the step before."""

    step: int
    ruleset: str
    seconds: float
    matches: dict[str, int]
    rule_seconds: dict[str, float]
    nodes: int
    rebuild_seconds: float = 0.0
    added: int = 0
    sizes: dict[str, int] = {}


class Stepped(msgspec.Struct, frozen=True, tag="stepped"):
    """The schedule is over; what is left is to write the e-graph down."""


class Culprit(msgspec.Struct, frozen=True):
    """The rule on which a saturation ran away. `growth` is how many times more it matched (or took) from one run of its
    ruleset to the next, where it ran more than once; `text` says the whole in words."""

    rule: str
    ruleset: str
    file: str
    line: int
    growth: float | None
    text: str


class Saturated(msgspec.Struct, frozen=True, tag="saturated"):
    """`engine_seconds` is time inside egglog's run, `total_seconds` all the child spent on this program. `limit` names
    the limit that ended it, or is empty; `stopped` says it in words."""

    snapshot: SnapshotData
    engine_seconds: float
    total_seconds: float
    limit: str = ""
    stopped: str = ""
    culprit: Culprit | None = None
    steps: int | None = None
    """After how many steps this is, where the one behind them had to be killed."""


class XrayBegun(msgspec.Struct, frozen=True, tag="xray_begun"):
    """The e-graph is there; what follows is within the X-ray's own time."""

    fired: int
    """Matches of the rule while the program was saturated."""


class PremiseCount(msgspec.Struct, frozen=True, tag="premise"):
    """One premise of a rule, as its source has it. `matches` is what `counts` says, of the premises up to this one;
    None where the X-ray stopped before it."""

    text: str
    matches: int | None
    counts: str


class XrayResult(msgspec.Struct, frozen=True, kw_only=True, tag="xrayed"):
    """The funnel of a rule. `first_failing` is the place, from 0, of the first premise that no binding survives; for
    it, `wanted` is the part that fails first, `at` where in the premise that is, `found_instead` what stands there,
    under `binding`, one that survived the premises before. With a `node`, the variable `root` was bound to its e-class.
    `stopped` says why it ended early."""

    rule: str
    file: str
    line: int
    node: str | None
    root: str
    premises: list[PremiseCount]
    first_failing: int | None
    wanted: str = ""
    at: str = ""
    found_instead: str = ""
    binding: dict[str, str] = {}
    stopped: str = ""
    fired: int = 0
    seconds: float = 0.0


class XrayRefused(msgspec.Struct, frozen=True, tag="xray_refused"):
    """The question makes no sense; `message` says why. The child goes on."""

    message: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """egglog rejected the text; `message` begins with file:line. With `out_of_memory` the child ends."""

    message: str
    out_of_memory: bool = False


class ProbeBegun(msgspec.Struct, frozen=True, tag="probe_begun"):
    rule: str


class ProbeDone(msgspec.Struct, frozen=True, tag="probe_done"):
    """A rule came back, run alone once."""

    rule: str
    matches: int
    seconds: float


class Probed(msgspec.Struct, frozen=True, tag="probed"):
    """All rules of a Probe came back."""


Response = (
    LibraryLoaded
    | StepBegun
    | StepDone
    | Stepped
    | Saturated
    | XrayBegun
    | PremiseCount
    | XrayResult
    | XrayRefused
    | ProbeBegun
    | ProbeDone
    | Probed
    | Refused
)
