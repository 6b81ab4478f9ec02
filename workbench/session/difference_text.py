"""A difference as lines for people: the command prints them, the app colours them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from workbench.errors import printable
from workbench.session.difference import Difference, GroupDifference, Option, Pair, RuleDifference

Line = list[tuple[str, str]]
"""Pieces of one line, each with its role: title, head, text, dim, good, bad, added, removed or changed."""

WIDE = 120
"""From this width on the two sides stand side by side in blocks; below, quantity by quantity."""
NUMBER, BLOCK, RATIO = 10, 15, 7
"""Cells of a number, of one where the sides stand in blocks, and of a ratio."""
MOST_KERNELS = 30
MARKS = {"added": "+", "removed": "-", "matches": "~", "time": "~", "same": " ", "": " "}
ROLES = {"added": "added", "removed": "removed", "matches": "changed", "time": "changed"}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A column of numbers. `lower_is_better`: None where neither is."""

    title: str
    show: Callable[[float], str]
    lower_is_better: bool | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: a pair for each quantity of it."""

    label: str
    pairs: Sequence[Pair]
    change: str = ""


def number(value: float) -> str:
    """A count, or a figure with four digits."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def decimals(value: float) -> str:
    """Milliseconds or seconds: about four digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.3f}"


COUNT = Quantity("", number)
MS = Quantity("ms", lambda seconds: decimals(seconds * 1e3), True)
OF_RULES = {"matches": Quantity("matches", number), "enodes": Quantity("e-nodes", number), "seconds": MS}


def as_text(difference: Difference, width: int = 80) -> str:
    """All of it as plain text."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines(difference, width))


def lines(difference: Difference, width: int) -> Iterator[Line]:
    """All of it in `width` cells."""
    yield from _sides(difference, width)
    for said in difference.not_compared:
        yield from _wrapped(said, width, "bad")
    if difference.options:
        yield []
        yield [("options", "title")]
        for option in difference.options:
            yield from _option(option, width)
    yield from _result(difference, width)
    yield from _rules(difference.rules, width)
    for group in difference.groups:
        yield from _group(group, width)
    yield from _kernels(difference, width)
    rows = [Row(stage, [p]) for stage, p in difference.timeline.items()]
    yield from table("timeline, seconds", [Quantity("", decimals, True)], rows, width)


def _sides(difference: Difference, width: int) -> Iterator[Line]:
    for title, side in (("before", difference.before), ("after", difference.after)):
        name = printable(str(side["name"]), 60)
        status = f"  {side['status']}" if side["status"] else ""
        model = printable(str(side["model"] or "no model").rpartition("/")[2], 40)
        words = f"{model}  {side['target'] or '-'}  seed {side['seed']}  {side['total_seconds']:.1f} s{status}"
        if len(name) + len(words) + 10 <= width:
            yield [(f"{title:8}", "title"), (name, "text"), (f"  {words}", "dim")]
        else:
            yield [(f"{title:8}", "title"), (_cut(name, width - 8), "text")]
            yield [(" " * 8, ""), (_cut(words, width - 8), "dim")]


def _option(option: Option, width: int) -> Iterator[Line]:
    def shown(value: Any) -> str:
        if isinstance(value, list | tuple):
            return ", ".join(map(str, value)) or "none"
        if isinstance(value, dict):
            return ", ".join(f"{k}={v}" for k, v in value.items()) or "none"
        return "not given" if value is None else str(value)

    before, after = (printable(shown(value), 400) for value in (option.before, option.after))
    line = f"  {option.name:16}{before} -> {after}"
    if len(line) <= width:
        yield [(f"  {option.name:16}", "dim"), (before, "text"), (" -> ", "dim"), (after, "text")]
        return
    yield [(f"  {option.name}", "dim")]
    for mark, value in (("-", before), ("+", after)):
        for place, text in enumerate(wrap(value, width - 6) or [""]):
            yield [("      " if place else f"    {mark} ", "dim"), (text, "text")]


