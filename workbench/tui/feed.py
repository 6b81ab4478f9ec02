"""The way from a client's events to the view: a bounded queue, drained a little at a time."""

from __future__ import annotations

import asyncio
import inspect
from time import monotonic
from typing import TYPE_CHECKING, Any

from workbench.session.events import AnyEvent
from workbench.session.view import SessionView

if TYPE_CHECKING:
    from workbench.session.client import Client

QUEUED = 5000
"""events that may wait; a faster engine waits for the reader"""
BUDGET_SECONDS = 0.04
"""the longest a drain may keep the keyboard waiting"""


class Feed:
    """Reads a client's events and folds them into a view."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.ended = False
        self.error = ""
        """why the stream broke off, where it did"""
        self._queue: asyncio.Queue[AnyEvent] = asyncio.Queue(QUEUED)
        self._news = asyncio.Event()
        self._offset: float | None = None

    async def read(self) -> None:
        """Fill the queue until the engine is gone."""
        try:
            stream: Any = self.client.events()
            if inspect.isawaitable(stream):
                stream = await stream
            async for event in stream:
                await self._queue.put(event)
                self._news.set()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # whatever broke the stream, the person should read it rather than lose the app
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.ended = True
            self._news.set()

    async def news(self) -> None:
        """Wait until there is something to drain, or the end."""
        await self._news.wait()

    def drain(self, view: SessionView) -> int:
        """Fold waiting events into `view`, for a short while at most. The number folded."""
        begun, count = monotonic(), 0
        while not self._queue.empty():
            event = self._queue.get_nowait()
            view.apply(event)
            count += 1
            offset = event.at - begun
            self._offset = offset if self._offset is None else max(self._offset, offset)
            if count % 64 == 0 and monotonic() - begun > BUDGET_SECONDS:
                return count
        if not self.ended:
            self._news.clear()
        return count

    @property
    def empty(self) -> bool:
        return self._queue.empty()

    def elapsed(self) -> float:
        """Seconds of the session by the engine's clock, guessed from its latest events."""
        return 0.0 if self._offset is None else monotonic() + self._offset
