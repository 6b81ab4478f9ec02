"""What each kind of session has: its directory, the record of its events, a log, and a way to pause and cancel it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from loguru import logger

from workbench.errors import SessionError, printable
from workbench.session import events as ev
from workbench.session.event_log import EventLog
from workbench.session.log import levels_from_environment, open_log
from workbench.session.spec import SessionSpec
from workbench.session.store import LOG, SessionStore, new_session_directory
from workbench.session.view import SessionView


class Stopped(Exception):
    """The user cancelled the running work."""


class Recorded:
    """A session directory that is held and written to. `on_event` is called with every event, on the thread that does
    the work. Use as a context manager, or call `close`.

    Raises SessionError when the directory is held by another process or was begun with other work. Nothing is on disk
    then."""

    def __init__(self, spec: SessionSpec, on_event: Callable[[ev.AnyEvent], None] | None) -> None:
        levels_from_environment()
        self.on_event = on_event
        self._cancel = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self._current = ""
        self.store = SessionStore(Path(spec.session) if spec.session else new_session_directory(spec.model))
        self.store.acquire()
        # Undone from the end: the records are closed before the children are, so that nothing is put down as crashed
        # because its process was ended.
        self._closing: list[Callable[[], None]] = [self.store.release, self._end_children]
        try:
            self.spec = self.store.adopt(spec)
            self._events = EventLog(self.store, self._tell)
            self._closing.append(self._events.close)
            self._open_records()
            self._closing.append(open_log(self.store / LOG, self._log_line))
            self.store.write_spec(self.spec)
            self.emit(self._opened(self._events.resumed))
        except BaseException:
            self.close()
            raise

    def _open_records(self) -> None:
        """Open what else is written to; its closing goes on `_closing`."""

    def _end_children(self) -> None:
        """End the child processes."""
        raise NotImplementedError

    def _opened(self, resumed: bool) -> ev.SessionOpened:
        """The event that the session begins with."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child processes and give the directory back; again does nothing."""
        while self._closing:
            self._closing.pop()()

    @property
    def view(self) -> SessionView:
        """What the session looks like now."""
        return self._events.view

    def emit(self, event: ev.AnyEvent) -> None:
        """Stamp an event, write it down, fold it into the view, tell the listener."""
        self._events.emit(event)

    def _tell(self, event: ev.AnyEvent) -> None:
        if self.on_event is not None:
            self.on_event(event)

    def _log_line(self, level: str, module: str, message: str) -> None:
        self.emit(ev.LogLine(level=level, module=module, message=printable(message, 2000)))

    @contextmanager
    def _stage(self, name: str, detail: str = "") -> Iterator[None]:
        self._check_open()
        self.checkpoint()
        began = time.perf_counter()
        self._current = name
        self.emit(ev.StageStarted(stage=name, detail=detail))
        logger.debug("stage {} begins {}", name, detail)
        try:
            yield
        finally:
            self.emit(ev.StageFinished(stage=name, seconds=time.perf_counter() - began))

    def pause(self) -> None:
        """Stop before the next candidate or step until `resume`."""
        if self._running.is_set():
            self._running.clear()
            self.emit(ev.Paused())

    def resume(self) -> None:
        """Go on after `pause`."""
        if not self._running.is_set():
            self._running.set()
            self.emit(ev.Resumed())

    def cancel(self) -> None:
        """Stop the running work at the next checkpoint; what was reached stays."""
        self._cancel.set()
        self._running.set()

    def _check_open(self) -> None:
        if not self._closing:
            raise SessionError("the session is closed", "open it again")

    def clear_cancel(self) -> None:
        """Take back a `cancel` that found nothing to stop."""
        self._cancel.clear()

    def checkpoint(self) -> None:
        """Blocks while paused; raises Stopped once cancelled."""
        if not self._running.is_set():
            self._running.wait()
        if self._cancel.is_set():
            raise Stopped
