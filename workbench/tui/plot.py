"""A plot of the search: each candidate a dot, the best so far a stepped line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

from rich.text import Text

from workbench.tui import format as fmt
from workbench.tui.theme import Look

LABEL = 9
_BRAILLE = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


@dataclass(slots=True)
class _Canvas:
    """Points on a grid finer than the cells; a cell remembers which kinds of points it holds."""

    width: int
    height: int
    across: int
    down: int
    dots: dict[tuple[int, int], int]
    line: dict[tuple[int, int], int]

    def put(self, layer: dict[tuple[int, int], int], x: int, y: int) -> None:
        cell = (x // self.across, y // self.down)
        layer[cell] = layer.get(cell, 0) | _BRAILLE[x % self.across][y % self.down]

    def row(self, y: int, look: Look) -> Text:
        text, colors = Text(), look.colors
        for x in range(self.width):
            line, dots = self.line.get((x, y), 0), self.dots.get((x, y), 0)
            if not line and not dots:
                text.append(" ")
            elif look.glyphs.braille:
                # One colour a cell: where the line passes, candidates under it would only thicken it.
                text.append(chr(0x2800 + (line or dots)), style=colors.accent if line else colors.dim)
            else:
                text.append("=" if line else ".", style=colors.accent if line else colors.dim)
        return text


def step_plot(
    candidates: Sequence[tuple[int, float]],
    curve: Sequence[tuple[int, float]],
    last: int,
    width: int,
    height: int,
    look: Look,
) -> list[Text]:
    """`height` lines of `width` cells. `candidates` and `curve` are (index, ms); the x axis goes from 0 to `last`.

    The y axis is logarithmic. It begins at the best and ends at the first or the slower fifth of the candidates,
    whichever is more: a few very slow ones are drawn at the upper edge instead of flattening the rest."""
    glyphs, colors = look.glyphs, look.colors
    columns, rows = max(1, width - LABEL - 1), max(1, height - 2)
    times = sorted(time for _, time in candidates) or [time for _, time in curve]
    if not times:
        return []
    low = min(times[0], curve[-1][1] if curve else times[0])
    high = max(times[len(times) * 4 // 5], curve[0][1] if curve else 0.0)
    low, high = max(low, 1e-6), max(high, 1e-6)
    margin = (high / low) ** 0.04 if high > low else 1.05
    low, high = low / margin, high * margin
    decades = log(high / low)
    canvas = _Canvas(columns, rows, 2 if glyphs.braille else 1, 4 if glyphs.braille else 1, {}, {})
    wide, tall = columns * canvas.across, rows * canvas.down

    def x_of(index: int) -> int:
        return min(wide - 1, index * (wide - 1) // max(1, last))

    def y_of(time: float) -> int:
        return max(0, min(tall - 1, round(log(high / max(time, 1e-6)) / decades * (tall - 1))))

    for index, time in candidates:
        canvas.put(canvas.dots, x_of(index), y_of(time))
    end = x_of(max([index for index, _ in candidates] + [index for index, _ in curve], default=0))
    for place, (index, time) in enumerate(curve):
        until = x_of(curve[place + 1][0]) if place + 1 < len(curve) else end
        for x in range(x_of(index), until + 1):
            canvas.put(canvas.line, x, y_of(time))
        if place + 1 < len(curve):
            for y in range(y_of(time), y_of(curve[place + 1][1]) + 1):
                canvas.put(canvas.line, until, y)
    labels = {0: high, rows // 2: sqrt(low * high), rows - 1: low} if rows > 3 else {0: high, rows - 1: low}
    lines = []
    for y in range(rows):
        label = fmt.ms(labels[y]) if y in labels else ""
        lines.append(Text.assemble((f"{label:>{LABEL - 1}} ", colors.faint), (glyphs.axis_v, colors.track)))
        lines[-1].append_text(canvas.row(y, look))
    axis = " " * LABEL + glyphs.axis_corner + glyphs.axis_h * columns
    right = f"{last + 1} candidates"
    foot = " " * (LABEL + 1) + "1" + f"{right:>{max(0, columns - 1)}}"
    return [*lines, Text(axis, style=colors.track), Text(foot, style=colors.faint)]
