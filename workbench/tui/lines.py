"""A scrollable list of styled lines: what the search pane, the log and the help are drawn with."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from workbench.tui import keymap


class Lines(ScrollView, can_focus=True):
    """Lines of text, drawn one at a time as they come into view."""

    BINDINGS: ClassVar[list[BindingType]] = keymap.bindings("move")

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.lines: list[Text] = []

    def show(self, lines: list[Text]) -> None:
        """Replace all lines; nothing is drawn when they are the same as before."""
        if lines == self.lines and [line.style for line in lines] == [line.style for line in self.lines]:
            return
        self.lines = lines
        width = max((line.cell_len for line in lines), default=0)
        self.virtual_size = Size(width, len(lines))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        scroll_x, scroll_y = self.scroll_offset
        width, style = self.size.width, self.rich_style
        index = y + scroll_y
        if index >= len(self.lines):
            return Strip.blank(width, style)
        line = self.lines[index]
        # Text.render leaves out the style of a text without spans.
        segments = line.render(self.app.console) if line.spans else [Segment(line.plain, Style.parse(str(line.style)))]
        strip = Strip(segments, line.cell_len)
        return strip.crop_extend(scroll_x, scroll_x + width, style).apply_style(style)

    def action_down(self) -> None:
        self.scroll_relative(y=1, animate=False)

    def action_up(self) -> None:
        self.scroll_relative(y=-1, animate=False)

    def action_page_down(self) -> None:
        self.scroll_relative(y=self.size.height, animate=False)

    def action_page_up(self) -> None:
        self.scroll_relative(y=-self.size.height, animate=False)

    def action_top(self) -> None:
        self.scroll_to(0, 0, animate=False)

    def action_bottom(self) -> None:
        self.scroll_to(y=self.max_scroll_y, animate=False)

    def action_left(self) -> None:
        self.scroll_relative(x=-8, animate=False)

    def action_right(self) -> None:
        self.scroll_relative(x=8, animate=False)
