"""Rule files as parsed, without running anything in them: for lint, examples and attribution."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from workbench.egraph.bindings import bindings
from workbench.egraph.panics import place
from workbench.egraph.premises import Premise, premises_of, sides
from workbench.egraph.rules import RuleFile
from workbench.errors import RuleError


@dataclass(frozen=True)
class ReadRule:
    """One rule or rewrite; `name` is as in the file, '' where it has none. A two-way rewrite is two, `=>` and `<=`."""

    name: str
    ruleset: str
    file: str
    line: int
    command: Any
    backwards: bool = False

    @property
    def shown(self) -> str:
        """Its name, or its place where it has none."""
        return self.name or f"{self.file}:{self.line}"

    @cached_property
    def premises(self) -> tuple[Premise, ...]:
        """What it asks for."""
        return premises_of(self.command, self.backwards).premises

    @cached_property
    def conclusions(self) -> tuple[Any, ...]:
        """The expressions that its actions make or state."""
        if isinstance(self.command, bindings.RuleCommand):
            return tuple(e for action in self.command.rule.head for e in _expressions(action))
        rewrite = self.command.rewrite
        return (rewrite.lhs if self.backwards else rewrite.rhs,)

    @property
    def unites(self) -> bool:
        """Whether it can make two e-classes one."""
        if not isinstance(self.command, bindings.RuleCommand):
            return True
        return any(isinstance(action, bindings.Union) for action in self.command.rule.head)


@dataclass(frozen=True, slots=True)
class Read:
    """The rules of some files, and the functions, constructors and relations that they declare or state facts of."""

    rules: tuple[ReadRule, ...]
    declared: frozenset[str]
    stated: frozenset[str]
    rulesets: frozenset[str]


def read_rules(files: Sequence[RuleFile]) -> Read:
    """Parse files. Raises RuleError (file:line)."""
    rules: list[ReadRule] = []
    declared: set[str] = set()
    stated: set[str] = set()
    rulesets: set[str] = set()
    parser = bindings.EGraph()
    for file in files:
        try:
            commands = parser.parse_program(file.text, file.name)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise RuleError(place(error)) from None
        starts = [found.end() for found in re.finditer(b"\n", file.text.encode())]
        for command in commands:
            if isinstance(command, bindings.RuleCommand | bindings.RewriteCommand | bindings.BiRewriteCommand):
                rules += _rules_of(command, file.name, starts)
            elif isinstance(command, bindings.AddRuleset):
                rulesets.add(command.name)
            elif isinstance(command, bindings.ActionCommand):
                for expression in _expressions(command.action):
                    stated |= set(calls(expression))
            elif isinstance(command, bindings.Datatype):
                declared.update(variant.name for variant in command.variants)
            elif isinstance(command, bindings.Constructor | bindings.Relation | bindings.FunctionCommand):
                declared.add(command.name)
    return Read(tuple(rules), frozenset(declared), frozenset(stated), frozenset(rulesets))


def _rules_of(command: Any, file: str, starts: Sequence[int]) -> Iterator[ReadRule]:
    if isinstance(command, bindings.RuleCommand):
        inner, ruleset = command.rule, command.rule.ruleset
    else:
        inner, ruleset = command.rewrite, command.name
    line = 1 + bisect_right(starts, inner.span.i)
    if isinstance(command, bindings.BiRewriteCommand):
        for arrow in ("=>", "<="):
            yield ReadRule(f"{inner.name}{arrow}" if inner.name else "", ruleset, file, line, command, arrow == "<=")
    else:
        yield ReadRule(inner.name, ruleset, file, line, command)


def _expressions(action: Any) -> Iterator[Any]:
    """The expressions of an action: what it inserts, unites, sets."""
    if isinstance(action, bindings.Let):
        yield action.rhs
    elif isinstance(action, bindings.Union):
        yield from (action.lhs, action.rhs)
    elif isinstance(action, bindings.Set):
        yield bindings.Call(action.span, action.lhs, list(action.args))
        yield action.rhs
    elif isinstance(action, bindings.Expr_):
        yield action.expr


def calls(expression: Any) -> Iterator[str]:
    """The functions of an expression, outermost first."""
    if isinstance(expression, bindings.Call):
        yield expression.name
        for argument in expression.args:
            yield from calls(argument)


def calls_of(premise: Premise) -> Iterator[str]:
    """The functions that a premise looks up or matches."""
    for side in sides(premise.fact):
        yield from calls(side)
