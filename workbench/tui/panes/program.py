"""The program pane: the egglog text of the selected chunk, with the selected node's line marked."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import BindingType
from textual.events import Click
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from workbench.errors import printable
from workbench.tui import format as fmt
from workbench.tui import keymap
from workbench.tui.panes.pane import Pane
from workbench.tui.scene import Scene
from workbench.tui.theme import Look, Palette, look
from workbench.tui.tokens import tokens

LONGEST = 4000
"""characters of a line that are shown"""


def _token_color(kind: str, colors: Palette) -> str:
    match kind:
        case "comment":
            return f"italic {colors.faint}"
        case "string":
            return colors.good
        case "number":
            return colors.warn
        case "keyword":
            return f"bold {colors.accent}"
        case "constructor":
            return colors.violet
        case "option":
            return colors.cyan
        case "paren":
            return colors.faint
        case _:
            return colors.text


class ProgramView(ScrollView, can_focus=True):
    """Text of any length with line numbers; a line is highlighted when it comes into view."""

    BINDINGS: ClassVar[list[BindingType]] = keymap.bindings("move", "program")

    def __init__(self) -> None:
        super().__init__(id="program-view", classes="body")
        self.lines: list[str] = []
        self.cursor = 0
        self.query_text = ""
        self.matches: list[int] = []
        self.marked: tuple[int, str] | None = None
        """A line (0-based) that stands out, and its number's colour."""
        self._strips: dict[int, Strip] = {}
        self._look: Look | None = None

    def show(self, text: str) -> None:
        """Replace the text; the cursor goes to the first line."""
        self.lines = text.splitlines()
        self.cursor = 0
        # Two cells a character is the most a line can need; measuring each would take too long in a large text.
        longest = max((len(line) if line.isascii() else 2 * len(line) for line in self.lines), default=0)
        self.virtual_size = Size(self.number_width + min(longest, LONGEST) + 1, len(self.lines))
        self.find(self.query_text)
        self.scroll_to(0, 0, animate=False)

    @property
    def number_width(self) -> int:
        """Cells in front of the text."""
        return max(3, len(str(len(self.lines)))) + 2

    def find(self, query: str) -> None:
        """Search without regard to case; the matches are marked."""
        self.query_text = query.lower()
        self.matches = [i for i, line in enumerate(self.lines) if query.lower() in line.lower()] if query else []
        self._strips.clear()
        self.refresh()

    def go(self, line: int, *, center: bool = False) -> None:
        """Put the cursor on a line (0-based) and bring it into view."""
        if not self.lines:
            return
        old, self.cursor = self.cursor, min(max(0, line), len(self.lines) - 1)
        height = max(1, self.size.height)
        top = self.scroll_offset.y
        if not top <= self.cursor < top + height:
            if center:
                target = self.cursor - height // 2
            else:
                target = self.cursor if self.cursor < top else self.cursor - height + 1
            self.scroll_to(y=max(0, target), animate=False)
        self.refresh_line(old)
        self.refresh_line(self.cursor)

    def mark(self, line: int | None, color: str) -> None:
        """Let a line (0-based) stand out, instead of the one before; None: none."""
        marked = None if line is None else (min(line, len(self.lines) - 1), color)
        if marked != self.marked:
            before, self.marked = self.marked, marked
            for each in (before, marked):
                if each is not None:
                    self.refresh_line(each[0])

    def render_line(self, y: int) -> Strip:
        scroll_x, scroll_y = self.scroll_offset
        width, base = self.size.width, self.rich_style
        index = y + scroll_y
        if index >= len(self.lines):
            return Strip.blank(width, base)
        now = look(self)
        if now != self._look or len(self._strips) > 2000:
            self._look = now
            self._strips.clear()
        if index not in self._strips:
            self._strips[index] = self._highlighted(self.lines[index], now)
        here = index == self.cursor
        style = base + Style(bgcolor=now.colors.cursor) if here else base
        number = Style(color=now.colors.accent if here else now.colors.faint, bold=here)
        if self.marked is not None and self.marked[0] == index:
            number = Style(color=self.marked[1], bold=True, reverse=True)
        gutter = Strip([Segment(f"{index + 1:>{self.number_width - 2}}  ", number)], self.number_width)
        code = self._strips[index].crop_extend(scroll_x, scroll_x + max(0, width - self.number_width), None)
        return Strip.join([gutter, code]).apply_style(style)

    def _highlighted(self, line: str, now: Look) -> Strip:
        text = Text()
        for kind, token in tokens(line[:LONGEST].expandtabs(4)):
            text.append(printable(token, LONGEST), style=_token_color(kind, now.colors))
        if self.query_text:
            lowered = text.plain.lower()
            at = lowered.find(self.query_text)
            while at >= 0:
                text.stylize(f"bold on {now.colors.match}", at, at + len(self.query_text))
                at = lowered.find(self.query_text, at + len(self.query_text))
        return Strip(text.render(self.app.console), text.cell_len)

    def on_click(self, event: Click) -> None:
        self.go(event.y + self.scroll_offset.y)

    def action_down(self) -> None:
        self.go(self.cursor + 1)

    def action_up(self) -> None:
        self.go(self.cursor - 1)

    def action_page_down(self) -> None:
        self.go(self.cursor + max(1, self.size.height - 1))

    def action_page_up(self) -> None:
        self.go(self.cursor - max(1, self.size.height - 1))

    def action_top(self) -> None:
        self.go(0)
        self.scroll_to(x=0, animate=False)

    def action_bottom(self) -> None:
        self.go(len(self.lines) - 1)

    def action_left(self) -> None:
        self.scroll_relative(x=-8, animate=False)

    def action_right(self) -> None:
        self.scroll_relative(x=8, animate=False)

    def action_next_match(self) -> None:
        if self.matches:
            self.go(next((i for i in self.matches if i > self.cursor), self.matches[0]), center=True)

    def action_previous_match(self) -> None:
        if self.matches:
            self.go(next((i for i in reversed(self.matches) if i < self.cursor), self.matches[-1]), center=True)


