"""Every key and its effect."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tui import llama
from tests.tui.drive import driven
from workbench.session import events as ev
from workbench.tui import keymap
from workbench.tui.commands import KeyCommands
from workbench.tui.screens.egg import EggScreen
from workbench.tui.screens.help import HelpScreen
from workbench.tui.screens.log import LogScreen
from workbench.tui.screens.open import OpenScreen

COMMANDS = {
    "r": ev.Rerun(stage="search"),
    "s": ev.Rerun(stage="saturate"),
    "n": ev.Rerun(stage="search", new_seed=True),
    "p": ev.TogglePause(),
    "c": ev.Cancel(),
}


async def test_a_key_sends_its_command_and_says_so() -> None:
    async with driven(llama.FakeClient(llama.under_way()), (80, 24)) as drive:
        for key, command in COMMANDS.items():
            drive.app.last_toast = ""
            await drive.press(key)
            assert drive.client.sent[-1:] == [command]
            assert drive.app.last_toast
        assert len(drive.client.sent) == len(COMMANDS)


async def test_b_toggles_a_break_at_the_selected_node() -> None:
    async with driven(llama.FakeClient(llama.whole())) as drive:
        await drive.press("b")
        assert drive.client.sent == []
        assert "Select a node" in drive.app.last_toast
        await drive.press("j", "enter", "j", "enter", "j", "j", "b")
        assert drive.client.sent == [ev.ToggleBreak(node=1)]
        assert "Adding a break" in drive.app.last_toast


async def test_a_read_only_session_sends_nothing() -> None:
    client = llama.FakeClient(llama.whole(), read_only=True, live=False)
    async with driven(client) as drive:
        await drive.press("r", "s", "p", "c", "n")
        assert client.sent == []
        assert "record" in drive.app.last_toast


async def test_an_engine_that_refuses_is_reported() -> None:
    client = llama.FakeClient(llama.under_way(), error=OSError("Broken pipe"))
    async with driven(client) as drive:
        await drive.press("r")
        assert "Broken pipe" in drive.app.last_toast


async def test_digits_and_tab_go_to_panes() -> None:
    async with driven(llama.FakeClient(llama.whole()), (80, 24)) as drive:
        for digit, name in zip("4321", reversed(keymap.PANES), strict=True):
            await drive.press(digit)
            assert drive.bench.focused_pane.id == name
            assert drive.bench.focused_pane.display
            assert drive.app.focused in drive.bench.focused_pane.query("*")
        await drive.press("tab", "tab")
        assert drive.bench.focused_pane.id == "rules"
        await drive.press("shift+tab")
        assert drive.bench.focused_pane.id == "program"


async def test_l_and_question_mark_open_and_escape_closes() -> None:
    async with driven(llama.FakeClient(llama.whole()), (80, 24)) as drive:
        await drive.press("l")
        assert isinstance(drive.app.screen, LogScreen)
        await drive.until(lambda: "imported 812 ONNX nodes" in drive.screen())
        await drive.press("l")
        await drive.press("?")
        assert isinstance(drive.app.screen, HelpScreen)
        await drive.until(lambda: "Run the search again" in drive.screen())
        await drive.press("escape")
        assert drive.app.screen is drive.bench


async def test_the_log_follows_its_end() -> None:
    client = llama.FakeClient(llama.under_way())
    async with driven(client, (80, 24)) as drive:
        await drive.press("l")
        for number in range(50):
            client.more.put_nowait(ev.LogLine(level="INFO", module="search", message=f"line {number}", at=20.0))
        await drive.until(lambda: "line 49" in drive.screen())


async def test_y_copies_the_selection_of_the_focused_pane(tmp_path: Path) -> None:
    async with driven(llama.FakeClient(llama.whole(), directory=tmp_path)) as drive:
        copied = tmp_path / "copied.txt"
        await drive.press("j", "enter", "j", "enter", "j", "y")
        row = llama.node_rows(0)[0]
        assert drive.app.clipboard.startswith(f"{row.id}  {row.name}")
        assert copied.read_text().startswith(drive.app.clipboard)
        await drive.press("2", "y")
        assert drive.app.clipboard == llama.program(0).splitlines()[row.line - 1]
        await drive.press("3", "y")
        assert re.match(r"\S+\t\S+\t\d+\t[\d.]+ ms", drive.app.clipboard)
        await drive.press("4", "y")
        assert "profiled" in drive.app.clipboard
        assert str(copied) in drive.app.last_toast


@pytest.mark.parametrize("key", ["q", "ctrl+q"])
async def test_q_leaves_and_says_how_to_come_back(key: str) -> None:
    client = llama.FakeClient(llama.under_way())
    async with driven(client) as drive:
        await drive.press(key)
        assert client.closed
        assert ev.Shutdown() not in client.sent
        said = "".join(map(str, drive.app._exit_renderables))
        assert "luminal-tui attach llama-7f3a" in said


async def test_o_opens_over_the_session_and_escape_comes_back() -> None:
    async with driven(llama.FakeClient(llama.whole()), summaries=list) as drive:
        await drive.press("o")
        assert isinstance(drive.app.screen, OpenScreen)
        await drive.press("escape")
        assert drive.app.screen is drive.bench


async def test_brackets_select_groups() -> None:
    async with driven(llama.FakeClient(llama.whole())) as drive:
        await drive.press("]")
        await drive.until(lambda: drive.app.scene.selection.group == 0)
        await drive.press("]")
        await drive.until(lambda: drive.app.scene.selection.group == 1)
        await drive.press("[", "[")
        await drive.until(lambda: drive.app.scene.selection.group == 3)


async def test_t_switches_the_theme_and_everything_is_drawn_in_it() -> None:
    async with driven(llama.FakeClient(llama.whole()), theme="dark") as drive:
        dark = drive.app.export_screenshot()
        await drive.press("t")
        assert drive.app.theme == "luminal-light"
        await drive.pilot.pause(0.6)
        light = drive.app.export_screenshot()
        assert "#85c98f" in dark
        assert "#85c98f" not in light
        assert "#2a7a3b" in light


async def test_the_palette_offers_the_keys_and_runs_them() -> None:
    async with driven(llama.FakeClient(llama.under_way())) as drive:
        provider = KeyCommands(drive.bench)
        offered = {str(hit.text or hit.display): hit async for hit in provider.discover()}
        for key in [*keymap.keys("app"), *keymap.keys("graph")]:
            if key.palette:
                assert f"{key.title}  ({key.label})" in offered
        await drive.press("ctrl+p")
        await drive.type("new seed")
        await drive.pilot.pause(0.3)
        await drive.press("enter")
        await drive.until(lambda: drive.client.sent)
        assert drive.client.sent == [ev.Rerun(stage="search", new_seed=True)]


def test_no_key_is_taken_twice_in_one_place_or_by_the_terminal() -> None:
    panes = [(pane, keymap.COMPILE) for pane in keymap.PANES]
    for pane, kind in [*panes, *((pane, keymap.EGG) for pane in ("program", "rules", "output"))]:
        taken: dict[str, str] = {}
        for scope in ("app", "move", pane):
            for key in keymap.keys(scope, kind):
                for each in key.key.split(","):
                    assert each not in taken, f"{each}: {key.id} and {taken[each]}"
                    taken[each] = key.id
        assert not taken.keys() & {"ctrl+a", "ctrl+b", "ctrl+m", "ctrl+h", "ctrl+i"}


async def test_every_key_of_the_table_has_an_action() -> None:
    async with driven(llama.FakeClient(llama.whole())) as drive:
        for key in keymap.KEYS:
            name = "action_" + key.id.partition("(")[0]
            if key.id == "palette":
                continue
            if key.scope == "app":
                assert hasattr(EggScreen if key.kind == keymap.EGG else drive.bench, name)
            for pane in drive.bench.panes:
                if key.scope in ("move", pane.id):
                    assert hasattr(pane.query_one(".body"), name), f"{pane.id} {name}"


async def test_the_help_names_every_key() -> None:
    async with driven(llama.FakeClient(llama.whole())) as drive:
        await drive.press("?")
        await drive.until(lambda: drive.app.screen.query_one("#help-lines").lines)
        said = "\n".join(line.plain for line in drive.app.screen.query_one("#help-lines").lines)
        for key in keymap.KEYS:
            assert re.search(rf"^  {re.escape(key.label)}\s", said, re.M), key.id
