"""The graph pane: groups, their chunks, their nodes, as a tree that is filled as it is unfolded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rich.style import Style
from rich.text import Text
from textual.binding import BindingType
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Tree
from textual.widgets.tree import TreeNode

from workbench.errors import printable
from workbench.session.events import ChunkInfo, GroupInfo, NodeRow
from workbench.tui import format as fmt
from workbench.tui import keymap
from workbench.tui.panes.pane import Pane
from workbench.tui.scene import Scene, Selection
from workbench.tui.theme import look

PAGE = 200
"""nodes added at a time"""
MOST_MATCHES = 500

Kind = Literal["model", "group", "chunk", "node", "operand", "more", "note"]


@dataclass(frozen=True, slots=True)
class Row:
    """What a line of the tree stands for. `offset`: of a "more" row, how many nodes are shown already."""

    kind: Kind
    group: int | None = None
    chunk: int | None = None
    node: NodeRow | None = None
    offset: int = 0

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for the same line before and after the tree is made anew."""
        return (self.kind, self.group, self.chunk, self.node.id if self.node else None)


class GraphTree(Tree[Row]):
    """A tree with our marks and movement."""

    BINDINGS: ClassVar[list[BindingType]] = keymap.bindings("move", "graph")

    def __init__(self) -> None:
        super().__init__("", Row("model"), id="graph-tree", classes="body")
        self.guide_depth = 2
        self.show_guides = False
        self.auto_expand = False

    def render_label(self, node: TreeNode[Row], base_style: Style, style: Style) -> Text:
        glyphs = look(self).glyphs
        mark = (glyphs.opened if node.is_expanded else glyphs.closed) if node.allow_expand else ""
        label = node.label if isinstance(node.label, Text) else Text(node.label)
        text = Text.assemble((mark, look(self).colors.faint), label)
        text.stylize_before(style)
        return text

    def get_label_width(self, node: TreeNode[Row]) -> int:
        label = node.label
        return 2 + (label.cell_len if isinstance(label, Text) else len(label))

    def action_down(self) -> None:
        self.action_cursor_down()

    def action_up(self) -> None:
        self.action_cursor_up()

    def action_top(self) -> None:
        self.cursor_line = 0

    def action_bottom(self) -> None:
        self.cursor_line = self.last_line

    def action_left(self) -> None:
        node = self.cursor_node
        if node is not None and node.is_expanded and node.allow_expand:
            node.collapse()
        elif node is not None and node.parent is not None:
            self.move_cursor(node.parent)

    def action_right(self) -> None:
        node = self.cursor_node
        if node is None or not node.allow_expand:
            self.scroll_relative(x=8, animate=False)
        elif node.is_expanded:
            self.action_cursor_down()
        else:
            node.expand()

    def action_xray_node(self) -> None:
        self.post_message(GraphPane.XrayAsked())

    def action_members(self) -> None:
        self.post_message(GraphPane.ExploreAsked())

    def action_fold(self) -> None:
        self.action_select_cursor()