class ProgramPane(Pane):
    """The egglog program of one chunk."""

    TITLE = "Program"
    FILTER = "search the program"

    def __init__(self) -> None:
        super().__init__()
        self.program = ProgramView()
        self._shown: tuple[object, ...] = ()
        self._chunks: object = None
        self._node: object = None
        self._stage: object = None

    def body(self) -> Widget:
        return self.program

    def paint(self, scene: Scene) -> None:
        super().paint(scene)
        view, chunk = scene.view, scene.shown_chunk()
        stage = (view.stage, len(view.timeline))
        waiting = not self.program.lines and stage != self._stage
        self._stage = stage
        shown = (chunk, scene.client, view.program.read if view.program else None)
        if shown != self._shown or view.chunks is not self._chunks or waiting:
            self._shown, self._chunks, self._node = shown, view.chunks, None
            text = scene.client.program(chunk) if scene.client is not None and chunk is not None else ""
            if text or self.program.lines:
                self.program.show(text)
        node = scene.selection.node
        if node is not None and (node, chunk) != self._node:
            self._node = (node, chunk)
            if node.line:
                self.program.go(node.line - 1, center=True)
        self._say(chunk)

    def _say(self, chunk: int | None) -> None:
        lines = self.program.lines
        program = self.scene.view.program
        name = f"chunk {chunk}" if program is None else printable(program.read.file, 60)
        self.info = f"{name} {look(self).glyphs.middot} {fmt.count(len(lines))} lines" if lines else ""
        query = self.program.query_text
        self.warning = f"{fmt.count(len(self.program.matches))} match {printable(query, 20)}" if query else ""
        self.retitle()

    def filter_changed(self, text: str) -> None:
        self.program.find(text)
        if self.program.matches and self.program.query_text not in self.program.lines[self.program.cursor].lower():
            self.program.action_next_match()
        self._say(self.scene.shown_chunk())

    def copied(self) -> str:
        return self.program.lines[self.program.cursor] if self.program.lines else ""
