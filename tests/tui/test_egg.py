"""The screen of an egglog program, on sessions that really ran."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from textual.events import Resize

from tests.tui.drive import SIZES, driven
from tests.tui.llama import FakeClient, whole
from workbench.errors import WorkbenchError
from workbench.session import events as ev
from workbench.session.eclass import EClassPage
from workbench.session.egg import EggSession
from workbench.session.explorer import Explorer
from workbench.session.spec import SessionSpec
from workbench.session.store import SessionStore
from workbench.session.view import SessionView
from workbench.tui.scene import Scene
from workbench.tui.screens.egg import EggScreen
from workbench.tui.screens.workbench import WorkbenchScreen

Recorded = Callable[..., FakeClient]

PROGRAM = """(datatype E (Num i64) (Add E E))
(rewrite (Add a b) (Add b a) :name "turn round")
(rewrite (Add a (Num 0)) a :name "drop zero")
(let $x (Add (Num 1) (Num 2)))
(run 2)
(extract $x)
(print-function Add 10)
(check (= $x (Add (Num 2) (Num 1))))
"""


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """`recorded(text)`: a client that plays a run of the program sums.egg."""
    monkeypatch.chdir(tmp_path)

    def play(text: str = PROGRAM) -> FakeClient:
        (tmp_path / "sums.egg").write_text(text)
        told: list[ev.AnyEvent] = []
        with EggSession(SessionSpec(model="sums.egg", session=str(tmp_path / "s"))) as session:
            told.append(session.view.opened)  # type: ignore[arg-type]
            session.on_event = told.append
            try:
                session.run()
            except WorkbenchError:
                assert session.view.failure is not None
        return FakeClient(told, directory=tmp_path / "s", texts={0: text})

    return play


@pytest.mark.parametrize("size", SIZES)
async def test_program_rules_and_outputs_are_there(size: tuple[int, int], recorded: Recorded) -> None:
    async with driven(recorded(), size) as drive:
        assert isinstance(drive.app.screen, EggScreen)
        seen = ""
        for key in "123":
            await drive.press(key)
            await drive.until(lambda key=key: drive.bench.focused_pane is drive.bench.panes[int(key) - 1])
            seen += drive.screen()
        for said in ("(rewrite (Add a b)", "turn round", "drop zero", "(extract $x)", "(Add (Num 1) (Num 2))", "done"):
            assert said in seen
        assert "Graph" not in seen
        assert "Search" not in seen
        assert "new seed" not in seen


async def test_the_line_of_an_error_is_marked_and_gone_to(recorded: Recorded) -> None:
    text = "\n" * 60 + PROGRAM.replace("(check (= $x (Add (Num 2) (Num 1))))", "(check (= $x (Num 4)))")
    async with driven(recorded(text)) as drive:
        view = drive.bench.program.program
        await drive.until(lambda: view.cursor == 67)
        assert view.marked is not None
        assert view.marked[0] == 67
        assert "sums.egg:68: Check failed" in drive.screen()
        assert "failed" in drive.rows()[0]


async def test_the_line_that_runs_is_marked(recorded: Recorded) -> None:
    client = recorded()
    read = next(e for e in client.past if isinstance(e, ev.ProgramRead))
    client.past = [*client.past[: client.past.index(read) + 1], ev.ProgramAt(file="sums.egg", line=5, kind="run")]
    async with driven(client, begun=False) as drive:
        await drive.until(lambda: isinstance(drive.app.screen, EggScreen) and drive.bench.program.program.marked)
        marked = drive.bench.program.program.marked
        assert marked is not None
        assert marked[0] == 4
        await drive.until(lambda: "running at line 5" in drive.screen())


async def test_keys_ask_the_engine(recorded: Recorded) -> None:
    client = recorded()
    async with driven(client) as drive:
        await drive.press("s", "p", "c")
        await drive.until(lambda: len(client.sent) == 3)
        assert client.sent == [ev.Rerun(stage="saturate"), ev.TogglePause(), ev.Cancel()]
        await drive.press("r", "n", "b", "4")  # keys of models do nothing here
        await drive.press("2", "x")
        await drive.until(lambda: len(client.sent) == 4)
        question = client.sent[3]
        assert isinstance(question, ev.Xray)
        answer = ev.XrayDone(rule=question.rule, group=None, file="sums.egg", line=2, fired=3, at=99.0)
        client.more.put_nowait(answer)
        await drive.until(lambda: "3 matches in the program" in drive.screen())
        await drive.press("escape", "question_mark")
        await drive.until(lambda: "Run the program again" in drive.screen())
        assert "Search again" not in drive.screen()


async def test_outputs_are_cut_and_counted(recorded: Recorded) -> None:
    rows = "".join(f"(Num {n})\n" for n in range(300))
    text = PROGRAM.replace("(print-function Add 10)", f"{rows}(print-function Num 1000)")
    async with driven(recorded(text)) as drive:
        await drive.press("3", "g")
        lines = [line.plain for line in drive.bench.panes[2].board.lines]  # type: ignore[attr-defined]
        assert any("and 102 more lines" in line for line in lines)


async def test_a_model_after_a_program_gets_its_panes(recorded: Recorded) -> None:
    model = FakeClient(whole())

    async def opener(target: object) -> FakeClient:
        return model

    async with driven(recorded(), opener=opener) as drive:
        assert isinstance(drive.app.screen, EggScreen)
        await drive.app.open("model.onnx")
        await drive.until(lambda: type(drive.app.screen) is WorkbenchScreen)
        await drive.until(lambda: "Graph" in drive.screen())


@dataclass
class Explorable(FakeClient):
    """Answers the explorer from what the session kept."""

    asked_about: list[ev.Explore] = field(default_factory=list)

    async def explore(self, question: ev.Explore) -> EClassPage:
        self.asked_about.append(question)
        view = SessionView()
        for event in self.past:
            view.apply(event)
        return Explorer(SessionStore(self.directory), lambda: view).page(question)


async def test_a_pane_that_was_resized_shows_the_scene_of_now(recorded: Recorded) -> None:
    async with driven(recorded()) as drive:
        rules = drive.bench.rules
        await drive.until(lambda: rules.table.row_count == 2)
        now, empty = rules.scene, Scene()
        rules.scene = empty
        rules.on_resize(Resize(rules.size, rules.size))
        rules.paint(now)
        await drive.pilot.pause()
        assert rules.scene is now
        assert rules.table.row_count == 2


async def test_m_opens_the_class_of_the_variable_on_the_line(recorded: Recorded) -> None:
    played = recorded()
    client = Explorable(played.past, directory=played.directory, texts=played.texts)
    async with driven(client) as drive:
        await drive.press("1", "j", "j", "j", "m")
        await drive.until(lambda: "$x e-class" in drive.screen())
        assert client.asked_about == [ev.Explore(variable="$x")]
        assert "(Add (Num 2) (Num 1))" in drive.screen()
        assert "2 e-nodes; used by 0 e-nodes" in drive.screen()
        await drive.press("escape", "2", "m")
        await drive.until(lambda: len(client.asked_about) == 2)
