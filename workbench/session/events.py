"""The one stream of typed events that feeds every pane, the headless output, the log on disk and replay.

One JSON object per line. `type` says which event it is; `at` is seconds since the session was first opened. The
first event of a session is `SessionOpened`, which carries `VERSION`; a reader refuses a newer version.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from workbench.session.eclass import EClassPage

VERSION = 2

STAGES = ("import", "split", "emit", "saturate", "search", "stitch", "verify")
"""Stages of a session in order; `Restarted.stage` names the first that runs again."""


class Event(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    """Base of all events."""

    at: float = 0.0


class SessionOpened(Event, frozen=True, kw_only=True, tag="session_opened"):
    """A session starts, or is resumed (`resumed`)."""

    version: int = VERSION
    model: str
    target: str
    strategy: str
    seed: int
    limit: int
    breaks: str
    pid: int
    resumed: bool = False
    device: str = ""
    kind: str = "compile"
    """What the session does: `compile` a model, or run one `egg` program."""


class StageStarted(Event, frozen=True, kw_only=True, tag="stage_started"):
    stage: str
    detail: str = ""


class StageProgress(Event, frozen=True, kw_only=True, tag="stage_progress"):
    stage: str
    done: int
    total: int
    detail: str = ""


class StageFinished(Event, frozen=True, kw_only=True, tag="stage_finished"):
    stage: str
    seconds: float


class Restarted(Event, frozen=True, kw_only=True, tag="restarted"):
    """Everything from `stage` on is being done again; panes forget what came from there. `group` limits it to one."""

    stage: str
    reason: str
    seed: int
    group: int | None = None


class PointInfo(msgspec.Struct, frozen=True):
    """Values of the named dimensions to search at: those that tell this point from the others. `ranges` are the least
    and the largest values of the runs that take what is found here; None where there is no largest."""

    dims: dict[str, int]
    ranges: dict[str, tuple[int, int | None]] = {}


class GraphImported(Event, frozen=True, kw_only=True, tag="graph_imported"):
    """The model is in HLIR. Shapes are display text (`[1, 16, 64]`)."""

    nodes: int
    onnx_nodes: int
    inputs: list[tuple[str, str, str]]
    """(name, shape, dtype)"""
    outputs: list[tuple[str, str, str]]
    parameters: int
    dims: dict[str, int]
    """The representative values of the named dimensions."""
    points: list[PointInfo] = []
    """Where kernels are searched, the representative first; empty where that is the only one."""


class ChunkInfo(msgspec.Struct, frozen=True):
    """One chunk. `inputs`/`outputs` are node ids of its boundary; `begins_at` names the break it starts behind."""

    index: int
    nodes: int
    inputs: list[int]
    outputs: list[int]
    begins_at: str


class ChunksSplit(Event, frozen=True, kw_only=True, tag="chunks_split"):
    chunks: list[ChunkInfo]
    breaks: list[int]
    """HLIR ids of the nodes behind which the graph is cut."""
    mode: str


class GroupInfo(msgspec.Struct, frozen=True):
    """Chunks whose programs are the same. `representative` is the member that is saturated and searched, at `points`
    points: those of the model, or fewer where the program does not have all of the dimensions that they differ in."""

    index: int
    representative: int
    members: list[int]
    nodes: int
    digest: str
    points: int = 1


class GroupsFormed(Event, frozen=True, kw_only=True, tag="groups_formed"):
    groups: list[GroupInfo]


class RuleRow(msgspec.Struct, frozen=True):
    """One rule's statistics in one group, sums over all steps. `matches` counts matches found, not facts added.
    `steps` is the sparkline: matches per step in which the rule's ruleset ran. `first_step` and `last_step` are the
    steps of the saturation in which it fired first and last; None where it never did. `enodes` counts the e-nodes that
    it made first, `unions` those of them that joined an e-class which was there already; None where not known."""

    name: str
    category: str
    ruleset: str
    file: str
    line: int
    matches: int
    seconds: float
    steps: list[int] = []
    first_step: int | None = None
    last_step: int | None = None
    enodes: int | None = None
    unions: int | None = None


class SaturationStep(Event, frozen=True, kw_only=True, tag="saturation_step"):
    """One run of one ruleset in a group's e-graph. `rebuild_seconds` is time behind the rules: merging what they made,
    restoring congruence. `added` is by how many e-nodes the e-graph grew; `sizes` are the rows of those functions whose
    number of rows changed, in the first step of all."""

    group: int
    step: int
    ruleset: str
    seconds: float
    matches: int
    nodes: int
    rebuild_seconds: float = 0.0
    added: int = 0
    sizes: dict[str, int] = {}


class Culprit(msgspec.Struct, frozen=True):
    """The rule on which a saturation ran away. `growth` is the factor from one run of its ruleset to the next; `text`
    is the sentence for people, with the rule's name and place."""

    rule: str
    ruleset: str
    file: str
    line: int
    growth: float | None
    text: str


