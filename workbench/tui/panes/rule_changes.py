"""What changed since the run before, for the rules pane: its lines above the table, its columns and marks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any

import msgspec
from rich.text import Text

from workbench.errors import printable
from workbench.session.difference import Pair, RuleDifference, pair, rule_differences
from workbench.session.events import RuleRow
from workbench.session.runs import Run
from workbench.session.view import SessionView
from workbench.tui import format as fmt
from workbench.tui.panes.rule_columns import RULES, Column, Painter, Table
from workbench.tui.scene import Scene
from workbench.tui.theme import Look

ERROR_LINES = 3
"""Lines that an error may take; the log has the whole."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The rules of a group, or of all, against those of an earlier run; `figures` are the group's own numbers."""

    run: Run
    rules: Mapping[str, RuleDifference]
    figures: Sequence[tuple[str, Pair, Callable[[float], str]]]

    def count(self, *kinds: str) -> int:
        """How many rules changed so."""
        return sum(rule.change in kinds for rule in self.rules.values())

    def removed(self) -> list[RuleRow]:
        """Rows for the rules that are there no more."""
        return [
            RuleRow(r.name, r.category, r.ruleset, r.file, r.line, 0, 0.0)
            for r in self.rules.values()
            if r.change == "removed"
        ]


def changes(view: SessionView, group: int | None) -> Changes | None:
    """What changed since the run that the present one is compared with, in one group or in all; None where there is no
    such run, or it has no such group."""
    run = view.baseline
    results = [s.result for s in view.saturation.values() if s.result is not None and group in (None, s.result.group)]
    if run is None or not results:
        return None
    digests = {g.digest for g in view.groups if group in (None, g.index)}
    before = [g for g in run.report["groups"] if group is None or g["digest"] in digests]
    before = [g for g in before if g["egraph"]]
    if not before:
        return None
    rules = rule_differences(
        [rule for g in before for rule in g["rules"]],
        [msgspec.to_builtins(rule) for result in results for rule in result.rules],
    )
    return Changes(run, {rule.name: rule for rule in rules}, _figures(view, group, before))


def _figures(
    view: SessionView, group: int | None, before: Sequence[Mapping[str, Any]]
) -> list[tuple[str, Pair, Callable[[float], str]]]:
    results = [s.result for s in view.saturation.values() if s.result is not None and group in (None, s.result.group)]
    egraphs = [g["egraph"] for g in before]

    def plain(value: float) -> str:
        return fmt.count(int(value))

    figures: list[tuple[str, Pair, Callable[[float], str]]] = [
        ("e-nodes", pair(sum(e["nodes"] for e in egraphs), sum(r.nodes for r in results)), plain),
        ("e-classes", pair(sum(e["classes"] for e in egraphs), sum(r.classes for r in results)), plain),
        ("egraph ms", pair(1e3 * sum(e["seconds"] for e in egraphs), 1e3 * sum(r.seconds for r in results)), fmt.ms),
    ]
    was = [(len(g["members"]), g["search"]["best_ms"] if g["search"] else None) for g in before]
    now = [
        (len(g.members), view.search[g.index].best_ms if g.index in view.search else None)
        for g in view.groups
        if group in (None, g.index)
    ]
    best = pair(_total(was, group), _total(now, group))
    if best.before is not None and best.after is not None:
        figures.append(("best ms", best, fmt.ms))
    return figures


def _total(bests: Sequence[tuple[int, float | None]], group: int | None) -> float | None:
    """The best time of one chunk; over all groups, that of all chunks."""
    if not bests or any(ms is None for _, ms in bests):
        return None
    return sum((ms or 0.0) * (1 if group is not None else members) for members, ms in bests)


def notes(scene: Scene, found: Changes | None, look: Look, width: int) -> list[Text]:
    """The lines above the table: how the rule files stand, and what changed in numbers."""
    colors = look.colors
    lines: list[Text] = []

    def say(text: str, style: str) -> None:
        lines.append(Text(fmt.fit(f" {text}", width, look).rstrip(), style=style, no_wrap=True, end=""))

    disk, failure = scene.view.rules_on_disk, scene.view.failure
    if scene.client is None or scene.read_only or not scene.connected:
        disk = None  # as it was when the engine ended; nobody looks now
    if disk is not None and disk.error:
        said = "not saturated: " if disk.refused else ""
        _say_error(say, said + disk.error, bool(disk.file), True, width, look)
    elif failure is not None and (failure.file or failure.kept):
        _say_error(say, failure.message, bool(failure.file or disk), failure.kept, width, look)
    if disk is not None and not disk.error:
        more = f" and {len(disk.changed) - 1} more" if len(disk.changed) > 1 else ""
        say(f"rules changed on disk: {printable(disk.changed[0], 60)}{more}; s saturates again", colors.warn)
    if found is not None:
        lines.extend(_summary(found, look, width))
    return lines


