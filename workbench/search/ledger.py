"""The ledger: one append-only line per candidate, so that a killed search goes on without trying anything twice."""

from __future__ import annotations

from pathlib import Path

import msgspec

from workbench.errors import SessionError
from workbench.linefile import LineFile


class Entry(msgspec.Struct, frozen=True):
    """What happened to one candidate. `search` names the space, strategy, seed and run that proposed it, `genome` its
    digest; `reason` is empty when it was profiled."""

    search: str
    index: int
    genome: str
    parent: str
    generation: int
    step: str
    reason: str = ""
    detail: str = ""
    ms: float | None = None
    p20_ms: float | None = None
    p80_ms: float | None = None
    memory_bytes: int = 0
    kernels: int = 0
    seconds: dict[str, float] = {}


class Ledger:
    """candidates.jsonl. Lines of a torn last write are dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[tuple[str, str], Entry] = {}
        decoder = msgspec.json.Decoder(Entry)
        whole = 0
        try:
            data = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise SessionError(f"{path}: cannot be read: {error.strerror}") from None
        for line in data.splitlines(keepends=True):
            try:
                entry = decoder.decode(line)
            except (msgspec.DecodeError, ValueError):  # ValueError: not UTF-8
                break
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            self._entries[entry.search, entry.genome] = entry
        self._file = LineFile(path, whole)
        self._encoder = msgspec.json.Encoder()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, search: str, genome: str) -> Entry | None:
        """What is recorded of a candidate of `search`."""
        return self._entries.get((search, genome))

    def add(self, entry: Entry) -> None:
        """Record a candidate. Raises SessionError when the disk is full."""
        self._file.append(self._encoder.encode(entry))
        self._entries[entry.search, entry.genome] = entry

    def close(self) -> None:
        """Close the file."""
        self._file.close()
