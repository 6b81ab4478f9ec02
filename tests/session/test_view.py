"""The event stream: every event survives the wire, and the fold of a recorded stream is the fold of the live one."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import CompileSession
from workbench.errors import SessionError
from workbench.session import events as ev
from workbench.session.client import attach
from workbench.session.report import build_report
from workbench.session.spec import SessionSpec
from workbench.session.store import EVENTS, SPEC, SessionStore
from workbench.session.view import SessionView

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: TEXT,
    bool: st.booleans(),
    type(None): st.none(),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type."""
    if kind in VALUES:
        return VALUES[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return st.builds(kind, **{f.name: values(f.type) for f in msgspec.structs.fields(kind)})
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return st.lists(values(inside[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values(inside[0]), values(inside[1]), max_size=3)
    if origin is tuple:
        return st.tuples(*map(values, inside))
    return st.one_of(*map(values, inside))


@given(st.one_of(*(values(kind) for kind in typing.get_args(ev.AnyEvent) if kind is not ev.SessionOpened)))
def test_every_event_survives_the_wire(event: ev.AnyEvent) -> None:
    line = ev.encode(event)
    assert b"\n" not in line
    assert ev.decode(line) == event
    assert ev.to_builtins(event)["type"] == msgspec.json.decode(line)["type"]


@given(st.one_of(*(values(kind) for kind in typing.get_args(ev.AnyCommand))))
def test_every_command_survives_the_wire(command: ev.AnyCommand) -> None:
    assert ev.decode_command(msgspec.json.encode(command)) == command


def opened(**changes: Any) -> ev.SessionOpened:
    event = ev.SessionOpened(
        model="m.onnx", target="cpu", strategy="evolve", seed=0, limit=3, breaks="auto", pid=1, resumed=False
    )
    return msgspec.structs.replace(event, **changes)


def test_the_log_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    assert ev.decode(ev.encode(opened())) == opened()
    newer = ev.VERSION + 1
    with pytest.raises(msgspec.ValidationError, match=f"version {newer}"):
        ev.decode(ev.encode(opened(version=newer)))
    (tmp_path / EVENTS).write_bytes(ev.encode(opened(version=newer)) + b"\n")
    with pytest.raises(SessionError, match=rf"{EVENTS}:1: .*version {newer}.*newer luminal-tui"):
        SessionStore(tmp_path).events()


def test_a_damaged_line_is_named_and_a_torn_last_one_left_out(tmp_path: Path) -> None:
    good = ev.encode(opened()) + b"\n"
    (tmp_path / EVENTS).write_bytes(good + b'{"type":"pau')
    assert SessionStore(tmp_path).events() == [opened()]
    for damaged in (b"\x00\x00\n", b"\xff\n", b'{"type":"fly"}\n', b"{}\n"):
        (tmp_path / EVENTS).write_bytes(good + damaged + good)
        with pytest.raises(SessionError, match=rf"{EVENTS}:2: cannot be read"):
            SessionStore(tmp_path).events()


def folded(events: list[ev.AnyEvent]) -> SessionView:
    view = SessionView()
    for event in events:
        view.apply(event)
    return view


async def test_a_recorded_stream_folds_as_the_live_one_did(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    live = SessionView()
    told: list[ev.AnyEvent] = []

    def listen(event: ev.AnyEvent) -> None:
        told.append(event)
        live.apply(event)

    options = {"limit": 2, "session": str(tmp_path / "s"), "artifacts": str(tmp_path / "a")}
    with CompileSession(model_path("llama3_tiny_4l_ts17"), on_event=listen, **options) as session:
        session.run()
        session.restart("search", "again", new_seed=True)
        session.run("search")
        assert session.view == live
    client = await attach(tmp_path / "s")
    recorded = [event async for event in client.events()]
    assert recorded == told
    assert [e.at for e in recorded] == sorted(e.at for e in recorded)
    view = folded(recorded)
    assert dataclasses.asdict(view) == dataclasses.asdict(live)
    assert view.seed == 1
    assert view.overall_progress() == (8, 8)
    assert all((view.gain(g.index) or 0) >= 1 for g in view.groups)
    assert build_report(view, SessionSpec(), tmp_path, tmp_path)["groups"][1]["search"]["candidates"] == 2
    assert [row.id for row in client.node_rows(0)]
    assert client.program(99) == ""
    assert client.node_rows(99) == []


def test_time_of_work_done_again_is_accounted_for() -> None:
    view = folded([
        opened(),
        ev.StageStarted(at=0.0, stage="import"),
        ev.StageFinished(at=1.0, stage="import", seconds=1.0),
        ev.StageStarted(at=1.0, stage="search"),
        opened(at=5.0, resumed=True),
        ev.StageStarted(at=5.0, stage="import"),
        ev.StageFinished(at=7.0, stage="import", seconds=2.0),
        ev.StageFinished(at=8.0, stage="search", seconds=1.0),
        ev.Restarted(at=8.0, stage="search", reason="again", seed=0),
        ev.StageFinished(at=11.0, stage="search", seconds=3.0),
    ])  # fmt: skip
    report = build_report(view, SessionSpec(), Path("s"), Path("a"))
    assert report["timeline"] == [
        {"stage": "import", "seconds": 2.0},
        {"stage": "search", "seconds": 3.0},
        {"stage": "earlier", "seconds": 6.0},
    ]
    assert report["unattributed_seconds"] + 11.0 == report["total_seconds"] == 11.0


def test_a_restart_forgets_what_it_does_again() -> None:
    group = ev.GroupInfo(0, 0, [0], 3, "d")
    made = [
        opened(),
        ev.GraphImported(nodes=3, onnx_nodes=1, inputs=[], outputs=[], parameters=0, dims={}),
        ev.ChunksSplit(chunks=[ev.ChunkInfo(0, 3, [], [], "")], breaks=[], mode="auto"),
        ev.GroupsFormed(groups=[group]),
        ev.GroupSaturated(group=0, classes=1, nodes=1, seconds=0.1, overhead_seconds=0.0, rules=[]),
        ev.SearchStarted(group=0, limit=3, choices=1, space_log10=0.3, members=1),
        ev.Failed(stage="search", message="m"),
    ]
    kept = {"import": (), "split": ("graph",), "saturate": ("graph", "chunks", "groups"),
            "search": ("graph", "chunks", "groups", "saturation")}  # fmt: skip
    for stage, names in kept.items():
        view = folded([*made, ev.Restarted(stage=stage, reason="r", seed=7)])
        for name in ("graph", "chunks", "groups", "saturation", "search"):
            assert bool(getattr(view, name)) == (name in names), (stage, name)
        assert view.failure is None
        assert view.seed == 7


@pytest.mark.parametrize(
    ("last", "status"),
    [
        (ev.SessionFinished(ok=True, seconds=1, report=""), "finished"),
        (ev.Failed(stage="import", message="m"), "failed"),
        (ev.Cancelled(stage="search"), "stopped"),
        (opened(resumed=True), "stopped"),
    ],
)
def test_the_status_of_a_session_is_its_last_word_on_the_work(
    tmp_path: Path, last: ev.AnyEvent, status: str
) -> None:
    aside = [ev.LogLine(level="INFO", module="m", message="x" * 1000), ev.XrayDone(rule="r", group=0)]
    lines = [ev.encode(e) + b"\n" for e in (opened(), last, *aside)]
    (tmp_path / EVENTS).write_bytes(b"".join(lines))
    SessionStore(tmp_path).write_spec(SessionSpec())
    assert (tmp_path / SPEC).exists()
    assert SessionStore(tmp_path).summary().status == status
