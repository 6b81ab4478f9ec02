"""Progress of a headless run on stderr: bars on a terminal, a line per step elsewhere."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from typing import TextIO

from workbench.errors import printable
from workbench.session import events as ev
from workbench.session.points import as_text
from workbench.session.spec import EGG
from workbench.session.view import SessionView

REDRAW_SECONDS = 0.1
BAR = 24


class Progress:
    """Call with every event."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.view = SessionView()
        self.live = self.stream.isatty()
        self._drawn_at = 0.0
        self._drawn = False

    def __call__(self, event: ev.AnyEvent) -> None:
        self.view.apply(event)
        match event:
            case ev.LogLine(level=level, message=message) if level in ("WARNING", "ERROR", "CRITICAL"):
                self._line(f"{level.lower()}: {message}")
            case ev.StageStarted(stage=stage) if not self.live:
                self._line(f"{stage} …")
            case ev.GroupsFormed(groups=groups) if self._compiles:
                self._line(f"{len(self.view.chunks)} chunks in {len(groups)} groups")
            case ev.GroupSaturated(stopped=stopped, group=group, culprit=culprit) if stopped and self._compiles:
                self._line(f"warning: group {group}: saturation stopped at its {stopped}")
                if culprit is not None:
                    self._line(f"  {culprit.text}")
            case ev.SearchFinished(group=group, point=point):
                self._line(self._search_line(group, point))
            case _:
                pass
        if self.live and time.monotonic() - self._drawn_at > REDRAW_SECONDS:
            self._draw()

    @property
    def _compiles(self) -> bool:
        """Whether there are groups to speak of."""
        return self.view.opened is None or self.view.opened.kind != EGG

    def close(self) -> None:
        """Take the bar away."""
        if self._drawn:
            self._drawn = False
            self._write("\r\x1b[2K")

    def _line(self, text: str) -> None:
        self.close()
        self._write(f"{printable(text, 400)}\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads on; that is no reason to stop the work
            self.stream.write(text)
            self.stream.flush()

    def _search_line(self, group: int, point: int) -> str:
        search = self.view.searches[group][point]
        where = f" at {as_text(search.dims)}" if search.dims else ""
        found = search.best_ms and search.gain
        best = f"best {search.best_ms:.4g} ms ({search.gain:.2f}x)" if found else "nothing right found"
        rejected = ", ".join(f"{r} {n}" for r, n in search.rejected.items())
        return (
            f"group {group + 1}/{len(self.view.groups)}{where}: {search.done} candidates, {best}"
            + (f", rejected: {rejected}" if rejected else "")
        )

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        view = self.view
        done, total = view.overall_progress() if view.stage == "search" else view.progress or (0, 0)
        filled = BAR * done // total if total else 0
        bar = f"[{'#' * filled}{'.' * (BAR - filled)}] {done}/{total}" if total else ""
        text = f"{view.stage or 'working'} {bar} {view.now:.1f} s"
        width = shutil.get_terminal_size().columns - 1
        self._write("\r\x1b[2K" + text[:width])
        self._drawn = True