class GroupSaturated(Event, frozen=True, kw_only=True, tag="group_saturated"):
    """`seconds` is the engine's own time in the child, `overhead_seconds` what Python spent around it. `stopped` says
    which limit ended it, or is empty when saturated; `culprit` is the rule that ran away then, and `steps` after how
    many steps the e-graph is that was kept."""

    group: int
    classes: int
    nodes: int
    seconds: float
    overhead_seconds: float
    rules: list[RuleRow]
    stopped: str = ""
    culprit: Culprit | None = None
    steps: int | None = None
    rules_digest: str = ""
    """Names the content of the rule library that this is with."""


class SearchStarted(Event, frozen=True, kw_only=True, tag="search_started"):
    """`choices` is the number of e-classes with more than one viable e-node; `space_log10` the size of the space.
    `dims` and `ranges` are of the point that is searched at, as in PointInfo, as far as the group depends on it; a
    group's points are numbered from 0 on."""

    group: int
    point: int = 0
    dims: dict[str, int] = {}
    ranges: dict[str, tuple[int, int | None]] = {}
    limit: int
    choices: int
    space_log10: float
    members: int


class CandidateEvaluated(Event, frozen=True, kw_only=True, tag="candidate_evaluated"):
    """One candidate genome went through the steps. `reason` is empty when it was profiled; else why it was rejected,
    with `step` the step that did it (extract, memory, compile, run, verify, profile)."""

    group: int
    point: int = 0
    index: int
    genome: str
    parent: str
    generation: int
    step: str
    reason: str = ""
    detail: str = ""
    ms: float | None = None
    p20_ms: float | None = None
    p80_ms: float | None = None
    memory_bytes: int = 0
    kernels: int = 0
    seconds: dict[str, float] = {}
    """Wall seconds by step."""


class BestImproved(Event, frozen=True, kw_only=True, tag="best_improved"):
    group: int
    point: int = 0
    index: int
    ms: float
    first_ms: float


class SearchFinished(Event, frozen=True, kw_only=True, tag="search_finished"):
    group: int
    point: int = 0
    candidates: int
    profiled: int
    rejected: dict[str, int]
    first_ms: float | None
    best_ms: float | None
    seconds: float


class Stitched(Event, frozen=True, kw_only=True, tag="stitched"):
    """The whole program at a point: its place in `GraphImported.points`. `general` where its kernels serve other values
    of the named dimensions too, by one code; where they do not, `refused` says why each is compiled for."""

    point: int = 0
    kernels: int
    buffers: int
    arena_bytes: int
    general: bool = False
    refused: str = ""


class KernelRow(msgspec.Struct, frozen=True):
    """One distinct kernel of the stitched program. `ms` is its total time in one run of the whole."""

    name: str
    calls: int
    ms: float
    gflops: float
    gbps: float


class Verified(Event, frozen=True, kw_only=True, tag="verified"):
    """The stitched program against the interpreter (and expected outputs where given). Errors are absolute, and
    relative to the largest expected magnitude of the output; `tolerance` says how far off the least exact output may
    be (`0.0039 relative, f16`). `point` as in Stitched."""

    point: int = 0
    ok: bool
    max_abs_err: float
    max_rel_err: float
    reference: str
    tolerance: str = ""


class Measured(Event, frozen=True, kw_only=True, tag="measured"):
    """Latency of the stitched program, milliseconds. `point` as in Stitched."""

    point: int = 0
    median: float
    p20: float
    p80: float
    runs: int
    kernels: list[KernelRow]
    summed: bool = False
    """Whether each chunk was timed alone, and these are sums over all chunks."""


class Paused(Event, frozen=True, kw_only=True, tag="paused"):
    pass


class Resumed(Event, frozen=True, kw_only=True, tag="resumed"):
    pass


class Cancelled(Event, frozen=True, kw_only=True, tag="cancelled"):
    """The user stopped the running work; what was reached stays."""

    stage: str


