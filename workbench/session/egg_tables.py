"""The tables of an egglog program's run: its rules, rulesets and functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from workbench.egraph.messages import StepDone
from workbench.egraph.program_messages import FunctionInfo
from workbench.egraph.program_runner import Heard, by_ruleset
from workbench.egraph.snapshot import Builder, Snapshot
from workbench.errors import printable
from workbench.session import events as ev
from workbench.session.rule_statistics import rule_rows

POINTS = 60
"""Of a curve over the steps."""


def program_rule_rows(heard: Heard, snapshot: Snapshot | None) -> list[ev.RuleRow]:
    """One row per rule that the program declared, fired or not."""
    rows = rule_rows(heard.rules, list(by_ruleset(heard)), snapshot or Snapshot(Builder.empty().finish()))
    return [
        msgspec.structs.replace(
            row,
            name=printable(row.name, 400),
            ruleset=printable(row.ruleset),
            file=printable(row.file),
            steps=summed(row.steps),
        )
        for row in rows
    ]


def ruleset_rows(heard: Heard) -> list[ev.RulesetRow]:
    """One row per ruleset that has rules or ran, as the schedule names it."""
    rules: dict[str, int] = defaultdict(int)
    for rule in heard.rules:
        rules[rule.ruleset] += 1
    for name, parts in heard.combined.items():
        rules[name] = sum(rules[part] for part in parts)
    runs: dict[str, list[StepDone]] = {name: [] for name in rules}
    for step in heard.steps:
        runs.setdefault(step.ruleset, []).append(step)
    return [
        ev.RulesetRow(
            name=printable(name),
            rules=rules.get(name, 0),
            runs=len(steps),
            matches=sum(sum(s.matches.values()) for s in steps),
            seconds=sum(s.seconds for s in steps),
            nodes=sampled([s.nodes for s in steps]),
        )
        for name, steps in runs.items()
    ]


def function_rows(heard: Heard, functions: Sequence[FunctionInfo]) -> list[ev.FunctionRow]:
    """One row per function that is there at the end, with its rows over the steps."""
    changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for step in heard.steps:
        for name, rows in step.sizes.items():
            changes[name].append((step.step, rows))
    count = len(heard.steps)
    return [
        ev.FunctionRow(
            name=printable(f.name),
            kind=f.kind,
            inputs=[printable(sort) for sort in f.inputs],
            output=printable(f.output),
            rows=f.rows,
            sizes=_curve(changes.get(f.name, []), count),
        )
        for f in functions
    ]


def _curve(changes: Sequence[tuple[int, int]], steps: int) -> list[int]:
    """A step function at few enough points; empty where nothing was seen."""
    if not changes:
        return []
    points = min(POINTS, steps)
    curve: list[int] = []
    at, value = 0, 0
    for point in range(1, points + 1):
        while at < len(changes) and changes[at][0] < point * steps / points:
            value = changes[at][1]
            at += 1
        curve.append(value)
    return curve


def sampled(values: Sequence[int]) -> list[int]:
    """At most POINTS of the values, the last among them."""
    if len(values) <= POINTS:
        return list(values)
    return [values[(point + 1) * len(values) // POINTS - 1] for point in range(POINTS)]


def summed(values: Sequence[int]) -> list[int]:
    """The values added up in at most POINTS stretches of nearly the same length."""
    if len(values) <= POINTS:
        return list(values)
    ends = [point * len(values) // POINTS for point in range(POINTS + 1)]
    return [sum(values[a:b]) for a, b in pairwise(ends)]
