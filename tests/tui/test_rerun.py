"""Change, rerun, compare in the app: what changed on disk, the editor, the differences."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from textual.app import App

from tests.tui import llama
from tests.tui.drive import Driven, driven
from workbench.errors import UnavailableError
from workbench.session import events as ev
from workbench.session.spec import SessionSpec
from workbench.session.store import EVENTS, SessionStore
from workbench.tui.editor import editor_command
from workbench.tui.screens.difference import DifferenceScreen, PickRunScreen
from workbench.tui.screens.xray import XrayScreen

FILE = "egg/lower.egg"
BROKEN = ev.RulesOnDisk(changed=[FILE], error=f"{FILE}:12: Unbound function Nothing", file=FILE, line=12, at=70.0)


@contextlib.contextmanager
def suspend(_: App[None]) -> Iterator[None]:
    """The driver of tests has no terminal to hand over; there is none to take back either."""
    yield


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(App, "suspend", suspend)


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """$EDITOR is a script called vi that writes down its arguments; the file that it writes."""
    script, told = tmp_path / "bin" / "vi", tmp_path / "told"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{told}"\n')
    script.chmod(0o755)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"{script} --clean")
    return told


def rerun(best: float = 0.5) -> list[ev.AnyEvent]:
    """Everything from the saturation on once more, with other rules: one is gone, one new, one matches more."""
    out: list[ev.AnyEvent] = [ev.Restarted(stage="saturate", reason="rerun", seed=7, at=62.0)]
    for event in (*llama.saturated(), *llama.searched(), *llama.finished()):
        if isinstance(event, ev.GroupSaturated):
            rows = [row for row in event.rules if row.name != "flatten-heads"]
            rows = [
                msgspec.structs.replace(row, matches=row.matches + 40) if row.name == "lower-map" else row
                for row in rows
            ]
            rows.append(ev.RuleRow("my-own", "Other", "flatten", "own/mine.egg", 3, 9, 0.001, [9]))
            event = msgspec.structs.replace(event, rules=rows, nodes=event.nodes + 1000, rules_digest="new")
        elif isinstance(event, ev.BestImproved):
            event = msgspec.structs.replace(event, ms=event.ms * best)
        out.append(msgspec.structs.replace(event, at=event.at + 62.0))
    return out


def row_of(drive: Driven, rule: str) -> str:
    return next(row for row in drive.rows() if rule in row)


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_a_rerun_shows_the_difference_to_the_run_before(size: tuple[int, int]) -> None:
    client = llama.FakeClient([*llama.whole(), *rerun()])
    async with driven(client, size) as drive:
        await drive.press("3")
        await drive.until(lambda: "since run 1" in drive.screen())
        pane = drive.bench.rules
        assert pane.changes is not None
        assert (pane.changes.count("added"), pane.changes.count("removed"), pane.changes.count("matches")) == (1, 1, 1)
        shown = drive.screen()
        assert "1 new" in shown
        assert "1 gone" in shown
        assert "×0.50" in shown
        titles = [column.title for column in pane.shown_view.columns]
        assert titles[titles.index("matches") + 1] == "change"
        pane.sort_by(titles.index("change"))
        await drive.pilot.pause()
        assert "- flatten-heads" in drive.screen()
        assert "+ my-own" in drive.screen()
        assert "new" in row_of(drive, "my-own")
        assert "+160" in row_of(drive, "lower-map")  # 40 in each of four groups
        await drive.press("d")
        assert "since run 1" not in drive.screen()
        assert "flatten-heads" not in drive.screen()
        await drive.press("d", "]", "]")
        await drive.until(lambda: pane.group == 1 and "+40" in row_of(drive, "lower-map"))


async def test_changed_and_broken_files_are_said_and_the_last_good_run_stays() -> None:
    client = llama.FakeClient(llama.whole())
    async with driven(client) as drive:
        before = len(drive.bench.rules._rows)
        client.more.put_nowait(ev.RulesOnDisk(changed=[FILE, "own/mine.egg"], at=69.0))
        await drive.until(lambda: f"rules changed on disk: {FILE} and 1 more; s saturates again" in drive.screen())
        assert "rules changed" in drive.rows()[0]
        client.more.put_nowait(BROKEN)
        await drive.until(lambda: f"{FILE}:12: Unbound function Nothing" in drive.screen())
        assert "rules broken" in drive.rows()[0]
        assert "finished" in drive.rows()[0]
        assert len(drive.bench.rules._rows) == before > 0
        client.more.put_nowait(msgspec.structs.replace(BROKEN, refused=True))
        await drive.until(lambda: "not saturated: " in drive.screen())
        client.more.put_nowait(ev.RulesOnDisk(at=71.0))
        await drive.until(lambda: "Unbound" not in drive.screen())
        assert "rules" not in drive.rows()[0]


async def test_a_saturation_that_failed_leaves_the_last_good_run_on_screen(
    tmp_path: Path, editor: Path, handed_over: None
) -> None:
    client = llama.FakeClient(llama.whole(), paths={FILE: tmp_path / "lower.egg"})
    async with driven(client) as drive:
        rows = [row.name for row in drive.bench.rules._rows]
        client.more.put_nowait(ev.RulesOnDisk(changed=[FILE], at=69.0))
        client.more.put_nowait(ev.Restarted(stage="saturate", reason="rerun", seed=7, at=70.0))
        await drive.until(lambda: not drive.bench.rules._results)
        client.more.put_nowait(ev.Failed(stage="saturate", message="ruleset 'x': Panic: late", kept=True, at=71.0))
        await drive.until(lambda: "E opens the file, the last good run stays" in drive.screen())
        assert [row.name for row in drive.bench.rules._rows] == rows
        shown = drive.screen()
        assert "Panic: late" in shown
        assert "failed in saturate" in drive.rows()[0]
        assert "verified" in shown
        await drive.press("E")
        await drive.until(lambda: client.sent)
        assert editor.read_text().splitlines() == ["--clean", str(tmp_path / "lower.egg")]


async def test_hostile_names_of_files_are_shown_escaped() -> None:
    client = llama.FakeClient(llama.whole())
    async with driven(client) as drive:
        client.more.put_nowait(ev.RulesOnDisk(changed=["\x1b[31m[bold]x.egg"], at=69.0))
        await drive.until(lambda: "\\x1b[31m[bold]x.egg" in drive.screen())
        assert "\x1b" not in drive.screen()


async def test_e_opens_the_rule_at_its_line_and_the_engine_looks_afterwards(
    tmp_path: Path, editor: Path, handed_over: None
) -> None:
    path = tmp_path / "lower.egg"
    client = llama.FakeClient(llama.whole(), paths={FILE: path})
    async with driven(client) as drive:
        await drive.press("3", "slash")
        await drive.type("lower-gather")
        await drive.press("enter", "e")
        await drive.until(lambda: client.sent)
        rule = drive.bench.rules._rows[0]
        assert rule.file == FILE
        assert editor.read_text().splitlines() == ["--clean", f"+{rule.line}", str(path)]
        assert client.sent == [ev.LookAtRules()]

        await drive.press("E")
        assert "No rule file is in error" in drive.app.last_toast
        client.more.put_nowait(BROKEN)
        await drive.until(lambda: drive.app.scene.view.rules_on_disk is not None)
        await drive.press("E")
        await drive.until(lambda: len(client.sent) == 2)
        assert editor.read_text().splitlines() == ["--clean", "+12", str(path)]

        await drive.press("x")
        assert isinstance(drive.app.screen, XrayScreen)
        client.more.put_nowait(ev.XrayDone(rule=rule.name, group=0, file=FILE, line=7, at=72.0))
        await drive.until(lambda: drive.app.screen.answer is not None)  # type: ignore[attr-defined]
        await drive.press("e")
        await drive.until(lambda: len(client.sent) == 4)
        assert editor.read_text().splitlines() == ["--clean", "+7", str(path)]


async def test_what_keeps_the_editor_from_opening_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, editor: Path
) -> None:
    client = llama.FakeClient(llama.whole(), paths={FILE: tmp_path / "lower.egg"})
    async with driven(client) as drive:
        await drive.press("3", "slash")
        await drive.type("place-row")
        await drive.press("enter", "e")
        assert "in no rule directory" in drive.app.last_toast
        await drive.press("slash", "escape", "slash")
        await drive.type("lower-gather")
        await drive.press("enter", "e")
        assert "cannot be handed to an editor" in drive.app.last_toast
        assert not editor.exists()
        monkeypatch.setenv("EDITOR", " ")
        await drive.press("e")
        assert "no editor is set" in drive.app.last_toast
        assert str(tmp_path / "lower.egg") in drive.app.last_toast
        monkeypatch.setattr(App, "suspend", suspend)
        for command, said in (("/nonexistent/ed", "cannot be started: No such file"), ("false", "ended with status 1")):
            monkeypatch.setenv("EDITOR", command)
            await drive.press("e")
            assert said in drive.app.last_toast


@pytest.mark.parametrize(
    ("editor", "arguments"),
    [
        ("vi", ["vi", "+7", "/x/r.egg"]),
        ("/usr/bin/nano -w", ["/usr/bin/nano", "-w", "+7", "/x/r.egg"]),
        ("emacs -nw", ["emacs", "-nw", "+7", "/x/r.egg"]),
        ("hx", ["hx", "+7", "/x/r.egg"]),
        ("micro", ["micro", "+7", "/x/r.egg"]),
        ("code --wait", ["code", "--wait", "--goto", "/x/r.egg:7"]),
        ("subl -w", ["subl", "-w", "/x/r.egg:7"]),
        ("kate", ["kate", "--line", "7", "/x/r.egg"]),
        ("jed", ["jed", "/x/r.egg", "-g", "7"]),
        ("my-editor; rm -rf /", ["my-editor;", "rm", "-rf", "/", "/x/r.egg"]),
    ],
)
def test_each_editor_is_told_the_line_in_its_own_way(editor: str, arguments: list[str]) -> None:
    assert editor_command(Path("/x/r.egg"), 7, {"EDITOR": "ed", "VISUAL": editor}) == arguments
    assert editor_command(Path("/x/r.egg"), 0, {"EDITOR": "vi"}) == ["vi", "/x/r.egg"]


def test_without_a_usable_editor_the_place_is_said() -> None:
    with pytest.raises(UnavailableError, match=r"/x/r\.egg:7"):
        editor_command(Path("/x/r.egg"), 7, {})
    with pytest.raises(UnavailableError, match="VISUAL cannot be read"):
        editor_command(Path("/x/r.egg"), 7, {"VISUAL": "'vi"})


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_shift_d_shows_the_differences_side_by_side_or_stacked(size: tuple[int, int]) -> None:
    client = llama.FakeClient([*llama.whole(), *rerun()])
    async with driven(client, size) as drive:
        await drive.press("D")
        assert isinstance(drive.app.screen, DifferenceScreen)
        board = drive.app.screen.board
        await drive.until(lambda: any("1 added, 1 removed" in line.plain for line in board.lines))
        text = "\n".join(line.plain for line in board.lines)
        assert "run 1 (opened)" in text
        assert "run 2 (rerun)" in text
        assert "~ lower-map" in text
        assert ("before matches" in text) is (size[0] == 160)
        assert max(line.cell_len for line in board.lines) <= board.size.width
        await drive.press("escape")
        assert drive.app.screen is drive.bench


async def test_without_an_earlier_run_another_session_is_picked() -> None:
    client = llama.FakeClient(llama.whole())
    async with driven(client, summaries=list) as drive:
        await drive.press("D")
        assert isinstance(drive.app.screen, PickRunScreen)
        assert "There is no earlier run and no other session" in drive.screen()
        await drive.press("escape")
        assert drive.app.screen is drive.bench


def recorded(directory: Path, events: list[ev.AnyEvent]) -> Path:
    """A session on disk."""
    directory.mkdir()
    SessionStore(directory).write_spec(SessionSpec(seed=len(events)))
    (directory / EVENTS).write_bytes(b"".join(ev.encode(event) + b"\n" for event in events))
    return directory


async def test_another_session_is_compared_and_a_damaged_one_says_so(tmp_path: Path) -> None:
    other, here = recorded(tmp_path / "other", llama.whole()), recorded(tmp_path / "here", [*llama.whole(), *rerun()])
    client = llama.FakeClient([*llama.whole(), *rerun()], directory=here)
    async with driven(client, summaries=lambda: [SessionStore(d).summary() for d in (other, here)]) as drive:
        await drive.press("D", "c")
        assert isinstance(drive.app.screen, PickRunScreen)
        assert [choice.session for choice in drive.app.screen.choices if choice and choice.session] == [other]
        await drive.press("j", "enter")
        await drive.until(lambda: "before  other" in drive.screen())
        assert "after   here" in drive.screen()
        assert "1 added, 1 removed" in drive.screen()
        (other / EVENTS).write_bytes(b"{}\n")
        await drive.press("c", "j", "enter")
        await drive.until(lambda: f"{EVENTS}:1: cannot be read" in drive.screen())