class Failed(Event, frozen=True, kw_only=True, tag="failed"):
    """A stage could not go on. `message` says what and where, `hint` what to do. The session stays open. Where a rule
    file is at fault, `file` is its path under its library and `line` where in it, 0 when not known. `kept`: what the
    run before had reached is there again, and can be searched."""

    stage: str
    message: str
    hint: str = ""
    file: str = ""
    line: int = 0
    kept: bool = False


class RulesOnDisk(Event, frozen=True, kw_only=True, tag="rules_on_disk"):
    """How the rule files stand against those of the last saturation. `changed` are the files that were edited, added
    or removed since, as paths under their library; none: the rules are the same again. `error` says why they cannot
    be used, with the place as in Failed. `refused`: a saturation was asked for, and not begun because of it."""

    changed: list[str] = []
    error: str = ""
    file: str = ""
    line: int = 0
    refused: bool = False


class PremiseRow(msgspec.Struct, frozen=True):
    """One premise of a rule as written. `matches` is how many of what `counts` says survive the premises up to this
    one; None where the X-ray stopped before it."""

    text: str
    matches: int | None
    counts: str


class XrayDone(Event, frozen=True, kw_only=True, tag="xray_done"):
    """A rule's premises on the saturated e-graph of a group; with a `node`, the rule's variable `root` is bound to its
    e-class (`variable` in the program). `first_failing` is the place, from 0, of the first premise that nothing
    survives: `wanted` is the part of it that fails first, `place` where that is, `found_instead` what stands there,
    under `binding`, one that survived the premises before. `fired` counts matches in the saturation. `stopped` says why
    the counting ended early, `error` why the question has no answer; `note` is what else to know."""

    rule: str
    file: str = ""
    line: int = 0
    group: int | None
    """None: the question is about an egglog program."""
    node: int | None = None
    variable: str | None = None
    root: str = ""
    premises: list[PremiseRow] = []
    first_failing: int | None = None
    wanted: str = ""
    place: str = ""
    found_instead: str | None = None
    binding: dict[str, str] = {}
    fired: int = 0
    stopped: str = ""
    note: str = ""
    error: str = ""
    seconds: float = 0.0


class ProgramRead(Event, frozen=True, kw_only=True, tag="program_read"):
    """The text of an egglog program was read, and is about to run; it is the program of chunk 0."""

    file: str
    lines: int


class ProgramAt(Event, frozen=True, kw_only=True, tag="program_at"):
    """An egglog program is at this command. Not every command is told."""

    file: str
    line: int
    kind: str


class ProgramCommand(Event, frozen=True, kw_only=True, tag="program_command"):
    """A command of an egglog program did its work. `outputs` are egglog's own words, `steps` runs of rulesets in it."""

    number: int
    file: str
    line: int
    kind: str
    text: str
    outputs: list[str]
    seconds: float
    steps: int


class FunctionRow(msgspec.Struct, frozen=True):
    """A function of an e-graph. `kind` is constructor, function or relation (without `output`); `sizes` are its rows
    over the steps, in few enough points to draw."""

    name: str
    kind: str
    inputs: list[str]
    output: str
    rows: int
    sizes: list[int]


class RulesetRow(msgspec.Struct, frozen=True):
    """A ruleset over all its runs. `seconds` are those of its rules; `nodes` the e-graph's e-nodes after its runs, in
    few enough points to draw."""

    name: str
    rules: int
    runs: int
    matches: int
    seconds: float
    nodes: list[int]


class ProgramFinished(Event, frozen=True, kw_only=True, tag="program_finished"):
    """An egglog program is over. `outcome` is ok, failed (`error`, at file:line), or stopped: `stopped` says by what,
    at file:line, and the rest is what was reached. `warnings` are the engine's."""

    outcome: str
    error: str = ""
    stopped: str = ""
    file: str = ""
    line: int = 0
    commands: int
    steps: int
    classes: int
    nodes: int
    functions: list[FunctionRow]
    rulesets: list[RulesetRow]
    warnings: list[str]
    seconds: float
    """Inside the engine."""


class LogLine(Event, frozen=True, kw_only=True, tag="log"):
    level: str
    module: str
    message: str


class SessionFinished(Event, frozen=True, kw_only=True, tag="session_finished"):
    """All stages are done; `report` is the path of report.json, `ok` its verdict."""

    ok: bool
    seconds: float
    report: str


