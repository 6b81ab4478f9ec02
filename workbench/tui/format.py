"""Numbers, times and small drawings as text of a known width."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from workbench.tui.theme import Look


def ms(value: float | None) -> str:
    """Milliseconds with about four digits, without the unit; '-' when not known."""
    if value is None:
        return "-"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.3f}"


def count(value: int) -> str:
    return f"{value:,}"


def memory(value: int) -> str:
    """Bytes in binary units."""
    amount, unit = float(value), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def clock(seconds: float) -> str:
    """m:ss, or h:mm:ss from an hour on."""
    whole = max(0, int(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def gain(value: float | None, look: Look) -> str:
    """How many times faster than the first: ×1.83; '' when not known."""
    return "" if value is None else f"{look.glyphs.times}{value:.2f}"


def fit(text: str, width: int, look: Look) -> str:
    """`text` in exactly `width` cells, cut with an ellipsis."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    mark = look.glyphs.ellipsis
    return set_cell_size(text, max(0, width - len(mark))) + mark[:width]


def bar(fraction: float, width: int, look: Look, color: str) -> Text:
    """A horizontal bar of `width` cells."""
    glyphs, parts = look.glyphs, len(look.glyphs.bar)
    filled = round(min(1.0, max(0.0, fraction)) * width * parts)
    whole, part = divmod(filled, parts)
    text = Text(glyphs.bar[-1] * whole, style=color)
    if part:
        text.append(glyphs.bar[part - 1], style=color)
    text.append(glyphs.track * (width - whole - bool(part)), style=look.colors.track)
    return text


def append_fitting(line: Text, parts: Sequence[Text], width: int) -> Text:
    """`line` with those of the parts behind it that fit into `width` cells."""
    for part in parts:
        if line.cell_len + 2 + part.cell_len <= width:
            line.append("  ").append_text(part)
    return line


def sparkline(values: Sequence[int], width: int, look: Look) -> str:
    """`values` as a line of at most `width` cells; a cell shows the largest value that falls into it."""
    if not values or not any(values):
        return ""
    cells = min(width, len(values))
    edges = [index * len(values) // cells for index in range(cells + 1)]
    peaks = [max(values[a:b]) for a, b in pairwise(edges)]
    top, marks = max(peaks), look.glyphs.spark
    return "".join(marks[(len(marks) - 1) * value // top] if value else " " for value in peaks)
