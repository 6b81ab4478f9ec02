"""The header, the footer and the notice: one line each, and the notice only while there is something to say."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text
from textual.widget import Widget

from workbench.errors import printable
from workbench.session.events import Failed
from workbench.tui import format as fmt
from workbench.tui import keymap
from workbench.tui.panes.pane import Pane
from workbench.tui.scene import Scene
from workbench.tui.theme import Look, look


class ChromeLine(Widget):
    """One line of text, drawn again only when it says something else."""

    def __init__(self, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self.text = Text()

    def render(self) -> Text:
        return self.text

    def say(self, text: Text) -> None:
        """Show `text`."""
        if text != self.text:
            self.text = text
            self.refresh()


@dataclass(frozen=True, slots=True)
class Field:
    """A part of the header; those of the lowest rank are left out first where the line is too narrow."""

    rank: int
    text: Text
    right: bool = False


def header(scene: Scene, width: int, look: Look) -> Text:
    """The header: what is compiled on the left, how far it is on the right."""
    view, colors, glyphs = scene.view, look.colors, look.glyphs
    fields = []

    def add(rank: int, text: str, style: str, *, right: bool = False) -> None:
        if text:
            fields.append(Field(rank, Text(text, style=style), right))

    if view.opened is not None:
        add(8, printable(view.opened.model.rpartition("/")[2], 32), f"bold {colors.text}")
        add(5, printable(view.opened.target, 12), colors.cyan)
        add(1, printable(view.opened.device, 32), colors.dim)
    add(3, printable(scene.session_name, 32), colors.dim)
    if view.stage:
        progress = f" {view.progress[0]}/{view.progress[1]}" if view.progress else ""
        if view.stage == "search" and view.search:
            done, expected = view.overall_progress()
            progress = f" {done}/{expected}"
        add(7, printable(view.stage, 12) + progress, colors.accent, right=True)
        if view.stage != "search":
            add(0, printable(view.stage_detail, 24), colors.dim, right=True)
    if view.measured is not None and not view.stage:
        add(4, f"{fmt.ms(view.measured.median)} ms", colors.text, right=True)
    add(6, fmt.clock(scene.elapsed), colors.text, right=True)
    if view.opened is not None and view.opened.kind != keymap.EGG:
        add(2, f"seed {view.seed}", colors.dim, right=True)
    disk = view.rules_on_disk
    if disk is not None and scene.connected and not scene.read_only:
        add(8, "rules broken" if disk.error else "rules changed", colors.bad if disk.error else colors.warn, right=True)
    name, color = state(scene, look)
    fields.append(Field(9, Text(name, style=f"bold {color}"), right=True))
    separator = Text(f" {glyphs.middot} ", style=colors.faint)

    def joined(right: bool) -> Text:
        return separator.join(field.text for field in fields if field.right is right)

    while len(fields) > 1 and joined(False).cell_len + joined(True).cell_len + 4 > width:
        fields.remove(min(fields, key=lambda field: field.rank))
    left, right = joined(False), joined(True)
    gap = max(1, width - left.cell_len - right.cell_len - 2)
    return Text.assemble(" ", left, " " * gap, right, " ", no_wrap=True, end="")


def state(scene: Scene, look: Look) -> tuple[str, str]:
    """One or a few words for how the session stands, and their colour."""
    view, colors, glyphs = scene.view, look.colors, look.glyphs
    if scene.client is None:
        return "no session", colors.dim
    if view.failure is not None:
        where = f" in {printable(view.failure.stage, 12)}" if view.failure.stage else ""
        return f"{glyphs.fail} failed{where}", colors.bad
    if view.finished is not None:
        tag = "" if scene.connected or scene.read_only else ", engine gone"
        if view.finished.ok:
            return f"{glyphs.ok} finished{tag}", colors.good
        return f"{glyphs.fail} finished, not right{tag}", colors.bad
    if view.cancelled:
        return f"{glyphs.stop} cancelled", colors.warn
    if not scene.connected:
        return ("ended early" if scene.read_only else f"{glyphs.fail} disconnected"), colors.bad
    if view.paused:
        return f"{glyphs.pause} paused", colors.warn
    if view.opened is None:
        return "connecting", colors.dim
    return f"{glyphs.run} running", colors.good


def footer(
    panes: list[Pane], focused: Pane, *, kind: str, hidden: bool, framed: bool, width: int, look: Look
) -> Text:
    """The footer: a switcher where panes are hidden, then the keys of the focused pane as far as they fit."""
    colors = look.colors
    line = Text(" ", no_wrap=True, end="")
    if hidden:
        for number, pane in enumerate(panes, 1):
            here = pane is focused
            style = f"bold {colors.accent} reverse" if here else colors.dim
            line.append(f" {number} {pane.TITLE} ", style=style)
            told = pane.warning or pane.info
            if here and told and not framed:
                cut = fmt.fit(told, min(len(told), max(8, width - 52)), look)
                line.append(f" {cut}", style=colors.warn if pane.warning else colors.dim)
            line.append(" ")
        line.append(" ")
    for key in keymap.hints(focused.TITLE.lower(), kind):
        hint = Text.assemble((key.label, f"bold {colors.text}"), (f" {key.title}", colors.dim), "  ")
        if line.cell_len + hint.cell_len <= width:
            line.append_text(hint)
    return line


class Notice(Widget):
    """A failure, with what to do about it, until it is put away."""

    def __init__(self) -> None:
        super().__init__(id="notice")
        self.shown: Failed | None = None
        self.text = Text()

    def show(self, failure: Failed | None) -> None:
        """Show a failure that is new; None hides the notice."""
        if failure is self.shown:
            return
        self.shown = failure
        self.display = failure is not None
        if failure is None:
            return
        colors, glyphs = look(self).colors, look(self).glyphs
        where = f" in {printable(failure.stage, 20)}" if failure.stage else ""
        self.text = Text.assemble(
            (f"{glyphs.fail} failed{where}  ", f"bold {colors.bad}"), (printable(failure.message, 600), colors.text)
        )
        if failure.hint:
            self.text.append(f"\n{printable(failure.hint, 600)}", style=colors.dim)
        if failure.kept:
            self.text.append("\nthe last good run is there again, and can be searched", style=colors.dim)
        self.text.append("\nesc puts this away   l shows the log", style=colors.faint)
        self.refresh(layout=True)

    def render(self) -> Text:
        return self.text

    def put_away(self) -> bool:
        """Hide it; the header still says that it failed. False where there was none."""
        was = self.display
        self.display = False
        return was
