"""The log: what the engine had to say, the newest at the bottom."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from workbench.errors import printable
from workbench.tui import format as fmt
from workbench.tui.lines import Lines
from workbench.tui.scene import Scene
from workbench.tui.theme import Look, look


class LogScreen(ModalScreen[None]):
    """Log lines over the workbench; it follows the end unless scrolled up."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,l,q", "close", "close", show=False),
    ]

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self.scene = scene
        self.board = Lines(id="log-lines")

    def compose(self) -> ComposeResult:
        yield self.board

    def on_mount(self) -> None:
        self.board.border_title = " Log "
        self.board.border_subtitle = " esc closes "
        self.set_class(look(self).glyphs.border == "ascii", "ascii")
        self.paint(self.scene)
        self.board.focus()

    def paint(self, scene: Scene) -> None:
        """Show lines that are new."""
        self.scene = scene
        at_end = self.board.scroll_offset.y >= self.board.max_scroll_y
        self.board.show(log_lines(scene, look(self)))
        if at_end:
            self.call_after_refresh(self.board.action_bottom)

    def action_close(self) -> None:
        self.dismiss()


def log_lines(scene: Scene, look: Look) -> list[Text]:
    """The log as lines: time, level, module, message."""
    colors = look.colors
    level_color = {"WARNING": colors.warn, "ERROR": colors.bad, "CRITICAL": colors.bad, "DEBUG": colors.faint}
    lines = [
        Text.assemble(
            (f"{fmt.clock(line.at):>7}.{int(line.at * 1000) % 1000:03}  ", colors.faint),
            (f"{printable(line.level, 8):<8} ", level_color.get(line.level.upper(), colors.accent)),
            (fmt.fit(printable(line.module), 12, look) + "  ", colors.dim),
            (printable(line.message, 2000), colors.text),
        )
        for line in scene.view.log
    ]
    return lines or [Text("Nothing has been logged.", style=colors.dim)]