class GraphPane(Pane):
    """The model as groups ▸ chunks ▸ nodes ▸ operands."""

    TITLE = "Graph"
    FILTER = "filter nodes: words of id, op, shape, dtype, label"

    class XrayAsked(Message):
        """Why does a rule not fire at the selected node?"""

    class ExploreAsked(Message):
        """What stands in the e-class of the selected node, or at the root of the selected group?"""

    class Selected(Message):
        """The cursor is on something else."""

        def __init__(self, selection: Selection) -> None:
            super().__init__()
            self.selection = selection

    def __init__(self) -> None:
        super().__init__()
        self.outline = GraphTree()
        self._made_from: tuple[object, ...] = ()
        self._chunks: list[ChunkInfo] = []
        self._groups: list[GroupInfo] = []
        self._rows: dict[int, list[NodeRow]] = {}
        self._filter = ""
        self._labels: dict[object, Text] = {}
        self._stage_seen: object = None

    def body(self) -> Widget:
        return self.outline

    def paint(self, scene: Scene) -> None:
        super().paint(scene)
        view = scene.view
        if view.chunks is not self._chunks:
            self._chunks, self._rows = view.chunks, {}
        self._groups = view.groups  # kept, so that no other list gets its id
        stage = (view.stage, len(view.timeline))
        missing = stage != self._stage_seen and any(not rows for rows in self._rows.values())
        self._stage_seen = stage
        if missing:
            self._rows = {chunk: rows for chunk, rows in self._rows.items() if rows}
        made_from = (id(view.chunks), id(view.groups), self._filter, scene.client, look(self))
        if made_from != self._made_from or missing:
            self._made_from = made_from
            self._make()
        self._relabel()
        self.info = f"filter {printable(self._filter, 20)}" if self._filter else ""
        self.warning = ""
        self.retitle()

    def filter_changed(self, text: str) -> None:
        self._filter = text
        self.paint(self.scene)

    def copied(self) -> str:
        node = self.outline.cursor_node
        if node is None or node.data is None:
            return ""
        row = node.data.node
        if row is None:
            return str(node.label).strip()
        operands = "".join(f"\n  {source}  {layout}" for source, layout in row.operands)
        return f"{row.id}  {row.name}  {row.shape}  {row.dtype}  {row.label}{operands}"

    def select_group(self, step: int) -> None:
        """Move the cursor to the next (+1) or previous (-1) group, around the end."""
        groups = [node for node in self.outline.root.children if node.data and node.data.kind == "group"]
        if not groups:
            return
        current = self.scene.selection.group
        places = {node.data.group: place for place, node in enumerate(groups) if node.data}
        start = places.get(current, -1 if step > 0 else 0) if current is not None else (-1 if step > 0 else 0)
        self.outline.move_cursor(groups[(start + step) % len(groups)])

    def reveal(self, group: int, chunk: int, node: int) -> bool:
        """Unfold the tree down to an HLIR node of a chunk and put the cursor on it. False where it is not there."""
        self.clear_filter()
        if self._filter:
            self.filter_changed("")
        at = self._unfolded(self.outline.root, Row("group", group))
        at = self._unfolded(at or self.outline.root, Row("chunk", group if at else None, chunk))
        while at is not None:
            found = next((c for c in at.children if c.data and c.data.node and c.data.node.id == node), None)
            if found is not None:
                self.call_after_refresh(self.outline.move_cursor, found)
                return True
            if not at.children or not at.children[-1].data or at.children[-1].data.kind != "more":
                return False
            self._show_more(at.children[-1])
        return False

    def _unfolded(self, parent: TreeNode[Row], row: Row) -> TreeNode[Row] | None:
        found = next((child for child in parent.children if child.data and child.data.key == row.key), None)
        if found is not None:
            self._fill(found)
            found.expand()
        return found

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[Row]) -> None:
        event.stop()
        row = event.node.data or Row("model")
        selection = Selection(row.group, row.chunk, row.node)
        self._detail(row.node)
        if selection != self.scene.selection:
            self.post_message(self.Selected(selection))

    def _detail(self, node: NodeRow | None) -> None:
        """What a narrow pane cuts: the label of the node, and what it reads with which layout."""
        said = node.label if node else ""
        if node is not None and node.operands:
            operands = ", ".join(f"{source}[{layout}]" for source, layout in node.operands)
            said = f"{said} {look(self).glyphs.left} {operands}"
        self.subtitle(said)

    def on_tree_node_selected(self, event: Tree.NodeSelected[Row]) -> None:
        event.stop()
        node = event.node
        if node.data is not None and node.data.kind == "more":
            self._show_more(node)
        elif node.allow_expand:
            node.toggle()

    def on_tree_node_expanded(self, event: Tree.NodeExpanded[Row]) -> None:
        event.stop()
        self._fill(event.node)

    def _make(self) -> None:
        tree, view = self.outline, self.scene.view
        opened = {node.data.key for node in tree._tree_nodes.values() if node.data and node.is_expanded}
        at = tree.cursor_node.data.key if tree.cursor_node and tree.cursor_node.data else None
        tree.clear()
        self._labels = {}
        tree.root.data = Row("model")
        tree.root.expand()
        if self._filter:
            self._add_matches()
        elif view.groups:
            for group in view.groups:
                self._add(tree.root, Row("group", group.index), Text(" "))
        else:
            for chunk in view.chunks:
                self._add(tree.root, Row("chunk", None, chunk.index), self._chunk_label(chunk))
        self._reopen(tree.root, opened)
        target = next((n for n in tree._tree_nodes.values() if n.data and n.data.key == at), tree.root)
        self.call_after_refresh(tree.move_cursor, target)

    def _reopen(self, node: TreeNode[Row], opened: set[tuple[object, ...]]) -> None:
        for child in node.children:
            if child.data and child.data.key in opened and child.allow_expand and not self._filter:
                self._fill(child)
                child.expand()
                self._reopen(child, opened)

    def _add(self, parent: TreeNode[Row], row: Row, label: Text, *, leaf: bool = False) -> TreeNode[Row]:
        return parent.add(label, row, allow_expand=not leaf)

    def _fill(self, node: TreeNode[Row]) -> None:
        row = node.data
        if row is None or node.children:
            return
        if row.kind == "group":
            group = self.scene.group(row.group)
            chunks = {chunk.index: chunk for chunk in self.scene.view.chunks}
            for member in group.members if group else ():
                if member in chunks:
                    self._add(node, Row("chunk", row.group, member), self._chunk_label(chunks[member]))
        elif row.kind == "chunk" and row.chunk is not None:
            if self._node_rows(row.chunk):
                self._add_page(node, row, 0)
            else:
                self._add(node, Row("note", row.group, row.chunk), self._dim("nothing here yet"), leaf=True)
        elif row.kind == "node" and row.node is not None:
            for source, layout in row.node.operands:
                text = f"{look(self).glyphs.left} {source}  {printable(layout)}"
                self._add(node, Row("operand", row.group, row.chunk, row.node), self._dim(text), leaf=True)

    def _add_page(self, parent: TreeNode[Row], row: Row, offset: int) -> None:
        assert row.chunk is not None
        rows = self._node_rows(row.chunk)
        for node in rows[offset : offset + PAGE]:
            self._add_node(parent, row, node)
        left = len(rows) - offset - PAGE
        if left > 0:
            label = self._dim(f"{look(self).glyphs.ellipsis} {fmt.count(left)} more")
            self._add(parent, Row("more", row.group, row.chunk, None, offset + PAGE), label, leaf=True)

    def _add_node(self, parent: TreeNode[Row], row: Row, node: NodeRow) -> None:
        self._add(parent, Row("node", row.group, row.chunk, node), self._node_label(node), leaf=not node.operands)

    def _show_more(self, more: TreeNode[Row]) -> None:
        parent, row = more.parent, more.data
        if parent is None or parent.data is None or row is None:
            return
        line = more.line
        more.remove()
        self._add_page(parent, parent.data, row.offset)
        self.call_after_refresh(self.outline.move_cursor_to_line, line)

    def _add_matches(self) -> None:
        words, found = self._filter.lower().split(), 0
        for chunk in self.scene.view.chunks:
            hits = [node for node in self._node_rows(chunk.index) if _matches(node, words)]
            if not hits:
                continue
            row = Row("chunk", self.scene.group_of(chunk.index), chunk.index)
            parent = self._add(self.outline.root, row, self._chunk_label(chunk, f"{fmt.count(len(hits))} match"))
            for node in hits[: MOST_MATCHES - found]:
                self._add_node(parent, row, node)
            parent.expand()
            found += len(hits)
            if found >= MOST_MATCHES:
                self._add(self.outline.root, Row("note"), self._dim("more matches: narrow the filter"), leaf=True)
                return
        if not found:
            self._add(self.outline.root, Row("note"), self._dim("no node matches"), leaf=True)

    def _node_rows(self, chunk: int) -> list[NodeRow]:
        if chunk not in self._rows:
            client = self.scene.client
            self._rows[chunk] = client.node_rows(chunk) if client is not None else []
        return self._rows[chunk]

    def _relabel(self) -> None:
        self._set_label(self.outline.root, self._model_label())
        for node in self.outline.root.children:
            if node.data and node.data.kind == "group":
                group = self.scene.group(node.data.group)
                if group is not None:
                    self._set_label(node, self._group_label(group))

    def _set_label(self, node: TreeNode[Row], label: Text) -> None:
        known = self._labels.get(node.id)
        if known is None or known != label:
            self._labels[node.id] = label
            node.set_label(label)

    def _dim(self, text: str) -> Text:
        return Text(text, style=look(self).colors.dim)

    def _model_label(self) -> Text:
        view, colors = self.scene.view, look(self).colors
        name = printable(view.opened.model.rpartition("/")[2], 40) if view.opened else "no session"
        parts = []
        if view.graph:
            parts.append(f"{fmt.count(view.graph.nodes)} nodes")
        if view.chunks:
            parts.append(f"{len(view.chunks)} chunks")
        if view.groups:
            parts.append(f"{len(view.groups)} groups")
        if view.graph and view.graph.dims:
            points = [info.dims for info in view.graph.points]
            values = {k: dict.fromkeys([v, *(p[k] for p in points if k in p)]) for k, v in view.graph.dims.items()}
            parts.append(" ".join(f"{printable(k, 12)}={','.join(map(str, v))}" for k, v in values.items()))
        joined = f" {look(self).glyphs.middot} ".join(parts)
        return Text.assemble((name, f"bold {colors.text}"), "  ", (joined, colors.dim))

    def _group_label(self, group: GroupInfo) -> Text:
        view, the_look = self.scene.view, look(self)
        colors, search = the_look.colors, view.search.get(group.index)
        saturation = view.saturation.get(group.index)
        best = fmt.ms(search.best_ms) + " ms" if search and search.best_ms else ""
        gain = fmt.gain(view.gain(group.index), the_look)
        label = Text.assemble(
            (f"group {group.index}", f"bold {colors.accent}"),
            (f" {the_look.glyphs.times}{len(group.members):<3}", colors.text),
            (f"{fmt.count(group.nodes):>5} nodes ", colors.dim),
            (f"{best:>10}", colors.text),
            (f" {gain:<8}", colors.good),
        )
        if saturation and saturation.result:
            label.append(f"{fmt.count(saturation.result.nodes):>8} e-nodes", style=colors.dim)
            if saturation.result.stopped:
                label.append(f"  {printable(saturation.result.stopped, 30)}", style=colors.warn)
        elif saturation and saturation.steps:
            label.append(f"{fmt.count(saturation.steps[-1].nodes):>8} e-nodes, growing", style=colors.warn)
        return label

    def _chunk_label(self, chunk: ChunkInfo, note: str = "") -> Text:
        colors = look(self).colors
        label = Text.assemble(
            (f"chunk {chunk.index:<3}", colors.cyan), (f"{fmt.count(chunk.nodes):>6} nodes", colors.dim)
        )
        if note:
            label.append(f"  {note}", style=colors.good)
        if chunk.begins_at:
            label.append(f"  behind {printable(chunk.begins_at, 60)}", style=colors.faint)
        return label

    def _node_label(self, node: NodeRow) -> Text:
        the_look = look(self)
        colors = the_look.colors
        cut = node.is_break or node.id in self.scene.view.breaks
        # The mark sits where the fold mark of an inner row would be, so that ids stay in one column.
        label = Text(style=colors.text)
        if not node.operands:
            label.append("  ")
        label.append(f"{node.id:>5} ", style=colors.faint)
        label.append(fmt.fit(printable(node.name), 11, the_look), style=colors.warn if cut else colors.violet)
        label.append(f" {the_look.glyphs.cut if cut else ' '} ", style=colors.warn)
        label.append(fmt.fit(printable(node.shape), 15, the_look), style=colors.text)
        label.append(f" {fmt.fit(printable(node.dtype), 4, the_look)} ", style=colors.cyan)
        label.append(printable(node.label, 120), style=colors.dim)
        return label


def _matches(node: NodeRow, words: list[str]) -> bool:
    text = f"{node.id} {node.name} {node.shape} {node.dtype} {node.label}".lower()
    return all(word in text for word in words)
