"""What differs between the present run and an earlier one, or another session."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from workbench.errors import WorkbenchError, printable
from workbench.session.runs import Run
from workbench.tui import format as fmt
from workbench.tui.later import after_refresh
from workbench.tui.lines import Lines
from workbench.tui.scene import Scene
from workbench.tui.theme import Look, look

if TYPE_CHECKING:
    from workbench.session.difference import Difference
    from workbench.tui.app import WorkbenchApp

MOST_SESSIONS = 40


@dataclass(frozen=True, slots=True)
class Other:
    """What the present run is compared with: an earlier one of the session, or another session."""

    run: Run | None = None
    session: Path | None = None


class DifferenceScreen(ModalScreen[None]):
    """The present run against another. It is compared once; `c` compares with something else."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,D,q", "close", "close", show=False),
        Binding("y", "copy", "copy", show=False),
        Binding("c,o", "choose", "choose", show=False),
    ]

    def __init__(self, scene: Scene, other: Other) -> None:
        super().__init__()
        self.scene = scene
        self.other = other
        self.board = Lines(id="difference-lines")
        self.difference: Difference | None = None
        self.error = ""

    @property
    def workbench(self) -> WorkbenchApp:
        return cast("WorkbenchApp", self.app)

    def compose(self) -> ComposeResult:
        yield self.board

    def on_mount(self) -> None:
        self.board.border_title = " Differences "
        self.board.border_subtitle = " c compares with another, y copies, esc closes "
        self.set_class(look(self).glyphs.border == "ascii", "ascii")
        self.board.focus()
        self.run_worker(self._compare(), exclusive=True)

    def on_resize(self, event: Resize) -> None:
        after_refresh(self, self.fill)

    async def _compare(self) -> None:
        from workbench.session.diff import diff_sessions

        scene, other = self.scene, self.other
        try:
            if other.session is not None and scene.client is not None:
                sides = (str(other.session), str(scene.client.directory))
                self.difference = await asyncio.to_thread(diff_sessions, *sides)
            elif other.run is not None:
                self.difference = against(other.run, scene)
        except WorkbenchError as error:
            self.error = str(error)
        self.fill()

    def fill(self) -> None:
        """Write the lines for the present width."""
        from workbench.session.difference_text import lines

        the_look = look(self)
        width = max(40, self.board.scrollable_content_region.width - 1)
        if self.difference is not None:
            self.board.show([_styled(line, the_look) for line in lines(self.difference, width)])
        elif self.error:
            self.board.show([Text(printable(self.error, 2000), style=the_look.colors.bad)])
        else:
            self.board.show([Text("The two are read.", style=the_look.colors.dim)])

    def action_copy(self) -> None:
        self.workbench.copy("\n".join(line.plain.rstrip() for line in self.board.lines))

    def action_choose(self) -> None:
        self.dismiss()
        self.workbench.choose_comparison()

    def action_close(self) -> None:
        self.dismiss()


def against(run: Run, scene: Scene) -> Difference:
    """The present run against an earlier one of the same session."""
    from workbench.session.difference import Side, compare
    from workbench.session.report import run_report

    view = scene.view
    name = f"run {view.run} ({view.run_reason})"
    return compare(
        Side(f"{run.name} ({run.reason})", _alone(run.report), {"library": run.rules_digest}),
        Side(name, _alone(run_report(view)), {"library": view.rules_digest}),
    )


def _alone(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report of a run with the time of its own stages: the session's clock also counts the runs before, and the
    time in which nobody asked for anything."""
    stages = [t for t in report["timeline"] if t["stage"] != "earlier"]
    return {**report, "timeline": stages, "total_seconds": sum(t["seconds"] for t in stages)}


def _styled(line: Sequence[tuple[str, str]], the_look: Look) -> Text:
    colors = the_look.colors
    styles = {
        "title": f"bold {colors.accent}",
        "head": colors.faint,
        "text": colors.text,
        "dim": colors.dim,
        "good": colors.good,
        "bad": colors.bad,
        "added": colors.good,
        "removed": colors.bad,
        "changed": colors.warn,
    }
    return Text.assemble(*((text, styles.get(role, colors.dim)) for text, role in line), no_wrap=True)


class PickRunScreen(ModalScreen["Other | None"]):
    """Pick what to compare with: the session's earlier runs, the newest first, then other sessions."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "close", show=False),
        Binding("j", "move(1)", "down", show=False),
        Binding("k", "move(-1)", "up", show=False),
    ]

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self.scene = scene
        self.choices: list[Other | None] = []

    @property
    def workbench(self) -> WorkbenchApp:
        return cast("WorkbenchApp", self.app)

    def compose(self) -> ComposeResult:
        with Vertical(id="pick-box"):
            yield OptionList(id="pick-list", markup=False)

    def on_mount(self) -> None:
        box = self.query_one("#pick-box")
        box.border_title = " Compare the present run with "
        box.border_subtitle = " enter picks, esc closes "
        self.set_class(look(self).glyphs.border == "ascii", "ascii")
        self.fill()
        self.query_one(OptionList).focus()

    def fill(self) -> None:
        """List the runs and the sessions."""
        the_look = look(self)
        colors = the_look.colors
        listed = self.query_one(OptionList)
        for run in reversed(self.scene.view.runs):
            self.choices.append(Other(run=run))
            same = run.rules_digest == self.scene.view.rules_digest
            listed.add_option(
                Option(
                    Text.assemble(
                        (f"{run.name:8}", colors.text),
                        (fmt.fit(printable(run.reason, 30), 26, the_look), colors.dim),
                        (f"at {fmt.clock(run.began_at)}  ", colors.dim),
                        ("the same rules" if same else "other rules", colors.faint if same else colors.warn),
                    )
                )
            )
        here = self.scene.client.directory.resolve() if self.scene.client is not None else None
        sessions = [s for s in self.workbench.summaries() if Path(s.directory).resolve() != here][:MOST_SESSIONS]
        for session in sessions:
            self.choices.append(Other(session=Path(session.directory)))
            listed.add_option(
                Option(
                    Text.assemble(
                        (fmt.fit(printable(Path(session.model).name, 60), 34, the_look), colors.text),
                        (fmt.fit(printable(str(session.status), 12), 10, the_look), colors.dim),
                        (printable(Path(session.directory).name, 60), colors.faint),
                    )
                )
            )
        if not self.choices:
            nothing = Text("There is no earlier run and no other session.", style=colors.dim)
            listed.add_option(Option(nothing, disabled=True))
        listed.highlighted = 0 if self.choices else None

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self.choices[event.option_index])

    def action_move(self, step: int) -> None:
        listed = self.query_one(OptionList)
        if step > 0:
            listed.action_cursor_down()
        else:
            listed.action_cursor_up()

    def action_close(self) -> None:
        self.dismiss(None)
