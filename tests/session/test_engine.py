"""The engine: a process of its own that serves one session to any number of clients, and does what they ask."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.errors import SessionError
from workbench.session import events as ev
from workbench.session.client import SessionSpec, attach, open_session, start_engine
from workbench.session.store import CANDIDATES, SessionStore

from .watching import PATIENCE, Watcher, gone, owner

Spec = Callable[..., SessionSpec]
NONSENSE = (b"hello\n", b"\xff\xfe\n", b'{"type":"fly"}\n', b"[" * 5000 + b"\n", b'{"type":"rerun","stage":3}\n')


async def told_until_refused(watcher: Watcher) -> None:
    while True:  # the first write after the other side closed may still be taken
        await watcher.client.send(ev.Cancel())


async def test_every_client_gets_the_whole_history_and_the_end(spec: Spec, tmp_path: Path) -> None:
    first = Watcher(await start_engine(spec()))
    finished = await first.until(ev.SessionFinished)
    assert finished.ok
    assert not first.client.read_only
    store = SessionStore(tmp_path / "s")
    assert store.is_live
    assert store.summary().status == "running"
    assert stat.S_IMODE(store.socket_path().stat().st_mode) == 0o600
    second = Watcher(await attach(tmp_path / "s"))
    await second.until(ev.SessionFinished)
    assert second.seen == first.seen
    assert second.view == first.view
    assert first.client.node_rows(0) == second.client.node_rows(0) != []
    assert "$root" in first.client.program(0)

    engine = owner(tmp_path / "s")
    await second.client.send(ev.Shutdown())
    await first.to_the_end()
    await second.to_the_end()
    gone(engine)
    assert not store.is_live
    assert not store.socket_path().exists()
    assert store.summary().status == "finished"
    with pytest.raises(SessionError, match="engine is gone"):
        await told_until_refused(first)
    await first.client.close()
    await second.client.close()

    replay = Watcher(await open_session(tmp_path / "s"))
    await replay.to_the_end()
    assert replay.client.read_only
    assert replay.view == first.view
    with pytest.raises(SessionError, match="not running"):
        await replay.client.send(ev.Cancel())


async def test_reruns_are_done_anew_and_only_from_their_stage(
    spec: Spec, tmp_path: Path
) -> None:
    watcher = Watcher(await start_engine(spec(limit=2)))
    await watcher.until(ev.SessionFinished)
    for command, first, seed in (
        (ev.Rerun(stage="saturate"), "saturate", 0),
        (ev.Rerun(stage="search", new_seed=True), "search", 1),
        (ev.Rerun(stage="emit"), "emit", 1),
    ):
        watcher.seen.clear()
        await watcher.client.send(command)
        await watcher.until(ev.SessionFinished)
        (restarted,) = watcher.of(ev.Restarted)
        assert (restarted.stage, restarted.seed) == (first, seed)
        stages = [e.stage for e in watcher.of(ev.StageStarted)]
        assert stages == list(ev.STAGES[ev.STAGES.index("split" if first == "emit" else first) :])
        assert all(s.done == 2 for s in watcher.view.search.values())
    lines = [json.loads(line) for line in (tmp_path / "s" / CANDIDATES).read_bytes().splitlines()]
    assert len(lines) == 4 * 2
    assert len({(line["search"], line["genome"]) for line in lines}) == len(lines)


async def test_pause_resume_and_cancel(spec: Spec) -> None:
    watcher = Watcher(await start_engine(spec("llama3_tiny_4l_ts17", limit=3000)))
    await watcher.until(ev.CandidateEvaluated, 2)
    await watcher.client.send(ev.TogglePause())
    await watcher.until(ev.Paused)
    assert watcher.view.paused
    watcher.seen.clear()
    await watcher.to_the_present()
    await watcher.client.send(ev.TogglePause())
    await watcher.until(ev.Resumed)
    assert len(watcher.of(ev.CandidateEvaluated)) <= 1  # the one that ran
    await watcher.until(ev.CandidateEvaluated, 2)
    await watcher.client.send(ev.TogglePause())
    await watcher.until(ev.Paused)
    await watcher.client.send(ev.Cancel())
    cancelled = await watcher.until(ev.Cancelled)
    assert cancelled.stage == "search"
    assert not watcher.view.paused
    # What comes after a cancel is not cancelled by it, and of several requests the last is the one that is done.
    watcher.seen.clear()
    for _ in range(3):
        await watcher.client.send(ev.Rerun(stage="search", new_seed=True))
    await watcher.until(ev.Restarted, 3)
    await watcher.until(ev.CandidateEvaluated)
    assert watcher.view.seed == 3
    assert len(watcher.of(ev.Cancelled)) == 2
    assert len(watcher.of(ev.CandidateEvaluated)) == 1
    await watcher.client.send(ev.Shutdown())
    await watcher.to_the_end()
    assert isinstance(watcher.seen[-1], ev.Cancelled)


async def test_breaks_are_toggled_and_nonsense_does_not_disturb(
    spec: Spec, tmp_path: Path
) -> None:
    watcher = Watcher(await start_engine(spec("llama3_tiny_4l_ts17", limit=3000)))
    await watcher.until(ev.CandidateEvaluated)
    chunks, breaks = len(watcher.view.chunks), watcher.view.breaks
    for command in (ev.ToggleBreak(node=10**9), ev.ToggleBreak(node=-1), ev.Rerun(stage="luck")):
        await watcher.client.send(command)
    await watcher.to_the_present()
    assert not watcher.of(ev.Cancelled)
    assert [line.level for line in watcher.of(ev.LogLine)].count("WARNING") == 3
    await watcher.client.send(ev.ToggleBreak(node=breaks[0]))
    split = await watcher.until(ev.ChunksSplit)
    assert split.breaks == breaks[1:]
    assert len(split.chunks) == chunks - 1
    assert SessionStore(tmp_path / "s").read_spec().toggled == (breaks[0],)
    await watcher.client.send(ev.ToggleBreak(node=breaks[0]))
    assert (await watcher.until(ev.ChunksSplit)).breaks == breaks


async def test_a_client_that_talks_garbage_or_vanishes_hurts_nobody(
    spec: Spec, tmp_path: Path
) -> None:
    watcher = Watcher(await start_engine(spec()))
    path = SessionStore(tmp_path / "s").socket_path()
    for garbage in NONSENSE:
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(garbage)
        await writer.drain()
        writer.transport.abort()
    reader, endless = await asyncio.open_unix_connection(path, limit=1 << 26)
    endless.write(b"x" * (1 << 20))
    with contextlib.suppress(ConnectionError):
        await endless.drain()
        async with asyncio.timeout(PATIENCE):
            while await reader.read(1 << 16):  # to the end: it is cut off
                pass
    endless.close()
    assert (await watcher.until(ev.SessionFinished)).ok
    await watcher.to_the_present()
    assert SessionStore(tmp_path / "s").is_live
