"""What could go wrong: hostile names, lost engines, odd terminals, many events, a cat on the keyboard."""

from __future__ import annotations

import random

import msgspec
import pytest
from rich.cells import cell_len

from tests.tui import llama
from tests.tui.drive import driven
from workbench.session import events as ev
from workbench.tui import feed

HOSTILE = "\x1b[31mred\x1b]0;owned\x07 [bold red]x[/] 宽字符 \u202egnp.exe\n\tend"


def hostile_events() -> list[ev.AnyEvent]:
    out: list[ev.AnyEvent] = []
    for event in llama.whole():
        match event:
            case ev.SessionOpened():
                event = msgspec.structs.replace(event, model="[red]" + HOSTILE, device=HOSTILE)
            case ev.ChunksSplit():
                chunks = [msgspec.structs.replace(chunk, begins_at=HOSTILE) for chunk in event.chunks]
                event = msgspec.structs.replace(event, chunks=chunks)
            case ev.GroupSaturated():
                rules = [msgspec.structs.replace(rule, name=f"{HOSTILE}{rule.name}") for rule in event.rules]
                event = msgspec.structs.replace(event, rules=rules, stopped=HOSTILE)
            case ev.CandidateEvaluated() if event.reason:
                event = msgspec.structs.replace(event, reason=HOSTILE)
            case ev.Measured():
                kernels = [msgspec.structs.replace(kernel, name=HOSTILE) for kernel in event.kernels]
                event = msgspec.structs.replace(event, kernels=kernels)
            case ev.LogLine():
                event = msgspec.structs.replace(event, message=HOSTILE)
            case _:
                pass
        out.append(event)
    out.append(ev.Failed(stage="verify", message=HOSTILE, hint="[link=x]" + HOSTILE, at=25.0))
    return out


async def test_hostile_names_are_shown_and_not_obeyed() -> None:
    rows = {0: [ev.NodeRow(1, HOSTILE, HOSTILE, HOSTILE, HOSTILE, [(0, HOSTILE)], 1)]}
    client = llama.FakeClient(hostile_events(), rows=rows, texts={0: HOSTILE + '\n(let a "' + HOSTILE})
    seen = ""
    async with driven(client, (120, 40)) as drive:
        await drive.press("j", "enter", "j", "enter", "j", "enter")
        for key in ("2", "3", "4", "l"):
            await drive.press(key)
            await drive.pilot.pause(0.05)
            assert not set(drive.screen()) & {"\x1b", "\x07", "\u202e", "\t"}
            assert all(cell_len(row) <= 120 for row in drive.rows())
            seen += drive.screen()
    assert "\\x1b[31mred" in seen
    assert "[bold red]x[/]" in seen
    assert "宽字符" in seen


async def test_a_failure_is_noticed_put_away_and_stays_in_the_header() -> None:
    client = llama.FakeClient(llama.under_way())
    async with driven(client, (80, 24)) as drive:
        failed = ev.Failed(stage="search", message="the device worker died", hint="rerun with r", at=13.0)
        client.more.put_nowait(failed)
        await drive.until(lambda: "the device worker died" in drive.screen() and "rerun with r" in drive.screen())
        await drive.press("escape")
        assert "the device worker died" not in drive.screen()
        assert "failed in search" in drive.rows()[0]
        client.more.put_nowait(ev.Restarted(stage="search", reason="rerun", seed=7, at=14.0))
        await drive.until(lambda: "failed" not in drive.rows()[0])
        client.more.put_nowait(failed)
        await drive.until(lambda: "the device worker died" in drive.screen())


async def test_an_engine_that_goes_away_is_seen() -> None:
    client = llama.FakeClient(llama.under_way())
    async with driven(client) as drive:
        client.more.put_nowait(None)
        await drive.until(lambda: "disconnected" in drive.rows()[0])
        await drive.press("r")
        assert client.sent == []
        assert "engine is gone" in drive.app.last_toast


async def test_a_stream_that_breaks_off_is_reported() -> None:
    class Broken(llama.FakeClient):
        async def events(self):  # type: ignore[no-untyped-def]
            yield llama.imported()[0]
            raise ValueError("line 7 is not JSON")

    async with driven(Broken([]), begun=False) as drive:
        await drive.until(lambda: "line 7 is not JSON" in drive.app.last_toast)
        assert "disconnected" in drive.rows()[0]


async def test_nothing_is_painted_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    async with driven(llama.FakeClient(llama.whole()), (160, 48)) as drive:
        await drive.pilot.pause(0.6)
        painted = []
        display = type(drive.app)._display
        monkeypatch.setattr(type(drive.app), "_display", lambda *args: (painted.append(args), display(*args))[1])
        await drive.pilot.pause(1.3)
        assert painted == []


async def test_many_events_leave_the_keyboard_responsive() -> None:
    candidates = [
        ev.CandidateEvaluated(
            group=1, index=i, genome="g", parent="", generation=0, step="profile", ms=2.0 + i % 7, at=13 + i / 1000
        )
        for i in range(20_000)
    ]
    client = llama.FakeClient(llama.under_way())
    async with driven(client) as drive:
        for event in candidates:
            client.more.put_nowait(event)
        await drive.press("3")
        assert drive.bench.focused_pane.id == "rules"
        await drive.until(lambda: drive.app.scene.view.search[1].done > 20_000, 20)


async def test_the_queue_is_bounded() -> None:
    client = llama.FakeClient([ev.LogLine(level="INFO", module="m", message=str(i)) for i in range(3 * feed.QUEUED)])
    reader = feed.Feed(client)  # type: ignore[arg-type]
    assert reader._queue.maxsize == feed.QUEUED


async def test_two_hundred_random_keys_do_no_harm() -> None:
    rng = random.Random(5)
    keys = [*"rspcbnozyl?[]1234tjkghG<>i=a.,/xz", "tab", "shift+tab", "enter", "escape", "space", "left", "right"]
    keys += ["pageup", "pagedown", "up", "down", "backspace", "home", "end"]
    client = llama.FakeClient(llama.under_way())
    async with driven(client, (120, 40), summaries=list, opener=_refuse) as drive:
        for event in [*llama.searched(), *llama.finished()]:
            client.more.put_nowait(event)
        for _ in range(10):
            for _ in range(20):
                drive.strike(rng.choice(keys))
            await drive.pilot.pause(0.05)
            await drive.pilot.resize_terminal(rng.randrange(20, 170), rng.randrange(5, 50))
        assert drive.app.is_running


async def _refuse(target: object) -> llama.FakeClient:
    raise OSError("not now")


async def test_ascii_draws_nothing_but_ascii() -> None:
    client = llama.FakeClient(llama.whole())
    async with driven(client, (120, 40), ascii=True) as drive:
        await drive.press("j", "enter", "j", "enter")
        for key in "1234l":
            await drive.press(key)
            drawn = {each for each in drive.screen() if ord(each) > 127}
            # Textual's own scroll bars end in partial blocks.
            assert not drawn - set("▁▂▃▄▅▆▇█▌▎▊▔")


async def test_without_colour_it_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with driven(llama.FakeClient(llama.whole())) as drive:
        assert drive.app.no_color
        assert "✓ verified" in drive.screen()
