"""The rules pane: what every rule matched, cost and made, and how the e-graph grew, for one group or for all."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.events import Resize
from textual.message import Message
from textual.widget import Widget
from textual.widgets import DataTable, Static

from workbench.errors import printable
from workbench.session import growth
from workbench.session.events import GroupSaturated, RuleRow
from workbench.session.view import SaturationView
from workbench.tui import format as fmt
from workbench.tui import keymap
from workbench.tui.panes import rule_changes
from workbench.tui.panes.pane import Pane
from workbench.tui.panes.rule_columns import FUNCTIONS, RULES, RULESETS, TABLES, Column, Painter, Table
from workbench.tui.scene import Scene
from workbench.tui.theme import Look, look

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

    def action_made(self) -> None:
        self.pane.ask_made()

    def action_all_groups(self) -> None:
        self.pane.toggle_all_groups()

    def action_edit_rule(self) -> None:
        self.pane.ask_edit()

    def action_differences(self) -> None:
        self.pane.toggle_differences()

    def action_rule_view(self) -> None:
        self.pane.next_view()


class RulesPane(Pane):
    """Statistics of rules, of rulesets or of functions, sortable and filtered. Rules that never fired stand out."""

    TITLE = "Rules"
    FILTER = "filter rules: words of name, category, ruleset, file"

    class XrayAsked(Message):
        """Why does this rule not fire? In one group, or in whichever the question makes sense."""

        def __init__(self, rule: str, group: int | None) -> None:
            super().__init__()
            self.rule = rule
            self.group = group

    class EditAsked(Message):
        """Open this rule in the editor."""

        def __init__(self, rule: RuleRow) -> None:
            super().__init__()
            self.rule = rule

    class MadeAsked(Message):
        """Which e-nodes did this rule make? In one group, or in the first where it made any."""

        def __init__(self, rule: str, group: int | None) -> None:
            super().__init__()
            self.rule = rule
            self.group = group

    def __init__(self) -> None:
        super().__init__()
        self.table = RulesTable()
        self.notes = Static("", id="rules-notes", markup=False)
        self.notes.display = False
        self.view = RULES
        self.sorted_by = RULES.columns[RULES.sort].title
        self.differences = True
        """Show what changed since the run before, where there was one."""
        self.changes: rule_changes.Changes | None = None
        self.inverted = False
        self.all_groups = False
        self._noted: list[Text] = []
        self._filter = ""
        self._shown: object = None
        self._compared: object = None
        self._rows: list[Any] = []
        self._results: list[GroupSaturated] = []

    def body(self) -> Widget:
        return self.table

    def compose(self) -> ComposeResult:
        yield self.notes
        yield from super().compose()

    @property
    def shown_view(self) -> Table:
        """The view with what changed in it."""
        return rule_changes.table(self.changes) if self.view is RULES and self.changes is not None else self.view

    @property
    def sort_column(self) -> int:
        """The place of the column that is sorted by."""
        titles = [column.title for column in self.shown_view.columns]
        return titles.index(self.sorted_by) if self.sorted_by in titles else self.view.sort

    @property
    def group(self) -> int | None:
        """The group whose rules are shown; None: the sum of all."""
        return None if self.all_groups else self.scene.selection.group

    def paint(self, scene: Scene) -> None:
        super().paint(scene)
        states = {group: state for group, state in scene.view.saturation.items() if state.result is not None}
        results = [state.result for state in states.values() if state.result is not None]
        bests = [(index, search.best_ms) for index, search in scene.view.search.items()] if scene.view.runs else []
        shown = (self.group, [id(result) for result in results], scene.view.run, self._key())
        if (shown, bests) != self._compared:
            self._compared = (shown, bests)
            self.changes = rule_changes.changes(scene.view, self.group) if self.differences else None
        if shown != self._shown:
            self._shown, self._results = shown, results
            self._fill([state for group, state in states.items() if self.group in (None, group)])

        self._note()

    def _note(self) -> None:
        """Write the lines above the table; without any, the table has the room."""
        lines = rule_changes.notes(self.scene, self.changes, look(self), max(20, self.size.width - 2))
        if lines != self._noted:
            self._noted = lines
            self.notes.display = bool(lines)
            self.notes.update(Text("\n").join(lines))

    def _key(self) -> object:
        order = (self.sorted_by, self.inverted, self._filter)
        return (self.view.title, self.differences, order, look(self), self.table.size.width)

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self._paint_again)

    def _paint_again(self) -> None:
        self.paint(self.scene)  # that of now, not of when it was asked for

    def _name_width(self, rows: list[Any]) -> int:
        """The names get what the near columns leave, as far as they need it."""
        columns = self.shown_view.columns
        others = sum(column.width + 2 for column in columns[1 : self.shown_view.near])
        longest = max((cell_len(printable(row.name)) for row in rows), default=0)
        return max(columns[0].width, min(longest, self.table.size.width - others - 3, LONGEST_NAME))

    def sort_by(self, column: int, *, invert: bool = False) -> None:
        """Sort by a column, in its natural order unless `invert` turns the present one round."""
        columns = self.shown_view.columns
        self.sorted_by = columns[column % len(columns)].title
        self.inverted = not self.inverted if invert else False
        self.paint(self.scene)
        at = sum(columns[i].width + 2 for i in range(1, self.sort_column))
        shown = self.table.size.width - self.table.ordered_columns[0].width - 2
        left = self.table.scroll_offset.x
        if not left <= at <= left + shown - columns[self.sort_column].width - 2:
            self.table.scroll_to(x=max(0, at - shown // 2), animate=False)

    def next_view(self) -> None:
        """From rules to rulesets to functions, and round."""
        self.view = TABLES[(TABLES.index(self.view) + 1) % len(TABLES)]
        self.sorted_by, self.inverted = self.view.columns[self.view.sort].title, False
        self._rows = []
        self.table.scroll_to(0, 0, animate=False)
        self.paint(self.scene)
        self._detail()

    def ask_xray(self) -> None:
        """Ask about the rule under the cursor."""
        row = self._selected()
        if isinstance(row, RuleRow):
            self.post_message(self.XrayAsked(row.name, self.group))

    def ask_edit(self) -> None:
        """Ask for the rule under the cursor in the editor."""
        row = self._selected()
        if isinstance(row, RuleRow):
            self.post_message(self.EditAsked(row))

    def toggle_differences(self) -> None:
        self.differences = not self.differences
        self.paint(self.scene)

    def _selected(self) -> Any:
        row = self.table.cursor_row
        return self._rows[row] if 0 <= row < len(self._rows) else None

    def ask_made(self) -> None:
        """Ask what the rule under the cursor made."""
        row = self._selected()
        if isinstance(row, RuleRow):
            self.post_message(self.MadeAsked(row.name, self.group))

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
        """The whole of what the columns cut: the name and the place of the row under the cursor."""
        row = self._selected()
        place = f"  {row.file}:{row.line}" if isinstance(row, RuleRow) else ""
        self.subtitle(f"{row.name}{place}" if row is not None else "")

    def _every(self, states: list[SaturationView]) -> list[Any]:
        """The rows of the view over the groups shown."""
        results = [state.result for state in states if state.result is not None]
        if self.view is RULES:
            return growth.merged_rules(rule for result in results for rule in result.rules)
        if self.view is RULESETS:
            pairs = [(state.steps, state.result.rules) for state in states if state.result is not None]
            return growth.merged_rulesets(row for pair in pairs for row in growth.ruleset_rows(*pair))
        return growth.merged_functions(row for state in states for row in growth.function_rows(state.steps))

    def _fill(self, states: list[SaturationView]) -> None:
        every = self._every(states)
        words = self._filter.lower().split()
        view = self.shown_view
        columns = view.columns
        by = columns[self.sort_column]
        gone = self.changes.removed() if self.changes is not None and self.view is RULES else []
        rows = [row for row in (*every, *gone) if all(word in self.view.words(row).lower() for word in words)]
        rows.sort(key=lambda row: row.name)
        rows.sort(key=by.order, reverse=by.down is not self.inverted)
        total = sum(getattr(row, "seconds", 0.0) for row in every)
        table, the_look = self.table, look(self)
        chosen = self._selected()
        x, y = table.scroll_offset
        self._rows = rows
        table.clear(columns=True)
        painter = Painter(the_look, self._name_width(every), total)
        for index, each in enumerate(columns):
            width = each.width if index else painter.name
            table.add_column(self._heading(index, each, the_look), width=width, key=each.title)
        table.add_rows(_cells(view, row, painter) for row in rows)
        at = next((place for place, row in enumerate(rows) if chosen is not None and row.name == chosen.name), 0)
        row = at if y else 0
        table.move_cursor(row=row, scroll=False)
        table.scroll_to(x, y if row else 0, animate=False)
        self._say(every, total)

    def _heading(self, index: int, column: Column, the_look: Look) -> Text:
        colors, glyphs = the_look.colors, the_look.glyphs
        title = column.title
        if index == self.sort_column:
            arrow = glyphs.down if column.down is not self.inverted else glyphs.up
            room = column.width if index else LONGEST_NAME
            title = f"{title} {arrow}" if len(title) + 2 <= room else f"{title[: room - 1]}{arrow}"
        style = f"bold {colors.accent}" if index == self.sort_column else colors.dim
        return Text(title, style=style, justify="right" if column.right else "left")

    def _say(self, rows: list[Any], total: float) -> None:
        middot = look(self).glyphs.middot
        parts = ["all groups" if self.group is None else f"group {self.group}"]
        if self.view is not RULES:
            parts.insert(0, self.view.title)
        parts.append(f"{fmt.ms(total * 1000)} ms" if self.view is not FUNCTIONS else f"{len(rows)} functions")
        if self._filter:
            parts.append(f"filter {printable(self._filter, 20)}")
        self.info = f" {middot} ".join(parts) if rows else ""
        self.warning = self._warning(rows)
        self.retitle()

    def _warning(self, rows: list[Any]) -> str:
        """How many never fired, and the rule on which a group shown ran away."""
        never = sum(self.view.idle(row) for row in rows)
        parts = [f"{never} of {len(rows)} never fired"] if rows and self.view is not FUNCTIONS else []
        for result in self._results:
            if result.culprit is not None and self.group in (None, result.group):
                parts.append(f"'{printable(result.culprit.rule, 40)}' ran away")
        return f" {look(self).glyphs.middot} ".join(dict.fromkeys(parts))

    def copied(self) -> str:
        row = self._selected()
        if row is None:
            return ""
        if isinstance(row, RuleRow):
            made = f"{row.enodes} e-nodes\t{row.unions} unions" if row.enodes is not None else ""
            fields = (row.name, row.category, row.matches, f"{row.seconds * 1000:.3f} ms", row.ruleset, made)
            return "\t".join(str(f) for f in fields if f != "") + f"\t{row.file}:{row.line}"
        painter = Painter(look(self), LONGEST_NAME, 0.0)
        cells = [column.draw(row, painter)[0].strip() for column in self.view.columns]
        return "\t".join([row.name, *cells[1:]])


def _cells(view: Table, row: Any, painter: Painter) -> list[Text]:
    colors = painter.look.colors
    idle = view.idle(row)
    plain = f"italic {colors.dim}" if idle else colors.text
    cells: list[Text] = []
    for index, column in enumerate(view.columns):
        text, style = column.draw(row, painter)
        if style is None:
            style = plain if not index or not idle else colors.dim
        elif idle and style != colors.warn:
            style = colors.faint
        cells.append(Text(text, style=style, justify="right" if column.right else "left", no_wrap=True))
    return cells
