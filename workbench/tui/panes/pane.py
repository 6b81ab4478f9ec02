"""What the four panes have in common: a border with a title, one focusable body and a filter line."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.events import Key
from textual.widget import Widget
from textual.widgets import Input

from workbench.errors import printable
from workbench.tui.scene import Scene
from workbench.tui.theme import Palette, look


class FilterLine(Input):
    """The one-line filter at the bottom of a pane."""

    def on_key(self, event: Key) -> None:
        if event.key == "escape":
            event.stop()
            self.value = ""
            self.pane.close_filter()
        elif event.key in ("down", "tab"):
            event.stop()
            self.pane.close_filter()

    @property
    def pane(self) -> Pane:
        pane = self.parent
        assert isinstance(pane, Pane)
        return pane


class Pane(Container):
    """A pane paints itself from a scene and answers what is copied from it."""

    TITLE: ClassVar[str] = ""
    FILTER: ClassVar[str] = ""
    """placeholder of the filter line; empty where there is nothing to filter"""

    def __init__(self) -> None:
        super().__init__(id=self.TITLE.lower(), classes="pane")
        self.info = ""
        """what the title says after the pane's name"""
        self.warning = ""
        """the part of the title that should stand out"""
        self.scene = Scene()
        self._title = Content("")
        self._title_colors: Palette | None = None
        self._subtitle = ""

    def body(self) -> Widget:
        """The focusable widget; made once."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        yield self.body()
        if self.FILTER:
            yield FilterLine(placeholder=self.FILTER, compact=True, classes="filter")

    def on_mount(self) -> None:
        self.retitle()

    def paint(self, scene: Scene) -> None:
        """Show the scene. Called at most ten times a second; draws only what changed."""
        self.scene = scene

    def copied(self) -> str:
        """The selection as text, for the clipboard."""
        return ""

    def filter_changed(self, text: str) -> None:
        """The filter line says `text` now; empty: no filter."""

    def retitle(self) -> None:
        """Write `info` and `warning` into the border."""
        colors, middot = look(self).colors, look(self).glyphs.middot
        parts: list[tuple[str, str]] = [(f" {self.TITLE} ", "bold")]
        if self.info:
            parts.append((f"{middot} {self.info} ", colors.dim))
        if self.warning:
            parts.append((f"{middot} {self.warning} ", colors.warn))
        title = Content.assemble(*parts)
        if title != self._title or colors != self._title_colors:
            self._title, self._title_colors = title, colors
            self.border_title = title

    def subtitle(self, text: str) -> None:
        """Write a detail of the selection into the lower border."""
        shown = f" {printable(text, 240)} " if text else ""
        if shown != self._subtitle:
            self._subtitle = shown
            self.border_subtitle = Content(shown)

    @property
    def filter_line(self) -> FilterLine | None:
        return next(iter(self.query(FilterLine)), None)

    def open_filter(self) -> bool:
        """Show the filter line and type into it. False where the pane has none."""
        line = self.filter_line
        if line is None:
            return False
        line.add_class("open")
        line.focus()
        return True

    def close_filter(self) -> None:
        """Back to the body; the line stays in view while it filters."""
        line = self.filter_line
        if line is not None:
            line.set_class(bool(line.value), "open")
            self.focus_body()

    def clear_filter(self) -> bool:
        """Drop the filter. False where there was none."""
        line = self.filter_line
        if line is None or not line.value:
            return False
        line.value = ""
        line.remove_class("open")
        return True

    def focus_body(self) -> None:
        self.query_one(".body").focus(scroll_visible=False)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.filter_changed(event.value.strip())

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.close_filter()
