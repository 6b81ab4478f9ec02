"""The X-ray of a rule: how many bindings survive each premise, and what stands where the first fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from textwrap import wrap
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.screen import ModalScreen

from workbench.errors import printable
from workbench.session.events import Explore, Xray, XrayDone
from workbench.tui import format as fmt
from workbench.tui.later import after_refresh
from workbench.tui.lines import Lines
from workbench.tui.scene import Scene
from workbench.tui.screens.pick_class import PickClassScreen
from workbench.tui.theme import Look, look

MATCHES, BAR = 9, 10
"""Cells of the number and of the bar in front of a premise."""


class XrayScreen(ModalScreen[None]):
    """The answer to one question; until it is there, that it was asked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,x,q", "close", "close", show=False),
        Binding("y", "copy", "copy", show=False),
        Binding("e", "edit", "edit", show=False),
        Binding("m", "members", "e-class", show=False),
    ]

    def __init__(self, scene: Scene, question: Xray, explore: Callable[[Explore], None]) -> None:
        super().__init__()
        self.scene = scene
        self.explore = explore
        self.question = question
        self.board = Lines(id="xray-lines")
        self._before = scene.view.xray
        """What was answered before this was asked."""
        self.answer: XrayDone | None = None

    def compose(self) -> ComposeResult:
        yield self.board

    def on_mount(self) -> None:
        self.board.border_title = " X-ray "
        self.board.border_subtitle = " m shows an e-class, e opens the rule in the editor, esc closes "
        self.set_class(look(self).glyphs.border == "ascii", "ascii")
        self.board.focus()

    def on_resize(self, event: Resize) -> None:
        after_refresh(self, self.fill)

    def paint(self, scene: Scene) -> None:
        """Show the answer once it is there."""
        self.scene = scene
        done = scene.view.xray
        asked = self.question
        if self.answer is None and done is not None and done is not self._before:
            same_group = done.group is None or asked.group in (None, done.group)
            if (done.rule, done.node) == (asked.rule, asked.node) and same_group:
                self.answer = done
        self.fill()

    def fill(self) -> None:
        """Write the lines for the present width."""
        width = max(40, self.board.scrollable_content_region.width - 1)
        if self.answer is not None:
            self.board.show(xray_lines(self.answer, look(self), width))
            return
        colors = look(self).colors
        said = "The engine is asked." if self.scene.connected else "The engine is gone; there will be no answer."
        self.board.show([*_title(self.question.rule, look(self), width), Text(""), Text(said, style=colors.dim)])

    def action_copy(self) -> None:
        self.app.copy("\n".join(line.plain.rstrip() for line in self.board.lines))  # type: ignore[attr-defined]

    async def action_edit(self) -> None:
        if self.answer is not None and self.answer.file:
            await self.app.edit(self.answer.file, self.answer.line, self.answer.rule)  # type: ignore[attr-defined]

    def action_members(self) -> None:
        """Open the explorer at an e-class that the answer names."""
        done = self.answer
        if done is None or done.error:
            return
        named = classes_named(done)

        def picked(variable: str | None) -> None:
            if variable:
                self.explore(Explore(group=done.group, variable=variable))

        if len(named) > 1:
            self.app.push_screen(PickClassScreen(named), picked)
        else:
            picked(next(iter(named), "$root"))

    def action_close(self) -> None:
        self.dismiss()


def classes_named(done: XrayDone) -> dict[str, str]:
    """The program's variables in an answer, each with what it is there."""
    found = {done.variable: done.root} if done.variable else {}
    texts = [(name, value) for name, value in done.binding.items()]
    texts += [("where it fails", done.place), ("what was found", done.found_instead or "")]
    for what, text in texts:
        for variable in re.findall(r"\$t[0-9]+", text):
            found.setdefault(variable, what)
    return found


def _title(rule: str, look: Look, width: int) -> list[Text]:
    return [Text(line, style=f"bold {look.colors.text}") for line in wrap(printable(rule, 400), width)]


def xray_lines(done: XrayDone, look: Look, width: int) -> list[Text]:
    """An answer in `width` cells."""
    colors, glyphs = look.colors, look.glyphs
    lines = _title(done.rule, look, width)

    def say(text: str, style: str, indent: int = 0) -> None:
        for line in wrap(printable(text, 2000), width - indent) or [""]:
            lines.append(Text(" " * indent + line, style=style))

    if done.error:
        lines.append(Text(""))
        say(done.error, colors.bad)
        return lines
    middot = f" {glyphs.middot} "
    where = f"{done.root} at node {done.node} ({done.variable})" if done.variable else "all e-classes"
    inside = "program" if done.group is None else "group"
    fired = f"{fmt.count(done.fired)} matches in the {inside}" if done.fired else f"it never fired in the {inside}"
    group = [] if done.group is None else [f"group {done.group}"]
    say(middot.join((f"{done.file}:{done.line}", *group, where, fired)), colors.dim)
    lines.append(Text(""))
    lines.append(Text(f"{'matches':>{MATCHES}}  {'':{BAR}}  premise", style=colors.dim))
    most = max((p.matches or 0 for p in done.premises), default=0)
    indent = MATCHES + BAR + 4
    for place, premise in enumerate(done.premises):
        failing = place == done.first_failing
        color = colors.bad if failing else colors.text if premise.matches else colors.faint
        shown = "-" if premise.matches is None else fmt.count(premise.matches)
        bar = fmt.bar((premise.matches or 0) / most if most else 0.0, BAR, look, colors.accent)
        first, *rest = wrap(printable(premise.text, 2000), width - indent) or [""]
        mark = glyphs.fail if failing else ""
        number = f"{mark} {shown}".rjust(MATCHES)
        lines.append(Text.assemble((number, color), "  ", bar, "  ", (first, color)))
        lines += [Text(" " * indent + line, style=color) for line in rest]
    counted = [p.counts for p in done.premises if p.matches is not None]
    if counted:
        say(f"matches: {counted[-1]}", colors.faint)
    lines.append(Text(""))
    if done.first_failing is not None:
        say(f"Premise {done.first_failing + 1} holds for none of them.", colors.bad)
        bound = ", ".join(f"{name} = {value}" for name, value in done.binding.items())
        for title, text, style in (
            ("wanted", done.wanted, colors.text),
            ("at", done.place, colors.text),
            ("found", done.found_instead or "", colors.warn),
            ("with", bound, colors.dim),
        ):
            first, *rest = wrap(printable(text, 2000), width - 10) or [""]
            if text:
                lines.append(Text.assemble((f"  {title:8}", colors.dim), (first, style)))
                lines += [Text(" " * 10 + line, style=style) for line in rest]
    elif not done.stopped:
        say("Every premise holds.", colors.good)
        if not done.fired:
            say("But only now: when its ruleset ran, something was not there yet.", colors.warn)
    for text in (done.stopped, done.note):
        if text:
            say(text[0].upper() + text[1:] + ".", colors.warn)
    return lines
