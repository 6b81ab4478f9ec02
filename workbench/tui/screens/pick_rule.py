"""Pick a rule by name: a list that narrows as one types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from workbench.errors import printable
from workbench.session.events import RuleRow
from workbench.tui import format as fmt
from workbench.tui.theme import look


class PickRuleScreen(ModalScreen[str | None]):
    """Returns the name of the rule, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "close", show=False),
        Binding("down", "move(1)", "down", show=False, priority=True),
        Binding("up", "move(-1)", "up", show=False, priority=True),
    ]

    def __init__(self, title: str, rules: Sequence[RuleRow]) -> None:
        super().__init__()
        self.heading = title
        self.rules = list(rules)
        self.shown: list[RuleRow] = []

    def compose(self) -> ComposeResult:
        with Vertical(id="pick-box"):
            yield Input(placeholder="words of name, category, ruleset, file", id="pick-filter", compact=True)
            yield OptionList(id="pick-list", markup=False)

    def on_mount(self) -> None:
        box = self.query_one("#pick-box")
        box.border_title = f" {self.heading} "
        box.border_subtitle = " enter picks, esc closes "
        self.set_class(look(self).glyphs.border == "ascii", "ascii")
        self.fill("")
        self.query_one(Input).focus()

    def fill(self, typed: str) -> None:
        """List the rules that have all the words."""
        words, the_look = typed.lower().split(), look(self)
        colors = the_look.colors
        self.shown = [
            rule
            for rule in self.rules
            if all(word in f"{rule.name} {rule.category} {rule.ruleset} {rule.file}".lower() for word in words)
        ]
        listed = self.query_one(OptionList)
        listed.clear_options()
        for rule in self.shown:
            count = fmt.count(rule.matches) if rule.matches else the_look.glyphs.zero
            listed.add_option(
                Option(
                    Text.assemble(
                        (f"{count:>8}  ", colors.text if rule.matches else colors.warn),
                        (printable(rule.name, 100), colors.text),
                        (f"  {printable(rule.file, 60)}:{rule.line}", colors.faint),
                        no_wrap=True,
                    )
                )
            )
        listed.highlighted = 0 if self.shown else None

    def on_input_changed(self, event: Input.Changed) -> None:
        self.fill(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._pick(self.query_one(OptionList).highlighted)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self._pick(event.option_index)

    def _pick(self, place: int | None) -> None:
        if place is not None and place < len(self.shown):
            self.dismiss(self.shown[place].name)

    def action_move(self, step: int) -> None:
        listed = self.query_one(OptionList)
        if step > 0:
            listed.action_cursor_down()
        else:
            listed.action_cursor_up()

    def action_close(self) -> None:
        self.dismiss(None)
