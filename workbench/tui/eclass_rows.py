"""The lines of the e-class explorer: a heading, and one row per e-node, child or page."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from textwrap import wrap

from rich.cells import cell_len
from rich.text import Text

from workbench.session.eclass import ChildRow, EClassPage, ENodeRow
from workbench.session.eclass_text import counted, described, facts, heading, remaining
from workbench.tui.theme import Look

INDENT = 4
"""Cells in front of a term: the fold mark, and what the search says of the e-node."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line that the cursor can be on. `eclass`: where following it leads; `offset`: the page it stands for."""

    enode: ENodeRow | None = None
    child: ChildRow | None = None
    eclass: int | None = None
    offset: int | None = None


def rows_of(page: EClassPage, unfolded: Collection[int]) -> list[Row]:
    """The rows of a page; of the e-nodes in `unfolded` their children too, values last."""
    rows: list[Row] = []
    if page.offset:
        rows.append(Row(offset=max(0, page.offset - len(page.rows))))
    for enode in page.rows:
        rows.append(Row(enode=enode))
        if enode.id in unfolded:
            if page.about != "class":
                rows.append(Row(enode, eclass=enode.eclass))
            rows += [Row(enode, c, c.eclass) for c in sorted(enode.children, key=lambda c: (c.value, c.place))]
    shown = page.offset + len(page.rows)
    if shown < page.total:
        rows.append(Row(offset=shown))
    return rows


def line_of(row: Row, page: EClassPage, unfolded: Collection[int], look: Look, width: int) -> Text:
    """A row in `width` cells; as many lines as its text needs."""
    colors, glyphs = look.colors, look.glyphs
    if row.offset is not None:
        if row.offset < page.offset:
            return Text(f"  {glyphs.ellipsis} {row.offset:,} to {page.offset:,} before these", style=colors.accent)
        left = page.total - row.offset
        return Text(f"  {glyphs.ellipsis} {counted(left)} more", style=colors.accent)
    if row.eclass is not None:
        if row.child is None:
            return Text(f"{'':{INDENT + 2}}in e-class {row.eclass}", style=colors.accent)
        return _child(row.child, look, width)
    assert row.enode is not None
    return _enode(row.enode, page, row.enode.id in unfolded, look, width)


def _child(child: ChildRow, look: Look, width: int) -> Text:
    colors = look.colors
    first, *rest = wrap(child.text, max(20, width - INDENT - 6)) or [""]
    style = colors.dim if child.value else colors.text
    text = Text.assemble((f"{'':{INDENT}}{child.place:>3}  ", colors.faint), (first, style))
    for line in rest:
        text.append(f"\n{'':{INDENT + 5}}{line}", style=style)
    said = f"  {described(child)}"
    if cell_len(text.plain.rpartition("\n")[2]) + len(said) > width:
        text.append(f"\n{'':{INDENT + 3}}")
    return text.append(said, style=colors.faint)


def _enode(enode: ENodeRow, page: EClassPage, unfolded: bool, look: Look, width: int) -> Text:
    colors, glyphs = look.colors, look.glyphs
    fold = (glyphs.opened if unfolded else glyphs.closed) if enode.children or page.about != "class" else "  "
    if enode.chosen:
        mark, style = glyphs.run, colors.good
    elif enode.subsumed:
        mark, style = "~", colors.faint
    else:
        mark, style = ("+", colors.text) if enode.option else (" ", colors.dim)
    first, *rest = wrap(enode.term, max(20, width - INDENT)) or [""]
    text = Text.assemble((fold, colors.faint), (f"{mark} ", style), (first, style))
    for line in rest:
        text.append(f"\n{'':{INDENT}}{line}", style=style)
    made, *more = facts(enode, page)
    known = bool(enode.made_by)
    said = Text.assemble((made, colors.violet if known else colors.faint))
    for fact in more:
        said.append(f"; {fact}", style=colors.good if enode.chosen else colors.dim)
    room = width - cell_len(text.plain.rpartition("\n")[2])
    if not rest and said.cell_len + 2 <= room:
        return text.append(" " * (room - said.cell_len)).append_text(said)
    if said.cell_len <= width - INDENT - 2:
        return text.append(f"\n{'':{INDENT + 2}}").append_text(said)
    for line in wrap(said.plain, max(20, width - INDENT - 2)):
        text.append(f"\n{'':{INDENT + 2}}{line}", style=colors.good if enode.chosen else colors.dim)
    return text


def heading_lines(page: EClassPage, look: Look, width: int) -> list[Text]:
    """What the page is about."""
    colors = look.colors
    first, *rest = heading(page)
    lines = [Text(line, style=f"bold {colors.text}") for line in wrap(first, width)]
    for said in rest:
        warns = said.strip() in (page.note,) or said.lstrip().startswith("the saturation was stopped")
        lines += [Text(line, style=colors.warn if warns else colors.dim) for line in wrap(said.strip(), width)]
    return lines


def footing(page: EClassPage) -> str:
    """How much of all the page shows."""
    return remaining(page)
