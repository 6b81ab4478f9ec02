"""Watching the file of an egglog program: whether it is still what ran last."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from workbench.errors import SessionError, printable
from workbench.session import events as ev
from workbench.session.egg import EggSession, signature
from workbench.session.watch import LOOK_SECONDS


class ProgramWatch:
    """Looks at the file once a second, on a thread of its own, and tells by RulesOnDisk when it has changed."""

    def __init__(self, session: EggSession, ask: Callable[[ev.Rerun], None]) -> None:
        self.session = session
        self._ask = ask
        self._woken = threading.Event()
        self._closed = False
        self._told = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        self._thread = threading.Thread(target=self._work, name="program", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Look now."""
        self._woken.set()

    def rerun(self, command: ev.Rerun) -> None:
        """Run the file again, as it is."""
        self._ask(command)

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join(5)

    def _work(self) -> None:
        while True:
            self._woken.wait(LOOK_SECONDS)
            self._woken.clear()
            if self._closed:
                return
            with contextlib.suppress(SessionError):  # a full disk: the session thread says so
                self._look()

    def _look(self) -> None:
        ran = self.session.file_ran
        changed = ran is not None and signature(self.session.runner) != ran
        if changed != self._told:
            self._told = changed
            self.session.emit(ev.RulesOnDisk(changed=[printable(self.session.name)] if changed else []))

