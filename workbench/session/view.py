"""What a session looks like now: the events folded into one state that the app, the report and replay share."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from workbench.session import events as ev
from workbench.session.runs import MOST_KEPT, Run, baseline_of


@dataclass(slots=True)
class SearchView:
    """The search of one group at one point: at `dims`, for runs in `ranges` (see events.PointInfo)."""

    dims: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    limit: int = 0
    members: int = 1
    choices: int = 0
    space_log10: float = 0.0
    candidates: list[ev.CandidateEvaluated] = field(default_factory=list)
    rejected: dict[str, int] = field(default_factory=dict)
    first_ms: float | None = None
    best_ms: float | None = None
    best_index: int | None = None
    best_curve: list[tuple[int, float]] = field(default_factory=list)
    """(candidate index, best so far in ms)"""
    started_at: float = 0.0
    finished: bool = False
    seconds: float = 0.0

    @property
    def done(self) -> int:
        """Candidates evaluated so far."""
        return len(self.candidates)

    @property
    def gain(self) -> float | None:
        """First over best: how many times faster the best is."""
        return self.first_ms / self.best_ms if self.first_ms and self.best_ms else None


@dataclass(slots=True)
class PointView:
    """The whole program at one point."""

    stitched: ev.Stitched | None = None
    verified: ev.Verified | None = None
    measured: ev.Measured | None = None


@dataclass(slots=True)
class SaturationView:
    """The e-graph of one group."""

    steps: list[ev.SaturationStep] = field(default_factory=list)
    result: ev.GroupSaturated | None = None


@dataclass(slots=True)
class Results:
    """What a run had reached when it was saturated again; it comes back where that fails."""

    saturation: dict[int, SaturationView]
    searches: dict[int, list[SearchView]]
    points: dict[int, PointView]
    finished: ev.SessionFinished | None
    timeline: dict[str, float]
    earlier: float
    run: int
    run_reason: str
    run_began_at: float
    program: ProgramView | None


@dataclass(slots=True)
class ProgramView:
    """An egglog program that runs or has run."""

    read: ev.ProgramRead
    commands: list[ev.ProgramCommand] = field(default_factory=list)
    dropped: int = 0
    """The first commands, where there are more than are kept."""
    at: ev.ProgramAt | None = None
    """Where it is, while it runs."""
    result: ev.ProgramFinished | None = None


MOST_COMMANDS = 10_000


@dataclass(slots=True)
class SessionView:
    """A session as its events tell it. `apply` each event in order."""

    opened: ev.SessionOpened | None = None
    graph: ev.GraphImported | None = None
    chunks: list[ev.ChunkInfo] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)
    breaks_mode: str = ""
    groups: list[ev.GroupInfo] = field(default_factory=list)
    saturation: dict[int, SaturationView] = field(default_factory=dict)
    searches: dict[int, list[SearchView]] = field(default_factory=dict)
    """By group, its searches at the points that it depends on, the representative's first."""
    points: dict[int, PointView] = field(default_factory=dict)
    """The whole program at each point; 0 is the representative."""
    failure: ev.Failed | None = None
    program: ProgramView | None = None
    xray: ev.XrayDone | None = None
    """The last answer about a rule."""
    finished: ev.SessionFinished | None = None
    stage: str = ""
    stage_detail: str = ""
    stage_started_at: float = 0.0
    progress: tuple[int, int] | None = None
    timeline: dict[str, float] = field(default_factory=dict)
    earlier: float = 0.0
    """Seconds in stages that were done again since."""
    seed: int = 0
    paused: bool = False
    cancelled: bool = False
    now: float = 0.0
    rules_on_disk: ev.RulesOnDisk | None = None
    """How the rule files differ from those of the last saturation, where they do."""
    run: int = 1
    run_reason: str = "opened"
    run_began_at: float = 0.0
    runs: list[Run] = field(default_factory=list)
    """Earlier runs that had saturated every group, the oldest first."""
    before: Results | None = None
    """What the last run had reached, while it is being saturated again."""
    log: list[ev.LogLine] = field(default_factory=list)

    def apply(self, event: ev.AnyEvent) -> None:
        """Fold one event in."""
        self.now = max(self.now, event.at)
        match event:
            case ev.SessionOpened():
                if not event.resumed or self.opened is None:
                    log = self.log
                    self.__init__()  # type: ignore[misc]
                    self.log = log
                else:
                    if self.stage:  # the process before ended in the middle of it
                        self.earlier += self.now - self.stage_started_at
                    self._forget("import")
                    self.rules_on_disk = None
                self.opened, self.seed, self.now = event, event.seed, max(self.now, event.at)
            case ev.StageStarted():
                self.stage, self.stage_detail, self.stage_started_at = event.stage, event.detail, event.at
                self.progress = None
                if event.stage == "search":
                    self.before = None
            case ev.StageProgress():
                self.progress, self.stage_detail = (event.done, event.total), event.detail
            case ev.StageFinished():
                self.timeline[event.stage] = self.timeline.get(event.stage, 0.0) + event.seconds
                self.stage = "" if self.stage == event.stage else self.stage
            case ev.Restarted():
                self._begin_run(event)
                self.seed = event.seed
                self._forget(event.stage)
            case ev.GraphImported():
                self.graph = event
            case ev.ChunksSplit():
                self.chunks, self.breaks, self.breaks_mode = event.chunks, event.breaks, event.mode
            case ev.GroupsFormed():
                self.groups = event.groups
            case ev.SaturationStep():
                self.saturation.setdefault(event.group, SaturationView()).steps.append(event)
            case ev.GroupSaturated():
                self.saturation.setdefault(event.group, SaturationView()).result = event
            case ev.SearchStarted():
                self._search(event.group, event.point)
                self.searches[event.group][event.point] = SearchView(
                    dims=event.dims,
                    ranges=event.ranges,
                    limit=event.limit,
                    members=event.members,
                    choices=event.choices,
                    space_log10=event.space_log10,
                    started_at=event.at,
                )
            case ev.CandidateEvaluated():
                search = self._search(event.group, event.point)
                search.candidates.append(event)
                if event.reason:
                    search.rejected[event.reason] = search.rejected.get(event.reason, 0) + 1
            case ev.BestImproved():
                search = self._search(event.group, event.point)
                search.first_ms, search.best_ms, search.best_index = event.first_ms, event.ms, event.index
                search.best_curve.append((event.index, event.ms))
            case ev.SearchFinished():
                search = self._search(event.group, event.point)
                search.finished, search.seconds = True, event.seconds
            case ev.Stitched():
                self._point(event.point).stitched = event
            case ev.Verified():
                self._point(event.point).verified = event
            case ev.Measured():
                self._point(event.point).measured = event
            case ev.Paused():
                self.paused = True
            case ev.Resumed():
                self.paused = False
            case ev.Cancelled():
                self.cancelled, self.paused, self.stage = True, False, ""
            case ev.Failed():
                self.failure, self.stage = event, ""
                if event.kept and self.before is not None:
                    self._take_back(self.before)
            case ev.RulesOnDisk():
                self.rules_on_disk = event if event.changed or event.error else None
            case ev.XrayDone():
                self.xray = event
            case ev.ProgramRead():
                self.program = ProgramView(event)
            case ev.ProgramAt() if self.program is not None:
                self.program.at = event
            case ev.ProgramCommand() if self.program is not None:
                self.program.commands.append(event)
                over = len(self.program.commands) - MOST_COMMANDS
                if over > 0:
                    del self.program.commands[:over]
                    self.program.dropped += over
            case ev.ProgramFinished() if self.program is not None:
                self.program.result, self.program.at = event, None
            case ev.LogLine():
                self.log.append(event)
                del self.log[:-2000]
            case ev.SessionFinished():
                self.finished, self.stage = event, ""

    def _search(self, group: int, point: int) -> SearchView:
        found = self.searches.setdefault(group, [])
        while len(found) <= point:
            found.append(SearchView())
        return found[point]

    def _point(self, point: int) -> PointView:
        return self.points.setdefault(point, PointView())

    @property
    def search(self) -> dict[int, SearchView]:
        """By group, its search at the representative."""
        return {group: found[0] for group, found in self.searches.items()}

    @property
    def stitched(self) -> ev.Stitched | None:
        """The whole program at the representative."""
        return self.points[0].stitched if 0 in self.points else None

    @property
    def measured(self) -> ev.Measured | None:
        """Its latency."""
        return self.points[0].measured if 0 in self.points else None

    @property
    def verified(self) -> ev.Verified | None:
        """The verdict over all points so far: right where every one is, with the largest errors."""
        found = [point.verified for _, point in sorted(self.points.items()) if point.verified is not None]
        if not found:
            return None
        return msgspec.structs.replace(
            found[0],
            ok=all(each.ok for each in found),
            max_abs_err=max(each.max_abs_err for each in found),
            max_rel_err=max(each.max_rel_err for each in found),
        )

    def point_info(self, point: int) -> ev.PointInfo:
        """What tells a point from the others; nothing where there is one."""
        infos = self.graph.points if self.graph is not None else []
        return infos[point] if point < len(infos) else ev.PointInfo({})

    def _begin_run(self, event: ev.Restarted) -> None:
        """Remember what the run that ends here has reached, where it got as far as to be compared with."""
        self.before = None
        if self.saturated:
            if event.stage == "saturate":
                self.before = self._results()
            from workbench.session.report import run_report

            self.runs.append(Run(self.run, self.run_reason, self.run_began_at, self.rules_digest, run_report(self)))
            del self.runs[: -MOST_KEPT]
        self.run, self.run_reason, self.run_began_at = self.run + 1, event.reason, event.at

    def _results(self) -> Results:
        return Results(
            saturation=self.saturation,
            searches=self.searches,
            points=self.points,
            finished=self.finished,
            timeline=dict(self.timeline),
            earlier=self.earlier,
            run=self.run,
            run_reason=self.run_reason,
            run_began_at=self.run_began_at,
            program=self.program,
        )

    def _take_back(self, kept: Results) -> None:
        """Back to what there was before a saturation that failed; its time was spent all the same."""
        first = ev.STAGES.index("saturate")
        lost = sum(self.timeline.get(stage, 0.0) for stage in ev.STAGES[first:])
        self.saturation, self.searches, self.timeline = kept.saturation, kept.searches, kept.timeline
        self.points = kept.points
        self.program = kept.program
        self.finished, self.earlier = kept.finished, kept.earlier + lost
        self.run, self.run_reason, self.run_began_at = kept.run, kept.run_reason, kept.run_began_at
        del self.runs[-1:]
        self.before = None

    @property
    def saturated(self) -> bool:
        """Whether every group is saturated."""
        done = (self.saturation.get(group.index) for group in self.groups)
        return bool(self.groups) and all(state is not None and state.result is not None for state in done)

    @property
    def rules_digest(self) -> str:
        """Names the rules that the groups are saturated with; '' before."""
        results = (state.result for state in self.saturation.values())
        return next((result.rules_digest for result in results if result is not None), "")

    @property
    def baseline(self) -> Run | None:
        """The earlier run that this one is compared with."""
        return baseline_of(self.rules_digest, self.runs)

    def _forget(self, stage: str) -> None:
        """Drop everything that `stage` and the stages after it produced."""
        first = ev.STAGES.index(stage)
        self.finished = self.failure = self.progress = None
        self.cancelled = self.paused = False
        self.stage = self.stage_detail = ""
        for name in ev.STAGES[first:]:
            self.earlier += self.timeline.pop(name, 0.0)
        self.points = {}
        self.searches = {}
        if first <= ev.STAGES.index("saturate"):
            self.saturation = {}
        if first <= ev.STAGES.index("split"):
            self.chunks, self.groups, self.breaks = [], [], []
        if first <= ev.STAGES.index("import"):
            self.graph = None

    @property
    def elapsed(self) -> float:
        """Seconds from the opening of the session to its last event."""
        return self.now

    def overall_progress(self) -> tuple[int, int]:
        """Candidates evaluated and expected over all groups and their points."""
        searches = [search for found in self.searches.values() for search in found]
        limit = max((s.limit for s in searches), default=0)
        expected = limit * max(1, sum(g.points for g in self.groups))
        done = sum(s.limit if s.finished else s.done for s in searches)
        return min(done, expected), expected

    def gain(self, group: int) -> float | None:
        """First over best of a group at the representative: how many times faster the best is."""
        found = self.searches.get(group)
        return found[0].gain if found else None
