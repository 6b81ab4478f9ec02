"""The workbench: one session's events folded into a view, and screens that paint it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App
from textual.binding import BindingType
from textual.command import Provider

from workbench.errors import WorkbenchError, printable
from workbench.session.events import AnyCommand, LookAtRules
from workbench.tui.commands import KeyCommands
from workbench.tui.feed import Feed
from workbench.tui.keymap import COMPILE, EGG
from workbench.tui.scene import Scene
from workbench.tui.screens.difference import DifferenceScreen, Other, PickRunScreen
from workbench.tui.screens.log import LogScreen
from workbench.tui.screens.open import OpenScreen
from workbench.tui.screens.workbench import WorkbenchScreen
from workbench.tui.screens.xray import XrayScreen
from workbench.tui.theme import THEMES, default_theme

if TYPE_CHECKING:
    from workbench.session.client import Client, SessionSpec, SessionSummary

PAINT_SECONDS = 0.1


class WorkbenchApp(App[None]):
    """The terminal workbench on one session; without a client it begins at the open screen.

    `opening` is opened once the first screen is painted; where that fails, the open screen says why. `opener` makes a
    client from a spec (a new session) or a directory (one that is there); `summaries` lists recent sessions; `ascii`
    draws without box, block and braille characters."""

    TITLE = "luminal-tui"
    CSS_PATH = "workbench.tcss"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {KeyCommands}
    BINDINGS: ClassVar[list[BindingType]] = []
    NOTIFICATION_TIMEOUT = 4

    def __init__(
        self,
        client: Client | None = None,
        *,
        opening: SessionSpec | Path | None = None,
        opener: Callable[[SessionSpec | Path], Awaitable[Client]] | None = None,
        summaries: Callable[[], Sequence[SessionSummary]] | None = None,
        ascii: bool = False,  # noqa: A002
        theme: str | None = None,
    ) -> None:
        super().__init__()
        self.ascii = ascii
        self.scene = Scene(client=client)
        self.last_toast = ""
        self._opening = opening
        self._opener = opener or _open
        self._summaries = summaries or _summaries
        self._feed: Feed | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._bench = _bench_for(getattr(opening, "kind", COMPILE))
        for each in THEMES:
            self.register_theme(each)
        self.theme = f"luminal-{theme}" if theme in ("dark", "light") else default_theme()

    async def on_mount(self) -> None:
        self.theme_changed_signal.subscribe(self, lambda _: self.paint())
        self.set_interval(1.0, self._tick)
        if self.scene.client is None and self._opening is None:
            await self.push_screen(OpenScreen())  # the panes are made once there is something to show in them
            return
        await self.push_screen(self._bench)
        if self.scene.client is not None:
            self._follow(self.scene.client)
        elif self._opening is not None:
            self.run_worker(self._open_first(self._opening), name="open")

    async def on_unmount(self) -> None:
        await self._unfollow()

    def paint(self) -> None:
        """Show the scene on whichever screens are there, in one write to the terminal."""
        with self.batch_update():
            if self._bench in self.screen_stack:
                self._bench.paint(self.scene)
            if isinstance(self.screen, LogScreen | XrayScreen):
                self.screen.paint(self.scene)

    def summaries(self) -> Sequence[SessionSummary]:
        """Recent sessions, the newest first; none where they cannot be read."""
        try:
            return self._summaries()
        except (OSError, WorkbenchError):
            return []

    async def _open_first(self, target: SessionSpec | Path) -> None:
        try:
            await self.open(target)
        except WorkbenchError as error:
            await self.push_screen(OpenScreen())
            self.toast(str(error), "error")

    async def open(self, target: str | Path | SessionSpec) -> None:
        """Start a session on a model, or go to one that is there. Raises WorkbenchError where that fails."""
        client = await self._opener(_spec(target) if isinstance(target, str) else target)
        await self._unfollow()
        if self.scene.client is not None:
            await self.scene.client.close()
        self.scene = Scene(client=client)
        self._follow(client)
        if isinstance(self.screen, OpenScreen):
            self.pop_screen()
        if self._bench not in self.screen_stack:
            await self.push_screen(self._bench)
        self.paint()

    def show_open(self) -> None:
        """Go to the open screen; the session at hand goes on behind it."""
        if not isinstance(self.screen, OpenScreen):
            self.push_screen(OpenScreen())

    async def leave_open(self) -> None:
        """Back from the open screen to the session, or out where there is none."""
        if self.scene.client is not None:
            self.pop_screen()
        else:
            await self.leave()

    async def ask(self, command: AnyCommand, said: str) -> bool:
        """Send a command to the engine and say so, or say why it cannot be sent. Whether it was."""
        client = self.scene.client
        if client is None:
            self.toast("No session is open; o opens one.")
        elif client.read_only:
            self.toast("This is a record of a session; nothing can be run in it. o opens another.", "warning")
        elif not self.scene.connected:
            self.toast("The engine is gone. o opens the session again, or another.", "warning")
        else:
            try:
                await client.send(command)
            except (OSError, WorkbenchError) as error:
                self.toast(f"The engine did not take it: {error}", "error")
            else:
                if said:
                    self.toast(said)
                return True
        return False

    def copy(self, text: str) -> None:
        """Put text on the clipboard of the terminal, and in the session's copied.txt for terminals without one."""
        if not text:
            self.toast("Nothing is selected here.")
            return
        self.copy_to_clipboard(text)
        where = ""
        if self.scene.client is not None:
            path = self.scene.client.directory / "copied.txt"
            try:
                path.write_text(text + "\n", encoding="utf-8")
                where = f", also in {path}"
            except OSError:
                where = ""
        self.toast(f"Copied {text.count(chr(10)) + 1} line{'s' if chr(10) in text else ''}{where}")

    def compare(self) -> None:
        """Show what changed since the run before, or have the person pick what to compare with."""
        run = self.scene.view.baseline
        if run is not None and self.scene.view.saturated:
            self.push_screen(DifferenceScreen(self.scene, Other(run=run)))
        else:
            self.choose_comparison()

    def choose_comparison(self) -> None:
        """Have the person pick an earlier run or another session to compare with."""

        def picked(other: Other | None) -> None:
            if other is not None:
                self.push_screen(DifferenceScreen(self.scene, other))

        if self.scene.client is None:
            self.toast("No session is open; o opens one.")
        elif not self.scene.view.groups:
            self.toast("There is nothing to compare yet: the model is not split.")
        else:
            self.push_screen(PickRunScreen(self.scene), picked)

    async def edit(self, file: str, line: int, rule: str = "") -> None:
        """Open a rule file of the session in the person's editor, and have the engine look at it afterwards."""
        from workbench.tui.editor import edit

        client = self.scene.client
        try:
            path = client.rule_path(file, rule) if client is not None else None
            if path is None:
                self.toast(f"{file} is in no rule directory of this session.", "warning")
                return
            edit(self, path, line)
        except WorkbenchError as error:
            self.toast(str(error), "warning")
        if client is not None and not client.read_only and self.scene.connected:
            with contextlib.suppress(OSError, WorkbenchError):  # gone: the header says so
                await client.send(LookAtRules())

    def toast(self, message: str, severity: str = "information") -> None:
        """A short message that goes away."""
        self.last_toast = message
        shown = printable(message, 400)
        if severity == "error":
            self.notify(shown, severity="error", markup=False)
        elif severity == "warning":
            self.notify(shown, severity="warning", markup=False)
        else:
            self.notify(shown, markup=False)

    async def action_quit(self) -> None:
        await self.leave()

    async def leave(self) -> None:
        """End the app. The engine goes on, and the last line says how to come back."""
        scene = self.scene
        live = scene.client is not None and not scene.read_only and scene.connected
        await self._unfollow()
        if scene.client is not None:
            await scene.client.close()
        if live:
            name = printable(scene.session_name)
            self.exit(message=Text(f"The engine goes on. Come back with: luminal-tui attach {name}"))
        else:
            self.exit()

    def _follow(self, client: Client) -> None:
        self._feed = Feed(client)
        self._tasks = [asyncio.create_task(self._feed.read()), asyncio.create_task(self._pump(self._feed))]

    async def _unfollow(self) -> None:
        tasks, self._tasks, self._feed = self._tasks, [], None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, feed: Feed) -> None:
        """Fold and paint, at most ten times a second, until the stream ends."""
        while True:
            await feed.news()
            folded = feed.drain(self.scene.view)
            over = feed.ended and feed.empty
            if over:
                self.scene.connected = False
            self._keep_time()
            await self._suit_bench()
            if folded or over:
                self.paint()
            if over:
                break
            await asyncio.sleep(PAINT_SECONDS)
        if feed.error:
            self.toast(f"The engine's events broke off: {feed.error}", "error")

    async def _suit_bench(self) -> None:
        """Change to the panes for the kind of session that this turns out to be."""
        opened, old = self.scene.view.opened, self._bench
        if opened is None or opened.kind == old.KIND:
            return
        self._bench = _bench_for(opened.kind)
        if old in self.screen_stack:
            while self.screen is not old:
                await self.pop_screen()
            await self.switch_screen(self._bench)

    def _keep_time(self) -> None:
        scene = self.scene
        guess = self._feed.elapsed() if self._feed is not None and scene.running else 0.0
        scene.elapsed = max(scene.view.elapsed, guess)

    def _tick(self) -> None:
        if self.scene.running:
            self._keep_time()
            with self.batch_update():
                self._bench.paint_clock()


def _spec(model: str) -> SessionSpec:
    from workbench.session.client import SessionSpec

    return SessionSpec(model=model, kind=EGG if model.endswith(".egg") else COMPILE)


def _bench_for(kind: str) -> WorkbenchScreen:
    if kind == EGG:
        from workbench.tui.screens.egg import EggScreen

        return EggScreen()
    return WorkbenchScreen()


async def _open(target: SessionSpec | Path) -> Client:
    from workbench.session.client import open_session, start_engine

    return await open_session(target) if isinstance(target, Path) else await start_engine(target)


def _summaries() -> Sequence[SessionSummary]:
    from workbench.session.client import recent_sessions

    found: Sequence[SessionSummary] = recent_sessions()
    return found
