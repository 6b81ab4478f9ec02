"""Pick one of the e-classes that an answer names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from workbench.errors import printable
from workbench.tui.theme import look


class PickClassScreen(ModalScreen[str | None]):
    """Returns the variable of the e-class, or None. `named` says of each variable what it is."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "close", show=False),
        Binding("j", "move(1)", "down", show=False),
        Binding("k", "move(-1)", "up", show=False),
    ]

    def __init__(self, named: Mapping[str, str]) -> None:
        super().__init__()
        self.named = dict(named)

    def compose(self) -> ComposeResult:
        colors = look(self).colors
        with Vertical(id="pick-box"):
            yield OptionList(
                *(
                    Option(Text.assemble((f"{name:8}", colors.text), (printable(what, 100), colors.dim), no_wrap=True))
                    for name, what in self.named.items()
                ),
                id="pick-list",
                markup=False,
            )

    def on_mount(self) -> None:
        box = self.query_one("#pick-box")
        box.border_title = " Which e-class? "
        box.border_subtitle = " enter picks, esc closes "
        self.set_class(look(self).glyphs.border == "ascii", "ascii")
        listed = self.query_one(OptionList)
        listed.highlighted = 0
        listed.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(list(self.named)[event.option_index])

    def action_move(self, step: int) -> None:
        listed = self.query_one(OptionList)
        if step > 0:
            listed.action_cursor_down()
        else:
            listed.action_cursor_up()

    def action_close(self) -> None:
        self.dismiss(None)
