"""The search pane: how far it is, what it found, what it rejected, and how the result measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.binding import BindingType
from textual.events import Resize
from textual.message import Message
from textual.widget import Widget

from workbench.errors import printable
from workbench.session.events import GroupInfo, Measured
from workbench.session.points import as_text, point_text
from workbench.session.view import SearchView, SessionView
from workbench.tui import format as fmt
from workbench.tui import keymap
from workbench.tui.lines import Lines
from workbench.tui.panes.pane import Pane
from workbench.tui.plot import step_plot
from workbench.tui.scene import Scene
from workbench.tui.theme import Look, look

REDRAW_SECONDS = 0.5
"""the plot is drawn at most twice a second"""
MOST_BARS = 8
"""searches with a bar of their own; more would push the plot out of view"""
WIDEST_NAME = 26
"""cells of what is before a bar"""


class SearchBoard(Lines):
    """The lines of the pane, and its keys."""

    BINDINGS: ClassVar[list[BindingType]] = keymap.bindings("search")

    class StepPoint(Message):
        """The search at another of the group's points is asked for: the next (+1) or the previous (-1)."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    def action_next_point(self) -> None:
        self.post_message(self.StepPoint(+1))

    def action_previous_point(self) -> None:
        self.post_message(self.StepPoint(-1))


class SearchPane(Pane):
    """Progress of the search of every group, and the selected group in detail."""

    TITLE = "Search"

    def __init__(self) -> None:
        super().__init__()
        self._chosen_point: int | None = None
        self.board = SearchBoard(id="search-board")
        self.board.add_class("body")
        self._drawn_at = 0.0
        self._drawn: object = None
        self._due = False

    def body(self) -> Widget:
        return self.board

    def paint(self, scene: Scene) -> None:
        super().paint(scene)
        now = monotonic()
        urgent = (self.group, self.point, self.board.size, look(self), scene.view.finished) != self._drawn
        if urgent or now - self._drawn_at >= REDRAW_SECONDS:
            self._draw()
        elif not self._due:
            self._due = True
            self.set_timer(REDRAW_SECONDS - (now - self._drawn_at), self._draw)

    def on_resize(self, event: Resize) -> None:
        self._draw()

    @property
    def group(self) -> int | None:
        """The group shown in detail: the selected one, else the one being searched."""
        chosen = self.scene.selection.group
        return self.scene.searched_group() if chosen is None else chosen

    def copied(self) -> str:
        return "\n".join(line.plain.rstrip() for line in self.board.lines)

    def _draw(self) -> None:
        self._due, self._drawn_at = False, monotonic()
        self._drawn = (self.group, self.point, self.board.size, look(self), self.scene.view.finished)
        size = self.board.size
        self.board.show(board(self.scene, self.group, self.point, size.width - 1, size.height, look(self)))
        middot = look(self).glyphs.middot
        search = search_of(self.scene.view, self.group, self.point)
        self.info = ""
        if search is not None:
            best = f"{middot} {fmt.ms(search.best_ms)} ms " if search.best_ms else ""
            where = f"{as_text(search.dims)} " if search.dims else ""
            self.info = f"group {self.group} {where}{best}{fmt.gain(search.gain, look(self))}".strip()
        self.retitle()

    @property
    def point(self) -> int:
        """The point of the group that is shown in detail: the selected one, else the one being searched, else the
        representative."""
        searches = self.scene.view.searches.get(self.group, []) if self.group is not None else []
        if self._chosen_point is not None:
            return min(self._chosen_point, max(0, len(searches) - 1))
        return next((place for place, search in enumerate(searches) if not search.finished), 0)

    def on_search_board_step_point(self, event: SearchBoard.StepPoint) -> None:
        event.stop()
        searches = self.scene.view.searches.get(self.group, []) if self.group is not None else []
        if len(searches) > 1:
            self._chosen_point = (self.point + event.step) % len(searches)
            self._draw()


def search_of(view: SessionView, group: int | None, point: int) -> SearchView | None:
    """The search of a group at one of its points."""
    searches = view.searches.get(group, []) if group is not None else []
    return searches[point] if point < len(searches) else None


def board(scene: Scene, group: int | None, point: int, width: int, height: int, look: Look) -> list[Text]:
    """All lines of the pane; the plot takes what height the rest leaves, and not less than eight lines."""
    view = scene.view
    if not view.searches:
        return [_dim("The search has not begun.", look)]
    search = search_of(view, group, point)
    whole = _whole_at(view, search)
    above = [
        *_verdict(scene, whole, width, look),
        _total(scene, width, look),
        *_bars(scene, group, point, width, look),
    ]
    if search is None or group is None:
        not_yet = _dim(f"Group {group} has not been searched yet.", look)
        return [*above, Text(""), not_yet, *_kernels(view, whole, width, look)]
    below = [*_rejections(search, width, look), *_kernels(view, whole, width, look)]
    room = height - len(above) - len(below) - 3
    title = [_headline(scene, group, search, width, look)]
    if search.dims:
        title.append(Text(f"at {point_text(search.dims, search.ranges)}", style=look.colors.text))
        room -= 1
    return [*above, Text(""), *title, *_plot(search, width, room, look), *below]


