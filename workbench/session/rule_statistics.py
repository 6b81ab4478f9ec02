"""What every rule of the library did in one saturation, from the reports of its steps and who made which e-node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from workbench.egraph.messages import RuleInfo, StepDone
from workbench.egraph.rules import category
from workbench.egraph.snapshot import Snapshot
from workbench.session.events import RuleRow


def rule_rows(rules: Sequence[RuleInfo], steps: Sequence[StepDone], snapshot: Snapshot) -> list[RuleRow]:
    """One row per rule of the library, fired or not."""
    first = {r.name: first_and_last(steps, r.name) for r in rules}
    made, joined = enodes_made(snapshot, {name: span[0] for name, span in first.items() if span})
    rows: list[RuleRow] = []
    for rule in rules:
        own = [s for s in steps if s.ruleset == rule.ruleset]
        span = first[rule.name]
        rows.append(
            RuleRow(
                name=rule.name,
                category=category(rule.file),
                ruleset=rule.ruleset,
                file=rule.file,
                line=rule.line,
                matches=sum(s.matches.get(rule.name, 0) for s in own),
                seconds=sum(s.rule_seconds.get(rule.name, 0.0) for s in own),
                steps=[s.matches.get(rule.name, 0) for s in own],
                first_step=span[0] if span else None,
                last_step=span[1] if span else None,
                enodes=made[rule.name] if snapshot.knows_makers else None,
                unions=joined[rule.name] if snapshot.knows_makers else None,
            )
        )
    return rows


def first_and_last(steps: Sequence[StepDone], rule: str) -> tuple[int, int] | None:
    """The first and the last step in which a rule matched."""
    fired = [s.step for s in steps if s.matches.get(rule)]
    return (fired[0], fired[-1]) if fired else None


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
