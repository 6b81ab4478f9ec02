"""The X-ray of a rule: how many bindings survive its premises one after another, and why none survives the first that
stops them all.

Runs in the saturation child on the e-graph just saturated. The bindings that survive the first k premises are the rows
of a table; the next table is made by a rule that joins it with the next premise, subsumed e-nodes included, since the
rule may have been looking when they were not. The tables stay, under names that nothing else has: copying the e-graph
to be rid of them would cost more than the question.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

from workbench.egraph.bindings import bindings
from workbench.egraph.diagnosis import Binding, diagnose
from workbench.egraph.messages import PremiseCount, XrayResult
from workbench.egraph.named import found as variable_named
from workbench.egraph.premises import Premise, Premises, Signature, fact_variables, premises_of, sides, sorts_of
from workbench.egraph.tables import Tables
from workbench.errors import printable

MOST_BINDINGS = 1_000_000
"""A premise after which more than these would be left is not evaluated where that can be told before."""
MOST_TRIED = 200
"""Surviving bindings that are looked at for the reason."""
MOST_SORTS = 64
"""Ways tried to give sorts to variables that no function tells the sort of."""
OWN = "xray%"
"""What the names of the tables begin with."""


class NotAskable(Exception):
    """The question makes no sense; the message says why."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A rule of the library as egglog parsed it; `backwards` is one direction of a two-way rewrite."""

    command: Any
    file: str
    line: int
    backwards: bool = False


@dataclass(slots=True)
class Subject:
    """A saturated e-graph that is asked about, with the functions that it has; `facts` names those that are tables
    beside the e-classes. `made` counts the tables of all questions so far, `rows` what is in them."""

    egraph: Any
    facts: set[str]
    signatures: Mapping[str, Signature]
    made: int = 0
    rows: int = 0


def xray(
    subject: Subject,
    rules: Mapping[str, Parsed],
    name: str,
    node: str | None,
    seconds: float,
    on_premise: Callable[[PremiseCount], None],
) -> XrayResult:
    """The funnel of rule `name`, of all e-classes or with its root bound to the global variable `node`.

    `on_premise` hears of each premise once it is counted. Past `seconds`, or before a cross product of more than
    MOST_BINDINGS, it stops with what was counted. Raises NotAskable."""
    began = time.perf_counter()
    rule = rules.get(name)
    if rule is None:
        raise NotAskable(f"there is no rule '{printable(name)}'")
    funnel = _Funnel(subject, premises_of(rule.command, rule.backwards), node)
    premises = funnel.parts.premises
    counted: list[PremiseCount] = []
    stopped = ""
    failing: int | None = None
    wanted = at = found = ""
    binding: dict[str, str] = {}
    funnel.begin()
    for place, premise in enumerate(premises):
        if failing is None and not stopped:
            stopped = funnel.too_many(place)
            if not stopped and time.perf_counter() - began > seconds:
                stopped = f"stopped before premise {place + 1}: over {seconds:g} s"
        if stopped:
            matches: int | None = None
        elif failing is None:
            matches = funnel.narrow(place)
        else:
            matches = 0
        counted.append(PremiseCount(premise.text, matches, funnel.counts(place)))
        on_premise(counted[-1])
        if matches == 0 and failing is None:
            failing = place
    if failing is not None:
        wanted, at, found, binding = _reason(funnel, failing, rules.values(), began + seconds)
    return XrayResult(
        rule=name,
        file=rule.file,
        line=rule.line,
        node=node,
        root=funnel.root if node else "",
        premises=counted,
        first_failing=failing,
        wanted=wanted,
        at=at,
        found_instead=found,
        binding=binding,
        stopped=stopped,
        seconds=time.perf_counter() - began,
    )


