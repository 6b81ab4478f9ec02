"""Running a whole egglog program, command by command as egglog does, with its schedules step by step."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from workbench.egraph.bindings import bindings
from workbench.egraph.declared import Declared, Source
from workbench.egraph.egglog_error import taken_apart
from workbench.egraph.freezing import take_snapshot
from workbench.egraph.guard import Files, Forbidden, only_writes, without_python
from workbench.egraph.messages import RuleInfo, StepBegun, StepDone
from workbench.egraph.program_messages import (
    CommandBegun,
    CommandDone,
    Ending,
    FunctionInfo,
    Outcome,
    ProgramEnded,
    RulesDeclared,
    RunProgram,
)
from workbench.egraph.snapshot import SnapshotData
from workbench.egraph.stepping import MEMORY, NODES
from workbench.egraph.unroll import Once, run, unrolled

MOST_OUTPUT = 256 << 10
"""Characters of one command's outputs that are kept; the rest is counted."""
LONGEST_TEXT = 400
"""Characters of a command that are kept."""
DEEPEST_INCLUDE = 50
SIZE_SHARE = 0.25
"""The part of the engine's time that looking at sizes may come to."""
QUIET = {"declare", "act"}
"""Kinds of commands that are not reported each; a program may have tens of thousands."""

THERE = "there"
"""The limit of a run that ended where it was asked to."""

Said = Ending | CommandBegun | CommandDone | RulesDeclared | StepBegun | StepDone


class Stopped(Exception):
    """A limit, or a halt from outside; the message names it."""


