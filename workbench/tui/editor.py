"""Opening a file at a line in the person's editor, with the terminal handed over to it meanwhile."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from textual.app import App, SuspendNotSupported

from workbench.errors import UnavailableError, WorkbenchError, printable

PLUS_LINE = {
    "vi", "vim", "nvim", "view", "vis", "ex", "elvis", "nano", "pico", "rnano", "emacs", "emacsclient", "mg", "zile",
    "jmacs", "joe", "jstar", "jpico", "ne", "micro", "kak", "hx", "helix", "gvim", "mvim", "gedit", "less",
}  # fmt: skip
"""Editors that take `+LINE FILE`."""
GOTO = {"code", "code-insiders", "codium", "vscodium", "cursor", "windsurf"}
"""Editors that take `--goto FILE:LINE`."""
COLON = {"subl", "sublime_text", "zed", "zeditor", "mcedit", "lapce"}
"""Editors that take `FILE:LINE`."""
DASH_LINE = {"kate": "--line", "kwrite": "--line", "mate": "--line"}
"""Editors that take the line as the value of an option."""


def editor_command(path: Path, line: int, environment: Mapping[str, str]) -> list[str]:
    """The argument list that opens `path` at `line` (from 1; 0: not known) in $VISUAL, or else $EDITOR. An editor whose
    way to name a line is not known gets the file alone.

    Raises UnavailableError where neither is set, or what is set cannot be taken apart."""
    variable = next((name for name in ("VISUAL", "EDITOR") if environment.get(name, "").strip()), None)
    if variable is None:
        raise UnavailableError(f"no editor is set; the place is {_place(path, line)}", "set VISUAL or EDITOR")
    try:
        words = shlex.split(environment[variable])
    except ValueError as error:
        raise UnavailableError(f"${variable} cannot be read as a command: {error}") from None
    name = Path(words[0]).name.lower().removesuffix(".exe")
    if line < 1:
        return [*words, str(path)]
    if name in PLUS_LINE:
        return [*words, f"+{line}", str(path)]
    if name in GOTO:
        return [*words, "--goto", f"{path}:{line}"]
    if name in COLON:
        return [*words, f"{path}:{line}"]
    if name == "jed":
        return [*words, str(path), "-g", str(line)]
    if name in DASH_LINE:
        return [*words, DASH_LINE[name], str(line), str(path)]
    return [*words, str(path)]


def _place(path: Path, line: int) -> str:
    return printable(f"{path}:{line}" if line > 0 else str(path), 400)


def edit(app: App[None], path: Path, line: int) -> None:
    """Hand the terminal to the editor until it ends.

    Raises WorkbenchError where there is no editor, it cannot be started, or this terminal cannot be handed over."""
    command = editor_command(path, line, os.environ)
    try:
        with app.suspend():  # what is raised in here would leave the app suspended
            failure, status = _run(command)
    except SuspendNotSupported:
        place = _place(path, line)
        raise UnavailableError(f"this terminal cannot be handed to an editor; the place is {place}") from None
    name = printable(command[0], 60)
    if failure:
        raise UnavailableError(f"'{name}' cannot be started: {failure}", "set VISUAL or EDITOR")
    if status:
        raise WorkbenchError(f"'{name}' ended with status {status}")


def _run(command: list[str]) -> tuple[str, int]:
    """Run the editor to its end: why it could not be started, and its status. Ctrl-C is for the editor alone."""
    before = signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which the editor would inherit
    try:
        return "", subprocess.run(command, check=False).returncode
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error), 0
    finally:
        signal.signal(signal.SIGINT, before)
