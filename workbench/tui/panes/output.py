"""The output pane: what the commands of an egglog program say, and how the program ended."""

from __future__ import annotations

from textwrap import wrap

from rich.text import Text
from textual.events import Resize
from textual.widget import Widget

from workbench.errors import printable
from workbench.session.events import ProgramCommand, ProgramFinished
from workbench.session.view import ProgramView
from workbench.tui import format as fmt
from workbench.tui.lines import Lines
from workbench.tui.panes.pane import Pane
from workbench.tui.scene import Scene
from workbench.tui.theme import Look, look

MOST_LINES = 200
"""Lines of one output; report.json has all."""
LONGEST = 2000
"""Characters of a line."""


class OutputPane(Pane):
    """Grows at its end, and follows it while the end is in view."""

    TITLE = "Output"

    def __init__(self) -> None:
        super().__init__()
        self.board = Lines(id="output-board")
        self.board.add_class("body")
        self._lines: list[Text] = []
        self._program: ProgramView | None = None
        self._taken = 0
        """Commands whose lines are there, those dropped since included."""
        self._drawn: object = None

    def body(self) -> Widget:
        return self.board

    def on_resize(self, event: Resize) -> None:
        self.paint(self.scene)

    def paint(self, scene: Scene) -> None:
        super().paint(scene)
        program, now, width = scene.view.program, look(self), self.board.size.width
        count = 0 if program is None else program.dropped + len(program.commands)
        drawn = (program, count, program.result if program else None, program.at if program else None, width, now)
        if self._drawn is not None and drawn == self._drawn:
            return
        known = self._drawn
        self._drawn = drawn
        if program is None or program is not self._program or not isinstance(known, tuple) or known[-1] != now:
            self._program, self._taken, self._lines = program, 0, []
        at_end = self.board.scroll_offset.y >= self.board.max_scroll_y
        if program is not None:
            new = program.commands[max(0, self._taken - program.dropped) :]
            self._lines += [line for command in new for line in command_lines(command, now)]
            self._taken = count
        self.board.show([*self._lines, *_end(program, now, width)])
        if at_end:
            self.board.call_after_refresh(self.board.action_bottom)
        self._say(program)

    def _say(self, program: ProgramView | None) -> None:
        result = program.result if program else None
        self.info = self.warning = ""
        if result is not None:
            self.info = f"{fmt.count(result.commands)} commands, {fmt.count(result.steps)} steps"
            if result.warnings:
                self.warning = f"{len(result.warnings)} warnings"
        elif program is not None and program.at is not None:
            self.info = f"line {program.at.line}: {program.at.kind}"
        self.retitle()

    def copied(self) -> str:
        return "\n".join(line.plain.rstrip() for line in self.board.lines)


def command_lines(command: ProgramCommand, look: Look) -> list[Text]:
    """A command and what it said."""
    colors = look.colors
    spent = f"  {command.steps} steps" if command.steps else ""
    head = Text.assemble(
        (f"{command.line:>5}  ", colors.faint),
        (printable(command.text, 200), colors.dim),
        (f"{spent}  {fmt.ms(command.seconds * 1000)} ms", colors.faint),
    )
    lines = [head]
    for output in command.outputs:
        said = output.split("\n")
        lines += [Text(f"       {printable(line, LONGEST)}", style=colors.text) for line in said[:MOST_LINES]]
        if len(said) > MOST_LINES:
            left = f"       and {len(said) - MOST_LINES:,} more lines; report.json in the session has them"
            lines.append(Text(left, style=colors.warn))
    return lines


def _end(program: ProgramView | None, look: Look, width: int) -> list[Text]:
    colors = look.colors
    if program is None:
        return [Text("The program has not been read yet.", style=colors.dim)]
    result = program.result
    if result is None:
        at = f" at line {program.at.line}" if program.at is not None else ""
        return [Text(f"       running{at}", style=colors.accent)]
    lines = [Text(f"       warning: {warning}", style=colors.warn) for warning in result.warnings]
    return [*lines, *_verdict(result, look, width)]


def _verdict(result: ProgramFinished, look: Look, width: int) -> list[Text]:
    colors, glyphs = look.colors, look.glyphs
    size = f"{result.nodes:,} e-nodes in {result.classes:,} e-classes, {fmt.ms(result.seconds * 1000)} ms in the engine"
    if result.outcome == "ok":
        return [Text.assemble((f"    {glyphs.ok}  done", f"bold {colors.good}"), (f"   {size}", colors.dim))]
    place = f"{result.file}:{result.line}: " if result.line else ""
    said = wrap(f"{place}{result.error or f'stopped at its {result.stopped}'}", max(20, width - 8))
    marks = [f"    {glyphs.fail}  ", *[" " * 7] * (len(said) - 1)]
    lines = [Text(mark + line, style=f"bold {colors.bad}") for mark, line in zip(marks, said, strict=True)]
    return [*lines, Text(f"       {size}", style=colors.dim)]