class ProgramRun:
    """One program in a new e-graph, which stays for questions. `say` hears of everything; `halted` gives the reason to
    stop, or ''; `memory_full` tells whether another step might not fit."""

    def __init__(
        self,
        request: RunProgram,
        say: Callable[[Said], None],
        halted: Callable[[], str],
        memory_full: Callable[[int], bool],
    ) -> None:
        self.request = request
        self.egraph = bindings.EGraph()
        self.egraph.set_report_level(bindings.TimeOnly())
        self.declared = Declared()
        self.files = Files(request.directory, request.allow_files, set(request.written))
        self.fired: dict[str, int] = {}
        """Matches by rule."""
        self.number = 0
        """Commands begun."""
        self.broken = False
        """Whether the engine panicked: the e-graph is not to be looked at."""
        self.steps = 0
        self.nodes = self._nodes_told = 0
        self._say = say
        self._halted = halted
        self._memory_full = memory_full
        self._engine_seconds = 0.0
        self._size_seconds = 0.0
        self._sizes: dict[str, int] = {}
        self._told_rules = 0
        self._told_combined: dict[str, tuple[str, ...]] = {}
        self._source = Source(request.name, ())
        self._line = 0
        self._kind = ""
        self._print_size: list[Any] = self.egraph.parse_program("(print-size)", "size")

    def run(self) -> ProgramEnded:
        """Run all; the end is told, not raised, whatever it was."""
        began = time.perf_counter()
        outcome: Outcome = "ok"
        error, file, line, limit = "", "", 0, ""
        try:
            self._text(self.request.name, self.request.text, 0)
        except Stopped as stopped:
            outcome, limit = "stopped", str(stopped)
            file, line = self._source.name, self._line
        except Forbidden as forbidden:
            outcome, error, file, line = "failed", str(forbidden), self._source.name, self._line
        except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
            raise
        except BaseException as raised:  # egglog's PanicException derives from BaseException
            if not isinstance(raised, bindings.EggSmolError) and type(raised).__name__ != "PanicException":
                raise
            self.broken = not isinstance(raised, bindings.EggSmolError)
            known = taken_apart(raised, self._source.name)
            outcome, error = "failed", known.message
            file, line = (known.file, known.line) if known.file else (self._source.name, self._line)
        self._tell_rules()
        ended = ProgramEnded(
            outcome=outcome,
            error=error,
            file=file,
            line=line,
            kind=self._kind,
            limit=limit,
            number=self.number,
            steps=self.steps,
            snapshot=None,
            functions=[] if self.broken else self._functions(),
            engine_seconds=self._engine_seconds,
            total_seconds=time.perf_counter() - began,
            written=sorted(self.files.written),
        )
        self._say(Ending(ended))
        return ended if self.broken else msgspec.structs.replace(ended, snapshot=self._snapshot())

    def _text(self, name: str, text: str, depth: int) -> None:
        before = self._source, self._line, self._kind
        starts = tuple(m.end() for m in re.finditer(b"\n", text.encode()))  # spans count bytes
        self._source, self._line, self._kind = Source(name, starts), 0, "read"
        commands = self.egraph.parse_program(without_python(name, text), name)
        source = self._source
        for command in commands:
            self._line = self._line_of(command)
            self._check_stop()
            self._kind = kind = kind_of(command)
            self.files.check(command)
            if isinstance(command, bindings.Include):
                self.number += 1
                self._include(command, depth)
            elif self.request.stop is not None and only_writes(command):
                self.number += 1  # written the first time
            else:
                self._command(command, kind, source)
        self._source, self._line, self._kind = before

    def _include(self, command: Any, depth: int) -> None:
        if depth >= DEEPEST_INCLUDE:
            raise Forbidden(f"files that include one another nest deeper than {DEEPEST_INCLUDE}")
        try:
            text = Path(command.path).read_bytes().decode()
        except (OSError, ValueError):
            self._engine(command)  # which says what is wrong with the file
            raise Forbidden("the included file cannot be read") from None
        self._text(command.path, text, depth + 1)

    def _line_of(self, command: Any) -> int:
        """The line that a command begins on, or that of the one before where it has no place in this file."""
        span = span_of(command)
        if isinstance(span, bindings.EgglogSpan):
            return self._source.line(span.i)
        return self._line

    def _check_stop(self) -> None:
        stop = self.request.stop
        if stop is not None and self.number >= stop.commands:
            raise Stopped(THERE)
        reason = self._halted()
        if reason:
            raise Stopped(reason)

    def _command(self, command: Any, kind: str, source: Source) -> None:
        number, steps, began = self.number, self.steps, time.perf_counter()
        self.number += 1
        if kind not in QUIET:
            self._tell_rules()
            self._say(CommandBegun(number, source.name, self._line, kind))
        schedule = unrolled(command)
        outputs: list[Any] = []
        if schedule is None:
            outputs = self._engine(command)
            for output in outputs:
                if isinstance(output, bindings.RunScheduleOutput):
                    self._whole(output.report)
        else:
            run(schedule, self._once)
        self.declared.note(command, source)
        texts = list(cut(str(o).rstrip("\n") for o in outputs if not isinstance(o, bindings.RunScheduleOutput)))
        if texts or kind not in QUIET:
            self._say(
                CommandDone(
                    number=number,
                    file=source.name,
                    line=self._line,
                    kind=kind,
                    text=_short(str(command)),
                    outputs=texts,
                    seconds=time.perf_counter() - began,
                    steps=self.steps - steps,
                )
            )

    def _engine(self, command: Any) -> list[Any]:
        began = time.perf_counter()
        try:
            outputs: list[Any] = self.egraph.run_program(command)
        finally:
            self._engine_seconds += time.perf_counter() - began
        return outputs

    def _once(self, once: Once) -> bool:
        """One run of a ruleset."""
        stop = self.request.stop
        if stop is not None and stop.steps is not None and self.steps >= stop.steps:
            raise Stopped(THERE)
        self._check_limits()
        self._say(StepBegun(once.ruleset))
        (output,) = self._engine(once.command)
        report = output.report
        if not report.iterations:  # its `:until` holds: nothing ran
            return False
        sizes = self._look_at_sizes() if report.updated or not self.steps else {}
        self._tell_step(
            once.ruleset,
            (once.ruleset,),
            report.num_matches_per_rule,
            report.search_and_apply_time_per_rule,
            (*report.merge_time_per_ruleset.values(), *report.rebuild_time_per_ruleset.values()),
            sizes,
        )
        return bool(report.updated)

    def _check_limits(self) -> None:
        reason = self._halted()
        if reason:
            raise Stopped(reason)
        if self.nodes > self.request.max_nodes:
            raise Stopped(NODES)
        if self._memory_full(self.nodes):
            raise Stopped(MEMORY)

    def _whole(self, report: Any) -> None:
        """A schedule that egglog ran whole: its rounds as it reports them; sizes are known at the end only."""
        rulesets = tuple(report.search_and_apply_time_per_ruleset)
        rounds = list(report.iterations)
        told = Counter[str]()
        for each in rounds:
            for rule, reports in each.rule_set_report.rule_reports.items():
                told[rule] += sum(r.num_matches for r in reports)
        if +told != +Counter(report.num_matches_per_rule):  # a scheduler's rounds tell what it held back too
            self._tell_step(
                rulesets[0] if len(rulesets) == 1 else "",
                rulesets,
                report.num_matches_per_rule,
                report.search_and_apply_time_per_rule,
                (*report.merge_time_per_ruleset.values(), *report.rebuild_time_per_ruleset.values()),
                self._look_at_sizes(),
            )
            rounds = []
        for place, each in enumerate(rounds, 1):
            rules = each.rule_set_report.rule_reports
            self._tell_step(
                rulesets[0] if len(rulesets) == 1 else "",
                rulesets,
                {rule: sum(r.num_matches for r in reports) for rule, reports in rules.items()},
                {rule: sum((r.search_and_apply_time for r in rs), timedelta()) for rule, rs in rules.items()},
                (each.rule_set_report.merge_time, each.rebuild_time),
                self._look_at_sizes() if place == len(rounds) else {},
            )
        self._check_limits()

    def _tell_step(
        self,
        ruleset: str,
        rulesets: Iterable[str],
        matches: dict[str, int],
        seconds: dict[str, timedelta],
        behind: Iterable[timedelta],
        sizes: dict[str, int],
    ) -> None:
        rulesets = tuple(rulesets)
        matched = self.declared.named(rulesets, {n: m for n, m in matches.items() if m})
        took = {n: t.total_seconds() for n, t in self.declared.named(rulesets, seconds).items() if t}
        for rule, count in matched.items():
            self.fired[rule] = self.fired.get(rule, 0) + count
        self._say(
            StepDone(
                step=self.steps,
                ruleset=ruleset,
                seconds=sum(took.values()),
                matches=matched,
                rule_seconds=took,
                nodes=self.nodes,
                added=self.nodes - self._nodes_told,
                rebuild_seconds=sum(t.total_seconds() for t in behind),
                sizes=sizes,
            )
        )
        self.steps += 1
        self._nodes_told = self.nodes

    def _look_at_sizes(self) -> dict[str, int]:
        """Rows of the functions whose number changed; nothing while looking has cost too much of the time."""
        if self._size_seconds > SIZE_SHARE * self._engine_seconds + 0.02:
            return {}
        began = time.perf_counter()
        (found,) = self.egraph.run_program(*self._print_size)
        now = dict(found.sizes)
        changed = {name: rows for name, rows in now.items() if self._sizes.get(name) != rows}
        changed |= dict.fromkeys(self._sizes.keys() - now.keys(), 0)
        self._sizes = now
        facts = self.declared.facts
        self.nodes = sum(rows for name, rows in now.items() if name not in facts)
        self._size_seconds += time.perf_counter() - began
        return changed

    def _tell_rules(self) -> None:
        new: list[RuleInfo] = self.declared.rules[self._told_rules :]
        if new or self._told_combined != self.declared.combined:
            self._told_rules = len(self.declared.rules)
            self._told_combined = dict(self.declared.combined)
            self._say(RulesDeclared(new, {name: list(m) for name, m in self._told_combined.items()}))

    def _snapshot(self) -> SnapshotData:
        return take_snapshot(self.egraph, self.declared.facts, containers=self.declared.containers)

    def _functions(self) -> list[FunctionInfo]:
        (found,) = self.egraph.run_program(*self._print_size)
        rows = dict(found.sizes)
        return [
            FunctionInfo(name, f.kind, list(f.inputs), f.output, rows[name])
            for name, f in self.declared.functions.items()
            if name in rows
        ]