def _result(difference: Difference, width: int) -> Iterator[Line]:
    rows = [Row(f"latency {name}, ms", [p]) for name, p in difference.latency_ms.items() if not _empty(p)]
    yield from table("result", [Quantity("", decimals, True)], rows, width)
    sides = (difference.verify["before"], difference.verify["after"])
    if not any(sides):
        return
    if not rows:
        yield []
        yield [("result", "title")]
    right = {None: ("not verified", "dim"), True: ("right", "good"), False: ("WRONG", "bad")}
    words = [right[s["ok"] if s else None] for s in sides]
    errors = [f" (relative error {s['max_rel_err']:.3g}, {printable(s['reference'], 24)})" if s else "" for s in sides]
    for title, word, error in zip(("before", "after"), words, errors, strict=True):
        yield [(f"  verified {title:7}", "dim"), word, (_cut(error, width - 30), "dim")]


def _rules(rules: Sequence[RuleDifference], width: int) -> Iterator[Line]:
    if not rules:
        return
    changed = [rule for rule in rules if rule.change != "same"]
    counts = {change: sum(rule.change == change for rule in rules) for change in MARKS}
    said = f"rules: {counts['added']} added, {counts['removed']} removed, "
    said += f"{counts['matches']} with other matches, {counts['time']} with another time, {counts['same']} as before"
    names = [name for name in OF_RULES if any(name in rule.numbers for rule in rules)]
    nothing = Pair(None, None)
    rows = [Row(rule.name, [rule.numbers.get(name, nothing) for name in names], rule.change) for rule in changed]
    if rows:
        yield from table(said, [OF_RULES[name] for name in names], rows, width)
    else:
        yield []
        yield from _wrapped(said, width, "title")


def _group(group: GroupDifference, width: int) -> Iterator[Line]:
    if group.matched_by:
        same = "" if group.before == group.after else f", before group {group.before}"
        title = f"group {group.after}{same}, the same {group.matched_by}"
    else:
        side, index = ("before", group.before) if group.after is None else ("after", group.after)
        title = f"group {index}, only {side}"
    counts = ("members", "hlir_nodes", "classes", "enodes", "candidates", "profiled")
    rows = [
        Row({"enodes": "e-nodes", "hlir_nodes": "HLIR nodes"}.get(name, name), [p])
        for name, p in group.numbers.items()
        if name in counts and not _empty(p)
    ]
    rows += [Row(f"rejected: {reason}", [p]) for reason, p in group.rejected.items()]
    yield from table(title, [COUNT], rows, width)
    times = [(name, group.numbers[name]) for name in ("first_ms", "best_ms") if not _empty(group.numbers[name])]
    if not _empty(group.numbers["seconds"]):
        yield from _row(Row("saturation, ms", [group.numbers["seconds"]]), [MS], width)
    for name, p in times:
        label = {"first_ms": "first candidate, ms", "best_ms": "best candidate, ms"}[name]
        yield from _row(Row(label, [p]), [Quantity("", decimals, True)], width)
    for side, why in zip(("before", "after"), group.stopped, strict=True):
        if why:
            yield [(f"  stopped {side}: ", "dim"), (_cut(printable(why, 200), width - 18), "bad")]


def _kernels(difference: Difference, width: int) -> Iterator[Line]:
    kernels = difference.kernels
    quantities = [Quantity("calls", number), Quantity("ms", decimals, True)]
    rows = []
    for kernel in kernels[:MOST_KERNELS]:
        change = "added" if kernel.calls.before is None else "removed" if kernel.calls.after is None else ""
        rows.append(Row(kernel.name, [kernel.calls, kernel.ms], change))
    yield from table("kernels of the whole program", quantities, rows, width)
    if len(kernels) > MOST_KERNELS:
        yield [(f"  and {len(kernels) - MOST_KERNELS} that cost less; --json has them", "dim")]