class _Funnel:
    """The tables of surviving bindings, one per premise."""

    def __init__(self, subject: Subject, parts: Premises, node: str | None) -> None:
        self.subject = subject
        self.egraph = subject.egraph
        self.parts = parts
        self.node = node
        signatures = subject.signatures
        self.sorts = sorts_of((p.fact for p in parts.premises), signatures)
        self.all_sorts = sorted({s for f in signatures.values() for s in (*f.inputs, f.output) if "@" not in s})
        self.bound_root: Any = None
        """The expression for the node, where there is one."""
        self.root = self._root(node) if node is not None else ""
        self.bound: list[tuple[str, ...]] = [(self.root,) if self.root else ()]
        """The variables of each table, in the order of its columns."""
        self.sizes = [1]
        self.names = [self._next_name()]

    def _next_name(self) -> str:
        self.subject.made += 1
        return f"{OWN}{self.subject.made}"

    def _root(self, node: str) -> str:
        located = variable_named(self.egraph, node, self.all_sorts)
        if located is None:
            raise NotAskable(f"{printable(node, 40)} is no node of this program")
        found, self.bound_root = located
        for variable in self.parts.roots:
            if self.sorts.get(variable) == found:
                return variable
        kinds = ", ".join(dict.fromkeys(s for v in self.parts.roots if (s := self.sorts.get(v))))
        raise NotAskable(f"{node} is of sort {found}, and the rule's variables are of {kinds or 'no sort'}")

    def begin(self) -> None:
        """Make the table before the first premise: nothing bound, or the root bound to the node."""
        sort = self.sorts.get(self.root, "")
        name = self.names[0]
        self._run(f"(relation {name} ({sort}))")
        span = bindings.EgglogSpan(bindings.SrcFile("xray", ""), 0, 0)
        first = bindings.Call(span, name, [self.bound_root] if self.root else [])
        self.egraph.run_program(bindings.ActionCommand(bindings.Expr_(span, first)))

    def counts(self, place: int) -> str:
        """What the number of premise `place` counts."""
        before = self.bound[0]
        names = tuple(dict.fromkeys((*before, *(v for p in self.parts.premises[: place + 1] for v in _names(p)))))
        shown = ", ".join(n for n in names if n != self.root)
        at = f" with {self.root} at {self.node}" if self.root else ""
        return f"distinct bindings of {shown}{at}" if shown else f"whether it holds (1 or 0){at}"

    def too_many(self, place: int) -> str:
        """A word where premise `place` shares no variable with what is bound and the product would be too large."""
        names = _names(self.parts.premises[place])
        if place == 0 or not names or set(names) & set(self.bound[-1]):
            return ""
        rows = max(map(self._rows, sides(self.parts.premises[place].fact)), default=0)
        if self.sizes[-1] * rows <= MOST_BINDINGS:
            return ""
        return (
            f"stopped before premise {place + 1}: it shares no variable with those before it, "
            f"and {self.sizes[-1]:,} x {rows:,} bindings are a cross product too large to count"
        )

    def _rows(self, side: Any) -> int:
        if not isinstance(side, bindings.Call) or side.name not in self.subject.signatures:
            return 0
        return int(self._run(f"(print-size {side.name})")[0].size)

    def narrow(self, place: int) -> int:
        """Join the last table with premise `place`; the number of bindings that survive."""
        premise, known = self.parts.premises[place], self.bound[-1]
        columns = tuple(dict.fromkeys((*known, *_names(premise))))
        unknown = [c for c in columns if c not in self.sorts]
        failure: BaseException | None = None
        for guess in islice(product(self.all_sorts, repeat=len(unknown)), MOST_SORTS):
            sorts = {**self.sorts, **dict(zip(unknown, guess, strict=True))}
            name = self._next_name()
            try:
                size = self._join(self.names[-1], name, premise, known, columns, sorts)
            except bindings.EggSmolError as error:
                failure = error
                continue
            self.sorts = sorts
            self.bound.append(columns)
            self.sizes.append(size)
            self.subject.rows += size
            self.names.append(name)
            return size
        raise NotAskable(f"premise {place + 1} cannot be asked by itself: {printable(str(failure), 200)}")

    def _join(
        self,
        before: str,
        after: str,
        premise: Premise,
        known: Sequence[str],
        columns: Sequence[str],
        sorts: Mapping[str, str],
    ) -> int:
        self._run(f"(relation {after} ({' '.join(sorts[c] for c in columns)})) (ruleset {after}-rules)")
        span = bindings.EgglogSpan(bindings.SrcFile("xray", ""), 0, 0)

        def call(table: str, names: Sequence[str]) -> Any:
            return bindings.Call(span, table, [bindings.Var(span, n) for n in names])

        body = [bindings.Fact(call(before, known)), premise.fact]
        head = [bindings.Expr_(span, call(after, columns))]
        rule = bindings.Rule(span, head, body, f"{after}-rule", f"{after}-rules", include_subsumed=True)
        self.egraph.run_program(bindings.RuleCommand(rule))
        self._run(f"(run-schedule (run {after}-rules))")
        return int(self._run(f"(print-size {after})")[0].size)

    def _run(self, text: str) -> list[Any]:
        return list(self.egraph.run_program(*self.egraph.parse_program(text, "xray")))

    def survivors(self, tables: Tables) -> list[Binding]:
        """Some of the bindings before the last premise."""
        columns = self.bound[-2]
        if not columns:
            return [{}]
        survived = tables.table(self.names[-2])
        assert survived is not None
        rows = survived.rows
        return [{c: (self.sorts[c], v) for c, v in zip(columns, row.inputs, strict=True)} for row in rows[:MOST_TRIED]]


def _names(premise: Premise) -> list[str]:
    return fact_variables(premise.fact)


def _reason(
    funnel: _Funnel, failing: int, rules: Iterable[Parsed], until: float
) -> tuple[str, str, str, dict[str, str]]:
    """What was wanted, where, what stands there, and under which binding."""
    tables = Tables(funnel.egraph, funnel.subject.facts)
    survivors = funnel.survivors(tables)
    result = diagnose(tables, funnel.parts.premises[failing].fact, survivors, argument_names(rules), until)
    data = tables.data_sorts()
    shown = {v: tables.show(*value, depth=None if value[0] in data else 1) for v, value in result.binding.items()}
    if not result.findings and result.exhausted:
        return funnel.parts.premises[failing].text, "", "not looked up: no time was left", shown
    if result.holds or not result.findings:
        return funnel.parts.premises[failing].text, "", "nothing of the kind", shown
    first = result.findings[0]
    alike = [f.found for f in result.findings if (f.wanted, f.at) == (first.wanted, first.at)]
    found = "; or ".join(dict.fromkeys(alike))
    left = result.more + len(result.findings) - len(alike)
    if left:
        found += f"; and {left:,} more attempts that got as far"
    if result.exhausted:
        found += "; not all was looked at"
    return first.wanted, first.at, found, shown


def argument_names(rules: Iterable[Parsed]) -> dict[tuple[str, int], str]:
    """What the rules themselves mostly call each argument of the functions that have many, by (function, place)."""
    seen: dict[tuple[str, int], Counter[str]] = {}

    def look(expression: Any) -> None:
        if not isinstance(expression, bindings.Call):
            return
        for place, argument in enumerate(expression.args, 1):
            if isinstance(argument, bindings.Var) and len(expression.args) > 3 and argument.name.startswith("?"):
                seen.setdefault((expression.name, place), Counter())[argument.name.lstrip("?")] += 1
            look(argument)

    for rule in rules:
        for premise in premises_of(rule.command, rule.backwards).premises:
            for side in sides(premise.fact):
                look(side)
    return {key: names.most_common(1)[0][0] for key, names in seen.items()}
