"""An append-only file of lines, each on disk whole or not at all: the event log and the ledger."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from workbench.errors import SessionError


class LineFile:
    """Unbuffered, so that a line is with the system once `append` returns, and closing has nothing left to write."""

    def __init__(self, path: Path, whole: int | None = None) -> None:
        """Open for appending. What lies behind the first `whole` bytes (None: behind the last newline) was torn by the
        end of an earlier process and is cut off. Raises SessionError."""
        self.path = path
        try:
            self._file = path.open("ab", buffering=0)
            if whole is None:
                whole = path.read_bytes().rfind(b"\n") + 1
            self._file.truncate(whole)
        except OSError as error:
            raise SessionError(f"{path}: cannot be written: {error.strerror}") from None
        self._size = whole

    def append(self, line: bytes) -> None:
        """Add `line` and a newline. Raises SessionError when the disk is full, with nothing of the line left there."""
        if self._file.closed:
            raise SessionError(f"{self.path}: is closed")
        data = memoryview(line + b"\n")
        left = data
        try:
            while left:  # a write that fills the disk takes less than it is given
                left = left[self._file.write(left) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), self._size)
            raise SessionError(f"{self.path}: cannot be written: {error.strerror}", "make room on the disk") from None
        self._size += len(data)

    def close(self) -> None:
        """Close the file; again does nothing."""
        self._file.close()
