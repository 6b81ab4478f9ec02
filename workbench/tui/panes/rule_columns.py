"""What the rules pane has columns for: rules, rulesets, and the functions of the e-graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.errors import printable
from workbench.session.events import RuleRow
from workbench.session.growth import FunctionRow, RulesetRow
from workbench.tui import format as fmt
from workbench.tui.theme import Look

HEAVY = 0.2
"""The share of the time from which a rule stands out."""
SPARK = 30
"""Cells of a spark in the views that have the room."""


@dataclass(frozen=True, slots=True)
class Painter:
    """What a cell is drawn with: the look, the width of the names, and the seconds of all rows together."""

    look: Look
    name: int
    total: float


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `order` is what it sorts by; `down`: the largest first. `draw` gives a cell's text and its colour;
    without a colour it has that of its row. The first column is as wide as the names need."""

    title: str
    width: int
    right: bool
    down: bool
    order: Callable[[Any], Any]
    draw: Callable[[Any, Painter], tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class Table:
    """One view of the pane: its columns, of which the first `near` are to be seen at once, the one it is sorted by at
    first, and which of its rows are dim."""

    title: str
    columns: tuple[Column, ...]
    near: int
    sort: int
    idle: Callable[[Any], bool]
    words: Callable[[Any], str]
    """What a filter looks in."""


def _name(row: RuleRow | RulesetRow | FunctionRow, with_: Painter) -> tuple[str, str | None]:
    return fmt.fit(printable(row.name or "(no name)"), with_.name, with_.look), None


def _matches(row: RuleRow | RulesetRow, with_: Painter) -> tuple[str, str | None]:
    if row.matches:
        return fmt.count(row.matches), None
    return with_.look.glyphs.zero, with_.look.colors.warn


def _share(row: RuleRow, with_: Painter) -> tuple[str, str | None]:
    share = row.seconds / with_.total if with_.total else 0.0
    return f"{share:.1%}", with_.look.colors.warn if share >= HEAVY else with_.look.colors.dim


def _kind(row: RuleRow, with_: Painter) -> tuple[str, str | None]:
    colors = with_.look.colors
    known = {"Reshape": colors.cyan, "cuBLAS": colors.violet, "BLAS": colors.violet}
    return fmt.fit(printable(row.category), 7, with_.look), known.get(row.category, colors.dim)


def _where(row: RuleRow, with_: Painter) -> tuple[str, str | None]:
    where, width, mark = printable(f"{row.file}:{row.line}"), 28, with_.look.glyphs.ellipsis
    # The end of a path says more than its beginning.
    return where if len(where) <= width else mark + where[len(mark) - width :], with_.look.colors.dim


def _dim(text: Callable[[Any, Painter], str]) -> Callable[[Any, Painter], tuple[str, str | None]]:
    return lambda row, with_: (text(row, with_), with_.look.colors.dim)


def _plain(text: Callable[[Any], str]) -> Callable[[Any, Painter], tuple[str, str | None]]:
    return lambda row, _: (text(row), None)


def _number(value: int | None) -> str:
    return "-" if value is None else fmt.count(value)


def _steps(row: RuleRow | RulesetRow) -> str:
    if row.first_step is None or row.last_step is None:
        return ""
    return str(row.first_step) if row.first_step == row.last_step else f"{row.first_step}-{row.last_step}"


def _spark(width: int) -> Callable[[Any, Painter], tuple[str, str | None]]:
    return _dim(lambda row, with_: fmt.sparkline([max(0, each) for each in row.steps], width, with_.look))


def _first(row: Any) -> tuple[bool, int]:
    return (row.first_step is None, row.first_step or 0)


RULES = Table(
    "rules",
    (
        Column("rule", 22, False, False, lambda r: r.name.lower(), _name),
        Column("matches", 9, True, True, lambda r: r.matches, _matches),
        Column("ms", 7, True, True, lambda r: r.seconds, _plain(lambda r: fmt.ms(r.seconds * 1000))),
        Column("share", 6, True, True, lambda r: r.seconds, _share),
        Column("by step", 8, False, True, lambda r: max(r.steps, default=0), _spark(8)),
        Column("e-nodes", 7, True, True, lambda r: r.enodes or 0, _plain(lambda r: _number(r.enodes))),
        Column("unions", 6, True, True, lambda r: r.unions or 0, _plain(lambda r: _number(r.unions))),
        Column("kind", 7, False, False, lambda r: r.category.lower(), _kind),
        Column("steps", 9, True, False, _first, _dim(lambda r, _: _steps(r))),
        Column(
            "ruleset", 12, False, False, lambda r: r.ruleset.lower(),
            _dim(lambda r, with_: fmt.fit(printable(r.ruleset), 12, with_.look)),
        ),
        Column("where", 28, False, False, lambda r: (r.file, r.line), _where),
    ),
    near=7,
    sort=2,
    idle=lambda r: r.matches == 0,
    words=lambda r: f"{r.name} {r.category} {r.ruleset} {r.file}",
)  # fmt: skip

RULESETS = Table(
    "rulesets",
    (
        Column("ruleset", 12, False, False, lambda r: r.name.lower(), _name),
        Column("fired", 7, True, True, lambda r: r.fired, _plain(lambda r: f"{r.fired}/{r.rules}")),
        Column("matches", 9, True, True, lambda r: r.matches, _matches),
        Column("ms", 7, True, True, lambda r: r.seconds, _plain(lambda r: fmt.ms(r.seconds * 1000))),
        Column(
            "rebuild", 7, True, True, lambda r: r.rebuild_seconds, _plain(lambda r: fmt.ms(r.rebuild_seconds * 1000))
        ),
        Column("e-nodes", 7, True, True, lambda r: r.enodes, _plain(lambda r: f"{r.enodes:+,}")),
        Column("by run", 14, False, True, lambda r: max(r.steps, default=0), _spark(14)),
        Column("runs", 5, True, True, lambda r: r.runs, _plain(lambda r: fmt.count(r.runs))),
        Column("steps", 9, True, False, _first, _dim(lambda r, _: _steps(r))),
    ),
    near=7,
    sort=3,
    idle=lambda r: r.matches == 0,
    words=lambda r: r.name,
)  # fmt: skip

FUNCTIONS = Table(
    "functions",
    (
        Column("function", 16, False, False, lambda r: r.name.lower(), _name),
        Column("rows", 9, True, True, lambda r: r.rows, _plain(lambda r: fmt.count(r.rows))),
        Column("most", 9, True, True, lambda r: max(r.steps), _plain(lambda r: fmt.count(max(r.steps)))),
        Column("grew by", 9, True, True, lambda r: r.rows - r.steps[0], _plain(lambda r: f"{r.rows - r.steps[0]:+,}")),
        Column("rows by step", SPARK, False, True, lambda r: max(r.steps), _spark(SPARK)),
        Column("first step", 10, True, False, _first, _dim(lambda r, _: str(r.first_step or 0))),
    ),
    near=5,
    sort=1,
    idle=lambda r: r.rows == 0,
    words=lambda r: r.name,
)

TABLES = (RULES, RULESETS, FUNCTIONS)
