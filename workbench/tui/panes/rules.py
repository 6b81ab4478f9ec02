"""The rules pane: what every rule matched and cost, for one group or for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.binding import BindingType
from textual.events import Resize
from textual.message import Message
from textual.widget import Widget
from textual.widgets import DataTable

from workbench.errors import printable
from workbench.session.events import GroupSaturated, RuleRow
from workbench.tui import format as fmt
from workbench.tui import keymap
from workbench.tui.panes.pane import Pane
from workbench.tui.scene import Scene
from workbench.tui.theme import Look, look


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `order` is what it sorts by; `down`: the largest first."""

    title: str
    width: int
    right: bool
    down: bool
    order: Callable[[RuleRow], Any]


COLUMNS = (
    Column("rule", 22, False, False, lambda rule: rule.name.lower()),
    Column("kind", 7, False, False, lambda rule: rule.category.lower()),
    Column("matches", 9, True, True, lambda rule: rule.matches),
    Column("ms", 8, True, True, lambda rule: rule.seconds),
    Column("share", 7, True, True, lambda rule: rule.seconds),
    Column("by step", 9, False, True, lambda rule: max(rule.steps, default=0)),
    Column("ruleset", 12, False, False, lambda rule: rule.ruleset.lower()),
    Column("where", 28, False, False, lambda rule: (rule.file, rule.line)),
)
BY_TIME = 3
LONGEST_NAME = 48


