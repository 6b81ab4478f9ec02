"""What every rule of the library did in one saturation, from the reports of its steps and who made which e-node."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from workbench.egraph.messages import RuleInfo, StepDone
from workbench.egraph.rules import category
from workbench.egraph.snapshot import Snapshot
from workbench.session.events import RuleRow


def rule_rows(rules: Sequence[RuleInfo], steps: Sequence[StepDone], snapshot: Snapshot) -> list[RuleRow]:
    """One row per rule of the library, fired or not."""
    runs: dict[str, list[StepDone]] = defaultdict(list)
    seconds: Counter[str] = Counter()
    spans: dict[str, tuple[int, int]] = {}
    for step in steps:
        runs[step.ruleset].append(step)
        seconds.update(step.rule_seconds)
        for name, matches in step.matches.items():
            if matches:
                spans[name] = (spans.get(name, (step.step,))[0], step.step)
    made, joined = enodes_made(snapshot, {name: span[0] for name, span in spans.items()})
    rows: list[RuleRow] = []
    for rule in rules:
        series = [s.matches.get(rule.name, 0) for s in runs[rule.ruleset]]
        span = spans.get(rule.name)
        rows.append(
            RuleRow(
                name=rule.name,
                category=category(rule.file),
                ruleset=rule.ruleset,
                file=rule.file,
                line=rule.line,
                matches=sum(series),
                seconds=seconds[rule.name],
                steps=series,
                first_step=span[0] if span else None,
                last_step=span[1] if span else None,
                enodes=made[rule.name] if snapshot.knows_makers else None,
                unions=joined[rule.name] if snapshot.knows_makers else None,
            )
        )
    return rows


def enodes_made(snapshot: Snapshot, first_step: Mapping[str, int]) -> tuple[Counter[str], Counter[str]]:
    """By rule: the e-nodes it made first, and those of them that joined an e-class which was there.

    An e-class that holds none of the program's e-nodes began with one of a rule, taken to be of the one among its
    makers that fired first."""
    made: Counter[str] = Counter()
    joined: Counter[str] = Counter()
    for members in snapshot.nodes_of:
        makers = [snapshot.made_by(node) for node in members]
        rules = [rule for rule in makers if rule is not None]
        made.update(rules)
        joined.update(rules)
        if rules and len(rules) == len(makers):
            joined[min(rules, key=lambda rule: first_step.get(rule, 0))] -= 1
    return made, joined
