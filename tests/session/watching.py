"""Watching an engine from a test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

from workbench.session import events as ev
from workbench.session.client import Client
from workbench.session.view import SessionView

PATIENCE = 60
"""Seconds after which a test gives up waiting for something that never comes."""

E = TypeVar("E", bound=ev.Event)


class Watcher:
    """A client with its view. `until` reads on to the next event of a kind."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.stream: AsyncIterator[ev.AnyEvent] = client.events()
        self.seen: list[ev.AnyEvent] = []
        self.view = SessionView()

    async def until(self, kind: type[E], count: int = 1) -> E:
        async with asyncio.timeout(PATIENCE):
            async for event in self.stream:
                self.seen.append(event)
                self.view.apply(event)
                if isinstance(event, kind):
                    count -= 1
                    if not count:
                        return event
        raise AssertionError(f"the stream ended without {kind.__name__}")

    async def to_the_end(self) -> None:
        async with asyncio.timeout(PATIENCE):
            async for event in self.stream:
                self.seen.append(event)
                self.view.apply(event)

    async def to_the_present(self) -> None:
        """Read all that was said before now."""
        await self.client.send(ev.Xray(rule="what time is it"))
        await self.until(ev.XrayDone)

    def of(self, kind: type[E]) -> list[E]:
        return [e for e in self.seen if isinstance(e, kind)]


def gone(pid: int) -> None:
    """Wait until a process has ended."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            assert select.select([handle], [], [], PATIENCE)[0], f"process {pid} lingers"
        finally:
            os.close(handle)


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def owner(directory: Path) -> int:
    return int((directory / "lock").read_text())
