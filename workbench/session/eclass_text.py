"""A page of the explorer in words, for the command and the app."""

from __future__ import annotations

from workbench.session.eclass import ChildRow, EClassPage, ENodeRow, KernelUse


def as_text(page: EClassPage) -> str:
    """A page for a person."""
    lines = [*heading(page), ""]
    for row in page.rows:
        lines.append(f"  {mark(row)} {row.term}")
        if page.about != "class":
            lines.append(f"      in e-class {row.eclass}")
        lines.append(f"      {'; '.join(facts(row, page))}")
        lines += [
            f"      {child.place:>3}  {child.text}  ({described(child)})"
            for child in row.children
            if not child.value
        ]
        if values := [f"{child.place} in {child.eclass}" for child in row.children if child.value]:
            lines.append(f"           values: argument {', '.join(values)}")
    if not page.rows:
        lines.append("  none")
    lines += ["", f"  {remaining(page)}"]
    return "\n".join(lines)


def heading(page: EClassPage) -> list[str]:
    """What is shown, and what there is to know of it, a sentence or two a line."""
    where = f"group {page.group}, chunk {page.member}"
    size = f"an e-graph of {page.egraph_classes:,} e-classes and {page.egraph_nodes:,} e-nodes"
    if page.about == "rule":
        lines = [f"what '{page.rule}' made first: {counted(page.unfiltered)}", f"  {where}; {size}"]
    else:
        named = f"{page.name} " if page.name else ""
        also = f" (also {', '.join(page.names)})" if page.names else ""
        nodes = [f"  node {n}: {text}" for n, text in zip(page.nodes, page.node_texts, strict=True)]
        shown = "" if page.text in (page.name, f"#{page.eclass}") else f" = {page.text}"
        choice = f", of which {page.options:,} can be chosen" if page.searched else ""
        what = "users of " if page.about == "users" else ""
        lines = [
            f"{what}{named}e-class {page.eclass} of sort {page.sort}{shown}{also}",
            *nodes,
            f"  {where}; {size}" if page.searched else f"  {size}",
            f"  {counted(page.size)}{choice}; used by {counted(page.users)}",
        ]
        if page.searched:
            lines.append(f"  {in_best(page)}")
    if page.stopped:
        lines.append(f"  the saturation was stopped at its {page.stopped}: this is what it had reached")
    if page.note:
        lines.append(f"  {page.note}")
    return lines


def in_best(page: EClassPage) -> str:
    """What the best candidate does with the class."""
    if page.best is None:
        return "no candidate was found right yet"
    best = f"the best so far, candidate {page.best.index} ({page.best.ms:.4g} ms a chunk),"
    if page.in_best:
        return f"{best} uses it"
    if page.instead:
        more = f" and {page.more_instead} more" if page.more_instead else ""
        return f"{best} stores it nowhere: it is computed inside {', '.join(map(kernel, page.instead))}{more}"
    return f"{best} does without it"


def facts(row: ENodeRow, page: EClassPage) -> list[str]:
    """What there is to know of an e-node: its maker, and what the best candidate does with it."""
    said = [maker(row, page)]
    if row.subsumed:
        said.append("subsumed")
    if row.chosen:
        more = f" and {row.more_kernels} more" if row.more_kernels else ""
        own = [k for k in row.kernels if k.eclass == row.eclass]
        used = "its kernel" if own else "inside"
        said.append(f"best: {used} {', '.join(map(kernel, row.kernels))}{more}" if row.kernels else "best")
    elif row.option:
        said.append("can be chosen")
    return said


def described(child: ChildRow) -> str:
    """What a child is."""
    return f"{child.sort}, e-class {child.eclass}, {counted(child.nodes)}"


def maker(row: ENodeRow, page: EClassPage) -> str:
    """Who made an e-node."""
    if row.made_by:
        return f"{row.made_by}  {row.file}:{row.line}" if row.file else row.made_by
    return "the program" if page.makers_known else "made by ?"


def kernel(use: KernelUse) -> str:
    """A kernel, with its time where it was measured."""
    if use.ms is None:
        return f"{use.text} (not timed yet)"
    times = f", mean of {use.calls} calls" if use.calls > 1 else ""
    return f"{use.text} {use.name} {use.ms:.4g} ms{times}"


def mark(row: ENodeRow) -> str:
    """`*` chosen, `+` can be chosen, `~` subsumed."""
    return "*" if row.chosen else "~" if row.subsumed else "+" if row.option else " "


def counted(nodes: int) -> str:
    """A number of e-nodes."""
    return f"{nodes:,} e-node{'' if nodes == 1 else 's'}"


def remaining(page: EClassPage) -> str:
    """How much of all is shown."""
    first, last = page.offset + 1, page.offset + len(page.rows)
    shown = f"{first:,} to {last:,} of {counted(page.total)}" if page.rows else f"0 of {counted(page.total)}"
    hidden = page.unfiltered - page.total
    return f"{shown}; {hidden:,} left out by the filter" if hidden else shown
