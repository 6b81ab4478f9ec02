"""The event log: every event is stamped, written down, folded into the view and told to the listener, in one order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from workbench.linefile import LineFile
from workbench.session import events as ev
from workbench.session.store import EVENTS, SessionStore
from workbench.session.view import SessionView


class EventLog:
    """The events of one session. `view` is their fold, those of earlier processes included; `resumed` says whether
    there were any. Any thread may call `emit`."""

    def __init__(self, store: SessionStore, listener: Callable[[ev.AnyEvent], None]) -> None:
        """Raises SessionError when the log cannot be read or written."""
        self.view = SessionView()
        earlier = store.events()
        self.resumed = bool(earlier)
        for event in earlier:
            self.view.apply(event)
        self._origin = time.monotonic() - self.view.now
        self._listener = listener
        self._lock = threading.RLock()
        self._file = LineFile(store / EVENTS)

    def emit(self, event: ev.AnyEvent) -> None:
        """Raises SessionError when the disk is full; the event then counts as not happened."""
        with self._lock:
            event = msgspec.structs.replace(event, at=round(time.monotonic() - self._origin, 6))
            self._file.append(ev.encode(event))
            self.view.apply(event)
            self._listener(event)

    def close(self) -> None:
        """Close the file; again does nothing."""
        with self._lock:
            self._file.close()
