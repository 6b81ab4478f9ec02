"""What the ledger keeps, and what a torn write leaves of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.errors import SessionError
from workbench.search.ledger import Entry, Ledger


def entry(index: int, detail: str = "") -> Entry:
    return Entry("s", index, f"g{index}", "", 0, "profile", detail=detail, ms=float(index))


def test_entries_come_back(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    ledger = Ledger(path)
    for i in range(3):
        ledger.add(entry(i, detail="a\nb\r\u2028\x85 \"quoted\""))
    ledger.close()
    again = Ledger(path)
    assert len(again) == 3
    assert again.find("s", "g1") == entry(1, detail="a\nb\r\u2028\x85 \"quoted\"")
    assert again.find("other", "g1") is None


@pytest.mark.parametrize("torn", [b"{", b'{"search":"s","index":7', b"\xff\xfe", b"null"])
def test_a_torn_last_line_is_dropped_and_cut_off(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "c.jsonl"
    ledger = Ledger(path)
    ledger.add(entry(0))
    ledger.close()
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    ledger = Ledger(path)
    assert len(ledger) == 1
    ledger.add(entry(1))
    ledger.close()
    assert path.read_bytes().startswith(whole)
    assert [e for e in (Ledger(path).find("s", f"g{i}") for i in range(2)) if e] == [entry(0), entry(1)]


def test_a_last_line_without_its_end_is_torn_even_if_it_reads_whole(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    ledger = Ledger(path)
    ledger.add(entry(0))
    ledger.add(entry(1))
    ledger.close()
    path.write_bytes(path.read_bytes()[:-1])
    assert len(Ledger(path)) == 1


def test_a_ledger_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="cannot be written"):
        Ledger(tmp_path / "absent" / "c.jsonl")
