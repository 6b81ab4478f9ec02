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
from collections.abc import Collection
from typing import Any, BinaryIO

import msgspec

from workbench import frames
from workbench.egraph import named
from workbench.egraph.bindings import bindings
from workbench.egraph.freezing import take_snapshot
from workbench.egraph.guard import without_python
from workbench.egraph.messages import (
    LibraryLoaded,
    LoadLibrary,
    Probe,
    ProbeBegun,
    Probed,
    ProbeDone,
    Refused,
    Request,
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
from workbench.egraph.panics import explained, place
from workbench.egraph.provenance import PREFIX, Provenance, as_rules, renamed
from workbench.egraph.snapshot import Snapshot
from workbench.egraph.stepping import Bounds, Clock, run_schedule
from workbench.egraph.tables import signatures_of
from workbench.egraph.xray import NotAskable, Parsed, Subject, xray

PROBED = "probed alone"
"""A name that no rule file can give to a rule or ruleset."""
MOST_KEPT_ROWS = 4_000_000
"""Rows that questions may leave in an e-graph before it is given up, to be made again for the next one."""


class Library:
    """An e-graph with the rule library loaded; programs run between push and pop.

    The program saturated last stays until the next one, for questions about it."""

    def __init__(self, files: list[tuple[str, str]], without: Collection[str] = ()) -> None:
        self.egraph = bindings.EGraph(no_decomp=True)
        self.egraph.set_report_level(bindings.TimeOnly())
        self.rules: list[RuleInfo] = []
        self.parsed: dict[str, Parsed] = {}
        self.kept: tuple[str, int | None] | None = None
        """The program whose saturated e-graph is there, and after how many steps where not after all."""
        self.fired: dict[str, int] = {}
        """Matches by rule, of that program."""
        self._pushed = False
        self.facts: set[str] = set()
        self.running = ""
        """The ruleset whose step has begun."""
        self.steps = 0
        """Steps that are over, of the program that is there."""
        self.failure = ""
        """What can be said of the panic that ended the last program; '' for nothing more than its message."""
        self.subject: Subject | None = None
        """The e-graph as one that is asked about; None before the first question about it."""
        self.provenance = Provenance()
        self.provenance.begin(self.egraph)
        self._instrumented = 0
        """Rules that the e-graph has so far."""
        for name, text in files:
            commands = self.egraph.parse_program(without_python(name, text), name)
            line_starts = [m.end() for m in re.finditer(b"\n", text.encode())]  # spans count bytes
            for command in commands:
                before = len(self.rules)
                command = self._named(command, name, line_starts)
                if any(rule.name in without for rule in self.rules[before:]):
                    del self.rules[before:]
                else:
                    self.run(command)
        self.signatures = {n: s for n, s in signatures_of(self.egraph).items() if not n.startswith(PREFIX)}
        named.declare(self.egraph, self.signatures)

    def run(self, command: Any) -> None:
        """Run a command of the library that `_named` has seen."""
        rules = [(i, self.rules[i].name) for i in range(self._instrumented, len(self.rules))]
        self._instrumented = len(self.rules)
        self.provenance.run(self.egraph, command, rules)

    def begin(self) -> None:
        """Make room for a program: drop the one before."""
        self.end()
        self.fired = {}
        self.egraph.run_program(*self.egraph.parse_program("(push)", "push"))
        self._pushed = True

    def end(self) -> None:
        """Drop the program that is there."""
        self.kept = None
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
        arrows = ("=>", "<=") if isinstance(command, bindings.BiRewriteCommand) else ()
        if rule.name in taken or any(f"{rule.name}{arrow}" in taken for arrow in arrows):
            raise bindings.EggSmolError(f"In {line}:1-1 of {file}: the rule name '{rule.name}' is used twice")
        name = rule.name or place
        if arrows:
            # egglog reports the two directions apart
            for arrow in arrows:
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


def saturate(library: Library, request: Saturate, out: BinaryIO) -> Saturated:
    """Run the schedule, sending a StepDone after each step; stop at a limit with what was reached."""
    began = time.perf_counter()
    clock, limit = _saturated(library, request, out, began)
    frames.send(out, Stepped())
    names = [r.name for r in library.rules]
    snapshot = take_snapshot(library.egraph, library.facts, library.provenance, names)
    return Saturated(snapshot, clock.engine_seconds, time.perf_counter() - began, limit)


def _saturated(
    library: Library, request: Saturate | XrayRequest | Probe, out: BinaryIO, began: float
) -> tuple[Clock, str]:
    """Run the program and the schedule, and keep the e-graph."""

    def say(message: StepBegun | StepDone) -> None:
        if isinstance(message, StepBegun):
            library.running = message.ruleset
        else:
            library.steps += 1
            for rule, count in message.matches.items():
                library.fired[rule] = library.fired.get(rule, 0) + count
        frames.send(out, message)

    clock = Clock(library.egraph)
    bounds = Bounds(request.max_nodes, began + request.max_seconds, memory_limit(), request.max_steps)
    library.begin()
    try:
        library.running, library.steps, library.failure = "", 0, ""
        program = library.egraph.parse_program(request.program, "program.egg")
        clock.run(*named.bound(program, library.signatures))
        library.provenance.note_program(library.egraph)
        limit = run_schedule(
            library.egraph, [r.ruleset for r in library.rules], library.facts, bounds, clock, say
        )
    except BaseException as error:
        if _is_failure(error) and library.running:
            names = [r.name for r in library.rules]
            left = Snapshot(take_snapshot(library.egraph, library.facts, library.provenance, names))
            library.failure = explained(error, library.running, library.steps, library.rules, left)
        library.end()
        raise
    library.kept = (request.program, request.max_steps)
    return clock, limit


def probe(library: Library, request: Probe, out: BinaryIO) -> Probed:
    """Run each of the rules alone on what the first steps leave, saying before and after how it went."""
    if library.kept != (request.program, request.max_steps):
        _saturated(library, request, out, time.perf_counter())
    egraph = library.egraph
    library.kept = None
    for name in request.rules:
        parsed = library.parsed[name]
        rule = list(as_rules(parsed.command))[-1 if parsed.backwards else 0]
        alone = renamed(rule, rule.head, PROBED, PROBED)
        egraph.run_program(*egraph.parse_program("(push)", "probe"))
        egraph.run_program(bindings.AddRuleset(rule.span, PROBED), bindings.RuleCommand(alone))
        frames.send(out, ProbeBegun(name))
        run = bindings.RunSchedule(bindings.Run(rule.span, bindings.RunConfig(PROBED)))
        (output,) = egraph.run_program(run)
        seconds = output.report.search_and_apply_time_per_rule.get(PROBED)
        matches = output.report.num_matches_per_rule.get(PROBED, 0)
        frames.send(out, ProbeDone(name, matches, seconds.total_seconds() if seconds else 0.0))
        egraph.run_program(*egraph.parse_program("(pop)", "probe"))
    return Probed()


def memory_limit() -> int:
    """Bytes of address space that this process may have; 0 for any number."""
    return int(os.environ.get("LUMINAL_SATURATION_BYTES", 0))


def answer_xray(library: Library, request: XrayRequest, out: BinaryIO) -> XrayResult | XrayRefused:
    """X-ray a rule, sending each premise as it is counted; the program is saturated first unless it just was."""
    if library.kept != (request.program, request.max_steps):
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


def _is_failure(error: BaseException) -> bool:
    """Whether egglog says that something failed. Its own exception for panics derives from BaseException, and has no
    name in its bindings."""
    if isinstance(error, Exception):
        return isinstance(error, bindings.EggSmolError)
    return not isinstance(error, KeyboardInterrupt | SystemExit)


def main() -> None:
    """Serve requests on stdin until it closes."""
    limit = memory_limit()
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
                library = Library(request.files, request.without)
                frames.send(out, LibraryLoaded(library.rules, time.perf_counter() - began))
            else:
                assert library is not None
                if isinstance(request, XrayRequest):
                    frames.send(out, answer_xray(library, request, out))
                elif isinstance(request, Probe):
                    frames.send(out, probe(library, request, out))
                else:
                    frames.send(out, saturate(library, request, out))
        except frames.Closed:
            return
        except MemoryError:
            frames.send(out, Refused("the e-graph needs more memory than it may take", out_of_memory=True))
            return
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # egglog's PanicException derives from BaseException
            said = library.failure if library and _is_failure(error) else ""
            frames.send(out, Refused(said or place(error, library.running if library else "")))
            library = None if isinstance(request, LoadLibrary) else library


if __name__ == "__main__":
    main()