def _short(text: str) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= LONGEST_TEXT else shown[: LONGEST_TEXT - 1] + "…"


def cut(texts: Iterable[str]) -> Iterator[str]:
    """The outputs of one command, as far as there is room for them."""
    room = MOST_OUTPUT
    for text in texts:
        if len(text) <= room:
            yield text
        else:
            yield f"{text[:room]}… and {len(text) - room:,} more characters"
        room = max(0, room - len(text))


def span_of(command: Any) -> Any:
    """The span of a command; None where it has none."""
    for part in ("rule", "rewrite", "action", "schedule"):
        with contextlib.suppress(AttributeError):
            return getattr(command, part).span
    return getattr(command, "span", None)


def kind_of(command: Any) -> str:
    """What a command does, in a word."""
    match command:
        case bindings.UserDefined():
            return str(command.name)
        case bindings.RunSchedule():
            return "run"
        case bindings.ActionCommand():
            return "act"
        case bindings.Extract():
            return "extract"
        case bindings.Check():
            return "check"
        case bindings.Prove() | bindings.ProveExists():
            return "prove"
        case bindings.PrintFunction() | bindings.PrintSize() | bindings.PrintOverallStatistics():
            return "print"
        case bindings.Input() | bindings.Output() | bindings.Include() | bindings.Push() | bindings.Pop():
            return type(command).__name__.lower()
        case bindings.Fail():
            return "fail"
        case _:
            return "declare"
