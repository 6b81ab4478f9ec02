"""The e-class explorer on the tiny Llama: from the graph, the rules and an X-ray into the e-graph, and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests.tui import llama
from tests.tui.drive import Driven, driven
from workbench.session import events as ev
from workbench.session import verification
from workbench.session.eclass import EClassPage
from workbench.session.explorer import Explorer
from workbench.session.session import CompileSession
from workbench.session.spec import SessionSpec
from workbench.tui.screens import explorer as screens
from workbench.tui.screens.explorer import ExplorerScreen
from workbench.tui.screens.pick_class import PickClassScreen
from workbench.tui.screens.xray import XrayScreen

LLAMA = "llama3_tiny_4l_ts17"
MATMUL = "$t14"
"""Of group 1."""


@dataclass
class Kept(llama.FakeClient):
    """Plays a real session's events, and answers from what it keeps."""

    session: CompileSession = field(kw_only=True)
    explorer: Explorer = field(kw_only=True)
    asked_about: list[ev.Explore] = field(default_factory=list)
    hold: asyncio.Event | None = None
    """Answers wait for it."""

    async def explore(self, question: ev.Explore) -> EClassPage:
        self.asked_about.append(question)
        if self.hold is not None:
            await self.hold.wait()
        return self.explorer.page(question)

    def node_rows(self, chunk: int) -> list[ev.NodeRow]:
        return self.session.store.node_rows(chunk)


@pytest.fixture(scope="module")
def session(model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompileSession]:
    folder = tmp_path_factory.mktemp("explored")
    spec = SessionSpec(
        model=str(model_path(LLAMA)), limit=1, session=str(folder / "s"), artifacts=str(folder / "a"), target="cpu"
    )
    with pytest.MonkeyPatch.context() as patch, CompileSession(spec) as session:
        patch.setattr(verification, "LATENCY_SECONDS", 0.01)
        session.run()
        yield session


@cache
def explorer_of(session: CompileSession) -> Explorer:
    return Explorer(session.store, lambda: session.view)


@asynccontextmanager
async def opened(
    session: CompileSession, size: tuple[int, int] = (80, 24), **options: object
) -> AsyncIterator[tuple[Driven, Kept]]:
    """The app on the session, the graph focused."""
    client = Kept(list(session.store.events()), session=session, explorer=explorer_of(session))
    async with driven(client, size, **options) as drive:  # type: ignore[arg-type]
        yield drive, client


def node_of(session: CompileSession, variable: str, member: int) -> int:
    return list(session.programs[member].variables)[int(variable[2:])]


async def explore_node(drive: Driven, session: CompileSession, variable: str, member: int = 1) -> ExplorerScreen:
    """Go to a node of group 1 in the graph and press m."""
    node = node_of(session, variable, member)
    assert drive.bench.graph.reveal(1, member, node)
    selection = drive.app.scene
    await drive.until(lambda: selection.selection.node is not None and selection.selection.node.id == node)
    await drive.press("m")
    screen = drive.app.screen
    assert isinstance(screen, ExplorerScreen)
    await drive.until(lambda: screen.here is not None)
    return screen


@pytest.mark.parametrize(("size", "ascii_only"), [((80, 24), True), ((160, 48), False)])
async def test_m_on_a_node_shows_its_class(session: CompileSession, size: tuple[int, int], ascii_only: bool) -> None:
    async with opened(session, size, ascii=ascii_only) as (drive, client):
        await explore_node(drive, session, "$t25")
        node = node_of(session, "$t25", 1)
        assert client.asked_about == [ev.Explore(group=1, member=1, node=node)]
        shown = " ".join(drive.screen().split())
        assert "$t25 e-class" in shown
        assert f"node {node}" in shown
        assert f"{'*' if ascii_only else '●'} (Map [1, 16, 64] (EAdd" in shown
        assert "~ (Add [1, 16, 64]" in shown
        assert "the program; subsumed" in shown
        rule = next(r for r in session.saturated[1].event.rules if r.name == "lower Add to a map")
        assert f"{rule.name} {rule.file}:{rule.line}" in shown
        assert "1 to 2 of 2 e-nodes" in shown
        if ascii_only:
            box = drive.app.screen.query_one("#explorer-box").region
            drawn = [row[box.x : box.right] for row in drive.rows()[box.y : box.bottom]]
            assert "".join(drawn).isascii()


