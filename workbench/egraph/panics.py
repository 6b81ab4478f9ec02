"""What can be said of a rule that failed while it ran: egglog names the place of the primitive, which is often a rule
that only works with the numbers that another one made."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from workbench.egraph.messages import RuleInfo
from workbench.egraph.snapshot import Snapshot
from workbench.errors import printable

_PLACE = re.compile(r"In (\d+):\d+(?:-\d+(?::\d+)?)? of ([^:]+): ?")
_PRIMITIVE = re.compile(r"call of primitive (\S+) failed")
_REASONS = {
    "+": "an i64 overflow",
    "-": "an i64 overflow",
    "*": "an i64 overflow",
    "/": "a division by zero",
    "%": "a division by zero",
}
LARGE = 1 << 24
"""From here on a number is taken to have to do with an overflow."""


def place(error: BaseException, ruleset: str = "") -> str:
    """egglog's message with its place as file:line in front, on one line; a panic that has no place has `ruleset`."""
    text = " ".join(str(error).split())
    found = _PLACE.search(text)
    if not found:
        return f"ruleset '{ruleset}': {text}" if ruleset else text
    rest = (text[: found.start()] + text[found.end() :]).strip()
    return f"{found.group(2)}:{found.group(1)}: {rest[:300]}"


def explained(error: BaseException, ruleset: str, step: int, rules: Sequence[RuleInfo], snapshot: Snapshot) -> str:
    """The message of a failure inside step `step` of `ruleset`: the rule at its place, what the primitive's failure
    means, and where the largest number came from. `snapshot` is of the e-graph as the failure left it."""
    where = f"ruleset '{printable(ruleset, 40)}', step {step}"
    text = " ".join(str(error).split())
    found = _PLACE.search(text)
    if not found:
        return f"ruleset '{printable(ruleset, 40)}': in step {step}: {text[:300]}"
    file, line = found.group(2), int(found.group(1))
    rest = (text[: found.start()] + text[found.end() :]).strip().removeprefix("Panic: ")
    rule = _at(rules, file, line)
    name = f"rule '{printable(rule.name, 80)}' in {where}" if rule else where
    primitive = _PRIMITIVE.search(rest)
    reason = _REASONS.get(primitive.group(1), "") if primitive else ""
    said = f"{file}:{line}: {name}: {rest[:300]}"
    if reason:
        said += f" ({reason})"
    if "overflow" in reason:
        said += _origin(snapshot, ruleset, rules)
    return said


def _at(rules: Iterable[RuleInfo], file: str, line: int) -> RuleInfo | None:
    """The rule that a line is part of: the last that begins above it."""
    return max((r for r in rules if r.file == file and r.line <= line), key=lambda r: r.line, default=None)


def _origin(snapshot: Snapshot, ruleset: str, rules: Iterable[RuleInfo]) -> str:
    """The largest number with its maker, and the rule outside `ruleset`, which only folds what it is given, that made
    most of the e-nodes in which large numbers stand."""
    largest, at = 0, -1
    large: set[int] = set()
    for node in range(snapshot.node_count):
        for child in snapshot.children(node):
            value = snapshot.literal(child) if child < 0 else 0
            if isinstance(value, int) and abs(value) >= LARGE:
                large.add(snapshot.class_of(node))
                largest, at = max((largest, at), (abs(value), node))
    if not large:
        return ""
    by_name = {r.name: r for r in rules}
    said = f"; the largest number there is {largest}, of {_by(snapshot.made_by(at), by_name)}"
    users = (n for n in range(snapshot.node_count) if not large.isdisjoint(snapshot.children(n)))
    makers = Counter((snapshot.op(n), snapshot.made_by(n)) for n in users)
    outside = [(op, rule) for (op, rule), _ in makers.most_common() if rule is None or by_name[rule].ruleset != ruleset]
    if outside:
        op, maker = outside[0]
        said += f", and such numbers stand in {printable(op, 40)} of {_by(maker, by_name)}"
    return said


def _by(rule: str | None, rules: dict[str, RuleInfo]) -> str:
    if rule is None:
        return "the program"
    info = rules[rule]
    return f"rule '{printable(rule, 80)}' ({printable(info.file)}:{info.line})"
