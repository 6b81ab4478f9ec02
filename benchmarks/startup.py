"""How long the command takes to answer, and the app to show something, against a Python that does nothing."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Bound, BrokenError, Row, benchmark, command, in_turn, wall_seconds

REPEATS = 9
NOTHING = [sys.executable, "-c", "pass"]
NOTHING_NAME = "python -c pass"
PATIENCE = 20.0
"""Seconds after which an app that shows nothing is given up."""

OWN_SCREEN = b"\x1b[?1049h"
"""What an app writes to leave the shell's screen for one of its own."""

# Control sequences (CSI), strings (OSC, DCS, APC, PM, SOS) and the shorter escapes: what a terminal obeys, not shows.
ESCAPES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[]PX^_].*?(?:\x07|\x1b\\)|\x1b[ -/]*[0-OQ-WYZ\\`-~]", re.DOTALL)


@benchmark
def help_startup() -> Iterator[Row]:
    """`luminal-tui --help`: the command must not import what it does not use."""
    program = command()
    ours, peer = in_turn(lambda: wall_seconds([program, "--help"]), lambda: wall_seconds(NOTHING), REPEATS)
    yield Row("help_startup", ours, "s", peer, NOTHING_NAME, Bound("difference", 0.2))


@benchmark
def first_paint() -> Iterator[Row]:
    """`luminal-tui` in a terminal of 120x40, with nothing to open: until the first visible character."""
    program = command()
    with tempfile.TemporaryDirectory() as home:
        ours, peer = in_turn(lambda: seconds_to_paint([program], Path(home)), lambda: wall_seconds(NOTHING), REPEATS)
    yield Row("first_paint", ours, "s", peer, NOTHING_NAME, Bound("difference", 0.8))


def seconds_to_paint(program: list[str], home: Path) -> float:
    """Wall time from the start of `program` to its first visible character. Raises BrokenError when there is none."""
    started = time.perf_counter()
    child, screen = pty.fork()
    if child == 0:
        start_in_terminal(program, home)
    try:
        written = b""
        while not paints(written):
            left = started + PATIENCE - time.perf_counter()
            if left <= 0 or not select.select([screen], [], [], left)[0]:
                raise BrokenError(f"luminal-tui showed nothing within {PATIENCE:g} s")
            written += read(screen)
        return time.perf_counter() - started
    finally:
        stop(child, screen)


def start_in_terminal(program: list[str], home: Path) -> None:
    """Become `program`, with settings, caches and sessions below `home`. Does not return."""
    folders = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA", "STATE")}
    try:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        os.chdir(home)
        os.execve(program[0], program, os.environ | folders | {"TERM": "xterm-256color", "COLORTERM": "truecolor"})
    finally:
        os._exit(127)


def read(screen: int) -> bytes:
    """The next bytes. Raises BrokenError at the end, which Linux reports as EIO and others as an empty read."""
    try:
        written = os.read(screen, 65536)
    except OSError:
        written = b""
    if not written:
        raise BrokenError("luminal-tui ended before it showed anything")
    return written


def paints(written: bytes) -> bool:
    """Whether a visible character is on the app's own screen; what stands before it may be an error message."""
    _, _, own = written.partition(OWN_SCREEN)
    shown, _, _ = ESCAPES.sub(b"", own).partition(b"\x1b")  # an escape may still lack its end
    return bool(shown.strip(b" \r\n\t\0\x07\x08\x0e\x0f"))


def stop(child: int, screen: int) -> None:
    """End the child; what it starts for itself ends with its terminal."""
    os.kill(child, signal.SIGKILL)
    os.close(screen)
    os.waitpid(child, 0)
