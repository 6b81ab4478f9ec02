"""A disk that fills up: one clear line, whole files, and a session that can go on once there is room."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from workbench import CompileSession
from workbench.errors import SessionError
from workbench.linefile import LineFile
from workbench.search.ledger import Entry, Ledger
from workbench.session.store import CANDIDATES, EVENTS, SessionStore, write_file

Model = Callable[[str], Path]


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: writes that would fail as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "lines")
    file.append(b"one")
    with room_for(6), pytest.raises(SessionError, match="lines: cannot be written"):
        file.append(b"two, and more than fits")
    assert (tmp_path / "lines").read_bytes() == b"one\n"
    file.append(b"three")
    file.close()
    file.close()
    assert (tmp_path / "lines").read_bytes() == b"one\nthree\n"
    with pytest.raises(SessionError, match="closed"):
        file.append(b"four")


def test_what_an_earlier_process_tore_is_cut_off(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"one\ntw")
    file = LineFile(tmp_path / "lines")
    file.append(b"three")
    file.close()
    assert (tmp_path / "lines").read_bytes() == b"one\nthree\n"
    (tmp_path / "torn").write_bytes(b"no newline")
    LineFile(tmp_path / "torn").close()
    assert (tmp_path / "torn").read_bytes() == b""
    with pytest.raises(SessionError, match="Is a directory"):
        LineFile(tmp_path)


def test_the_ledger_keeps_what_fitted(tmp_path: Path) -> None:
    path = tmp_path / CANDIDATES
    ledger = Ledger(path)
    for i in range(3):
        ledger.add(Entry("s", i, f"g{i}", "", 0, "profile", ms=1.0))
    size = path.stat().st_size
    with room_for(size + 10), pytest.raises(SessionError, match=CANDIDATES):
        ledger.add(Entry("s", 3, "g3", "", 0, "profile", ms=1.0))
    assert ledger.find("s", "g3") is None
    ledger.close()
    assert path.stat().st_size == size
    path.write_bytes(path.read_bytes() + b'{"search":"s","index":3')
    again = Ledger(path)
    assert len(again) == 3
    again.close()
    assert path.stat().st_size == size


def test_other_files_are_replaced_whole_or_kept(tmp_path: Path) -> None:
    write_file(tmp_path / "report", b"old")
    with room_for(10), pytest.raises(SessionError, match="report: cannot be written"):
        write_file(tmp_path / "report", b"new " * 100)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("report", b"old")]


def test_a_lock_that_cannot_be_written_is_not_held(tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "s")
    with room_for(0), pytest.raises(SessionError, match="lock: cannot be written"):
        store.acquire()
    assert not store.is_live
    store.acquire()
    store.release()


@pytest.mark.parametrize("room", [0, 300, 2000, 60_000])
def test_a_compile_that_runs_out_of_room_says_so_once(model_path: Model, tmp_path: Path, room: int) -> None:
    code = (
        "import resource, sys; from workbench.cli import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY)); main(sys.argv[2:])"
    )
    command = ["compile", model_path("llama3_tiny_4l_ts17"), "--limit", "3", "--session", tmp_path / "s", "--json"]
    ended = subprocess.run(
        [sys.executable, "-c", code, str(room), *map(str, command), "--artifacts", str(tmp_path / "a")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    said = [line for line in ended.stderr.splitlines() if line.startswith("luminal-tui: ")]
    assert ended.returncode == 2, ended.stderr
    assert len(said) == 1
    assert "cannot be written" in said[0]
    assert "Traceback" not in ended.stderr
    assert "Logging error" not in ended.stderr
    for name in (EVENTS, CANDIDATES):
        data = (tmp_path / "s" / name).read_bytes() if (tmp_path / "s" / name).exists() else b""
        assert not data or data.endswith(b"\n")
        for line in data.splitlines():
            msgspec.json.decode(line)
    assert not list(tmp_path.rglob("*.part"))
    assert not SessionStore(tmp_path / "s").is_live


def test_a_session_goes_on_once_there_is_room(model_path: Model, tmp_path: Path) -> None:
    options = {"limit": 8, "session": str(tmp_path / "s"), "artifacts": str(tmp_path / "a")}
    with CompileSession(model_path("mlp_ts17"), **options) as session:
        session.import_model()
        session.split()
        session.saturate()
        with room_for((tmp_path / "s" / EVENTS).stat().st_size + 1200), pytest.raises(SessionError, match="written"):
            session.search()
    kept = (tmp_path / "s" / CANDIDATES).read_bytes()
    assert kept
    with CompileSession(model_path("mlp_ts17"), **options) as session:
        session.run()
        assert session.view.finished is not None
    assert (tmp_path / "s" / CANDIDATES).read_bytes().startswith(kept)