def _say_error(
    say: Callable[[str, str], None], error: str, placed: bool, kept: bool, width: int, look: Look
) -> None:
    text = f"{look.glyphs.fail} {printable(error, 400)}"
    for line in wrap(text, max(20, width - 2), max_lines=ERROR_LINES, placeholder=" .."):
        say(line, look.colors.bad)
    hints = [said for said, true in (("E opens the file", placed), ("the last good run stays", kept)) if true]
    if hints:
        say(f"  {', '.join(hints)}", look.colors.dim)


def _summary(found: Changes, look: Look, width: int) -> list[Text]:
    colors, glyphs = look.colors, look.glyphs
    line = Text(f" since {found.run.name}:", style=colors.dim, no_wrap=True, end="")
    parts = []
    for title, p, show in found.figures:
        was, now = show(p.before or 0), show(p.after or 0)
        if p.same or was == now:
            parts.append(Text(f"{title} {now}", style=colors.dim))
            continue
        parts.append(Text.assemble((f"{title} ", colors.dim), (f"{was}{glyphs.arrow}{now}", colors.text)))
        if title == "best ms" and p.ratio is not None:
            better = colors.good if p.ratio < 1 else colors.bad
            parts[-1].append(f" {glyphs.times}{p.ratio:.2f}", style=better)
    for count, word in (
        (found.count("added"), "new"),
        (found.count("removed"), "gone"),
        (found.count("matches"), "changed"),
        (found.count("time"), "faster or slower"),
    ):
        if count:
            parts.append(Text(f"{count} {word}", style=colors.warn))
    lines = [line]
    for part in parts:
        if lines[-1].cell_len + 2 + part.cell_len > width and lines[-1].cell_len > 12:
            lines.append(Text("  ", no_wrap=True, end=""))
        lines[-1].append("  ").append_text(part)
    return lines


Change = Callable[[RuleDifference | None, Look], tuple[str, str | None]]


def table(found: Changes) -> Table:
    """The rules with what changed beside their numbers, and a mark before their names."""
    columns: list[Column] = []
    near = RULES.near
    for place, column in enumerate(RULES.columns):
        columns.append(column if place else _marked(column, found))
        for behind, title, width, number, draw in _EXTRA:
            if behind == column.title:
                columns.append(Column(title, width, True, True, _ordering(number, found), _drawing(draw, found)))
                near += place < RULES.near
    sort = next(place for place, column in enumerate(columns) if column.title == RULES.columns[RULES.sort].title)
    gone = {rule.name for rule in found.removed()}
    return replace(
        RULES, columns=tuple(columns), near=near, sort=sort, idle=lambda r: RULES.idle(r) and r.name not in gone
    )


def _ordering(number: str, found: Changes) -> Callable[[RuleRow], float]:
    """By how much it changed."""

    def size(row: RuleRow) -> float:
        rule = found.rules.get(row.name)
        p = rule.numbers.get(number) if rule is not None else None
        return abs((p.after or 0) - (p.before or 0)) if p is not None else 0.0

    return size


def _drawing(draw: Change, found: Changes) -> Callable[[RuleRow, Painter], tuple[str, str | None]]:
    return lambda row, with_: draw(found.rules.get(row.name), with_.look)


def _marked(column: Column, found: Changes) -> Column:
    """The column of names with a mark before each."""

    def name(row: RuleRow, with_: Painter) -> tuple[str, str | None]:
        colors = with_.look.colors
        rule = found.rules.get(row.name)
        sign, color = {
            "added": ("+ ", colors.good), "removed": ("- ", colors.bad), "matches": ("~ ", colors.warn)
        }.get(rule.change if rule is not None else "", ("  ", None))  # fmt: skip
        return sign + fmt.fit(printable(row.name), with_.name - len(sign), with_.look), color

    return replace(column, draw=name)


def _signed(number: str) -> Change:
    """How many more or fewer."""

    def cell(rule: RuleDifference | None, look: Look) -> tuple[str, str | None]:
        p = rule.numbers.get(number) if rule is not None else None
        if rule is None or p is None:
            return "", None
        if rule.change == "added":
            return "new", look.colors.good
        if rule.change == "removed":
            return f"-{fmt.count(int(p.before))}" if p.before else "gone", look.colors.bad
        if p.before is None or p.after is None or p.same:
            return "", None
        return f"{int(p.after - p.before):+,}", look.colors.warn

    return cell


def _ratio(rule: RuleDifference | None, look: Look) -> tuple[str, str | None]:
    """Time as a factor; only one that is no noise stands out."""
    p = rule.numbers.get("seconds") if rule is not None else None
    if rule is None or p is None or p.ratio is None:
        return "", None
    times = look.glyphs.times
    shown = f"{times}{p.ratio:.2f}" if p.ratio < 100 else f"{times}{p.ratio:,.0f}" if p.ratio < 10000 else f"{times}..."
    if rule.change != "time":
        return shown, look.colors.faint
    return shown, look.colors.good if p.ratio < 1 else look.colors.bad


_EXTRA: tuple[tuple[str, str, int, str, Change], ...] = (
    ("matches", "change", 7, "matches", _signed("matches")),
    ("ms", "ratio", 6, "seconds", _ratio),
    ("e-nodes", "made", 7, "enodes", _signed("enodes")),
)
"""Columns of differences: the one that each stands behind, its title and width, the number it is about, its cells."""