AnyEvent = (
    SessionOpened
    | StageStarted
    | StageProgress
    | StageFinished
    | Restarted
    | GraphImported
    | ChunksSplit
    | GroupsFormed
    | SaturationStep
    | GroupSaturated
    | SearchStarted
    | CandidateEvaluated
    | BestImproved
    | SearchFinished
    | Stitched
    | Verified
    | Measured
    | Paused
    | Resumed
    | Cancelled
    | Failed
    | RulesOnDisk
    | XrayDone
    | ProgramRead
    | ProgramAt
    | ProgramCommand
    | ProgramFinished
    | LogLine
    | SessionFinished
)

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(AnyEvent)


def encode(event: Event) -> bytes:
    """One line of JSON, without the newline."""
    return _ENCODER.encode(event)


def decode(line: bytes) -> AnyEvent:
    """The event of one line. Raises msgspec.DecodeError for anything else, and for the log of a newer version."""
    event = _DECODER.decode(line)
    _check_version(event)
    return event


def _check_version(event: AnyEvent) -> None:
    if isinstance(event, SessionOpened) and event.version > VERSION:
        raise msgspec.ValidationError(f"the log is of version {event.version}, this program reads up to {VERSION}")


class Command(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    """Base of what a client asks of an engine."""


class Rerun(Command, frozen=True, kw_only=True, tag="rerun"):
    """Do `stage` and all after it again: `search` (key r) or `saturate` (key s). `new_seed` draws a new seed
    (key n)."""

    stage: str = "search"
    new_seed: bool = False


class TogglePause(Command, frozen=True, kw_only=True, tag="toggle_pause"):
    """Pause between candidates, or go on."""


class Cancel(Command, frozen=True, kw_only=True, tag="cancel"):
    """Stop the running work; what was reached stays."""


class ToggleBreak(Command, frozen=True, kw_only=True, tag="toggle_break"):
    """Add or remove a graph break behind HLIR node `node`, then split again and all after it."""

    node: int


class Xray(Command, frozen=True, kw_only=True, tag="xray"):
    """X-ray `rule` in `group`, at HLIR node `node` or at all e-classes; answered by XrayDone, whose `rule` and `node`
    are those asked for."""

    rule: str
    group: int | None = None
    node: int | None = None


class LookAtRules(Command, frozen=True, kw_only=True, tag="look_at_rules"):
    """Look at the rule files now, not when it is time to: one was just edited."""


class Explore(Command, frozen=True, kw_only=True, tag="explore"):
    """Show e-nodes of a group's e-graph: those of an e-class, its users, or what a rule made (`about`). The class is
    `eclass`, or that of HLIR node `node` or of the program's `variable`, or else the root's. `member` is the chunk
    whose HLIR ids are meant. `filter` holds words that a row must have. Answered by Explored, to who asked alone."""

    id: int = 0
    about: Literal["class", "users", "rule"] = "class"
    group: int | None = None
    member: int | None = None
    node: int | None = None
    variable: str = ""
    eclass: int | None = None
    rule: str = ""
    offset: int = 0
    limit: int = 100
    filter: str = ""


class Explored(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="explored"):
    """The answer to the Explore of that `id`; no event: it is not in the log. `error` says why there is no `page`."""

    id: int
    page: EClassPage | None = None
    error: str = ""


class Shutdown(Command, frozen=True, kw_only=True, tag="shutdown"):
    """End the engine process once the running step is over."""


AnyCommand = Rerun | TogglePause | Cancel | ToggleBreak | Xray | Explore | LookAtRules | Shutdown
_MESSAGE_DECODER = msgspec.json.Decoder(AnyEvent | Explored)


def decode_message(line: bytes) -> AnyEvent | Explored:
    """What an engine sent in one line. Raises msgspec.DecodeError as `decode` does."""
    message: AnyEvent | Explored = _MESSAGE_DECODER.decode(line)
    if not isinstance(message, Explored):
        _check_version(message)
    return message


_COMMAND_DECODER = msgspec.json.Decoder(AnyCommand)


def decode_command(line: bytes) -> AnyCommand:
    """The command of one line. Raises msgspec.ValidationError for anything else."""
    return _COMMAND_DECODER.decode(line)


class NodeRow(msgspec.Struct, frozen=True):
    """One HLIR node as the graph pane shows it, from `chunk_N.json` in the session. `line` is its 1-based line in the
    chunk's egglog program, or 0."""

    id: int
    name: str
    shape: str
    dtype: str
    label: str
    operands: list[tuple[int, str]]
    """(source node, layout text)"""
    line: int
    is_break: bool = False


def to_builtins(event: Any) -> Any:
    """An event or row as plain Python data."""
    return msgspec.to_builtins(event)
