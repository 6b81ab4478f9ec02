"""How the screen is divided in terminals of different sizes."""

from __future__ import annotations

from textual.screen import Screen

from tests.tui import llama
from tests.tui.drive import Driven, driven
from workbench.tui.later import after_refresh
from workbench.tui.screens.help import HelpScreen


def shown(drive: Driven) -> list[str | None]:
    return [pane.id for pane in drive.bench.panes if pane.display]


async def test_a_small_terminal_shows_one_pane_between_two_lines() -> None:
    async with driven(llama.FakeClient(llama.whole()), (80, 24)) as drive:
        assert shown(drive) == ["graph"]
        rows = drive.rows()
        assert "llama-3.2-1b.onnx" in rows[0]
        assert "641 nodes" in rows[1]
        assert all(part in rows[23] for part in ("1 Graph", "2 Program", "3 Rules", "4 Search"))
        assert drive.bench.graph.outline.size.height == 22
        await drive.press("3")
        assert shown(drive) == ["rules"]
        assert "5 of 25 never fired" in drive.rows()[23]


async def test_a_low_terminal_counts_as_small_however_wide() -> None:
    async with driven(llama.FakeClient(llama.whole()), (180, 28)) as drive:
        assert shown(drive) == ["graph"]


async def test_a_middling_terminal_shows_the_graph_and_one_more() -> None:
    async with driven(llama.FakeClient(llama.whole()), (120, 40)) as drive:
        assert shown(drive) == ["graph", "search"]
        await drive.press("2")
        assert shown(drive) == ["graph", "program"]
        await drive.press("1")
        assert shown(drive) == ["graph", "program"]
        assert "3 Rules" in drive.rows()[39]


async def test_a_large_terminal_shows_all_and_needs_no_switcher() -> None:
    async with driven(llama.FakeClient(llama.whole()), (160, 48)) as drive:
        assert shown(drive) == ["graph", "program", "rules", "search"]
        assert "3 Rules" not in drive.rows()[47]
        assert {pane.size.height for pane in drive.bench.panes if pane.size.width < 60} == set()


async def test_z_shows_the_focused_pane_alone() -> None:
    async with driven(llama.FakeClient(llama.whole()), (160, 48)) as drive:
        await drive.press("3", "z")
        assert shown(drive) == ["rules"]
        await drive.press("4")
        assert shown(drive) == ["search"]
        await drive.press("z")
        assert len(shown(drive)) == 4
        await drive.press("z", "escape")
        assert len(shown(drive)) == 4


async def test_the_layout_follows_the_terminal() -> None:
    async with driven(llama.FakeClient(llama.whole()), (160, 48)) as drive:
        for size, panes in (((80, 24), 1), ((120, 40), 2), ((40, 10), 1), ((200, 60), 4)):
            await drive.pilot.resize_terminal(*size)
            await drive.until(lambda panes=panes: len(shown(drive)) == panes)
            assert drive.app.focused is not None
            await drive.until(lambda size=size: len(drive.rows()) >= size[1])


async def test_a_page_that_closes_before_it_is_laid_out_is_not_painted() -> None:
    painted: list[Screen[None]] = []
    async with driven(llama.FakeClient(llama.under_way(), live=False)) as drive:
        page = HelpScreen()
        await drive.app.push_screen(page)
        after_refresh(page, lambda: painted.append(page))
        await drive.until(lambda: painted)
        after_refresh(page, lambda: painted.append(page))
        page.dismiss()
        await drive.pilot.pause(0.05)
        assert len(painted) == 1
