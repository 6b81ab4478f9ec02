"""What `luminal-tui rules` prints: rules and rulesets over all groups, for a person."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from workbench.errors import printable

NAME = 58


def rule_table(report: dict[str, Any]) -> str:
    """The rule table over all groups, the costliest first; rules that never fired stand at the end. Then the rulesets,
    and what stopped a group's saturation."""
    rows = _summed(g["rules"] for g in report["groups"])
    total = sum(r["seconds"] for r in rows) or 1.0
    lines = [
        f"{'rule':{NAME}} {'category':8} {'ruleset':10} {'matches':>8} {'ms':>8} {'share':>6} {'e-nodes':>8} "
        f"{'unions':>7} {'steps':>7} {'by step':9} where"
    ]
    for row in sorted(rows, key=lambda r: (r["matches"] == 0, -r["seconds"])):
        fired = f"{row['matches']:8}" if row["matches"] else "   never"
        lines.append(
            f"{printable(row['name'], NAME):{NAME}} {row['category']:8} {printable(row['ruleset'], 10):10} {fired} "
            f"{row['seconds'] * 1e3:8.3f} {row['seconds'] / total:6.1%} {_count(row['enodes']):>8} "
            f"{_count(row['unions']):>7} {_span(row):>7} {spark(row['steps'], 8):9} "
            f"{printable(row['file'])}:{row['line']}"
        )
    never = sum(1 for r in rows if not r["matches"])
    lines += ["", f"{len(rows)} rules, {never} never fired, {total * 1e3:.1f} ms in rules"]
    lines += ["", *_rulesets(report["groups"])]
    for number, group in enumerate(report["groups"]):
        egraph = group["egraph"] or {}
        if egraph.get("stopped"):
            lines.append(f"\ngroup {number}: saturation stopped at its {egraph['stopped']}")
            if egraph["culprit"]:
                lines.append(f"  {egraph['culprit']['text']}")
    return "\n".join(lines)


def _rulesets(groups: list[dict[str, Any]]) -> list[str]:
    rows = _summed(g["rulesets"] for g in groups)
    lines = [
        f"{'ruleset':12} {'fired':>7} {'runs':>5} {'matches':>8} {'ms':>8} {'rebuild ms':>10} {'e-nodes':>8}  "
        "e-nodes by run"
    ]
    for row in rows:
        lines.append(
            f"{printable(row['name'], 12) or '(no name)':12} {row['fired']:>3}/{row['rules']:<3} {row['runs']:5} "
            f"{row['matches']:8} {row['seconds'] * 1e3:8.3f} {row['rebuild_seconds'] * 1e3:10.3f} {row['enodes']:+8}  "
            f"{spark([max(0, n) for n in row['steps']], 24)}"
        )
    return lines


_SAME = ("rules", "fired")
"""Counts that are of the library, not of a group."""


def _summed(groups: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of all groups, those of the same rule or ruleset as one."""
    sums: dict[tuple[Any, ...], dict[str, Any]] = {}
    for rows in groups:
        for row in rows:
            key = (row["name"], row.get("file"), row.get("line"))
            known = sums.get(key)
            sums[key] = dict(row) if known is None else {k: _sum(k, known[k], v) for k, v in row.items()}
    return list(sums.values())


def _sum(key: str, a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    match key:
        case "first_step":
            return min(a, b)
        case "last_step":
            return max(a, b)
        case "steps":
            longer, shorter = sorted((a, b), key=len, reverse=True)
            return [n + (shorter[i] if i < len(shorter) else 0) for i, n in enumerate(longer)]
        case _ if key in _SAME:
            return max(a, b)
        case _:
            return a if isinstance(a, str) or key == "line" else a + b


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _span(row: dict[str, Any]) -> str:
    first, last = row["first_step"], row["last_step"]
    if first is None:
        return ""
    return str(first) if first == last else f"{first}-{last}"


def spark(values: list[int], width: int) -> str:
    """Values as a line of at most `width` digits, 9 for the largest; '.' for nothing. A digit shows the largest value
    that falls to it."""
    if not any(values):
        return ""
    cells = min(width, len(values))
    peaks = [max(values[i * len(values) // cells : (i + 1) * len(values) // cells]) for i in range(cells)]
    top = max(peaks)
    return "".join(str(max(1, 9 * p // top)) if p else "." for p in peaks)
