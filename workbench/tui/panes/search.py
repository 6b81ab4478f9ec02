"""The search pane: how far it is, what it found, what it rejected, and how the result measures."""

from __future__ import annotations

from time import monotonic

from rich.text import Text
from textual.events import Resize
from textual.widget import Widget

from workbench.errors import printable
from workbench.session.view import SearchView
from workbench.tui import format as fmt
from workbench.tui.lines import Lines
from workbench.tui.panes.pane import Pane
from workbench.tui.plot import step_plot
from workbench.tui.scene import Scene
from workbench.tui.theme import Look, look

REDRAW_SECONDS = 0.5
"""the plot is drawn at most twice a second"""
MOST_GROUPS = 8
"""groups with a bar of their own; more would push the plot out of view"""


class SearchPane(Pane):
    """Progress of the search of every group, and the selected group in detail."""

    TITLE = "Search"

    def __init__(self) -> None:
        super().__init__()
        self.board = Lines(id="search-board")
        self.board.add_class("body")
        self._drawn_at = 0.0
        self._drawn: object = None
        self._due = False

    def body(self) -> Widget:
        return self.board

    def paint(self, scene: Scene) -> None:
        super().paint(scene)
        now = monotonic()
        urgent = (self.group, self.board.size, look(self), scene.view.finished) != self._drawn
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
        self._drawn = (self.group, self.board.size, look(self), self.scene.view.finished)
        size = self.board.size
        self.board.show(board(self.scene, self.group, size.width - 1, size.height, look(self)))
        group, view = self.group, self.scene.view
        middot = look(self).glyphs.middot
        search = view.search.get(group) if group is not None else None
        best = f"{middot} {fmt.ms(search.best_ms)} ms " if search and search.best_ms else ""
        gain = fmt.gain(view.gain(group), look(self)) if group is not None else ""
        self.info = f"group {group} {best}{gain}".strip() if search else ""
        self.retitle()


def board(scene: Scene, group: int | None, width: int, height: int, look: Look) -> list[Text]:
    """All lines of the pane; the plot takes what height the rest leaves, and not less than eight lines."""
    view = scene.view
    if not view.search:
        return [_dim("The search has not begun.", look)]
    above = [*_verdict(scene, width, look), _total(scene, width, look), *_groups(scene, group, width, look)]
    search = view.search.get(group) if group is not None else None
    if search is None or group is None:
        not_yet = _dim(f"Group {group} has not been searched yet.", look)
        return [*above, Text(""), not_yet, *_kernels(scene, width, look)]
    below = [*_rejections(search, width, look), *_kernels(scene, width, look)]
    room = height - len(above) - len(below) - 3
    return [*above, Text(""), _headline(scene, group, search, width, look), *_plot(search, width, room, look), *below]


def _dim(text: str, look: Look) -> Text:
    return Text(text, style=look.colors.dim)


def _verdict(scene: Scene, width: int, look: Look) -> list[Text]:
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
    if view.measured is not None:
        measured = view.measured
        line = Text.assemble(("latency ", colors.dim), (f"{fmt.ms(measured.median)} ms", f"bold {colors.text}"))
        said = [f"p20 {fmt.ms(measured.p20)}", f"p80 {fmt.ms(measured.p80)}", f"{measured.runs} runs"]
        if view.stitched is not None:
            said += [f"{view.stitched.kernels} kernels", f"arena {fmt.memory(view.stitched.arena_bytes)}"]
            said += [f"{view.stitched.buffers} buffers"]
        lines.append(fmt.append_fitting(line, [Text(each, style=colors.dim) for each in said], width))
    return lines


def _bar_width(width: int) -> int:
    return max(8, min(40, width - 48))


def _total(scene: Scene, width: int, look: Look) -> Text:
    view, colors = scene.view, look.colors
    done, expected = view.overall_progress()
    started = min((search.started_at for search in view.search.values()), default=0.0)
    spent = view.timeline.get("search") or scene.elapsed - started
    tail = f"  {done:>5}/{expected}  {fmt.clock(spent)}"
    if scene.running and view.stage == "search" and done and not view.paused:
        tail += f"  about {fmt.clock(spent / done * (expected - done))} left"
    room = _bar_width(width)
    fraction = done / expected if expected else 0.0
    return Text.assemble(
        ("all       ", colors.dim), fmt.bar(fraction, room, look, colors.good), (f"{tail}", colors.text)
    )


def _groups(scene: Scene, chosen: int | None, width: int, look: Look) -> list[Text]:
    view, colors = scene.view, look.colors
    lines = []
    groups = view.groups
    if len(groups) > MOST_GROUPS:
        place = next((place for place, group in enumerate(groups) if group.index == chosen), 0)
        first = min(max(0, place - MOST_GROUPS // 2), len(groups) - MOST_GROUPS)
        groups = groups[first : first + MOST_GROUPS]
    for group in groups:
        search = view.search.get(group.index)
        done, limit = (search.done, search.limit) if search else (0, 0)
        here = group.index == chosen
        room = _bar_width(width)
        fraction = 1.0 if search and search.finished else done / limit if limit else 0.0
        lines.append(
            Text.assemble(
                (f"group {group.index:<4}", f"bold {colors.accent}" if here else colors.dim),
                fmt.bar(fraction, room, look, colors.accent if here else colors.faint),
                (f"  {done:>5}/{limit}", colors.text if search else colors.faint),
                (f"{fmt.ms(search.best_ms) if search else '-':>11} ms", colors.text if search else colors.faint),
                (f"  {fmt.gain(view.gain(group.index), look):<8}", colors.good),
                (f"{look.glyphs.times}{len(group.members)}", colors.dim),
            )
        )
    if len(groups) < len(view.groups):
        finished = sum(search.finished for search in view.search.values())
        lines.append(_dim(f"{len(groups)} of {len(view.groups)} groups shown, {finished} searched", look))
    return lines


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


def _kernels(scene: Scene, width: int, look: Look) -> list[Text]:
    measured, colors = scene.view.measured, look.colors
    if measured is None or not measured.kernels:
        return []
    name = max(12, min(36, width - 46))
    head = f"{'kernel':<{name}} {'calls':>6} {'ms':>9} {'share':>7} {'GFLOP/s':>9} {'GB/s':>8}"
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
