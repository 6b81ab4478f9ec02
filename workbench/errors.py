"""The one exception hierarchy for people: what was wrong, where, and what to do. The command prints it and exits 2."""

from __future__ import annotations

from typing import Self


class WorkbenchError(Exception):
    """Bad usage or input. `hint` says what to do; `str()` is one line for the user; `exit_status` is the command's."""

    exit_status = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def at(self, place: str) -> Self:
        """This error, said to be at `place`."""
        self.message = f"{place}: {self.message}"
        return self


class ModelError(WorkbenchError):
    """The model file cannot be opened or understood."""


class InputError(WorkbenchError):
    """Run-time inputs that do not fit the model."""


class RuleError(WorkbenchError):
    """A rule file that cannot be read or parsed. `message` begins with file:line."""


class SessionError(WorkbenchError):
    """A session directory that cannot be used."""


class UnavailableError(WorkbenchError):
    """Something this machine lacks (a GPU, a package)."""


class NotViableError(WorkbenchError):
    """The input is fine, but what came out of it is nothing or wrong."""

    exit_status = 1


def printable(text: str, limit: int = 200) -> str:
    """Text from a model made safe for a terminal: control characters shown as escapes, cut at `limit` characters."""
    if len(text) <= limit and text.isprintable():
        return text
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
