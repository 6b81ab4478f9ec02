"""How everything looks: colours for dark and light terminals, and the glyphs for Unicode and ASCII ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from textual.theme import Theme
from textual.widget import Widget


@dataclass(frozen=True, slots=True)
class Palette:
    """Foreground colours for text that panes draw themselves; backgrounds come from the theme's CSS variables."""

    text: str
    dim: str
    faint: str
    accent: str
    good: str
    warn: str
    bad: str
    violet: str
    cyan: str
    cursor: str
    """background of the current line"""
    match: str
    """background of a search match"""
    track: str
    """the empty part of a bar"""


DARK = Palette(
    text="#d3d7de",
    dim="#8a929e",
    faint="#565d68",
    accent="#78b0f0",
    good="#85c98f",
    warn="#e3b566",
    bad="#ef7f7f",
    violet="#b9a0ee",
    cyan="#74c7c3",
    cursor="#2a3341",
    match="#57481f",
    track="#363c46",
)

LIGHT = Palette(
    text="#24292f",
    dim="#5c6670",
    faint="#9199a3",
    accent="#1f63b5",
    good="#2a7a3b",
    warn="#95610a",
    bad="#bb2b34",
    violet="#6a45b8",
    cyan="#0f6f76",
    cursor="#d8e4f3",
    match="#ffe39a",
    track="#d5d9de",
)


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Every mark that is not a letter or a digit."""

    bar: str
    """a full cell, after the partial ones from empty to full"""
    track: str
    spark: str
    closed: str
    opened: str
    up: str
    down: str
    ok: str
    fail: str
    pause: str
    run: str
    stop: str
    cut: str
    times: str
    middot: str
    zero: str
    ellipsis: str
    left: str
    arrow: str
    """between what was and what is"""
    axis_v: str
    axis_h: str
    axis_corner: str
    braille: bool
    border: str


UNICODE = Glyphs(
    bar="╸━",
    track="─",
    spark="▁▂▃▄▅▆▇█",
    closed="▸ ",
    opened="▾ ",
    up="▲",
    down="▼",
    ok="✓",
    fail="✗",
    pause="‖",
    run="●",
    stop="■",
    cut="◆",
    times="×",
    middot="·",
    zero="·",
    ellipsis="…",
    left="←",
    arrow="→",
    axis_v="│",
    axis_h="─",
    axis_corner="└",
    braille=True,
    border="round",
)

ASCII = Glyphs(
    bar="#",
    track="-",
    spark=".:-=+*%#",
    closed="+ ",
    opened="- ",
    up="^",
    down="v",
    ok="ok",
    fail="FAIL",
    pause="||",
    run="*",
    stop="[]",
    cut="#",
    times="x",
    middot="-",
    zero="-",
    ellipsis="..",
    left="<-",
    arrow="->",
    axis_v="|",
    axis_h="-",
    axis_corner="+",
    braille=False,
    border="ascii",
)


@dataclass(frozen=True, slots=True)
class Look:
    """The palette and glyphs in force."""

    colors: Palette
    glyphs: Glyphs


def look(widget: Widget) -> Look:
    """The look in force for a mounted widget."""
    app: Any = widget.app
    return Look(DARK if app.current_theme.dark else LIGHT, ASCII if getattr(app, "ascii", False) else UNICODE)


def _theme(name: str, palette: Palette, background: str, surface: str, panel: str, *, dark: bool) -> Theme:
    return Theme(
        name=name,
        primary=palette.accent,
        secondary=palette.violet,
        accent=palette.accent,
        warning=palette.warn,
        error=palette.bad,
        success=palette.good,
        foreground=palette.text,
        background=background,
        surface=surface,
        panel=panel,
        dark=dark,
        variables={
            "line": palette.track,
            "line-focus": palette.accent,
            "text-dim": palette.dim,
            "cursor-bg": palette.cursor,
            "scrollbar": palette.track,
            "scrollbar-hover": palette.faint,
            "scrollbar-active": palette.accent,
            "scrollbar-background": background,
            "scrollbar-background-hover": background,
            "scrollbar-background-active": background,
            "scrollbar-corner-color": background,
        },
    )


THEMES = (
    _theme("luminal-dark", DARK, "#14171c", "#191d23", "#20252d", dark=True),
    _theme("luminal-light", LIGHT, "#fbfbfa", "#f3f4f4", "#e8eaec", dark=False),
)


def default_theme() -> str:
    """The theme for this terminal: `LUMINAL_TUI_THEME` (dark, light), else what `COLORFGBG` tells, else dark."""
    wanted = os.environ.get("LUMINAL_TUI_THEME", "")
    if wanted in ("dark", "light"):
        return f"luminal-{wanted}"
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return "luminal-light" if background in ("7", "15") else "luminal-dark"
