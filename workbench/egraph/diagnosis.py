"""Why a premise does not hold under given bindings: the part of it that fails first, and what stands there instead.

The premise is matched against the e-graph at rest, backtracking; of all ways to fail, those that got furthest are told.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from workbench.egraph.bindings import bindings
from workbench.egraph.premises import expression_text, sides, variables
from workbench.egraph.tables import Located, Table, Tables
from workbench.errors import printable

MOST_STEPS = 20_000
MOST_FINDINGS = 3

Binding = dict[str, Located]
Path = tuple[tuple[str, int], ...]
"""From the whole premise to the part: (function, argument from 1)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was wanted at a place of a premise, and what stands there."""

    wanted: str
    at: str
    found: str


@dataclass(slots=True)
class Diagnosis:
    """The findings of the attempts that got furthest. `steps` counts what was looked at, up to MOST_STEPS."""

    findings: list[Finding] = field(default_factory=list)
    binding: Binding = field(default_factory=dict)
    progress: int = -1
    steps: int = 0
    more: int = 0
    """Findings left out."""
    holds: bool = False
    exhausted: bool = False
    """Not all was looked at."""

    def note(self, find: Callable[[], Finding], progress: int, binding: Binding) -> None:
        """Keep a finding unless an attempt got further. It is only put into words when it is kept."""
        if progress > self.progress:
            self.progress, self.findings, self.more, self.binding = progress, [], 0, binding
        if progress < self.progress:
            return
        if len(self.findings) == MOST_FINDINGS:
            self.more += 1
        elif (finding := find()) not in self.findings:
            self.findings.append(finding)


class _Exhausted(Exception):
    """Enough was looked at."""


def diagnose(
    tables: Tables,
    fact: Any,
    survivors: list[Binding],
    names: Mapping[tuple[str, int], str],
    until: float = math.inf,
) -> Diagnosis:
    """Why `fact` holds under none of the bindings. `names` gives arguments of functions a name; past `until`, by
    time.perf_counter(), what was found so far has to do.

    `holds` when as far as can be told it does: a primitive that is not known here decides."""
    matcher = _Matcher(tables, names, Diagnosis(), until)
    try:
        for binding in survivors:
            matcher.start = binding
            if next(matcher.holds(fact, binding), None) is not None:
                matcher.result.holds = True
                break
    except _Exhausted:
        matcher.result.exhausted = True
    return matcher.result


@dataclass(slots=True)
class _Matcher:
    tables: Tables
    names: Mapping[tuple[str, int], str]
    result: Diagnosis
    until: float
    start: Binding = field(default_factory=dict)
    """The binding that is being tried."""

    def holds(self, fact: Any, known: Binding) -> Iterator[Binding]:
        """The ways in which `fact` holds."""
        if not isinstance(fact, bindings.Eq):
            yield from self._alone(fact.expr, known)
            return
        subject, pattern = sorted(sides(fact), key=lambda side: self._rank(side, known))
        if isinstance(subject, bindings.Call) and not self._ground(subject, known):
            for value, row_known, progress in self._anywhere(subject, known):
                yield from (k for k, _ in self._match(pattern, value, row_known, (), progress))
            return
        found = self._value(subject, known)
        if found is None:
            self._fail(lambda: self._absent(subject, known), 0)
            return
        path: Path = ((expression_text(subject), 0),)
        yield from (k for k, _ in self._match(pattern, found, known, path, 0))

    def _rank(self, side: Any, known: Binding) -> int:
        """Which side of an equation to look up first; the other is compared with what is found."""
        if isinstance(side, bindings.Call):
            if not self._ground(side, known):
                return 4
            return 0 if side.name in self.tables.facts or self.tables.table(side.name) is None else 3
        if isinstance(side, bindings.Var):
            return 1 if self._ground(side, known) else 5
        return 2

    def _alone(self, call: Any, known: Binding) -> Iterator[Binding]:
        table = self.tables.table(call.name) if isinstance(call, bindings.Call) else None
        if table is not None:
            if self._ground(call, known):
                if self._value(call, known) is not None:
                    yield known
                else:
                    self._fail(lambda: self._absent(call, known), 0)
                return
            yield from (k for _, k, _ in self._anywhere(call, known))
            return
        answer = self._compute(call, known)
        if answer is None or answer[1]:
            yield known
            return
        self._fail(lambda: self._untrue(call, known), 0)

    def _anywhere(self, call: Any, known: Binding) -> Iterator[tuple[Located, Binding, int]]:
        """Rows of a function wherever they stand: their result, bindings and progress."""
        table = self.tables.table(call.name)
        if table is None:
            return
        rows = table.rows
        for place, argument in enumerate(call.args):
            value = self._value(argument, known)
            if value is not None:
                having = table.having(place, value[1])
                if having:
                    rows = having
                elif _has_variables(argument):
                    self._fail(partial(Finding, _head(call), "", f"no {call.name} of {self._shown(value)}"), 0)
                    return
                break  # a constant that is nowhere: all rows tell what stands there
        if not rows:
            self._fail(lambda: Finding(_head(call), "", f"no {call.name} in the e-graph"), 0)
        for row in rows:
            for inner, progress in self._arguments(call, table, row, known, (), 1):
                yield (table.signature.output, row.output), inner, progress

    def _match(
        self, pattern: Any, value: Located, known: Binding, path: Path, progress: int
    ) -> Iterator[tuple[Binding, int]]:
        """The ways in which `pattern` matches what stands at `value`."""
        self._step()
        if isinstance(pattern, bindings.Var):
            bound = known.get(pattern.name)
            if bound is None:
                bound = self.tables.variable(pattern.name) or value
            if bound == value:
                yield {**known, pattern.name: value}, progress + 1
                return
            self._differs(lambda: f"{pattern.name}, which is {self._shown(bound)}", path, value, progress)
        elif isinstance(pattern, bindings.Lit):
            if self.tables.literal(*value) == _plain(pattern):
                yield known, progress + 1
                return
            self._differs(lambda: expression_text(pattern), path, value, progress)
        elif self._ground(pattern, known):
            wanted_value = self._value(pattern, known)
            if wanted_value == value or (wanted_value is None and self.tables.table(pattern.name) is None):
                yield known, progress + 1
                return
            self._differs(lambda: self._result(pattern, known, wanted_value), path, value, progress)
        else:
            table = self.tables.table(pattern.name)
            if table is None:  # a primitive cannot be turned round
                yield known, progress
                return
            rows = table.of(value[1])
            if not rows:
                self._differs(lambda: _head(pattern), path, value, progress)
            for row in rows:
                yield from self._arguments(pattern, table, row, known, path, progress + 1)

    def _arguments(
        self, call: Any, table: Table, row: Any, known: Binding, path: Path, progress: int, place: int = 0
    ) -> Iterator[tuple[Binding, int]]:
        if place == len(call.args):
            yield known, progress
            return
        value = (table.signature.inputs[place], row.inputs[place])
        here = (*path, (call.name, place + 1))
        for inner, reached in self._match(call.args[place], value, known, here, progress):
            yield from self._arguments(call, table, row, inner, path, reached, place + 1)

    def _ground(self, expression: Any, known: Binding) -> bool:
        if isinstance(expression, bindings.Call):
            return all(self._ground(a, known) for a in expression.args)
        if isinstance(expression, bindings.Var):
            return expression.name in known or self.tables.variable(expression.name) is not None
        return True

    def _value(self, expression: Any, known: Binding) -> Located | None:
        """What a pattern without unbound variables stands for; None where it is not in the e-graph."""
        if isinstance(expression, bindings.Var):
            return known.get(expression.name) or self.tables.variable(expression.name)
        if not isinstance(expression, bindings.Call):
            return None
        table = self.tables.table(expression.name)
        if table is None:
            return None
        rows = table.rows
        for place, argument in enumerate(expression.args):
            value = self._value(argument, known)
            if value is not None:
                rows = table.having(place, value[1])
                break
        for row in rows:
            self._step()
            if all(
                self._same(argument, (sort, value), known)
                for argument, sort, value in zip(expression.args, table.signature.inputs, row.inputs, strict=True)
            ):
                return table.signature.output, row.output
        return None

    def _same(self, argument: Any, value: Located, known: Binding) -> bool:
        if isinstance(argument, bindings.Lit):
            return bool(self.tables.literal(*value) == _plain(argument))
        if isinstance(argument, bindings.Call) and self.tables.table(argument.name) is None:
            answer = self._compute(argument, known)
            return answer is not None and bool(answer[1] == self.tables.literal(*value))
        return self._value(argument, known) == value

    def _compute(self, expression: Any, known: Binding) -> tuple[str, Any] | None:
        """A primitive's result with its operands' sort, for those that can be told here; else None."""
        if isinstance(expression, bindings.Lit):
            return "", _plain(expression)
        if not isinstance(expression, bindings.Call) or self.tables.table(expression.name) is not None:
            value = self._value(expression, known)
            if value is None:
                return None
            plain = self.tables.literal(*value)
            return value[0], value if plain is None else plain
        operands = [self._compute(a, known) for a in expression.args]
        if len(operands) != 2 or operands[0] is None or operands[1] is None:
            return None
        sort, a, b = operands[0][0], operands[0][1], operands[1][1]
        try:
            match expression.name:
                case "!=":
                    return sort, a != b
                case "<":
                    return sort, a < b
                case ">":
                    return sort, a > b
                case "<=":
                    return sort, a <= b
                case ">=":
                    return sort, a >= b
                case "+":
                    return sort, a + b
                case "-":
                    return sort, a - b
                case "*":
                    return sort, a * b
        except TypeError:
            return None
        return None

    def _absent(self, call: Any, known: Binding) -> Finding:
        """A term or a fact that is not in the e-graph."""
        instance = self._instance(call, known)
        if call.name in self.tables.facts:
            of = ", ".join(self._instance(a, known) for a in call.args)
            return Finding(instance, "", f"no ({call.name} ..) fact for {of}")
        return Finding(instance, "", f"no {instance} in the e-graph")

    def _untrue(self, call: Any, known: Binding) -> Finding:
        """A comparison that is not so."""
        shown = ", ".join(f"{v} is {self._shown(known[v])}" for v in dict.fromkeys(variables(call)) if v in known)
        return Finding(expression_text(call), "", shown or "it is false")

    def _result(self, pattern: Any, known: Binding, value: Located | None) -> str:
        """A pattern without unbound variables, and what it comes to."""
        shown = self._instance(pattern, known)
        if value is not None and _has_variables(pattern) and self._shown(value) != shown:
            shown += f", which is {self._shown(value)}"
        return shown

    def _instance(self, pattern: Any, known: Binding) -> str:
        """A pattern with its bound variables replaced by what they stand for."""
        if isinstance(pattern, bindings.Var):
            bound = known.get(pattern.name)
            if bound is None:
                return "_" if pattern.name.startswith("@") else printable(pattern.name, 60)
            return self._shown(bound)
        if isinstance(pattern, bindings.Call):
            return f"({' '.join([pattern.name, *(self._instance(a, known) for a in pattern.args)])})"
        return printable(expression_text(pattern), 60)

    def _shown(self, value: Located) -> str:
        return self.tables.show(*value)

    def _class(self, value: Located) -> str:
        return self.tables.show_class(*value)

    def _at(self, path: Path) -> str:
        """A place in words, the innermost first; places in a list by their number."""
        text, behind = "", 0
        for function, place in path:
            if place == 2 and self._is_list(function):
                behind += 1
                continue
            if place == 1 and self._is_list(function):
                text, behind = f"item {behind + 1} of {text}", 0
                continue
            if behind:
                text, behind = f"what follows item {behind} of {text}", 0
            if place == 0:
                text = function
                continue
            name = self.names.get((function, place))
            inside = f" in {text}" if text else ""
            text = f"argument {place}{f' ({name})' if name else ''} of {function}{inside}"
        if behind:
            text = f"what follows item {behind} of {text}"
        return printable(text, 300)

    def _is_list(self, function: str) -> bool:
        """Whether a constructor puts an item before a list."""
        table = self.tables.table(function)
        if table is None or len(table.signature.inputs) != 2:
            return False
        item, rest = table.signature.inputs
        return item != rest == table.signature.output

    def _differs(self, wanted: Callable[[], str], path: Path, value: Located, progress: int) -> None:
        self._fail(lambda: Finding(wanted(), self._at(path), self._class(value)), progress)

    def _fail(self, find: Callable[[], Finding], progress: int) -> None:
        self.result.note(find, progress, self.start)

    def _step(self) -> None:
        self.result.steps += 1
        if self.result.steps > MOST_STEPS or time.perf_counter() > self.until:
            raise _Exhausted


def _head(pattern: Any) -> str:
    """A pattern's outermost function."""
    return f"({pattern.name} ..)" if pattern.args else f"({pattern.name})"


def _has_variables(pattern: Any) -> bool:
    return next(variables(pattern), None) is not None


def _plain(literal: Any) -> Any:
    return getattr(literal.value, "value", None)
