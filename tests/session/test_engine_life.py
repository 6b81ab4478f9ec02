"""How engines begin and end: killed, told to, idle, refused; and that no process of theirs is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from workbench.errors import SessionError, WorkbenchError
from workbench.session import events as ev
from workbench.session.client import SessionSpec, attach, open_session, start_engine
from workbench.session.store import CANDIDATES, SessionStore, recent_sessions

from .watching import PATIENCE, Watcher, children, gone, owner

Spec = Callable[..., SessionSpec]


async def test_a_killed_engine_is_gone_on_from(spec: Spec, tmp_path: Path) -> None:
    watcher = Watcher(await start_engine(spec(limit=25)))
    await watcher.until(ev.CandidateEvaluated, 5)
    store = SessionStore(tmp_path / "s")
    engine = owner(tmp_path / "s")
    helpers = children(engine)
    assert helpers
    os.kill(engine, signal.SIGKILL)
    gone(engine)
    for helper in helpers:
        gone(helper)
    await watcher.to_the_end()
    assert store.socket_path().exists()
    assert store.summary().status == "stopped"
    assert (await attach(tmp_path / "s")).read_only

    before = (tmp_path / "s" / CANDIDATES).read_bytes()
    again = Watcher(await open_session(tmp_path / "s"))
    assert (await again.until(ev.SessionFinished)).ok
    assert [o.resumed for o in again.of(ev.SessionOpened)] == [False, True]
    after = (tmp_path / "s" / CANDIDATES).read_bytes()
    assert after.startswith(before)
    entries = [msgspec.json.decode(line) for line in after.splitlines()]
    assert len({(e["search"], e["genome"]) for e in entries}) == len(entries)
    assert [e["index"] for e in entries] == list(range(len(entries)))
    assert again.view.search[0].done == len(entries) == 25


async def test_a_kill_in_the_middle_of_a_saturation_leaves_no_process(
    spec: Spec, tmp_path: Path
) -> None:
    watcher = Watcher(await start_engine(spec("llama3_tiny_4l_ts17", limit=1)))
    await watcher.until(ev.SaturationStep)
    engine = owner(tmp_path / "s")
    helpers = children(engine)
    os.kill(engine, signal.SIGKILL)
    for process in (engine, *helpers):
        gone(process)


async def test_sigterm_ends_it_in_order(spec: Spec, tmp_path: Path) -> None:
    watcher = Watcher(await start_engine(spec("llama3_tiny_4l_ts17", limit=3000)))
    await watcher.until(ev.CandidateEvaluated, 3)
    engine = owner(tmp_path / "s")
    helpers = children(engine)
    os.kill(engine, signal.SIGTERM)
    await watcher.to_the_end()
    for process in (engine, *helpers):
        gone(process)
    assert isinstance(watcher.seen[-1], ev.Cancelled)
    store = SessionStore(tmp_path / "s")
    assert not store.is_live
    assert not store.socket_path().exists()
    assert store.summary().status == "stopped"
    reasons = {msgspec.json.decode(line)["reason"] for line in (store / CANDIDATES).read_bytes().splitlines()}
    assert "crash" not in reasons


async def test_an_engine_that_cannot_start_says_why(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WorkbenchError, match="luck"):
        await start_engine(spec(name="never", strategy="luck"))
    assert not (tmp_path / "never").exists()
    monkeypatch.setenv("LUMINAL_LOG", "LOUD")
    with pytest.raises(SessionError, match=r"did not start: LUMINAL_LOG: 'LOUD' is not a level"):
        await start_engine(spec())
    known = len(recent_sessions())
    with pytest.raises(SessionError, match="did not start"):
        await start_engine(msgspec.structs.replace(spec(), session=None))
    assert len(recent_sessions()) == known


async def test_other_work_does_not_get_into_a_session(spec: Spec, tmp_path: Path) -> None:
    watcher = Watcher(await start_engine(spec(limit=1)))
    await watcher.until(ev.SessionFinished)
    with pytest.raises(SessionError, match="live"):
        await start_engine(spec(limit=1))
    await watcher.client.send(ev.Shutdown())
    await watcher.to_the_end()
    gone(owner(tmp_path / "s"))
    kept = (tmp_path / "s" / "session.json").read_bytes()
    with pytest.raises(SessionError, match="another model"):
        await start_engine(spec("llama3_tiny_4l_ts17"))
    assert (tmp_path / "s" / "session.json").read_bytes() == kept


def test_an_engine_with_nothing_to_do_ends(spec: Spec, tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "s")
    store.acquire()
    store.write_spec(spec(limit=1))
    store.release()
    code = "import sys; from pathlib import Path; from workbench.session.engine import Engine; "
    code += "Engine(Path(sys.argv[1]), idle_seconds=0.2).run()"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "s")], check=True, timeout=PATIENCE)
    assert store.summary().status == "finished"


async def test_an_engine_outlives_the_program_that_started_it(
    spec: Spec, tmp_path: Path
) -> None:
    given = msgspec.json.encode(spec("llama3_tiny_4l_ts17", limit=3000)).decode()
    code = (
        "import asyncio, sys, msgspec\n"
        "from workbench.session.client import SessionSpec, start_engine\n"
        "asyncio.run(start_engine(msgspec.json.decode(sys.argv[1], type=SessionSpec)))\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, given], check=True, timeout=PATIENCE)
    watcher = Watcher(await attach(tmp_path / "s"))
    assert not watcher.client.read_only
    await watcher.until(ev.CandidateEvaluated)
