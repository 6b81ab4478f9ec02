"""The e-class explorer: the e-nodes of a class, on to their children, to their users, and back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Key, Resize
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from workbench.errors import WorkbenchError, printable
from workbench.session.eclass import EClassPage
from workbench.session.eclass_text import as_text
from workbench.session.events import Explore, Xray
from workbench.tui import keymap
from workbench.tui.eclass_rows import Row, footing, heading_lines, line_of, rows_of
from workbench.tui.later import after_refresh
from workbench.tui.scene import Scene
from workbench.tui.theme import look

PAGE = 100
"""E-nodes shown at a time."""


AHEAD_SECONDS = 0.5
"""How long keys typed ahead wait for an answer."""


def _own(*ids: str) -> list[BindingType]:
    bindings = keymap.bindings("explorer")
    return [b for b in bindings if isinstance(b, Binding) and b.action in ids]


@dataclass(slots=True)
class Stop:
    """A page on the way, as it was left."""

    question: Explore
    page: EClassPage
    unfolded: set[int] = field(default_factory=set)
    cursor: int = 0

    @property
    def title(self) -> str:
        """Its name among the breadcrumbs."""
        page = self.page
        if page.about == "rule":
            return page.rule
        name = page.name or f"#{page.eclass}"
        return f"users of {name}" if page.about == "users" else name


class ENodeList(OptionList):
    """A list with our movement. Where keys lead is awaited here, so that those typed ahead act on what they lead to."""

    BINDINGS: ClassVar[list[BindingType]] = [*keymap.bindings("move"), *_own("follow", "back", "users")]

    def action_down(self) -> None:
        self.action_cursor_down()

    def action_up(self) -> None:
        self.action_cursor_up()

    def action_top(self) -> None:
        self.action_first()

    def action_bottom(self) -> None:
        self.action_last()

    @property
    def explorer(self) -> ExplorerScreen:
        screen = self.screen
        assert isinstance(screen, ExplorerScreen)
        return screen

    async def action_left(self) -> None:
        await self.explorer.leave()

    async def action_right(self) -> None:
        await self.explorer.follow()

    async def action_follow(self) -> None:
        await self.explorer.follow()

    async def action_back(self) -> None:
        self.explorer.back()

    async def action_users(self) -> None:
        await self.explorer.users()


class SeekLine(Input):
    """The filter of the explorer."""

    async def on_key(self, event: Key) -> None:
        screen = self.screen
        assert isinstance(screen, ExplorerScreen)
        if event.key == "escape":
            event.stop()
            self.value = ""
            await screen.filtered("")
        elif event.key in ("down", "tab"):
            event.stop()
            await screen.filtered(self.value)


class ExplorerScreen(ModalScreen[None]):
    """One page after another, each from one question to the session. `xray` X-rays a rule, `reveal` shows a node of a
    chunk of a group in the graph and says whether it is there."""

    BINDINGS: ClassVar[list[BindingType]] = _own("xray_maker", "edit_maker", "reveal", "seek", "copy_page", "close")

    def __init__(
        self,
        scene: Scene,
        question: Explore,
        xray: Callable[[Xray], Awaitable[None]],
        reveal: Callable[[int, int, int], bool],
    ) -> None:
        super().__init__()
        self.scene = scene
        self.first = msgspec.structs.replace(question, limit=PAGE)
        self.trail: list[Stop] = []
        self.listed = ENodeList(id="explorer-list", markup=False)
        self.rows: list[Row] = []
        self._xray, self._reveal = xray, reveal
        self._done = asyncio.Event()
        """Of the question asked last."""

    def compose(self) -> ComposeResult:
        with Vertical(id="explorer-box"):
            yield Static(id="explorer-trail", markup=False)
            yield Static(id="explorer-heading", markup=False)
            yield self.listed
            yield SeekLine(placeholder="words of terms and rules", id="explorer-filter", compact=True)

    async def on_mount(self) -> None:
        box = self.query_one("#explorer-box")
        box.border_title = " E-class "
        self.set_class(look(self).glyphs.border == "ascii", "ascii")
        self.query_one(SeekLine).display = False
        self.listed.focus()
        self._begin(self.first, replace=False)
        after_refresh(self, self.fill)

    def on_resize(self, event: Resize) -> None:
        after_refresh(self, self.fill)

    @property
    def here(self) -> Stop | None:
        """The page that is shown; None before the first answer."""
        return self.trail[-1] if self.trail else None

    async def go(self, question: Explore, *, replace: bool = False) -> None:
        """Ask, and show the answer as a new stop of the trail, or in place of this one. An answer that is still being
        waited for is given up."""
        self._begin(question, replace=replace)
        await self._answered()

    def _begin(self, question: Explore, *, replace: bool) -> None:
        done = self._done = asyncio.Event()

        async def ask() -> None:
            try:
                await self._ask(question, replace=replace)
            finally:
                done.set()

        self.run_worker(ask(), group="explore", exclusive=True)

    async def _answered(self) -> None:
        """Wait a little for what was asked last."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._done.wait(), AHEAD_SECONDS)

    async def _ask(self, question: Explore, *, replace: bool) -> None:
        client = self.scene.client
        if client is None:
            return
        try:
            page = await client.explore(question)
        except (OSError, WorkbenchError) as error:
            if not self.trail:
                self.dismiss()
            self.app.toast(str(error), "warning")  # type: ignore[attr-defined]
            return
        self._remember()
        if replace and self.trail:
            self.trail.pop()
        self.trail.append(Stop(question, page))
        self.fill()

    def _remember(self) -> None:
        """Keep where the cursor is for when the page is shown again."""
        if self.here is not None:
            self.here.cursor = self.listed.highlighted or 0

    def fill(self) -> None:
        """Write the trail, the heading and the list for the present width."""
        stop, the_look = self.here, look(self)
        width = max(30, self.listed.scrollable_content_region.width)
        if stop is None:
            self.query_one("#explorer-heading", Static).update(Text("The session is asked.", style=the_look.colors.dim))
            return
        page = stop.page
        # What fits of the trail, its end first.
        trail = " > ".join(printable(s.title, 40) for s in self.trail)
        if len(trail) > width:
            mark = f"{the_look.glyphs.ellipsis} "
            trail = mark + trail[len(trail) - width + len(mark) :]
        self.query_one("#explorer-trail", Static).update(Text(trail, style=the_look.colors.accent, no_wrap=True))
        heading = Text("\n").join(heading_lines(page, the_look, width))
        self.query_one("#explorer-heading", Static).update(heading)
        self.rows = rows_of(page, stop.unfolded)
        self.listed.clear_options()
        self.listed.add_options(
            [Option(line_of(row, page, stop.unfolded, the_look, width)) for row in self.rows]
            or [Option(Text("none", style=the_look.colors.dim), disabled=True)]
        )
        if self.rows:
            self.listed.highlighted = min(stop.cursor, len(self.rows) - 1)
        filtered = f" {the_look.glyphs.middot} filter {printable(stop.question.filter, 30)}"
        box = self.query_one("#explorer-box")
        box.border_subtitle = f" {footing(page)}{filtered if stop.question.filter else ''} "

    @property
    def at(self) -> Row | None:
        """The row under the cursor."""
        place = self.listed.highlighted
        return self.rows[place] if place is not None and place < len(self.rows) else None

    async def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        await self.follow()

    async def follow(self) -> None:
        """Go where the row leads: to a class, to more rows, or into an e-node and out of it."""
        await self._answered()
        row, stop = self.at, self.here
        if row is None or stop is None:
            return
        if row.offset is not None:
            await self.go(msgspec.structs.replace(stop.question, offset=row.offset), replace=True)
        elif row.eclass is not None:
            await self.go(self._about(stop, row.eclass))
        elif row.enode is not None:
            self._remember()
            stop.unfolded ^= {row.enode.id}
            self.fill()

    def _about(self, stop: Stop, eclass: int, about: str = "class") -> Explore:
        page = stop.page
        return Explore(
            about="users" if about == "users" else "class",
            group=page.group,
            member=page.member,
            eclass=eclass,
            limit=PAGE,
        )

    async def leave(self) -> None:
        """Fold the e-node that the cursor is in, or go back."""
        row, stop = self.at, self.here
        if row is not None and stop is not None and row.enode is not None and row.enode.id in stop.unfolded:
            stop.unfolded.discard(row.enode.id)
            stop.cursor = next(i for i, r in enumerate(self.rows) if r.enode is row.enode)
            self.fill()
        else:
            self.back()

    def back(self) -> None:
        """To the page before, as it was left, or out."""
        self.workers.cancel_group(self, "explore")
        if len(self.trail) > 1:
            self.trail.pop()
            self.fill()
        else:
            self.dismiss()

    async def users(self) -> None:
        """The users of the class, or its e-nodes again; what a rule made has the users of its e-node's class."""
        stop = self.here
        if stop is None:
            return
        row = self.at
        if stop.page.about == "rule":
            if row is not None and row.enode is not None:
                await self.go(self._about(stop, row.enode.eclass, "users"))
        else:
            await self.go(self._about(stop, stop.page.eclass, "class" if stop.page.about == "users" else "users"))

    async def action_xray_maker(self) -> None:
        row, stop = self.at, self.here
        if row is None or stop is None or row.enode is None:
            return
        page = stop.page
        if not row.enode.made_by:
            known = "The program made this e-node, no rule." if page.makers_known else "It is not known what made it."
            self.app.toast(known)  # type: ignore[attr-defined]
            return
        node = page.nodes[0] if page.about == "class" and page.nodes else None
        await self._xray(Xray(rule=row.enode.made_by, group=page.group, node=node))

    async def action_edit_maker(self) -> None:
        row = self.at
        if row is not None and row.enode is not None and row.enode.file:
            made = row.enode
            await self.app.edit(made.file, made.line, made.made_by)  # type: ignore[attr-defined]

    def action_reveal(self) -> None:
        stop = self.here
        if stop is None:
            return
        page = stop.page
        if not page.nodes:
            self.app.toast("No node of the graph stands for this e-class.")  # type: ignore[attr-defined]
        elif self._reveal(page.group, page.member, page.nodes[0]):
            self.dismiss()
        else:
            self.app.toast(f"Node {page.nodes[0]} is not in the graph pane.", "warning")  # type: ignore[attr-defined]

    def action_seek(self) -> None:
        line = self.query_one(SeekLine)
        line.display = True
        line.value = self.here.question.filter if self.here is not None else ""
        line.focus()

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        await self.filtered(event.value)

    async def filtered(self, words: str) -> None:
        """Leave the filter line; show what has the words."""
        line = self.query_one(SeekLine)
        line.display = False
        self.listed.focus()
        stop = self.here
        if stop is not None and words.strip() != stop.question.filter:
            question = msgspec.structs.replace(stop.question, filter=words.strip(), offset=0)
            await self.go(question, replace=True)

    def action_copy_page(self) -> None:
        if self.here is not None:
            self.app.copy(as_text(self.here.page))  # type: ignore[attr-defined]

    def action_close(self) -> None:
        self.dismiss()