def _dim(text: str, look: Look) -> Text:
    return Text(text, style=look.colors.dim)


def _whole_at(view: SessionView, search: SearchView | None) -> int:
    """The point of the whole program whose latency and kernels are shown beside a group's search: the first that is
    the same to the group."""
    infos = view.graph.points if view.graph is not None else []
    wanted = search.dims if search is not None else {}
    return next((place for place, info in enumerate(infos) if wanted.items() <= info.dims.items()), 0)


def _measured(view: SessionView, whole: int) -> Measured | None:
    found = view.points.get(whole)
    return found.measured if found is not None else None


def _at(view: SessionView, whole: int) -> str:
    dims = view.point_info(whole).dims
    return f" at {as_text(dims)}" if dims else ""


def _verdict(scene: Scene, whole: int, width: int, look: Look) -> list[Text]:
    view, colors, glyphs = scene.view, look.colors, look.glyphs
    lines = []
    if view.verified is not None:
        ok = view.verified.ok
        word = f"{glyphs.ok} verified" if ok else f"{glyphs.fail} wrong"
        lines.append(
            Text.assemble(
                (word, f"bold {colors.good if ok else colors.bad}"),
                (f"  max abs err {view.verified.max_abs_err:.2e}  rel {view.verified.max_rel_err:.2e}", colors.text),
                (f"  against {printable(view.verified.reference, 40)}", colors.dim),
            )
        )
    measured = _measured(view, whole)
    if measured is not None:
        head = f"latency{_at(view, whole)} "
        line = Text.assemble((head, colors.dim), (f"{fmt.ms(measured.median)} ms", f"bold {colors.text}"))
        said = [f"p20 {fmt.ms(measured.p20)}", f"p80 {fmt.ms(measured.p80)}", f"{measured.runs} runs"]
        stitched = view.points[whole].stitched
        if stitched is not None:
            said += [f"{stitched.kernels} kernels", f"arena {fmt.memory(stitched.arena_bytes)}"]
            said += [f"{stitched.buffers} buffers"]
        lines.append(fmt.append_fitting(line, [Text(each, style=colors.dim) for each in said], width))
    others = [(place, found) for place in view.points if place != whole and (found := _measured(view, place))]
    if others:
        for written in (as_text, _short):
            parts = [
                Text(f"{written(view.point_info(place).dims)} {fmt.ms(found.median)} ms", style=colors.dim)
                for place, found in others
            ]
            if sum(part.cell_len + 2 for part in parts) + 14 <= width:
                break
        lines.append(fmt.append_fitting(Text("  other points", style=colors.faint), parts, width))
    return lines


def _bar_width(width: int) -> int:
    return max(8, min(40, width - 48))


def _total(scene: Scene, width: int, look: Look) -> Text:
    view, colors = scene.view, look.colors
    done, expected = view.overall_progress()
    started = min((search.started_at for found in view.searches.values() for search in found), default=0.0)
    spent = view.timeline.get("search") or scene.elapsed - started
    tail = f"  {done:>5}/{expected}  {fmt.clock(spent)}"
    if scene.running and view.stage == "search" and done and not view.paused:
        tail += f"  about {fmt.clock(spent / done * (expected - done))} left"
    room = _bar_width(width)
    fraction = done / expected if expected else 0.0
    return Text.assemble(
        ("all       ", colors.dim), fmt.bar(fraction, room, look, colors.good), (f"{tail}", colors.text)
    )