async def test_without_a_node_the_root_of_the_group_is_shown(session: CompileSession) -> None:
    async with opened(session) as (drive, client):
        await drive.press("]", "]")
        await drive.until(lambda: drive.app.scene.selection.group == 1)
        await drive.press("m")
        await drive.until(lambda: "$root e-class" in drive.screen())
        assert client.asked_about == [ev.Explore(group=1)]


async def test_children_are_followed_and_the_way_back_is_as_it_was(session: CompileSession) -> None:
    async with opened(session) as (drive, _):
        screen = await explore_node(drive, session, MATMUL)
        first = screen.here
        assert first is not None
        await drive.press("j", "enter")
        unfolded = first.page.rows[1]
        assert first.unfolded == {unfolded.id}
        child = min((c for c in unfolded.children if not c.value), key=lambda c: c.place)
        await drive.press("j", "right")
        assert screen.here is not None
        assert screen.here.page.eclass == child.eclass
        assert screen.trail[0].title == MATMUL
        assert f"{MATMUL} > " in drive.screen()
        await drive.press("backspace")
        assert screen.here is first
        assert screen.listed.highlighted == 2
        await drive.press("left")
        assert (first.unfolded, screen.listed.highlighted) == (set(), 1)
        await drive.press("left")
        assert drive.app.screen is drive.bench


async def test_keys_typed_ahead_act_on_what_they_lead_to(session: CompileSession) -> None:
    async with opened(session) as (drive, _):
        screen = await explore_node(drive, session, "$t25")
        for key in ("enter", "j", "enter", "enter", "j", "enter"):
            drive.strike(key)
        await drive.until(lambda: len(screen.trail) == 3)
        body, load = (stop.page for stop in screen.trail[1:])
        assert body.rows[0].op == "EAdd"
        assert load.text == "(Load $t0 [0, z*64, z] 0)"


async def test_a_slow_answer_does_not_keep_the_keyboard(
    session: CompileSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screens, "AHEAD_SECONDS", 0.01)
    async with opened(session) as (drive, client):
        screen = await explore_node(drive, session, "$t25")
        client.hold = asyncio.Event()
        await drive.press("u", "j")
        assert screen.listed.highlighted == 1
        assert len(screen.trail) == 1
        client.hold.set()
        await drive.until(lambda: len(screen.trail) == 2)
        client.hold.clear()
        await drive.press("u", "escape")
        assert drive.app.screen is drive.bench
        await drive.press("m")
        await drive.until(lambda: "The session is asked." in drive.screen())
        await drive.press("escape")
        assert drive.app.screen is drive.bench


async def test_u_shows_the_users_and_the_enodes_again(session: CompileSession) -> None:
    async with opened(session) as (drive, _):
        screen = await explore_node(drive, session, MATMUL)
        await drive.press("u")
        assert screen.here is not None
        page = screen.here.page
        assert (page.about, page.unfiltered) == ("users", page.users)
        assert f"users of {MATMUL} e-class" in drive.screen()
        await drive.press("enter", "j", "enter")
        assert screen.here.page.eclass == page.rows[0].eclass
        await drive.press("backspace", "u")
        assert (screen.here.page.about, screen.here.page.name) == ("class", MATMUL)


async def test_slash_filters_and_says_what_is_left_out(session: CompileSession) -> None:
    async with opened(session) as (drive, _):
        screen = await explore_node(drive, session, MATMUL)
        assert screen.here is not None
        size = screen.here.page.size
        await drive.press("/")
        await drive.type("sgemm")
        await drive.press("enter")
        await drive.until(lambda: "left out by the filter" in drive.screen())
        assert {row.op for row in screen.here.page.rows} == {"Sgemm"}
        assert f"{size - screen.here.page.total} left out" in drive.screen()
        await drive.press("/", "escape")
        await drive.until(lambda: screen.here is not None and screen.here.page.total == size)
        assert len(screen.trail) == 1
        await drive.press("/")
        await drive.type("nothing has this")
        await drive.press("enter")
        await drive.until(lambda: f"0 of 0 e-nodes; {size} left out" in drive.screen())


async def test_large_classes_come_in_pages(session: CompileSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "PAGE", 3)
    async with opened(session) as (drive, _):
        screen = await explore_node(drive, session, MATMUL)
        assert screen.here is not None
        total = screen.here.page.total
        assert f"{total - 3} e-nodes more" in drive.screen()
        await drive.press("G", "enter")
        assert screen.here.page.offset == 3
        assert len(screen.trail) == 1
        assert f"4 to 6 of {total} e-nodes" in drive.screen()
        assert "0 to 3 before these" in drive.screen()
        await drive.press("g", "enter")
        assert screen.here.page.offset == 0


