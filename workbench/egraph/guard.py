"""What a program may not do: run Python, and touch files that are not beside it.

egglog's Python bindings have primitives that evaluate Python, and commands that read, write and truncate files. A
program comes from anywhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from workbench.egraph.bindings import bindings
from workbench.errors import printable

PYTHON = "py-"
"""What the names of the primitives that handle Python objects begin with."""
_TOKEN = re.compile(r'(?P<comment>;[^\n]*)|"(?P<string>(?:\\.|[^"\\])*)"?|(?P<atom>[^\s()";]+)', re.DOTALL)


class Forbidden(Exception):
    """What a program may not do; the message is a sentence without the place."""


def python_primitive(text: str) -> tuple[str, int] | None:
    """The first use of a primitive that handles Python objects, with its line, in egglog text. A string counts: a name
    in one can be made a function of."""
    if PYTHON not in text:
        return None
    for token in _TOKEN.finditer(text):
        name = token["atom"] or token["string"]
        if name and name.startswith(PYTHON):
            return name, text.count("\n", 0, token.start()) + 1
    return None


def without_python(name: str, text: str) -> str:
    """`text`, when it does not reach for Python. Raises egglog's own error, with the place, where it does."""
    found = python_primitive(text)
    if found is not None:
        primitive, line = found
        raise bindings.EggSmolError(
            f"In {line}:1-1 of {name}: '{printable(primitive, 40)}' runs Python code, which a rule file may not"
        )
    return text


@dataclass(slots=True)
class Files:
    """The files that a program may touch: those of `directory` (absolute, links resolved) and below; of these it may
    write only such as are not there yet or are in `written`, which it made itself. With `anything` there is no bound.
    Paths are relative to the working directory, as egglog has them."""

    directory: str
    anything: bool = False
    written: set[str] = field(default_factory=set)

    def check(self, command: Any) -> None:
        """Raises Forbidden for a command that touches what it may not."""
        if self.anything:
            return
        for path, writes in files_of(command):
            self._check(path, writes)

    def _check(self, path: str, writes: bool) -> None:
        shown = f"'{printable(path, 120)}'"
        try:
            real = os.path.realpath(path)
        except (OSError, ValueError):
            raise Forbidden(f"{shown} is no path") from None
        if os.path.commonpath((real, self.directory)) != self.directory:
            raise Forbidden(f"{shown} is outside the directory of the program; --allow-files permits it")
        if not writes or real in self.written:
            return
        if os.path.lexists(path):
            raise Forbidden(f"{shown} is there already and would be written to; --allow-files permits it")
        if any(part.startswith(".") for part in os.path.relpath(real, self.directory).split(os.sep)):
            raise Forbidden(f"{shown} would be a hidden file; --allow-files permits it")
        self.written.add(real)


def files_of(command: Any) -> Iterator[tuple[str, bool]]:
    """The files that a command touches, and whether it writes them."""
    match command:
        case bindings.Include():
            yield command.path, False
        case bindings.Input():
            yield command.file, False
        case bindings.Output():
            yield command.file, True
        case bindings.PrintFunction() if command.filename is not None:
            yield command.filename, True
        case bindings.PrintOverallStatistics() if command.file is not None:
            yield command.file, True
        case bindings.Fail():
            yield from files_of(command.command)


def only_writes(command: Any) -> bool:
    """Whether a command does nothing but write a file."""
    return any(writes for _, writes in files_of(command))


