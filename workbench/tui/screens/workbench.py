"""The main screen: four panes between a header and a footer, laid out for the size of the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Grid
from textual.events import DescendantFocus, Resize
from textual.screen import Screen

from workbench.session import events as ev
from workbench.tui import chrome, keymap
from workbench.tui.panes.graph import GraphPane
from workbench.tui.panes.pane import Pane
from workbench.tui.panes.program import ProgramPane
from workbench.tui.panes.rules import RulesPane
from workbench.tui.panes.search import SearchPane
from workbench.tui.scene import Scene
from workbench.tui.screens.explorer import ExplorerScreen
from workbench.tui.screens.help import HelpScreen
from workbench.tui.screens.log import LogScreen
from workbench.tui.screens.pick_rule import PickRuleScreen
from workbench.tui.screens.xray import XrayScreen
from workbench.tui.theme import look

if TYPE_CHECKING:
    from workbench.tui.app import WorkbenchApp

NARROW, WIDE, LOW = 100, 140, 30
"""Below NARROW columns or LOW rows one pane is shown, below WIDE two, else four."""


class WorkbenchScreen(Screen[None]):
    """Panes, focus, layout, and the keys that work everywhere."""

    BINDINGS: ClassVar[list[BindingType]] = keymap.bindings("app")
    KIND: ClassVar[str] = keymap.COMPILE
    """The kind of session that the panes are for."""
    ESCAPE_TO_MINIMIZE = False

    def __init__(self) -> None:
        super().__init__()
        self.header = chrome.ChromeLine(id="header")
        self.footer = chrome.ChromeLine(id="footer")
        self.notice = chrome.Notice()
        self.graph, self.rules, self.search = GraphPane(), RulesPane(), SearchPane()
        self.program = ProgramPane()
        self.panes = self.make_panes()
        self.first: Pane = self.panes[0]
        """the pane that is always there where there is room for two"""
        self.focused_pane = self.first
        self.beside: Pane = self.panes[-1]
        """the pane at its right then"""
        self.zoomed = False
        self.scene = Scene()

    def make_panes(self) -> list[Pane]:
        """The panes in the order of their numbers."""
        return [self.graph, self.program, self.rules, self.search]

    @property
    def workbench(self) -> WorkbenchApp:
        return cast("WorkbenchApp", self.app)

    def compose(self) -> ComposeResult:
        yield self.header
        with Grid(id="panes"):
            yield from self.panes
        yield self.notice
        yield self.footer

    def on_mount(self) -> None:
        self.notice.display = False
        self.set_class(look(self).glyphs.border == "ascii", "ascii")
        self.lay_out()
        self.first.focus_body()
        self.paint(self.scene)

    def on_resize(self, event: Resize) -> None:
        self.lay_out()

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        pane = next((node for node in event.widget.ancestors_with_self if isinstance(node, Pane)), None)
        if pane is not None and pane is not self.focused_pane:
            self.focused_pane = pane
            if pane is not self.first:
                self.beside = pane
            self.lay_out()

    @property
    def mode(self) -> str:
        """single, double or all."""
        width, height = self.app.size
        if self.zoomed or width < NARROW or height < LOW:
            return "single"
        return "double" if width < WIDE else "all"

    def lay_out(self) -> None:
        """Show the panes that there is room for."""
        mode, (width, height) = self.mode, self.app.size
        shown = {"single": [self.focused_pane], "double": [self.first, self.beside], "all": self.panes}[mode]
        grid = self.query_one("#panes")
        for name in ("single", "double", "all"):
            grid.set_class(name == mode, name)
        self.set_class(width < NARROW or height < LOW, "small")
        for pane in self.panes:
            pane.display = pane in shown
        self._chrome()

    def paint(self, scene: Scene) -> None:
        """Show what is new in the scene."""
        self.scene = scene
        if not self.is_mounted:
            return
        for pane in self.panes:
            pane.paint(scene)
        self.notice.show(scene.view.failure)
        self._chrome()

    def paint_clock(self) -> None:
        """Show the time, which goes on without events."""
        self.panes[-1].paint(self.scene)
        self._chrome()

    def _chrome(self) -> None:
        width, the_look = self.app.size.width, look(self)
        self.header.say(chrome.header(self.scene, width, the_look))
        hidden = not all(pane.display for pane in self.panes)
        framed = not self.has_class("small")
        self.footer.say(
            chrome.footer(
                self.panes,
                self.focused_pane,
                kind=self.KIND,
                hidden=hidden,
                framed=framed,
                width=width,
                look=the_look,
            )
        )

    def on_graph_pane_selected(self, event: GraphPane.Selected) -> None:
        self.scene.selection = event.selection
        with self.app.batch_update():
            self.paint(self.scene)

    async def on_rules_pane_xray_asked(self, event: RulesPane.XrayAsked) -> None:
        await self.ask_xray(ev.Xray(rule=event.rule, group=event.group))

    async def on_rules_pane_edit_asked(self, event: RulesPane.EditAsked) -> None:
        await self.workbench.edit(event.rule.file, event.rule.line, event.rule.name)

    def on_graph_pane_xray_asked(self, event: GraphPane.XrayAsked) -> None:
        node, group = self.scene.selection.node, self.scene.selection.group
        if node is None:
            self.workbench.toast("Select a node in the graph first; x on a rule asks about all nodes.")
            return
        results = [s.result for i, s in self.scene.view.saturation.items() if s.result and group in (None, i)]
        if not self._can_xray():
            return
        if not results:
            self.workbench.toast("No rules are known yet: the group is not saturated.")
            return

        async def picked(rule: str | None) -> None:
            if rule is not None:
                await self.ask_xray(ev.Xray(rule=rule, group=group, node=node.id))

        title = f"X-ray at node {node.id}: which rule?"
        self.app.push_screen(PickRuleScreen(title, results[0].rules), picked)

    def on_graph_pane_explore_asked(self, event: GraphPane.ExploreAsked) -> None:
        selection = self.scene.selection
        node = None if selection.node is None else selection.node.id
        self.explore(ev.Explore(group=selection.group, member=selection.chunk, node=node))

    def on_rules_pane_made_asked(self, event: RulesPane.MadeAsked) -> None:
        self.explore(ev.Explore(about="rule", rule=event.rule, group=event.group))

    def explore(self, question: ev.Explore) -> None:
        """Open the explorer where the question leads; the session's e-graphs are read by its engine, or from disk."""
        scene = self.scene
        if scene.client is None:
            self.workbench.toast("No session is open; o opens one.")
        elif not scene.connected and not scene.read_only:
            self.workbench.toast("The engine is gone. o opens the session again, or another.", "warning")
        else:
            self.app.push_screen(ExplorerScreen(scene, question, self.ask_xray, self.reveal))

    def reveal(self, group: int, chunk: int, node: int) -> bool:
        """Show a node in the graph pane. False where it is not there."""
        found = self.graph.reveal(group, chunk, node)
        if found:
            self.go(self.graph)
        return found

    def _can_xray(self) -> bool:
        """Whether there is an engine to ask; says so where there is none."""
        if self.scene.client is not None and not self.scene.read_only and self.scene.connected:
            return True
        self.workbench.toast("An X-ray needs a live engine, and this session has none. o opens another.", "warning")
        return False

    async def ask_xray(self, question: ev.Xray) -> None:
        """Put a question about a rule to the engine, and show the answer when it comes."""
        if self._can_xray():
            screen = XrayScreen(self.scene, question, self.explore)
            if await self.workbench.ask(question, ""):
                await self.app.push_screen(screen)
                screen.paint(self.scene)

    def go(self, pane: Pane) -> None:
        """Focus a pane, bringing it into view."""
        self.focused_pane = pane
        if pane is not self.first:
            self.beside = pane
        self.lay_out()
        pane.focus_body()

    def action_pane(self, name: str) -> None:
        self.go(next(pane for pane in self.panes if pane.TITLE.lower() == name))

    def action_next_pane(self) -> None:
        self.go(self.panes[(self.panes.index(self.focused_pane) + 1) % len(self.panes)])

    def action_previous_pane(self) -> None:
        self.go(self.panes[self.panes.index(self.focused_pane) - 1])

    def action_zoom(self) -> None:
        self.zoomed = not self.zoomed
        self.lay_out()

    def action_filter(self) -> None:
        if not self.focused_pane.open_filter():
            self.workbench.toast("There is nothing to filter in this pane.")

    def action_escape(self) -> None:
        if self.notice.put_away() or self.focused_pane.clear_filter():
            return
        if self.zoomed:
            self.action_zoom()

    def action_copy(self) -> None:
        self.workbench.copy(self.focused_pane.copied())

    def action_previous_group(self) -> None:
        self.graph.select_group(-1)

    def action_next_group(self) -> None:
        self.graph.select_group(+1)

    async def action_rerun(self) -> None:
        await self.workbench.ask(ev.Rerun(stage="search"), "Searching again.")

    async def action_saturate(self) -> None:
        await self.workbench.ask(ev.Rerun(stage="saturate"), "Saturating again.")

    async def action_new_seed(self) -> None:
        await self.workbench.ask(ev.Rerun(stage="search", new_seed=True), "Searching again with a new seed.")

    async def action_pause(self) -> None:
        said = "Going on." if self.scene.view.paused else "Pausing after this candidate."
        await self.workbench.ask(ev.TogglePause(), said)

    async def action_cancel(self) -> None:
        await self.workbench.ask(ev.Cancel(), "Cancelling; what was reached stays.")

    async def action_toggle_break(self) -> None:
        node = self.scene.selection.node
        if node is None:
            self.workbench.toast("Select a node in the graph first.")
            return
        verb = "Removing the break" if node.id in self.scene.view.breaks else "Adding a break"
        await self.workbench.ask(ev.ToggleBreak(node=node.id), f"{verb} behind node {node.id}; splitting again.")

    async def action_edit_error(self) -> None:
        disk, failure = self.scene.view.rules_on_disk, self.scene.view.failure
        for place in (disk, failure):
            if place is not None and place.file:
                await self.workbench.edit(place.file, place.line)
                return
        if failure is not None and failure.kept and disk is not None and disk.changed:
            await self.workbench.edit(disk.changed[0], 0)  # it has no place, but is in what was edited
            return
        self.workbench.toast("No rule file is in error.")

    def action_compare(self) -> None:
        self.workbench.compare()

    def action_open(self) -> None:
        self.workbench.show_open()

    def action_log(self) -> None:
        self.app.push_screen(LogScreen(self.scene))

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(self.KIND))

    def action_theme(self) -> None:
        self.app.theme = "luminal-light" if self.app.current_theme.dark else "luminal-dark"

    async def action_quit(self) -> None:
        await self.workbench.leave()
