"""A picture of the workbench, made without a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.session.view import SessionView
from workbench.tui.app import WorkbenchApp

if TYPE_CHECKING:
    from workbench.session.client import Client


async def capture(
    client: Client,
    path_svg: Path | str,
    size: tuple[int, int],
    keys: list[str],
    until: Callable[[SessionView], bool],
    *,
    theme: str = "dark",
    ascii: bool = False,  # noqa: A002
    timeout: float = 120.0,
) -> None:
    """Run the app on `client` in `size` (columns, rows), wait for `until`, press `keys`, write an SVG.

    Raises TimeoutError where `until` does not hold within `timeout` seconds."""
    app = WorkbenchApp(client, theme=theme, ascii=ascii)
    async with app.run_test(size=size) as pilot:
        async with asyncio.timeout(timeout):
            while not until(app.scene.view):
                await pilot.pause(0.05)
        # The plot waits up to half a second for its turn.
        await pilot.pause(0.6)
        for key in keys:
            await pilot.press(key)
        await pilot.pause(0.6)
        Path(path_svg).write_text(app.export_screenshot(title="luminal-tui"), encoding="utf-8")