class RulesTable(DataTable[Text]):
    """A table with our movement; cells keep their colours under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = keymap.bindings("move", "rules")

    def __init__(self) -> None:
        super().__init__(id="rules-table", classes="body", cursor_type="row", cursor_foreground_priority="renderable")
        self.fixed_columns = 1

    @property
    def pane(self) -> RulesPane:
        pane = self.parent
        assert isinstance(pane, RulesPane)
        return pane

    def action_down(self) -> None:
        self.action_cursor_down()

    def action_up(self) -> None:
        self.action_cursor_up()

    def action_top(self) -> None:
        self.move_cursor(row=0)

    def action_bottom(self) -> None:
        self.move_cursor(row=self.row_count - 1)

    def action_left(self) -> None:
        self.scroll_relative(x=-12, animate=False)

    def action_right(self) -> None:
        self.scroll_relative(x=12, animate=False)

    def action_sort_left(self) -> None:
        self.pane.sort_by(self.pane.sort_column - 1)

    def action_sort_right(self) -> None:
        self.pane.sort_by(self.pane.sort_column + 1)

    def action_invert(self) -> None:
        self.pane.sort_by(self.pane.sort_column, invert=True)

    def action_xray_rule(self) -> None:
        self.pane.ask_xray()

    def action_all_groups(self) -> None:
        self.pane.toggle_all_groups()


class RulesPane(Pane):
    """Rule statistics, sortable and filtered. Rules that never fired stand out."""

    TITLE = "Rules"
    FILTER = "filter rules: words of name, category, ruleset, file"

    class XrayAsked(Message):
        """Why does this rule not fire? In one group, or in whichever the question makes sense."""

        def __init__(self, rule: str, group: int | None) -> None:
            super().__init__()
            self.rule = rule
            self.group = group

    def __init__(self) -> None:
        super().__init__()
        self.table = RulesTable()
        self.sort_column = BY_TIME
        self.inverted = False
        self.all_groups = False
        self._filter = ""
        self._shown: object = None
        self._rules: list[RuleRow] = []
        self._results: list[GroupSaturated] = []

    def body(self) -> Widget:
        return self.table

    @property
    def group(self) -> int | None:
        """The group whose rules are shown; None: the sum of all."""
        return None if self.all_groups else self.scene.selection.group

    def paint(self, scene: Scene) -> None:
        super().paint(scene)
        results = [state.result for state in scene.view.saturation.values() if state.result is not None]
        shown = (self.group, [id(result) for result in results], self._key())
        if shown != self._shown:
            self._shown, self._results = shown, results
            self._fill([rule for result in results if self.group in (None, result.group) for rule in result.rules])

    def _key(self) -> object:
        return (self.sort_column, self.inverted, self._filter, look(self), self.table.size.width)

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self.paint, self.scene)

    def _name_width(self, rules: list[RuleRow]) -> int:
        """The names get what the columns up to the sparkline leave, as far as they need it."""
        others = sum(column.width + 2 for column in COLUMNS[1:6])
        longest = max((cell_len(printable(rule.name)) for rule in rules), default=0)
        return max(COLUMNS[0].width, min(longest, self.table.size.width - others - 3, LONGEST_NAME))

    def sort_by(self, column: int, *, invert: bool = False) -> None:
        """Sort by a column, in its natural order unless `invert` turns the present one round."""
        self.sort_column = column % len(COLUMNS)
        self.inverted = not self.inverted if invert else False
        self.paint(self.scene)
        at = sum(COLUMNS[i].width + 2 for i in range(1, self.sort_column))
        shown = self.table.size.width - self.table.ordered_columns[0].width - 2
        left = self.table.scroll_offset.x
        if not left <= at <= left + shown - COLUMNS[self.sort_column].width - 2:
            self.table.scroll_to(x=max(0, at - shown // 2), animate=False)

    def ask_xray(self) -> None:
        """Ask about the rule under the cursor."""
        row = self.table.cursor_row
        if row < len(self._rules):
            self.post_message(self.XrayAsked(self._rules[row].name, self.group))

    def toggle_all_groups(self) -> None:
        self.all_groups = not self.all_groups
        self.paint(self.scene)

    def filter_changed(self, text: str) -> None:
        self._filter = text
        self.paint(self.scene)

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        event.stop()
        self.sort_by(event.column_index, invert=event.column_index == self.sort_column)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        self._detail()

    def _detail(self) -> None:
        """The whole of what the columns cut: the name and the place of the rule under the cursor."""
        row = self.table.cursor_row
        rule = self._rules[row] if row < len(self._rules) else None
        self.subtitle(f"{rule.name}  {rule.file}:{rule.line}" if rule else "")

    def _fill(self, rows: Iterable[RuleRow]) -> None:
        every = merged(rows)
        words = self._filter.lower().split()
        column = COLUMNS[self.sort_column]
        rules = [rule for rule in every if _matches(rule, words)]
        rules.sort(key=lambda rule: rule.name)
        rules.sort(key=column.order, reverse=column.down is not self.inverted)
        total = sum(rule.seconds for rule in every)
        table, the_look = self.table, look(self)
        at = self._rules[table.cursor_row].name if table.cursor_row < len(self._rules) else None
        x, y = table.scroll_offset
        self._rules = rules
        table.clear(columns=True)
        name = self._name_width(every)
        for index, each in enumerate(COLUMNS):
            width = each.width if index else name
            table.add_column(self._heading(index, each, the_look), width=width, key=each.title)
        table.add_rows(_cells(rule, total, name, the_look) for rule in rules)
        row = next((place for place, rule in enumerate(rules) if rule.name == at), 0) if y else 0
        table.move_cursor(row=row, scroll=False)
        table.scroll_to(x, y if row else 0, animate=False)
        self._say(every, total)

    def _heading(self, index: int, column: Column, the_look: Look) -> Text:
        colors, glyphs = the_look.colors, the_look.glyphs
        title = column.title
        if index == self.sort_column:
            title = f"{title} {glyphs.down if column.down is not self.inverted else glyphs.up}"
        style = f"bold {colors.accent}" if index == self.sort_column else colors.dim
        return Text(title, style=style, justify="right" if column.right else "left")

    def _say(self, rules: list[RuleRow], total: float) -> None:
        middot = look(self).glyphs.middot
        where = "all groups" if self.group is None else f"group {self.group}"
        filtered = f" {middot} filter {printable(self._filter, 20)}" if self._filter else ""
        self.info = f"{where} {middot} {fmt.ms(total * 1000)} ms{filtered}" if rules else ""
        never = sum(rule.matches == 0 for rule in rules)
        self.warning = f"{never} of {len(rules)} never fired" if rules else ""
        self.retitle()

    def copied(self) -> str:
        if self.table.cursor_row >= len(self._rules):
            return ""
        rule = self._rules[self.table.cursor_row]
        fields = (rule.name, rule.category, rule.matches, f"{rule.seconds * 1000:.3f} ms", rule.ruleset)
        return "\t".join(map(str, fields)) + f"\t{rule.file}:{rule.line}"


def merged(rows: Iterable[RuleRow]) -> list[RuleRow]:
    """Rows of the same rule in several groups added up, their steps too."""
    sums: dict[tuple[str, str, str, int], RuleRow] = {}
    for row in rows:
        key = (row.name, row.ruleset, row.file, row.line)
        known = sums.get(key)
        if known is None:
            sums[key] = row
            continue
        longer, shorter = sorted((known.steps, row.steps), key=len, reverse=True)
        steps = [step + (shorter[place] if place < len(shorter) else 0) for place, step in enumerate(longer)]
        sums[key] = RuleRow(
            name=row.name,
            category=row.category,
            ruleset=row.ruleset,
            file=row.file,
            line=row.line,
            matches=known.matches + row.matches,
            seconds=known.seconds + row.seconds,
            steps=steps,
        )
    return list(sums.values())


def _matches(rule: RuleRow, words: list[str]) -> bool:
    text = f"{rule.name} {rule.category} {rule.ruleset} {rule.file}".lower()
    return all(word in text for word in words)


def _cells(rule: RuleRow, total: float, name: int, the_look: Look) -> list[Text]:
    colors, glyphs = the_look.colors, the_look.glyphs
    never = rule.matches == 0
    plain = f"italic {colors.dim}" if never else colors.text
    dim = colors.faint if never else colors.dim
    share = rule.seconds / total if total else 0.0
    heavy = colors.warn if share >= 0.2 else dim
    category = {"Reshape": colors.cyan, "BLAS": colors.violet, "cuBLAS": colors.violet}.get(rule.category, colors.dim)

    def cell(text: str, style: str, *, right: bool = False) -> Text:
        return Text(text, style=style, justify="right" if right else "left", no_wrap=True)

    return [
        cell(fmt.fit(printable(rule.name), name, the_look), plain),
        cell(fmt.fit(printable(rule.category), COLUMNS[1].width, the_look), dim if never else category),
        cell(glyphs.zero if never else fmt.count(rule.matches), colors.warn if never else colors.text, right=True),
        cell(fmt.ms(rule.seconds * 1000), dim if never else colors.text, right=True),
        cell(f"{share:.1%}", heavy, right=True),
        cell(fmt.sparkline(rule.steps, COLUMNS[5].width, the_look), colors.dim),
        cell(fmt.fit(printable(rule.ruleset), COLUMNS[6].width, the_look), dim),
        cell(_where(rule, the_look), dim),
    ]


def _where(rule: RuleRow, the_look: Look) -> str:
    where = printable(f"{rule.file}:{rule.line}")
    width = COLUMNS[7].width
    # The end of a path says more than its beginning.
    mark = the_look.glyphs.ellipsis
    return where if len(where) <= width else mark + where[len(mark) - width :]
