"""The explorer: as a command over a model and over a session, and as a question to an engine."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from workbench.errors import InputError, SessionError
from workbench.search.extract import extract
from workbench.session import events as ev
from workbench.session.client import attach, start_engine
from workbench.session.eclass import EClassPage, ENodeRow
from workbench.session.eclass_text import as_text
from workbench.session.explorer import Explorer, ExplorerDesk, recorded
from workbench.session.leading import Leading, keep_leading, read_leading
from workbench.session.session import CompileSession
from workbench.session.spec import SessionSpec
from workbench.session.store import SessionStore

from .conftest import Command
from .watching import Watcher

LLAMA = "llama3_tiny_4l_ts17"
MATMUL = "$t14"
"""Of group 1: a projection of 16x64 by 64x172."""


@pytest.fixture(scope="module")
def session(model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompileSession]:
    """A compiled tiny Llama."""
    folder = tmp_path_factory.mktemp("explored")
    spec = SessionSpec(
        model=str(model_path(LLAMA)), limit=4, session=str(folder / "s"), artifacts=str(folder / "a"), target="cpu"
    )
    with CompileSession(spec) as session:
        session.run()
        yield session


@pytest.fixture(scope="module")
def explorer(session: CompileSession) -> Explorer:
    return Explorer(session.store, lambda: session.view)


def at(explorer: Explorer, variable: str = "", **question: object) -> EClassPage:
    return explorer.page(ev.Explore(group=question.pop("group", 1), variable=variable, **question))  # type: ignore[arg-type]


def only(page: EClassPage, op: str) -> ENodeRow:
    (row,) = (row for row in page.rows if row.op == op)
    return row


def test_a_class_is_shown_with_its_enodes_and_the_chosen_one_first(session: CompileSession, explorer: Explorer) -> None:
    page = at(explorer, MATMUL)
    snapshot = session.saturated[1].space.snapshot
    assert page.eclass == snapshot.variables[MATMUL]
    assert {row.id for row in page.rows} == set(snapshot.nodes_of[page.eclass])
    assert (page.size, page.total, page.unfiltered) == (len(page.rows),) * 3
    assert page.options == len(session.saturated[1].space.options[page.eclass]) == sum(r.option for r in page.rows)
    assert (page.egraph_nodes, page.egraph_classes) == (snapshot.node_count, snapshot.class_count)
    product = next(row for row in page.rows if row.op == "Matmul" and "[1] " in row.term)
    assert product.term == "(Matmul [1] 16 172 64 $t12 [0] z*64 z 0 $t2 [0] z*172 z 0)"
    assert not product.option
    chosen = [row for row in page.rows if row.chosen]
    assert chosen == page.rows[:1]
    assert page.in_best
    assert page.best is not None
    assert page.best.ms == session.best[1][0].ms


def test_subsumed_enodes_are_marked_and_last(explorer: Explorer) -> None:
    page = at(explorer, "$t25")
    assert [(row.op, row.subsumed) for row in page.rows] == [("Map", False), ("Add", True)]


def test_children_say_what_they_are_and_lead_on(explorer: Explorer) -> None:
    row = only(at(explorer, "$t25"), "Map")
    shape, body, dtype = row.children
    assert (shape.place, shape.text, shape.sort, shape.value) == (1, "[1, 16, 64]", "EList", True)
    assert (dtype.text, dtype.value) == ("f32", True)
    assert (body.text, body.value) == ("(EAdd (Load $t0 [0, z*64, z] 0) (Load $t24 [0, z*64, z] 0))", False)
    element = at(explorer, eclass=body.eclass)
    assert (element.sort, element.size, element.text) == ("Elem", body.nodes, body.text)
    users = at(explorer, eclass=body.eclass, about="users")
    assert row.id in {user.id for user in users.rows}
    assert users.users == users.unfiltered == len(users.rows)


def test_users_are_counted_once_however_often_they_use_it(session: CompileSession, explorer: Explorer) -> None:
    snapshot = session.saturated[1].space.snapshot
    zero = next(c.eclass for row in at(explorer, MATMUL).rows for c in row.children if c.text == "0")
    expected = [n for n in range(snapshot.node_count) if zero in snapshot.children(n)]
    page = at(explorer, eclass=zero, about="users", limit=500)
    assert [row.id for row in page.rows] == expected
    assert any(list(snapshot.children(n)).count(zero) > 1 for n in expected)


def test_a_kernel_has_the_mean_time_of_its_calls(session: CompileSession, explorer: Explorer) -> None:
    """All kernels of all groups together take what the kernels of the whole program take."""
    assert session.view.measured is not None
    total = 0.0
    for group in session.groups:
        leading = read_leading(session.store, group.digest, "cpu")
        assert leading is not None
        kernels = extract(session.saturated[group.index].space, session.best[group.index][0].genome, {}).kernels
        assert len(leading.kernels) == len(kernels)
        assert {k.calls for k in leading.kernels.values()} == {len(group.members)}
        total += sum(k.ms * k.calls for k in leading.kernels.values())
    assert total == pytest.approx(sum(k.ms for k in session.view.measured.kernels))
    row = at(explorer, "$t25").rows[0]
    (kernel,) = row.kernels
    assert (kernel.text, kernel.name[:15], kernel.calls) == ("$t25", "map Add 1x16x64", 4)
    assert kernel.ms is not None
    assert kernel.ms > 0


def test_an_element_is_in_the_kernels_whose_body_it_is_part_of(explorer: Explorer) -> None:
    map_row = at(explorer, "$t25").rows[0]
    body = map_row.children[1].eclass
    (element,) = at(explorer, eclass=body).rows
    assert element.chosen
    assert [k.text for k in element.kernels] == ["$t25"]


def test_what_is_computed_in_place_of_its_load_says_where(session: CompileSession, tmp_path: Path) -> None:
    """With every producer inlined, an intermediate map is stored nowhere."""
    space = session.saturated[1].space
    inlined = tuple(
        next((i for i, n in enumerate(space.options[c]) if space.snapshot.op(n) == "Inline"), 0) for c in space.genes
    )
    group = session.groups[1]
    before = read_leading(session.store, group.digest, "cpu")
    try:
        keep_leading(session, group, inlined, 7, 0.5)
        explorer = Explorer(session.store, lambda: session.view)
        pages = [at(explorer, f"$t{n}") for n in range(26)]
    finally:
        assert isinstance(before, Leading)
        session.store.write(f"best/{group.digest}-cpu.msgpack", msgspec.msgpack.encode(before))
    placed = [page for page in pages if page.instead]
    assert placed
    for page in placed:
        assert not page.in_best
        assert not any(row.chosen for row in page.rows)
        assert f"candidate 7 (0.5 ms a chunk), stores it nowhere: it is computed inside {page.instead[0].text}" in (
            as_text(page)
        )
        assert "(not timed yet)" in as_text(page)


def test_another_member_shows_its_own_nodes(session: CompileSession, explorer: Explorer) -> None:
    group = session.groups[1]
    assert len(group.members) > 1
    local = int(MATMUL[2:])
    for member in group.members:
        node = list(session.programs[member].variables)[local]
        page = explorer.page(ev.Explore(node=node))
        assert (page.group, page.member, page.nodes, page.name) == (1, member, [node], MATMUL)
        assert f"node {node}: SumReduce [1, 16, 172] f32 /lm/model/layers" in as_text(page)
        assert page.eclass == at(explorer, MATMUL).eclass
        assert at(explorer, MATMUL, member=member).nodes == [node]


def test_a_chunk_that_computes_a_node_is_taken_before_one_that_reads_it(
    session: CompileSession, explorer: Explorer
) -> None:
    shared = next(i for i in session.chunks[2].inputs if i in session.chunks[1].outputs)
    assert explorer.page(ev.Explore(node=shared)).member == 1
    assert explorer.page(ev.Explore(node=shared, member=2)).member == 2


def test_pages_and_filters_count_what_they_leave_out(explorer: Explorer) -> None:
    whole = at(explorer, MATMUL)
    second = at(explorer, MATMUL, offset=2, limit=3)
    assert second.rows == whole.rows[2:5]
    assert (second.offset, second.total, second.unfiltered) == (2, whole.size, whole.size)
    assert f"3 to 5 of {whole.size} e-nodes" in as_text(second)
    some = at(explorer, MATMUL, filter="sgemm rmrm")
    assert {row.op for row in some.rows} == {"Sgemm"}
    assert some.unfiltered == whole.size
    assert f"{whole.size - len(some.rows)} left out by the filter" in as_text(some)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (ev.Explore(group=99), "there is no group 99"),
        (ev.Explore(node=99_999), "node 99999 is not in any chunk"),
        (ev.Explore(group=1, eclass=10**6), "group 1 has no e-class 1000000"),
        (ev.Explore(group=1, variable="$t\x1b"), r"\$t\\x1b is not in the program of group 1"),
        (ev.Explore(group=1, member=0), "chunk 0 is not of group 1"),
        (ev.Explore(about="rule", rule="no\x1bsuch"), r"there is no rule 'no\\x1bsuch'"),
        (ev.Explore(limit=501), "1 to 500 rows"),
        (ev.Explore(offset=-1), "from row 0 on"),
    ],
)
def test_what_is_not_there_is_said(explorer: Explorer, question: ev.Explore, said: str) -> None:
    with pytest.raises(InputError, match=said):
        explorer.page(question)


def test_what_a_rule_made_is_listed_with_its_classes(session: CompileSession, explorer: Explorer) -> None:
    fired = next(rule for rule in session.saturated[1].event.rules if rule.matches)
    page = explorer.page(ev.Explore(about="rule", rule=fired.name, group=1))
    snapshot = session.saturated[1].space.snapshot
    expected = [n for n in range(snapshot.node_count) if snapshot.made_by(n) == fired.name]
    assert [row.id for row in page.rows] == expected
    assert [row.eclass for row in page.rows] == [snapshot.class_of(n) for n in expected]
    assert page.makers_known == snapshot.knows_makers
    if not snapshot.knows_makers:
        assert "was not noted" in page.note


def test_a_record_of_the_session_answers_the_same(session: CompileSession, explorer: Explorer) -> None:
    record = Explorer(SessionStore(session.store.directory), recorded(session.store))
    for question in (ev.Explore(), ev.Explore(group=1, variable=MATMUL), ev.Explore(group=1, eclass=3, about="users")):
        assert record.page(question) == explorer.page(question)


def test_before_the_split_and_the_saturation_there_is_nothing(
    tmp_path: Path, model_path: Callable[[str], Path]
) -> None:
    spec = SessionSpec(model=str(model_path("mlp_ts17")), session=str(tmp_path / "s"), target="cpu")
    with CompileSession(spec) as session:
        explorer = Explorer(session.store, lambda: session.view)
        with pytest.raises(SessionError, match="not split yet"):
            explorer.page(ev.Explore())
        session.import_model()
        session.split()
        with pytest.raises(SessionError, match="group 0 is not saturated yet"):
            explorer.page(ev.Explore())
        session.saturate()
        page = explorer.page(ev.Explore())
        assert page.best is None
        assert "no candidate was found right yet" in as_text(page)


def test_another_saturation_takes_the_place_of_the_first_and_the_first_can_come_back(
    tmp_path: Path, model_path: Callable[[str], Path]
) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    mine = rules / "mine.egg"
    mine.write_text("")
    model = str(model_path("mlp_ts17"))
    spec = SessionSpec(model=model, session=str(tmp_path / "s"), rules=(str(rules),), target="cpu")
    with CompileSession(spec) as session:
        session.import_model()
        session.split()
        session.saturate()
        explorer = Explorer(session.store, lambda: session.view)
        before = explorer.page(ev.Explore())
        mine.write_text('(let $mine (Input 77 "mine" (F32) (ENil)))')
        session.saturate()
        assert explorer.page(ev.Explore()).egraph_nodes > before.egraph_nodes
        mine.write_text("")
        session.saturate()
        assert explorer.page(ev.Explore()) == before


def test_a_saturation_that_was_stopped_can_be_looked_at(tmp_path: Path, model_path: Callable[[str], Path]) -> None:
    """So early that nothing is lowered: there is nothing to choose, and that is said."""
    model = str(model_path("mlp_ts17"))
    spec = SessionSpec(model=model, session=str(tmp_path / "s"), target="cpu", egg_nodes=150)
    with CompileSession(spec) as session:
        session.import_model()
        session.split()
        session.saturate()
        explorer = Explorer(session.store, lambda: session.view)
        node = session.chunks[0].nodes[0]
        page = explorer.page(ev.Explore(node=node))
    assert page.stopped
    assert page.nodes == [node]
    assert page.size == len(page.rows) > 0
    assert page.options == 0
    assert f"the saturation was stopped at its {page.stopped}" in as_text(page)
    assert "no valid graph" in as_text(page)


def test_names_from_files_are_shown_escaped(tmp_path: Path, model_path: Callable[[str], Path]) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    hostile = "\x1b[31m"
    term = f'(Input 77 "in{hostile}" (F32) (ECons (MVar "dim{hostile}") (ENil)))'
    (rules / "mine.egg").write_text(f"(let $evil {term})")
    model = str(model_path("mlp_ts17"))
    spec = SessionSpec(model=model, session=str(tmp_path / "s"), rules=(str(rules),), target="cpu")
    with CompileSession(spec) as session:
        session.import_model()
        session.split()
        session.saturate()
        page = Explorer(session.store, lambda: session.view).page(ev.Explore(variable="$evil"))
    shown = json.dumps(msgspec.to_builtins(page)) + as_text(page)
    assert hostile not in shown
    assert r'(Input 77 "in\u001b[31m" f32 [(MVar "dim\u001b[31m")])' in as_text(page)


def test_the_desk_answers_on_its_own_thread_and_survives_nonsense(explorer: Explorer) -> None:
    desk = ExplorerDesk(explorer)
    answers: list[ev.Explored] = []
    all_there = threading.Event()

    def reply(answer: ev.Explored) -> None:
        answers.append(answer)
        if len(answers) == 2:
            all_there.set()

    try:
        desk.ask(ev.Explore(id=1, group=99), reply)
        desk.ask(ev.Explore(id=2, group=1), reply)
        assert all_there.wait(30)
    finally:
        desk.close()
    refused, answered = answers
    assert (refused.id, refused.page) == (1, None)
    assert "there is no group 99" in refused.error
    assert answered.page is not None
    assert (answered.id, answered.page.name) == (2, "$root")


async def test_an_engine_answers_who_asked_while_it_is_busy_and_logs_nothing(
    spec: Callable[..., SessionSpec], tmp_path: Path
) -> None:
    asking, other = Watcher(await start_engine(spec(limit=100_000))), None
    await asking.until(ev.CandidateEvaluated)
    other = Watcher(await attach(tmp_path / "s"))
    reading = asyncio.create_task(asking.to_the_end())
    page = await asking.client.explore(ev.Explore())
    assert (page.name, page.sort) == ("$root", "IRList")
    with pytest.raises(SessionError, match="there is no group 99"):
        await asking.client.explore(ev.Explore(group=99))
    assert not [e for e in asking.seen if isinstance(e, ev.SearchFinished)]
    await other.client.send(ev.Shutdown())
    await other.to_the_end()
    await reading
    assert all(isinstance(e, ev.Event) for e in other.seen)
    assert b"explored" not in (tmp_path / "s" / "events.jsonl").read_bytes()
    with pytest.raises(SessionError, match="engine is gone"):
        await asking.client.explore(ev.Explore())
    replay = await attach(tmp_path / "s")
    assert (await replay.explore(ev.Explore())).eclass == page.eclass


class TestCommand:
    """`luminal-tui explore`."""

    def test_a_session_and_a_model_give_the_same_egraph(
        self, luminal: Command, session: CompileSession, explorer: Explorer
    ) -> None:
        arguments = ("--group", "1", "--node", MATMUL, "--json")
        status, out, err = luminal("explore", session.store.directory, *arguments)
        assert (status, err) == (0, "")
        kept = json.loads(out)
        page = msgspec.convert({k: v for k, v in kept.items() if k != "model"}, EClassPage)
        assert page == at(explorer, MATMUL)
        status, out, err = luminal("explore", session.spec.model, *arguments)
        assert (status, err) == (0, "")
        fresh = json.loads(out)
        assert fresh["best"] is None
        assert [r["term"] for r in fresh["rows"]] != []
        assert {r["term"] for r in fresh["rows"]} == {r["term"] for r in kept["rows"]}

    def test_text_says_what_the_best_uses(self, luminal: Command, session: CompileSession) -> None:
        status, out, _ = luminal("explore", session.store.directory, "--group", "1", "--node", "$t25")
        assert status == 0
        assert "$t25 e-class" in out
        assert "\n  * (Map [1, 16, 64] (EAdd" in out
        assert "best: its kernel $t25 map Add 1x16x64" in out
        assert "\n  ~ (Add " in out
        assert "1 to 2 of 2 e-nodes" in out

    def test_an_egglog_program_is_run_and_what_it_reached_is_shown(self, luminal: Command, tmp_path: Path) -> None:
        program = tmp_path / "m.egg"
        text = '(datatype M (Var String) (Add M M)) (rewrite (Add a b) (Add b a)) (let e (Add (Var "x") (Var "y")))'
        text += " (run 3)"
        program.write_text(text)
        status, out, err = luminal("explore", program, "--node", "e")
        assert (status, err) == (0, "")
        assert '(Add (Var "x") (Var "y"))' in out
        assert '(Add (Var "y") (Var "x"))' in out
        assert "2 e-nodes; used by 0 e-nodes" in out
        assert "candidate" not in out
        program.write_text(f'{text} (check (= e (Var "x")))')
        status, out, _ = luminal("explore", program, "--node", "e")
        assert status == 0
        assert "2 e-nodes; used by 0 e-nodes" in out
        assert "m.egg:1" in out
        program.write_text("(")
        status, out, err = luminal("explore", program)
        assert (status, out) == (2, "")
        assert "m.egg:1" in err
        status, _, err = luminal("explore", program, "--target", "cpu")
        assert (status, "--target is for a model" in err) == (2, True)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--node", "x\x1b"), r"'x\x1b' is not a node"),
            (("--class", "-1"), "must be at least 0"),
            (("--class", "1", "--rule", "a"), "not allowed with"),
            (("--limit", "501"), "1 to 500 rows"),
            (("--target", "cuda"), "--target is for a model"),
            (("--random-weights",), "--random-weights is for a model"),
        ],
    )
    def test_what_cannot_be_is_one_line_and_status_2(
        self, luminal: Command, session: CompileSession, arguments: tuple[str, ...], said: str
    ) -> None:
        status, out, err = luminal("explore", session.store.directory, *arguments)
        assert (status, out) == (2, "")
        assert said in err
        assert err.count("\n") == 1
