"""Watching the rule files while a session is open: what changed on disk, and whether the rules can be used so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
from loguru import logger

from workbench.egraph.rules import RuleFile
from workbench.egraph.saturate import Saturator
from workbench.errors import SessionError, WorkbenchError, printable
from workbench.session import events as ev
from workbench.session.library import Signature, changed_files, directories, place_of, signature
from workbench.session.spec import SessionSpec

LOOK_SECONDS = 1.0
MOST_OF_THE_TIME = 0.05
"""The part of a second that looking may take: a slow or large directory is looked at less often."""


class Watched(Protocol):
    """The session whose rules are watched."""

    spec: SessionSpec
    rules_in_use: tuple[RuleFile, ...] | None
    """What they are compared with: the files of the last saturation; None before one."""

    def library(self) -> tuple[RuleFile, ...]:
        """The files as they are now. Raises RuleError."""
        ...

    def emit(self, event: ev.AnyEvent) -> None:
        """Tell."""
        ...


class LibraryWatch:
    """Looks at the rule files once a second, on a thread of its own, and tells by RulesOnDisk what has changed. New
    rules are loaded in a child process at once, so that a broken edit is known before anybody asks for it.

    Polling, since the files may lie on a network file system, which notifies nobody of what others write."""

    def __init__(self, session: Watched, ask: Callable[[ev.Rerun], None]) -> None:
        self.session = session
        self._roots = directories(session.spec)
        self._ask = ask
        self._wanted = threading.Condition()
        self._woken = self._closed = False
        self._asked: list[ev.Rerun] = []
        self._thread: threading.Thread | None = None
        self._first: tuple[RuleFile, ...] | None = None
        """The files at the first look; what the rules are compared with before anything is saturated."""
        self._known: tuple[Signature, tuple[RuleFile, ...] | None, ev.RulesOnDisk] | None = None
        self._loaded: tuple[tuple[RuleFile, ...], ev.RulesOnDisk] | None = None
        self._told = ev.RulesOnDisk()
        self._checker: Saturator | None = None
        self._cost = 0.0
        """Seconds that the last look at the directories took."""

    def start(self) -> None:
        """Begin to look."""
        self._thread = threading.Thread(target=self._work, name="rules", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Look now."""
        with self._wanted:
            self._woken = True
            self._wanted.notify()

    def rerun(self, command: ev.Rerun) -> None:
        """Pass on a command that saturates again where the rules on disk can be used; else tell that they cannot, and
        leave what runs alone."""
        with self._wanted:
            self._asked.append(command)
            self._wanted.notify()

    def close(self) -> None:
        """End the thread and its child process."""
        with self._wanted:
            self._closed = True
            self._wanted.notify()
        if self._checker is not None:
            self._checker.close()
        if self._thread is not None:
            self._thread.join(5)

    def _work(self) -> None:
        wait = 0.0
        while True:
            with self._wanted:
                self._wanted.wait_for(lambda: self._woken or self._asked or self._closed, wait)
                if self._closed:
                    return
                self._woken = False
                asked, self._asked = self._asked, []
            try:
                self._answer(asked)
            except SessionError as error:  # a full disk: the session thread says so
                logger.debug("how the rules stand could not be told: {!r}", error)
            except Exception:
                if self._over():
                    return  # the child was ended under its work
                logger.exception("looking at the rule files failed")
            wait = max(LOOK_SECONDS, self._cost / MOST_OF_THE_TIME)

    def _answer(self, asked: list[ev.Rerun]) -> None:
        state = self._state()
        if self._over():
            return
        refused = bool(asked) and bool(state.error)
        if state != self._told or refused:
            self._told = state
            self.session.emit(msgspec.structs.replace(state, refused=refused))
        if not refused:
            for command in asked:
                self._ask(command)

    def _over(self) -> bool:
        return self._closed

    def _state(self) -> ev.RulesOnDisk:
        """How the rules stand, read again only where a file or what it is compared with has changed."""
        began = time.monotonic()
        now, in_use = signature(self._roots), self.session.rules_in_use
        self._cost = time.monotonic() - began
        if self._known is not None and self._known[0] == now and self._known[1] is in_use:
            return self._known[2]
        state = self._compare(in_use)
        self._known = (now, in_use, state)
        return state

    def _compare(self, in_use: tuple[RuleFile, ...] | None) -> ev.RulesOnDisk:
        try:
            files = self.session.library()
        except WorkbenchError as error:
            self._first = self._first if self._first is not None else ()
            return self._broken(error)
        if self._first is None:
            self._first = files
        changed = changed_files(self._first if in_use is None else in_use, files)
        if not changed:
            return ev.RulesOnDisk()
        if self._loaded is None or self._loaded[0] != files:
            self._loaded = (files, self._load(files))
        return msgspec.structs.replace(self._loaded[1], changed=changed)

    def _load(self, files: tuple[RuleFile, ...]) -> ev.RulesOnDisk:
        """Have a child process read the rules."""
        self._checker = Saturator(files)
        try:
            _ = self._checker.rules
        except WorkbenchError as error:
            return self._broken(error)
        finally:
            self._checker.close()
        return ev.RulesOnDisk()

    def _broken(self, error: WorkbenchError) -> ev.RulesOnDisk:
        file, line = place_of(error.message, self._roots)
        return ev.RulesOnDisk(error=printable(str(error), 600), file=file, line=line)
