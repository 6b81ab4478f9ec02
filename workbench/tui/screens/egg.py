"""The screen of a session on an egglog program: the program, its rules, what it prints."""

from __future__ import annotations

import re
from typing import ClassVar

from textual.binding import BindingType

from workbench.session import events as ev
from workbench.tui import keymap
from workbench.tui.panes.output import OutputPane
from workbench.tui.panes.pane import Pane
from workbench.tui.panes.rules import RulesPane
from workbench.tui.scene import Scene
from workbench.tui.screens.workbench import WorkbenchScreen
from workbench.tui.theme import look

_DEFINES = re.compile(r"\(let\s+([^\s()]+)")


class EggScreen(WorkbenchScreen, inherit_bindings=False):
    """Three panes, with the line that runs, or that failed, marked in the program."""

    BINDINGS: ClassVar[list[BindingType]] = keymap.bindings("app", kind=keymap.EGG)
    KIND: ClassVar[str] = keymap.EGG

    def make_panes(self) -> list[Pane]:
        self.output = OutputPane()
        self._went_to: object = None
        return [self.program, self.rules, self.output]

    def lay_out(self) -> None:
        super().lay_out()
        self.query_one("#panes").add_class("program")

    def paint(self, scene: Scene) -> None:
        super().paint(scene)
        if self.is_mounted:
            self._mark(scene)

    def _mark(self, scene: Scene) -> None:
        """Mark where the program is, or where it went wrong; go there once."""
        view, colors = scene.view, look(self).colors
        program, failure = view.program, view.failure
        text = self.program.program
        if program is None:
            return
        name = program.read.file
        result = program.result
        if failure is not None and failure.file == name and failure.line:
            line, color = failure.line, colors.bad
        elif result is not None and result.outcome != "ok" and result.file == name and result.line:
            line, color = result.line, colors.bad
        elif program.at is not None and program.at.file == name:
            line, color = program.at.line, colors.accent
        else:
            text.mark(None, "")
            return
        text.mark(line - 1, color)
        place = (program.read, line, color)
        if color == colors.bad and place != self._went_to:
            self._went_to = place
            text.go(line - 1, center=True)

    def action_explore(self) -> None:
        text = self.program.program
        line = text.lines[text.cursor] if text.lines else ""
        defined = _DEFINES.search(line)
        self.explore(ev.Explore(variable=defined.group(1) if defined else ""))

    def on_rules_pane_made_asked(self, event: RulesPane.MadeAsked) -> None:
        event.prevent_default()  # who made an e-node is not noted in programs, which run as they are
        self.action_explore()

    def reveal(self, group: int, chunk: int, node: int) -> bool:
        """There is no graph to show a node in."""
        return False

    async def action_saturate(self) -> None:
        await self.workbench.ask(ev.Rerun(stage="saturate"), "Running the program again.")

    async def action_pause(self) -> None:
        said = "Going on." if self.scene.view.paused else "Pausing."
        await self.workbench.ask(ev.TogglePause(), said)
