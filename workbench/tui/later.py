"""What is done once the screen has been laid out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.screen import Screen


def after_refresh(screen: Screen[Any], paint: Callable[[], None]) -> None:
    """Call `paint` after the next refresh, unless the screen has been closed by then and has no widgets to paint."""

    def painted() -> None:
        if screen in screen.app.screen_stack:
            paint()

    screen.call_after_refresh(painted)
