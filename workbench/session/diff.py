"""`luminal-tui diff`: two sessions read from disk and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from workbench.errors import SessionError, printable
from workbench.session.difference import Difference, Side, compare
from workbench.session.report import run_report
from workbench.session.store import EVENTS, SessionStore, find_session
from workbench.session.view import SessionView

NO_OPTIONS = ("session", "artifacts", "run")
"""Fields of a spec that say where things are put, not what is done."""


def diff_sessions(before: str, after: str) -> Difference:
    """What differs from one session to the other, each a directory or a name.

    Raises SessionError for what is not a session, has no events, or is damaged."""
    return compare(*(read_side(_found(name)) for name in (before, after)))


def _found(name: str) -> Path:
    directory = find_session(name)
    if directory is None:
        raise SessionError(f"{printable(name)}: no such session", "luminal-tui sessions lists them")
    return directory


def read_side(directory: Path) -> Side:
    """A session as one side of a comparison, as far as it has got. Raises SessionError."""
    store = SessionStore(directory)
    spec = store.read_spec()
    events = store.events()
    if not events:
        raise SessionError(f"{directory}: nothing has happened in this session", f"there is no {EVENTS} in it")
    view = SessionView()
    for event in events:
        view.apply(event)
    options: dict[str, Any] = {k: v for k, v in msgspec.to_builtins(spec).items() if k not in NO_OPTIONS}
    options["library"] = view.rules_digest or None
    return Side(directory.resolve().name, run_report(view), options, store.summary().status)
