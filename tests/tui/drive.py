"""Driving the app in tests: start it on a client, wait for what should come true."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from textual.events import Key
from textual.keys import _character_to_key
from textual.pilot import Pilot
from textual.widgets import Input

from tests.tui.llama import FakeClient
from workbench.tui.app import WorkbenchApp
from workbench.tui.screens.workbench import WorkbenchScreen

SIZES = ((80, 24), (120, 40), (160, 48))


@dataclass
class Driven:
    """A running app with its pilot."""

    app: WorkbenchApp
    pilot: Pilot[Any]
    client: FakeClient

    @property
    def bench(self) -> WorkbenchScreen:
        return self.app._bench

    async def press(self, *keys: str) -> None:
        """Press keys one after another, each once the one before has had its effect."""
        await self.pilot.press(*keys)

    def strike(self, key: str) -> None:
        """Press a key and go on."""
        name = _character_to_key(key) if len(key) == 1 and not key.isalnum() else key
        event = Key(name, key if len(key) == 1 else None)
        event.set_sender(self.app)
        assert self.app._driver is not None
        self.app._driver.send_message(event)

    async def type(self, text: str) -> None:
        """Put text into the focused field at once."""
        field = self.app.focused
        assert isinstance(field, Input)
        field.insert_text_at_cursor(text)
        await self.pilot.pause()

    async def until(self, holds: Callable[[], object], seconds: float = 5.0) -> None:
        """Wait until `holds()`; fails after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while not holds():
                    await self.pilot.pause(0.01)
        except TimeoutError:
            raise AssertionError(f"did not come true; the screen:\n{self.screen()}") from None

    def screen(self) -> str:
        """The screen as text, one line a row."""
        width, height = self.app.size
        console = Console(width=width, height=height, color_system=None, force_terminal=False, legacy_windows=False)
        update = self.app.screen._compositor.render_update(full=True)
        with console.capture() as captured:
            console.print(update)
        return captured.get()

    def rows(self) -> list[str]:
        return self.screen().split("\n")


@asynccontextmanager
async def driven(
    client: FakeClient, size: tuple[int, int] = (160, 48), *, begun: bool = True, **options: Any
) -> AsyncIterator[Driven]:
    """The app on a client; by default all past events are folded before the test goes on."""
    app = WorkbenchApp(client, **options)
    async with app.run_test(size=size) as pilot:
        drive = Driven(app, pilot, client)
        if begun:
            last = max((event.at for event in client.past), default=0.0)
            await drive.until(lambda: app.scene.view.now >= last and app.scene.view.opened is not None)
            await pilot.pause(0.15)
        yield drive
