"""What a program has declared so far: its rules under names of their own, its rulesets and its functions.

egglog calls a rule without a name by its text, and a name is taken only within its ruleset; here each rule has one
name, that or its place, which nothing else has. The rules themselves stay as they were written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.egraph.bindings import bindings
from workbench.egraph.containers import Container, containers_of
from workbench.egraph.messages import RuleInfo
from workbench.egraph.xray import Parsed

TABLES = ("function", "relation")
"""Kinds of functions whose rows are facts, not e-nodes."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file that commands come from; `starts` are the byte offsets at which its lines begin, without the first."""

    name: str
    starts: tuple[int, ...]

    def line(self, offset: int) -> int:
        """The line, from 1, of a byte offset."""
        return 1 + bisect_right(self.starts, offset)


@dataclass(frozen=True, slots=True)
class Declaration:
    """A function: `kind` is constructor, function or relation (without `output`)."""

    kind: str
    inputs: tuple[str, ...]
    output: str


@dataclass(slots=True)
class _Scope:
    """What a `pop` takes back: the names by which egglog reports rules, combined rulesets, functions."""

    reported: dict[tuple[str, str], str] = field(default_factory=dict)
    """Our name by (ruleset, egglog's name)."""
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)
    functions: dict[str, Declaration] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)

    def copy(self) -> _Scope:
        return _Scope(dict(self.reported), dict(self.members), dict(self.functions), dict(self.containers))


class Declared:
    """Grows with each command that succeeded. `rules` and `parsed` keep what a `pop` took back."""

    def __init__(self) -> None:
        self.rules: list[RuleInfo] = []
        self.parsed: dict[str, Parsed] = {}
        self.combined: dict[str, tuple[str, ...]] = {}
        """The rulesets of each combined one, whether it is still there or not."""
        self._scope = _Scope()
        self._outer: list[_Scope] = []

    def note(self, command: Any, source: Source) -> None:
        """Note what a command that has just run declared or took back."""
        match command:
            case bindings.RuleCommand():
                self._rule(command, command.rule, command.rule.ruleset, source)
            case bindings.RewriteCommand() | bindings.BiRewriteCommand():
                self._rule(command, command.rewrite, command.name, source)
            case bindings.UnstableCombinedRuleset():
                members = tuple(m for r in command.rulesets for m in self.members(r))
                self._scope.members[command.name] = self.combined[command.name] = members
            case bindings.Push():
                self._outer += [self._scope] * command.length
                self._scope = self._scope.copy()
            case bindings.Pop():
                for _ in range(command.length):
                    self._scope = self._outer.pop().copy()
            case _:
                self._scope.functions.update(functions_of(command))
                self._scope.containers.update(containers_of(command))

    def members(self, ruleset: str) -> tuple[str, ...]:
        """The rulesets that run when `ruleset` does."""
        return self._scope.members.get(ruleset, (ruleset,))

    def name(self, rulesets: Iterable[str], reported: str) -> str:
        """Our name of the rule that egglog reports, run in one of `rulesets`; egglog's own where it is not known."""
        found = (self._scope.reported.get((m, reported)) for r in rulesets for m in self.members(r))
        return next((name for name in found if name is not None), reported)

    def named(self, rulesets: Iterable[str], values: Mapping[str, Any]) -> dict[str, Any]:
        """Values by rule, under our names."""
        rulesets = tuple(rulesets)
        return {self.name(rulesets, reported): value for reported, value in values.items()}

    @property
    def functions(self) -> Mapping[str, Declaration]:
        """The functions that are there, in the order of their declarations."""
        return self._scope.functions

    @property
    def facts(self) -> set[str]:
        """The functions whose rows are not e-nodes."""
        return {name for name, declared in self._scope.functions.items() if declared.kind in TABLES}

    @property
    def containers(self) -> Mapping[str, Container]:
        """The container sorts by name."""
        return self._scope.containers

    def _rule(self, command: Any, rule: Any, ruleset: str, source: Source) -> None:
        span = rule.span
        line = source.line(span.i) if isinstance(span, bindings.EgglogSpan) else 0
        reported = rule.name or str(command).replace('"', "'")
        arrows = ("=>", "<=") if isinstance(command, bindings.BiRewriteCommand) else ("",)
        name = self._unique(rule.name, f"{source.name}:{line}", arrows)
        for arrow in arrows:
            self.rules.append(RuleInfo(f"{name}{arrow}", ruleset, source.name, line))
            self.parsed[f"{name}{arrow}"] = Parsed(command, source.name, line, backwards=arrow == "<=")
            self._scope.reported[ruleset, f"{reported}{arrow}"] = f"{name}{arrow}"

    def _unique(self, name: str, place: str, arrows: tuple[str, ...]) -> str:
        def candidates() -> Iterator[str]:
            if name:
                yield name
            base = f"{name} ({place})" if name else place
            yield base
            number = 2
            while True:
                yield f"{base}#{number}"
                number += 1

        return next(c for c in candidates() if not any(f"{c}{arrow}" in self.parsed for arrow in arrows))


def functions_of(command: Any) -> Iterator[tuple[str, Declaration]]:
    """The functions that a command declares."""
    match command:
        case bindings.Datatype():
            yield from _variants(command.name, command.variants)
        case bindings.Datatypes():
            for _, name, declared in command.datatypes:
                if isinstance(declared, bindings.SubVariants):
                    yield from _variants(name, declared.variants)
        case bindings.Constructor() | bindings.FunctionCommand():
            kind = "constructor" if isinstance(command, bindings.Constructor) else "function"
            yield command.name, Declaration(kind, tuple(command.schema.input), command.schema.output)
        case bindings.Relation():
            yield command.name, Declaration("relation", tuple(command.inputs), "")
        case _:
            pass


def _variants(sort: str, variants: Iterable[Any]) -> Iterator[tuple[str, Declaration]]:
    for variant in variants:
        yield variant.name, Declaration("constructor", tuple(variant.types), sort)
