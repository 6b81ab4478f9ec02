"""The e-graph explorer: what stands in an e-class, who uses it, what a rule made.

Answers come from what a session keeps on disk, so that the engine, a record of a session and the command give the same,
and no search is waited for."""

from __future__ import annotations

import queue
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from loguru import logger

from workbench.errors import InputError, SessionError, WorkbenchError, printable
from workbench.search.chosen import Chosen, replaced_in
from workbench.session import events as ev
from workbench.session.eclass import BestLine, EClassPage
from workbench.session.kept_egraph import MOST_KERNELS, ROOT, EGraph, Kept, RowWriter
from workbench.session.leading import Leading, leading_path, read_leading
from workbench.session.saturation import kept_name
from workbench.session.spec import EGG
from workbench.session.store import SessionStore
from workbench.session.view import SessionView

MOST_ROWS = 500
"""Rows of one page."""
MOST_FILTERED = 20_000
"""E-nodes that a filter looks at."""
KEPT = 6
"""E-graphs held in memory; the one not asked about for longest goes first."""
CONSTANT = "a scalar constant is written into its consumers and has no e-class"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a question leads: a group, the member whose HLIR ids are shown, and an e-class of its e-graph."""

    group: ev.GroupInfo
    member: int
    egraph: EGraph
    eclass: int


class Explorer:
    """Answers questions about one session's e-graphs. `view` gives the session as its events tell it. To be used from
    one thread at a time."""

    def __init__(self, store: SessionStore, view: Callable[[], SessionView]) -> None:
        self.store, self.view = store, view
        self._egraphs: OrderedDict[Path, tuple[int, EGraph]] = OrderedDict()
        self._rows: dict[int, tuple[int, list[ev.NodeRow]]] = {}
        self._best: dict[str, tuple[int, Leading | None]] = {}

    def page(self, question: ev.Explore) -> EClassPage:
        """The answer. Raises InputError for a group, node or class that is not there, SessionError where the group is
        not saturated yet."""
        view = self.view()
        if not view.groups:
            raise SessionError("the model is not split yet", "ask again when it is")
        if question.offset < 0 or not 0 < question.limit <= MOST_ROWS:
            raise InputError(f"a page has 1 to {MOST_ROWS} rows, from row 0 on")
        if question.about == "rule":
            return self._made_by_rule(view, question)
        place = self._place(view, question)
        egraph = place.egraph
        index, eclass = egraph.index, place.eclass
        leading = self._leading(place.group, egraph)
        made = egraph.chosen(leading)
        writer = RowWriter(egraph, made, leading)
        if question.about == "class":
            found: Sequence[int] = writer.ordered(index.members(eclass).tolist())
        else:
            found = index.users(eclass)  # type: ignore[assignment]  # too many for a list, where it is a number
        page = self._filled(place.group, place.member, writer, found, question)
        space = egraph.space
        is_buffer = egraph.snapshot.class_sort[eclass] == "IR"
        elsewhere = made is not None and is_buffer and eclass not in made.kernels_of
        instead = self._instead(egraph, made, eclass) if elsewhere and made is not None else []
        names = egraph.terms.names(eclass)
        nodes = self._hlir_nodes(place.member, names)
        return msgspec.structs.replace(
            page,
            eclass=eclass,
            sort=printable(egraph.snapshot.class_sort[eclass], 60),
            name=printable(names[0], 60) if names else "",
            names=[printable(name, 60) for name in names[1:]],
            nodes=[row.id for row in nodes],
            node_texts=[printable(f"{row.name} {row.shape} {row.dtype} {row.label}".rstrip()) for row in nodes],
            text=egraph.terms.short(eclass),
            size=index.size(eclass),
            users=len(index.users(eclass)),
            options=len(space.options[eclass]) if space is not None else 0,
            in_best=made is not None and eclass in made.kernels_of,
            instead=[writer.kernel(k) for k in instead[:MOST_KERNELS]],
            more_instead=max(0, len(instead) - MOST_KERNELS),
        )

    def _made_by_rule(self, view: SessionView, question: ev.Explore) -> EClassPage:
        group = self._group(view, 0 if question.group is None else question.group)
        if question.group is None:  # the first in which it made something
            made = (g for g in view.groups if len(self._egraph(view, g).index.made_by(question.rule)))
            group = next(made, group)
        egraph = self._egraph(view, group)
        rule = egraph.rules.get(question.rule)
        if rule is None:
            raise InputError(f"there is no rule '{printable(question.rule, 80)}' in group {group.index}")
        leading = self._leading(group, egraph)
        writer = RowWriter(egraph, egraph.chosen(leading), leading)
        found = egraph.index.made_by(question.rule).tolist()
        page = self._filled(group, self._member(group, question.member), writer, found, question)
        note = page.note
        if not egraph.snapshot.knows_makers:
            note = "which rule made which e-node was not noted in this saturation"
        elif rule.matches and not found:
            note = "it matched, but all that it made was there already"
        return msgspec.structs.replace(page, rule=printable(rule.name), size=len(found), note=note)

    def _filled(
        self, group: ev.GroupInfo, member: int, writer: RowWriter, found: Sequence[int], question: ev.Explore
    ) -> EClassPage:
        """The rows of a page, and what is said of the e-graph; the rest is of whoever asks."""
        egraph = writer.egraph
        words = question.filter.lower().split()
        kept, note = found, ""
        if words:
            if len(found) > MOST_FILTERED:
                note = f"the filter looks at the first {MOST_FILTERED:,} of {len(found):,} e-nodes"
            kept = [n for n in map(int, found[:MOST_FILTERED]) if writer.has(n, words)]
        rows = [writer.row(int(n)) for n in kept[question.offset : question.offset + question.limit]]
        leading = writer.leading
        current = leading is not None and writer.made is not None
        if egraph.space is None:
            note = "; ".join(part for part in (note, egraph.refused) if part)
        return EClassPage(
            group=group.index,
            member=member,
            about=question.about,
            eclass=-1,
            rows=rows,
            offset=question.offset,
            total=len(kept),
            unfiltered=len(found),
            searched=egraph.target != EGG,
            best=BestLine(leading.index, leading.ms, bool(leading.kernels)) if current and leading else None,
            makers_known=egraph.snapshot.knows_makers,
            egraph_classes=egraph.snapshot.class_count,
            egraph_nodes=egraph.snapshot.node_count,
            stopped=printable(egraph.event.stopped),
            note=printable(note, 400),
        )

    @staticmethod
    def _instead(egraph: EGraph, made: Chosen, eclass: int) -> list[int]:
        assert egraph.space is not None
        return replaced_in(egraph.space, made, egraph.index.users(eclass).tolist())

    def _leading(self, group: ev.GroupInfo, egraph: EGraph) -> Leading | None:
        stamp = _stamp(leading_path(self.store, group.digest, egraph.target))
        known = self._best.get(group.digest)
        if known is None or known[0] != stamp:
            known = self._best[group.digest] = stamp, read_leading(self.store, group.digest, egraph.target)
        return known[1]

    def _group(self, view: SessionView, index: int) -> ev.GroupInfo:
        found = next((g for g in view.groups if g.index == index), None)
        if found is None:
            raise InputError(f"there is no group {index}", f"there are groups 0 to {len(view.groups) - 1}")
        return found

    def _member(self, group: ev.GroupInfo, member: int | None) -> int:
        if member is None:
            return group.representative
        if member not in group.members:
            raise InputError(f"chunk {member} is not of group {group.index}")
        return member

    def _place(self, view: SessionView, question: ev.Explore) -> _Place:
        if question.eclass is None and not question.variable and question.node is not None:
            return self._place_of_node(view, question)
        index = question.group
        if index is None and question.member is not None:
            index = next((g.index for g in view.groups if question.member in g.members), None)
        group = self._group(view, index or 0)
        member = self._member(group, question.member)
        egraph = self._egraph(view, group)
        if question.eclass is not None:
            if not 0 <= question.eclass < egraph.snapshot.class_count:
                raise InputError(
                    f"group {group.index} has no e-class {question.eclass}",
                    f"there are e-classes 0 to {egraph.snapshot.class_count - 1}",
                )
            return _Place(group, member, egraph, question.eclass)
        variable = question.variable or ROOT
        if egraph.target == EGG and not question.variable:
            if not egraph.snapshot.class_count:
                raise InputError("the program left no e-classes")
            return _Place(group, member, egraph, egraph.snapshot.variables.get(ROOT, 0))
        found = egraph.snapshot.variables.get(variable)
        if found is None:
            raise InputError(f"{printable(variable, 40)} is not in the program of group {group.index}")
        return _Place(group, member, egraph, found)

    def _place_of_node(self, view: SessionView, question: ev.Explore) -> _Place:
        """A chunk that computes the node is taken before one that reads it."""
        best: tuple[bool, int, int] | None = None
        chunks = {c.index: c for c in view.chunks}
        for group in view.groups:
            if question.group not in (None, group.index):
                continue
            for member in group.members:
                if question.member not in (None, member):
                    continue
                ids = [row.id for row in self._node_rows(member)]
                if question.node in ids:
                    reads = member in chunks and question.node in chunks[member].inputs
                    found = (reads, member, ids.index(question.node))
                    best = found if best is None else min(best, found)
        if best is None:
            where = "any chunk" if question.group is None else f"group {question.group}"
            raise InputError(f"node {question.node} is not in {where}", f"the graph pane shows ids; {CONSTANT}")
        _, member, local = best
        group = next(g for g in view.groups if member in g.members)
        egraph = self._egraph(view, group)
        eclass = egraph.snapshot.variables.get(f"$t{local}")
        if eclass is None:
            raise SessionError(f"node {question.node} is not in the kept e-graph", "saturate again")
        return _Place(group, member, egraph, eclass)

    def _node_rows(self, chunk: int) -> list[ev.NodeRow]:
        """The nodes of a chunk by local number: node N is `$tN` in its program."""
        stamp = _stamp(self.store / f"chunks/chunk_{chunk}.json")
        known = self._rows.get(chunk)
        if known is None or known[0] != stamp:
            known = self._rows[chunk] = stamp, self.store.node_rows(chunk)
        return known[1]

    def _hlir_nodes(self, member: int, names: Sequence[str]) -> list[ev.NodeRow]:
        rows = self._node_rows(member)
        local = [int(name[2:]) for name in names if re.fullmatch(r"\$t[0-9]{1,9}", name)]
        return [rows[n] for n in local if n < len(rows)]

    def _egraph(self, view: SessionView, group: ev.GroupInfo) -> EGraph:
        """The e-graph kept last for a group, read once."""
        target = view.opened.target if view.opened is not None else "*"
        paths = self.store.directory.glob(kept_name(group.digest, target, "*"))
        newest = max(((_stamp(path), path) for path in paths), default=None)
        if newest is None:
            raise SessionError(f"group {group.index} is not saturated yet", "ask again when it is")
        stamp, path = newest
        known = self._egraphs.get(path)
        if known is None or known[0] != stamp:
            try:
                kept = msgspec.msgpack.decode(path.read_bytes(), type=Kept)
            except (OSError, msgspec.DecodeError) as error:
                raise SessionError(f"{path}: cannot be read: {error}", "saturate again") from None
            known = self._egraphs[path] = stamp, EGraph(kept, target)
        self._egraphs.move_to_end(path)
        while len(self._egraphs) > KEPT:
            self._egraphs.popitem(last=False)
        return known[1]


def _stamp(path: Path) -> int:
    """When a file was written, in nanoseconds; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def recorded(store: SessionStore) -> Callable[[], SessionView]:
    """A session's view as its log tells it, read anew when the log has grown."""
    known: list[tuple[int, SessionView]] = []

    def view() -> SessionView:
        try:
            size = (store / "events.jsonl").stat().st_size
        except OSError:
            size = 0
        if not known or known[0][0] != size:
            folded = SessionView()
            for event in store.events():
                folded.apply(event)
            known[:] = [(size, folded)]
        return known[0][1]

    return view


class ExplorerDesk:
    """Answers the questions of clients one after another on a thread of its own, while the session goes on."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        self._questions: queue.SimpleQueue[tuple[ev.Explore, Callable[[ev.Explored], None]] | None]
        self._questions = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, question: ev.Explore, reply: Callable[[ev.Explored], None]) -> None:
        """Queue a question; `reply` is called with its answer, on the desk's thread."""
        self._questions.put((question, reply))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="explorer", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread; what is not answered stays so."""
        self._questions.put(None)
        if self._thread is not None:
            self._thread.join(5)

    def _work(self) -> None:
        while (asked := self._questions.get()) is not None:
            question, reply = asked
            try:
                answer = ev.Explored(id=question.id, page=self.explorer.page(question))
            except WorkbenchError as error:
                answer = ev.Explored(id=question.id, error=str(error))
            except Exception as error:
                logger.exception("the explorer failed")
                said = f"internal error: {type(error).__name__}: {printable(str(error))}"
                answer = ev.Explored(id=question.id, error=said)
            reply(answer)
