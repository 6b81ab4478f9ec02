"""The saturation child: loads the rule library once, then saturates one program at a time, reporting each step.

A process of its own, because a running step cannot be interrupted: the parent kills it on a limit.
"""

from __future__ import annotations

import os
import re
import resource
import sys
import time
from bisect import bisect_right
from typing import Any, BinaryIO

import msgspec

from workbench import frames
from workbench.egraph.bindings import bindings
from workbench.egraph.messages import (
    LibraryLoaded,
    LoadLibrary,
    Refused,
    Request,
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
from workbench.egraph.schedule import schedule_for
from workbench.egraph.snapshot import Builder, SnapshotData
from workbench.egraph.tables import signatures_of
from workbench.egraph.xray import NotAskable, Parsed, Subject, xray

MOST_KEPT_ROWS = 4_000_000
"""Rows that questions may leave in an e-graph before it is given up, to be made again for the next one."""
PRIMITIVE_SORTS = {"i64", "String", "f64", "bool"}


class Library:
    """An e-graph with the rule library loaded; programs run between push and pop.

    The program saturated last stays until the next one, for questions about it."""

    def __init__(self, files: list[tuple[str, str]]) -> None:
        self.egraph = bindings.EGraph(no_decomp=True)
        self.egraph.set_report_level(bindings.TimeOnly())
        self.rules: list[RuleInfo] = []
        self.parsed: dict[str, Parsed] = {}
        self.kept = ""
        """The text of the program whose saturated e-graph is there; '' for none."""
        self.fired: dict[str, int] = {}
        """Matches by rule, of that program."""
        self._pushed = False
        self.facts: set[str] = set()
        self.running = ""
        """The ruleset whose step has begun."""
        self.subject: Subject | None = None
        """The e-graph as one that is asked about; None before the first question about it."""
        for name, text in files:
            commands = self.egraph.parse_program(text, name)
            line_starts = [m.end() for m in re.finditer(b"\n", text.encode())]  # spans count bytes
            self.egraph.run_program(*[self._named(c, name, line_starts) for c in commands])

    def begin(self) -> None:
        """Make room for a program: drop the one before."""
        self.end()
        self.fired = {}
        self.egraph.run_program(*self.egraph.parse_program("(push)", "push"))
        self._pushed = True

    def end(self) -> None:
        """Drop the program that is there."""
        self.kept = ""
        self.subject = None
        if self._pushed:
            self._pushed = False
            self.egraph.run_program(*self.egraph.parse_program("(pop)", "pop"))

    def _named(self, command: Any, file: str, line_starts: list[int]) -> Any:
        """The command, with a rule that has no name (or one already taken) named after its place; rules are noted."""
        if isinstance(command, bindings.FunctionCommand | bindings.Relation):
            self.facts.add(command.name)
        rule: Any
        if isinstance(command, bindings.RuleCommand):
            rule, ruleset = command.rule, command.rule.ruleset
        elif isinstance(command, bindings.RewriteCommand | bindings.BiRewriteCommand):
            rule, ruleset = command.rewrite, command.name
        else:
            return command
        line = 1 + bisect_right(line_starts, rule.span.i)
        place = f"{file}:{line}"
        before = sum(r.file == file and r.line == line for r in self.rules)
        if before:  # another rule on the same line
            place = f"{place}#{before + 1}"
        taken = {r.name for r in self.rules}
        if rule.name in taken:
            raise bindings.EggSmolError(f"In {line}:1-1 of {file}: the rule name '{rule.name}' is used twice")
        name = rule.name or place
        if isinstance(command, bindings.BiRewriteCommand):
            # egglog reports the two directions apart
            for arrow in ("=>", "<="):
                self.rules.append(RuleInfo(f"{name}{arrow}", ruleset, file, line))
                self.parsed[f"{name}{arrow}"] = Parsed(command, file, line, backwards=arrow == "<=")
        else:
            self.rules.append(RuleInfo(name, ruleset, file, line))
            self.parsed[name] = Parsed(command, file, line)
        if rule.name:
            return command
        if isinstance(command, bindings.RuleCommand):
            named = bindings.Rule(
                rule.span, rule.head, rule.body, name, ruleset, rule.eval_mode, rule.no_decomp, rule.include_subsumed
            )
            return bindings.RuleCommand(named)
        rewrite = bindings.Rewrite(rule.span, rule.lhs, rule.rhs, rule.conditions, name)
        if isinstance(command, bindings.RewriteCommand):
            return bindings.RewriteCommand(ruleset, rewrite, command.subsume)
        return bindings.BiRewriteCommand(ruleset, rewrite)


class _Clock:
    """Time inside the engine, apart from the rest."""

    def __init__(self, egraph: Any) -> None:
        self.egraph = egraph
        self.engine_seconds = 0.0

    def run(self, *commands: Any) -> Any:
        began = time.perf_counter()
        try:
            return self.egraph.run_program(*commands)
        finally:
            self.engine_seconds += time.perf_counter() - began


def saturate(library: Library, request: Saturate, out: BinaryIO) -> Saturated:
    """Run the schedule, sending a StepDone after each step; stop at a limit with what was reached."""
    began = time.perf_counter()
    clock, stopped = _saturated(library, request, out, began)
    snapshot = take_snapshot(library.egraph, library.facts)
    return Saturated(snapshot, clock.engine_seconds, time.perf_counter() - began, stopped)


def _saturated(
    library: Library, request: Saturate | XrayRequest, out: BinaryIO, began: float
) -> tuple[_Clock, str]:
    """Run the program and the schedule, and keep the e-graph."""
    clock = _Clock(library.egraph)
    library.begin()
    try:
        clock.run(*library.egraph.parse_program(request.program, "program.egg"))
        stopped = _run_schedule(library, request, clock, out, began)
    except BaseException:
        library.end()
        raise
    library.kept = request.program
    return clock, stopped


def answer_xray(library: Library, request: XrayRequest, out: BinaryIO) -> XrayResult | XrayRefused:
    """X-ray a rule, sending each premise as it is counted; the program is saturated first unless it just was."""
    if library.kept != request.program:
        _saturated(library, request, out, time.perf_counter())
    fired = library.fired.get(request.rule, 0)
    frames.send(out, XrayBegun(fired))
    if library.subject is None:
        library.subject = Subject(library.egraph, library.facts, signatures_of(library.egraph))
    try:
        result = xray(
            library.subject,
            library.parsed,
            request.rule,
            request.node,
            request.seconds,
            lambda premise: frames.send(out, premise),
        )
    except NotAskable as error:
        return XrayRefused(str(error))
    except BaseException:
        library.end()  # a rule that fails leaves partial writes
        raise
    if library.subject.rows > MOST_KEPT_ROWS:
        library.end()
    return msgspec.structs.replace(result, fired=fired)


def _run_schedule(library: Library, request: Saturate | XrayRequest, clock: _Clock, out: BinaryIO, began: float) -> str:
    egraph = library.egraph
    step = 0
    runs: dict[str, list[Any]] = {}
    size: list[Any] = egraph.parse_program("(print-size)", "size")
    for phase in schedule_for(r.ruleset for r in library.rules):
        changed = True
        while changed:
            changed = False
            for ruleset in phase.rulesets:
                if ruleset not in runs:
                    runs[ruleset] = egraph.parse_program(f"(run-schedule (run {ruleset}))", "schedule")
                library.running = ruleset
                frames.send(out, StepBegun(ruleset))
                (output,) = clock.run(*runs[ruleset])
                report = output.report
                changed |= report.updated
                matches = {n: m for n, m in report.num_matches_per_rule.items() if m}
                for rule, count in matches.items():
                    library.fired[rule] = library.fired.get(rule, 0) + count
                seconds = {n: t.total_seconds() for n, t in report.search_and_apply_time_per_rule.items()}
                if report.updated or not step:
                    sizes: Any = egraph.run_program(*size)[0]
                    nodes = sum(n for name, n in sizes.sizes if name not in library.facts)
                frames.send(out, StepDone(step, ruleset, sum(seconds.values()), matches, seconds, nodes))
                step += 1
                if nodes > request.max_nodes:
                    return f"node limit ({request.max_nodes})"
                if time.perf_counter() - began > request.max_seconds:
                    return f"time limit ({request.max_seconds:g} s)"
    return ""


def take_snapshot(egraph: Any, facts: set[str]) -> SnapshotData:
    """All e-nodes of the e-graph; functions named in `facts` are tables, not e-nodes, and are left out."""
    builder = Builder.empty()
    classes: dict[str, dict[Any, int]] = {}
    literals: dict[tuple[str, Any], int] = {}
    class_sort = builder.class_sort
    readers = {
        "i64": egraph.value_to_i64,
        "String": egraph.value_to_string,
        "f64": egraph.value_to_f64,
        "bool": egraph.value_to_bool,
    }

    def class_id(sort: str, value: Any) -> int:
        table = classes.setdefault(sort, {})
        found = table.get(value)
        if found is None:
            found = table[value] = len(class_sort)
            class_sort.append(sort)
        return found

    def literal_id(sort: str, value: Any) -> int:
        key = (sort, value)
        found = literals.get(key)
        if found is None:
            builder.literals.append(readers[sort](value))
            found = literals[key] = -len(builder.literals)
        return found

    for name, function in egraph.freeze().functions.items():
        output_sort = function.output_sort
        if output_sort in PRIMITIVE_SORTS or name in facts:
            continue
        rows = function.rows
        if function.is_let_binding:
            for row in rows:
                builder.variables[name] = class_id(output_sort, row.output)
            continue
        op = len(builder.ops)
        builder.ops.append(name)
        columns = [(s, literal_id if s in PRIMITIVE_SORTS else class_id) for s in function.input_sorts]
        for row in rows:
            builder.node_op.append(op)
            builder.node_class.append(class_id(output_sort, row.output))
            for (sort, number), value in zip(columns, row.inputs, strict=True):
                builder.children.append(number(sort, value))
            builder.child_start.append(len(builder.children))
            builder.subsumed.append(row.subsumed)
    return builder.finish()


def place(error: BaseException, ruleset: str = "") -> str:
    """egglog's message with its place as file:line in front, on one line; a panic that has no place has `ruleset`."""
    text = " ".join(str(error).split())
    found = re.search(r"In (\d+):\d+(?:-\d+(?::\d+)?)? of ([^:]+): ?", text)
    if not found:
        return f"ruleset '{ruleset}': {text}" if ruleset else text
    rest = (text[: found.start()] + text[found.end() :]).strip()
    return f"{found.group(2)}:{found.group(1)}: {rest[:300]}"


def main() -> None:
    """Serve requests on stdin until it closes."""
    limit = int(os.environ.get("LUMINAL_SATURATION_BYTES", 0))
    if limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
    library: Library | None = None
    while True:
        try:
            request = decoder.decode(frames.receive(sys.stdin.buffer))
        except frames.Closed:
            return
        try:
            if isinstance(request, LoadLibrary):
                began = time.perf_counter()
                library = Library(request.files)
                frames.send(out, LibraryLoaded(library.rules, time.perf_counter() - began))
            else:
                assert library is not None
                if isinstance(request, XrayRequest):
                    frames.send(out, answer_xray(library, request, out))
                else:
                    frames.send(out, saturate(library, request, out))
        except frames.Closed:
            return
        except MemoryError:
            frames.send(out, Refused("the e-graph needs more memory than it may take"))
            return
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # egglog's PanicException derives from BaseException
            frames.send(out, Refused(place(error, library.running if library else "")))
            library = None if isinstance(request, LoadLibrary) else library


if __name__ == "__main__":
    main()