def table(title: str, quantities: Sequence[Quantity], rows: Iterable[Row], width: int) -> Iterator[Line]:
    """A titled table; nothing where it has no rows."""
    rows = list(rows)
    if not rows:
        return
    yield []
    if width >= WIDE:
        head = " " * _label_width(len(quantities), width)
        for side in ("before", "after"):
            for quantity in quantities:
                head += f"{f'{side} {quantity.title}'.strip():>{BLOCK}}"
        head += "".join(f"{'ratio':>{RATIO + 2}}" for _ in quantities)
    else:
        fitting = _fitting(len(quantities), width)
        head = " " * _label_width(fitting, width)
        for quantity in quantities[:fitting]:
            first, second = (quantity.title, "->") if quantity.title else ("before", "after")
            head += f"{first:>{NUMBER}}{second:>{NUMBER}}{'ratio':>{RATIO}}"
    if len(title) < len(head) - len(head.lstrip()):
        yield [(title, "title"), (head[len(title) :], "head")]
    else:
        yield from _wrapped(title, width, "title")
        yield [(head, "head")]
    for row in rows:
        yield from _row(row, quantities, width)


def _fitting(quantities: int, width: int) -> int:
    """How many quantities fit beside a label of some length."""
    return max(1, min(quantities, (width - 22) // (2 * NUMBER + RATIO)))


def _label_width(quantities: int, width: int) -> int:
    if width >= WIDE:
        return min(60, width - quantities * (2 * BLOCK + RATIO + 2))
    return width - quantities * (2 * NUMBER + RATIO)


def _row(row: Row, quantities: Sequence[Quantity], width: int) -> Iterator[Line]:
    role = ROLES.get(row.change, "text")
    mark = MARKS[row.change]

    def label(text: str, cells: int) -> tuple[str, str]:
        return f"{_cut(text, cells - 1):{cells}}", role

    if width >= WIDE:
        cells = _label_width(len(quantities), width)
        said = f"{mark} {printable(row.label)}"
        if len(said) >= cells:
            yield [(_cut(said, width), role)]
            said = ""
        line: Line = [label(said, cells)]
        for side in ("before", "after"):
            for quantity, p in zip(quantities, row.pairs, strict=True):
                shown = _shown(getattr(p, side), quantity)
                line.append((f"{shown:>{BLOCK}}", "dim" if side == "before" else "text"))
        line += [_ratio(p, quantity, RATIO + 2) for quantity, p in zip(quantities, row.pairs, strict=True)]
        yield line
        return
    fitting = _fitting(len(quantities), width)
    cells = _label_width(fitting, width)
    for start in range(0, len(quantities), fitting):
        part = list(zip(quantities, row.pairs, strict=True))[start : start + fitting]
        if start and all(_empty(p) for _, p in part):
            continue
        said = f"{mark} {printable(row.label)}" if not start else f"    {', '.join(q.title for q, _ in part)}"
        if len(said) >= cells:
            yield [(_cut(said, width), role)]
            said = ""
        line = [label(said, cells)]
        for quantity, p in part:
            line.append((f"{_shown(p.before, quantity):>{NUMBER}}", "dim"))
            line.append((f"{_shown(p.after, quantity):>{NUMBER}}", "text"))
            line.append(_ratio(p, quantity, RATIO))
        yield line


def _shown(value: float | None, quantity: Quantity) -> str:
    return "-" if value is None else quantity.show(value)


def _ratio(p: Pair, quantity: Quantity, cells: int) -> tuple[str, str]:
    if p.ratio is None:
        return " " * cells, ""
    shown = f"{p.ratio:.2f}" if p.ratio < 1000 else f"{p.ratio:.0e}"
    if quantity.lower_is_better is None or 0.9 < p.ratio < 1.1:
        return f"{shown:>{cells}}", "dim"
    return f"{shown:>{cells}}", "good" if (p.ratio < 1) is quantity.lower_is_better else "bad"


def _empty(p: Pair) -> bool:
    return p.before is None and p.after is None


def _cut(text: str, cells: int) -> str:
    return text if len(text) <= cells else text[: max(0, cells - 2)] + ".."


def _wrapped(text: str, width: int, role: str) -> Iterator[Line]:
    for line in wrap(text, width) or [""]:
        yield [(line, role)]
