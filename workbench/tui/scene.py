"""What there is to paint: the folded session, where it comes from, and what the user has selected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from workbench.session.events import GroupInfo, NodeRow
from workbench.session.view import SessionView

if TYPE_CHECKING:
    from workbench.session.client import Client


@dataclass(frozen=True, slots=True)
class Selection:
    """What the graph's cursor is on. No group: the whole model."""

    group: int | None = None
    chunk: int | None = None
    node: NodeRow | None = None


@dataclass(slots=True)
class Scene:
    """One session as the panes see it. `elapsed` is in seconds; `connected` is false once the engine is gone."""

    client: Client | None = None
    view: SessionView = field(default_factory=SessionView)
    selection: Selection = field(default_factory=Selection)
    elapsed: float = 0.0
    connected: bool = True

    @property
    def read_only(self) -> bool:
        return self.client is not None and self.client.read_only

    @property
    def session_name(self) -> str:
        return self.client.directory.name if self.client is not None else ""

    @property
    def running(self) -> bool:
        """Whether time goes by in the engine."""
        return bool(self.view.stage) and self.connected and not self.read_only and self.view.finished is None

    def group(self, index: int | None) -> GroupInfo | None:
        """The group of that index, or None."""
        return next((group for group in self.view.groups if group.index == index), None)

    def group_of(self, chunk: int) -> int | None:
        """The index of the group that a chunk is a member of."""
        return next((group.index for group in self.view.groups if chunk in group.members), None)

    def shown_chunk(self) -> int | None:
        """The chunk whose program is shown: the selected one, or the one that stands for the selected group."""
        if self.selection.chunk is not None:
            return self.selection.chunk
        group = self.group(self.selection.group)
        if group is not None:
            return group.representative
        return self.view.chunks[0].index if self.view.chunks else None

    def searched_group(self) -> int | None:
        """The group being searched, or the one searched last."""
        searches = self.view.searches
        running = [index for index, found in searches.items() if any(not search.finished for search in found)]
        if running:
            return running[-1]
        return next(reversed(searches), None)

    def group_name(self, index: int) -> str:
        """How a group is called in titles: its number, and the break its first chunk begins behind."""
        group = self.group(index)
        if group is None:
            return f"group {index}"
        begins = next((chunk.begins_at for chunk in self.view.chunks if chunk.index == group.representative), "")
        return f"group {index} {begins}".strip()