async def test_t_shows_the_node_of_the_same_member_in_the_graph(session: CompileSession) -> None:
    async with opened(session) as (drive, _):
        member = session.groups[1].members[2]
        screen = await explore_node(drive, session, MATMUL, member)
        await drive.press("enter", "j", "enter")
        assert screen.here is not None
        await drive.until(lambda: len(screen.trail) == 2)
        (node, *_) = screen.here.page.nodes
        await drive.press("t")
        assert drive.app.screen is drive.bench
        selection = drive.app.scene
        await drive.until(lambda: selection.selection.node is not None and selection.selection.node.id == node)
        assert (selection.selection.chunk, drive.bench.focused_pane) == (member, drive.bench.graph)


async def test_x_asks_why_of_the_rule_that_made_it_at_this_node(session: CompileSession) -> None:
    async with opened(session) as (drive, client):
        screen = await explore_node(drive, session, "$t25")
        await drive.press("G", "x")
        assert "The program made this e-node" in drive.app.last_toast
        await drive.press("g", "x")
        node = node_of(session, "$t25", 1)
        assert client.sent == [ev.Xray(rule="lower Add to a map", group=1, node=node)]
        assert isinstance(drive.app.screen, XrayScreen)
        await drive.press("escape")
        assert drive.app.screen is screen


async def test_m_on_a_rule_lists_what_it_made_and_leads_to_the_classes(session: CompileSession) -> None:
    async with opened(session) as (drive, client):
        await drive.press("3", "/")
        await drive.type("lower add")
        await drive.press("enter", "m")
        screen = drive.app.screen
        assert isinstance(screen, ExplorerScreen)
        await drive.until(lambda: screen.here is not None)
        assert client.asked_about == [ev.Explore(about="rule", rule="lower Add to a map")]
        assert "what 'lower Add to a map' made first" in drive.screen()
        assert screen.here is not None
        first = screen.here.page.rows[0]
        await drive.press("enter", "j", "enter")
        assert screen.here.page.eclass == first.eclass
        assert first.id in {row.id for row in screen.here.page.rows}


async def test_m_on_an_xray_goes_to_a_class_that_it_names(session: CompileSession) -> None:
    async with opened(session) as (drive, client):
        await drive.press("]", "]", "3", "x")
        question = client.sent[-1]
        assert isinstance(question, ev.Xray)
        done = ev.XrayDone(
            rule=question.rule, group=1, premises=[], first_failing=None, binding={"?a": "$t2"}, place="(dtype $t14)",
            at=client.past[-1].at + 1,
        )  # fmt: skip
        client.more.put_nowait(done)
        await drive.until(lambda: isinstance(drive.app.screen, XrayScreen) and drive.app.screen.answer is done)
        await drive.press("m")
        assert isinstance(drive.app.screen, PickClassScreen)
        assert "where it fails" in drive.screen()
        await drive.press("j", "enter")
        await drive.until(lambda: client.asked_about)
        assert client.asked_about == [ev.Explore(group=1, variable="$t14")]


async def test_y_copies_the_page(session: CompileSession, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(session) as (drive, _):
        await explore_node(drive, session, "$t25")
        copied: list[str] = []
        monkeypatch.setattr(drive.app, "copy_to_clipboard", copied.append)
        await drive.press("y")
        assert copied[0].startswith("$t25 e-class")
        assert "~ (Add [1, 16, 64]" in copied[0]


async def test_a_question_that_has_no_answer_says_why_and_closes() -> None:
    client = llama.FakeClient(llama.whole(), read_only=True, live=False)
    async with driven(client) as drive:
        await drive.press("j", "m")
        await drive.until(lambda: "has no e-graph" in drive.app.last_toast)
        await drive.until(lambda: drive.app.screen is drive.bench)


async def test_an_engine_that_is_gone_is_not_asked() -> None:
    client = llama.FakeClient(llama.under_way(), live=False)
    async with driven(client) as drive:
        await drive.until(lambda: not drive.app.scene.connected)
        await drive.press("m")
        assert "engine is gone" in drive.app.last_toast
        assert drive.app.screen is drive.bench