def _bars(scene: Scene, chosen: int | None, point: int, width: int, look: Look) -> list[Text]:
    """A bar for each search: of a group, or of a group at each of its points."""
    view = scene.view
    rows = [(group, place) for group in view.groups for place in range(group.points)]
    shown = rows
    if len(rows) > MOST_BARS:
        here = next((i for i, (group, place) in enumerate(rows) if (group.index, place) == (chosen, point)), 0)
        first = min(max(0, here - MOST_BARS // 2), len(rows) - MOST_BARS)
        shown = rows[first : first + MOST_BARS]
    searches = [search_of(view, group.index, place) for group, place in shown]
    names = _bar_names([(group, search) for (group, _), search in zip(shown, searches, strict=True)])
    room = max(10, min(WIDEST_NAME, max(map(cell_len, names), default=0) + 1))
    lines = []
    for (group, place), search, name in zip(shown, searches, names, strict=True):
        here = (group.index, place) == (chosen, point)
        lines.append(_bar(group, search, here, fmt.fit(name, room, look), width, look))
    if len(shown) < len(rows):
        finished = sum(search.finished for found in view.searches.values() for search in found)
        what = "groups" if len(rows) == len(view.groups) else "searches"
        lines.append(_dim(f"{len(shown)} of {len(rows)} {what} shown, {finished} searched", look))
    return lines


def _short(dims: Mapping[str, int]) -> str:
    """A point by its values alone: (1, 64)."""
    return f"({', '.join(map(str, dims.values()))})"


def _bar_names(rows: Sequence[tuple[GroupInfo, SearchView | None]]) -> list[str]:
    """What stands before the bars; with the values of points alone where the names of dimensions are too long."""
    for written in (as_text, _short):
        names = [
            f"group {group.index}" + (f" {written(search.dims)}" if search and search.dims else "")
            for group, search in rows
        ]
        if max(map(cell_len, names), default=0) < WIDEST_NAME:
            break
    return names


def _bar(group: GroupInfo, search: SearchView | None, here: bool, name: str, width: int, look: Look) -> Text:
    colors = look.colors
    done, limit = (search.done, search.limit) if search else (0, 0)
    fraction = 1.0 if search and search.finished else done / limit if limit else 0.0
    cells = max(8, _bar_width(width) - (cell_len(name) - 10))
    return Text.assemble(
        (name, f"bold {colors.accent}" if here else colors.dim),
        fmt.bar(fraction, cells, look, colors.accent if here else colors.faint),
        (f"  {done:>5}/{limit}", colors.text if search else colors.faint),
        (f"{fmt.ms(search.best_ms) if search else '-':>11} ms", colors.text if search else colors.faint),
        (f"  {fmt.gain(search.gain if search else None, look):<8}", colors.good),
        (f"{look.glyphs.times}{len(group.members)}", colors.dim),
    )


def _headline(scene: Scene, group: int, search: SearchView, width: int, look: Look) -> Text:
    colors = look.colors
    line = Text.assemble((printable(scene.group_name(group), 36), f"bold {colors.text}"))
    parts = []
    if search.best_ms is not None and search.best_index is not None:
        best = ("best ", colors.dim), (f"{fmt.ms(search.best_ms)} ms", f"bold {colors.good}")
        parts.append(Text.assemble(*best, (f" #{search.best_index}", colors.dim)))
        parts.append(Text(f"first {fmt.ms(search.first_ms)}", style=colors.dim))
    parts.append(Text(f"10^{search.space_log10:.1f} genomes", style=colors.faint))
    parts.append(Text(f"{search.choices} choices", style=colors.faint))
    return fmt.append_fitting(line, parts, width)


def _plot(search: SearchView, width: int, room: int, look: Look) -> list[Text]:
    feasible = [(each.index, each.ms) for each in search.candidates if not each.reason and each.ms is not None]
    last = max(search.limit, search.done, 2) - 1
    lines = step_plot(feasible, search.best_curve, last, min(width, 120), max(8, min(room, 24)), look)
    return lines or [_dim("No candidate has been profiled yet.", look)]


def _rejections(search: SearchView, width: int, look: Look) -> list[Text]:
    colors, total = look.colors, sum(search.rejected.values())
    profiled = search.done - total
    line = Text.assemble((f"{profiled} profiled", colors.text), (f"  {total} rejected", colors.dim))
    lines = [line]
    for reason, number in sorted(search.rejected.items(), key=lambda item: -item[1]):
        part = Text.assemble((f"   {number} ", colors.warn), (printable(reason, 40), colors.dim))
        if lines[-1].cell_len + part.cell_len > width:
            lines.append(Text(" " * 10))
        lines[-1].append_text(part)
    return lines


def _kernels(view: SessionView, whole: int, width: int, look: Look) -> list[Text]:
    measured, colors = _measured(view, whole), look.colors
    if measured is None or not measured.kernels:
        return []
    name = max(12, min(36, width - 46))
    title = fmt.fit(f"kernel{_at(view, whole)}", name, look)
    head = f"{title} {'calls':>6} {'ms':>9} {'share':>7} {'GFLOP/s':>9} {'GB/s':>8}"
    total = sum(kernel.ms for kernel in measured.kernels) or 1.0
    lines = [Text(""), Text(head, style=colors.dim)]
    for kernel in sorted(measured.kernels, key=lambda kernel: -kernel.ms):
        lines.append(
            Text.assemble(
                (fmt.fit(printable(kernel.name), name, look), colors.violet),
                (f" {kernel.calls:>6} {fmt.ms(kernel.ms):>9} ", colors.text),
                (f"{kernel.ms / total:>7.1%}", colors.warn if kernel.ms / total >= 0.2 else colors.dim),
                (f" {kernel.gflops:>9.1f} {kernel.gbps:>8.1f}", colors.dim),
            )
        )
    return lines
