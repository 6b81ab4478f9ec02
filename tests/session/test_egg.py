"""A session on an egglog program: its command, its report, its engine, and what becomes of it when its file changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.errors import RuleError, SessionError, WorkbenchError
from workbench.session import events as ev
from workbench.session.client import SessionSpec, start_engine
from workbench.session.egg import EggSession, ProgramFailed
from workbench.session.explorer import Explorer
from workbench.session.recorded import Stopped
from workbench.session.spec import EGG, checked
from workbench.session.store import SessionStore

from .watching import Watcher, gone, owner

Command = Callable[..., tuple[int, str, str]]

PROGRAM = """; sums
(datatype E (Num i64) (Add E E))
(ruleset fold)
(rule ((= e (Add (Num a) (Num b)))) ((union e (Num (+ a b)))) :ruleset fold :name "fold add")
(rewrite (Add a b) (Add b a))
(rewrite (Add a (Num 0)) a)
(let $x (Add (Num 1) (Add (Num 2) (Num 3))))
(run-schedule (saturate (run fold)))
(run 2)
(extract $x)
(print-size Num)
(check (= $x (Num 6)))
"""
RULES = ["fold add", "sums.egg:5", "sums.egg:6"]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sums.egg"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def session(file: Path, tmp_path: Path) -> Iterator[EggSession]:
    with EggSession(SessionSpec(model="sums.egg", session=str(tmp_path / "s"), egg_seconds=30)) as opened:
        yield opened


class TestCommand:
    def test_json(self, luminal: Command, file: Path) -> None:
        status, out, err = luminal("egg", file.name, "--json")
        assert (status, err) == (0, "saturate …\n")
        report: dict[str, Any] = json.loads(out)
        assert (report["file"], report["outcome"], report["error"]) == ("sums.egg", "ok", None)
        assert [(c["line"], c["kind"], c["outputs"], c["steps"]) for c in report["commands"]] == [
            (8, "run-schedule", [], 3),
            (9, "run", [], 2),
            (10, "extract", ["(Num 6)"], 0),
            (11, "print", ["5"], 0),
            (12, "check", [], 0),
        ]
        assert [(r["name"], r["ruleset"], r["file"], r["line"], r["matches"]) for r in report["rules"]] == [
            ("fold add", "fold", "sums.egg", 4, 2),
            ("sums.egg:5", "", "sums.egg", 5, 4),
            ("sums.egg:6", "", "sums.egg", 6, 0),
        ]
        assert report["rules"][0]["steps"] == [1, 1, 0]
        assert [(r["name"], r["rules"], r["runs"]) for r in report["rulesets"]] == [("fold", 1, 3), ("", 2, 2)]
        assert [(f["name"], f["kind"], f["rows"]) for f in report["functions"]] == [
            ("Num", "constructor", 5),
            ("Add", "constructor", 4),
        ]
        assert report["functions"][1]["sizes"] == [2, 2, 2, 4, 4]
        assert report["egraph"] == {"classes": 5, "nodes": 9}
        assert report["seconds"] > 0
        assert json.loads((Path(report["session"]) / "report.json").read_text())["rules"] == report["rules"]

    def test_text(self, luminal: Command, file: Path) -> None:
        status, out, _ = luminal("egg", file.name)
        lines = out.splitlines()
        assert status == 0
        assert lines[:2] == ["sums.egg:10  (extract $x)", "    (Num 6)"]
        assert any("sums.egg:6" in line and "never" in line for line in lines)
        assert lines[-1].startswith("sums.egg: ok; 9 e-nodes in 5 e-classes after 5 steps")

    @pytest.mark.parametrize(
        ("change", "status", "said"),
        [
            (("(Num 6)))", "(Num 7)))"), 1, "sums.egg:12: Check failed: (= ($x) (Num 7))"),
            (("(Num 6)))", "(Num 6))"), 2, "sums.egg:13: parse error: unexpected end of file"),
            (("(let $x (Add", "(let $x (Sub"), 2, "sums.egg:7: Unbound function Sub"),
            (("(extract $x)", '(include "/etc/passwd")'), 2, "outside the directory of the program; --allow-files"),
            (("(extract $x)", "(panic \"no\")"), 2, "sums.egg:10: Panic: no"),
        ],
    )
    def test_what_fails_is_said_with_its_place(
        self, change: tuple[str, str], status: int, said: str, luminal: Command, file: Path
    ) -> None:
        file.write_text(PROGRAM.replace(*change))
        code, out, err = luminal("egg", file.name, "--json")
        last = err.splitlines()[-1]
        assert code == status
        assert last.startswith("luminal-tui: sums.egg:")
        assert said in last
        report = json.loads(out)
        assert report["outcome"] == "failed"
        assert f"{report['error']['file']}:{report['error']['line']}: {report['error']['message']}" in last

    def test_a_limit_is_named_with_the_rule_that_ran_away(self, luminal: Command, file: Path) -> None:
        file.write_text(
            "(relation n (i64))\n(rule ((n a)) ((n (+ a a)) (n (+ 1 (+ a a)))) :name \"double\")\n(n 1)\n(run 60)"
        )
        code, out, err = luminal("egg", file.name, "--json", "--egg-seconds", "1")
        last = err.splitlines()[-1]
        assert code == 1
        assert "sums.egg:4: stopped at its time limit (1 s)" in last
        assert "rule 'double' (sums.egg:2)" in last
        assert "raise --egg-seconds" in last
        report = json.loads(out)
        assert report["outcome"] == "stopped"
        assert report["functions"][0]["rows"] > 1000

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("egg", "no.egg"), "no such file: no.egg"),
            (("egg", "."), "a directory, not an .egg file"),
            (("egg", "sums.egg", "--egg-seconds", "0"), "is not a number of seconds"),
            (("egg", "sums.egg", "--egg-nodes", "-1"), "must be at least 1"),
            (("xray", "sums.egg", "--rule", "fold"), "there is no rule 'fold' (close to it: 'fold add')"),
            (("xray", "sums.egg", "--rule", "fold add", "--node", "$y"), "$y is no node of this program"),
            (("xray", "sums.egg", "--rule", "fold add", "--egg", "."), "--egg is for models"),
        ],
    )
    def test_refusals(self, arguments: tuple[str, ...], said: str, luminal: Command, file: Path) -> None:
        code, _, err = luminal(*arguments)
        assert code == 2
        assert said in err.splitlines()[-1]

    def test_xray(self, luminal: Command, file: Path) -> None:
        code, out, _ = luminal("xray", file.name, "--rule", "sums.egg:6", "--json")
        found = json.loads(out)
        assert code == 0
        assert (found["rule"], found["file"], found["line"], found["group"]) == ("sums.egg:6", "sums.egg", 6, None)
        assert [(p["text"], p["matches"]) for p in found["premises"]] == [("(Add a (Num 0))", 0)]
        assert (found["first_failing"], found["wanted"]) == (0, "(Num 0)")
        code, out, _ = luminal("xray", file.name, "--rule", "fold add", "--node", "$x")
        assert code == 0
        assert "e at $x; 2 matches in the program" in out


def test_a_run_is_told_and_kept(session: EggSession, tmp_path: Path) -> None:
    told: list[ev.AnyEvent] = []
    session.on_event = told.append
    session.run()
    kinds = [type(event).__name__ for event in told if not isinstance(event, ev.SaturationStep | ev.ProgramAt)]
    assert kinds == [
        "StageStarted",
        "ChunksSplit",
        "GroupsFormed",
        "ProgramRead",
        *["ProgramCommand"] * 5,
        "GroupSaturated",
        "ProgramFinished",
        "StageFinished",
        "SessionFinished",
    ]
    assert session.store.program(0) == PROGRAM
    opened = session.view.opened
    assert opened is not None
    assert (opened.kind, opened.target) == ("egg", "egg")
    session.close()
    assert SessionStore(tmp_path / "s").summary().status == "finished"
    with EggSession(session.spec) as again:
        assert again.view.opened is not None
        assert again.view.opened.resumed


def test_what_the_program_left_can_be_explored(session: EggSession) -> None:
    session.run()
    explorer = Explorer(session.store, lambda: session.view)
    page = explorer.page(ev.Explore(variable="$x"))
    assert (page.sort, page.name, page.note) == ("E", "$x", "")
    assert {row.term for row in page.rows} >= {"(Num 6)"}
    assert explorer.page(ev.Explore()).total > 0


class TestChanges:
    def test_a_rerun_takes_the_file_as_it_is_and_is_compared(self, session: EggSession, file: Path) -> None:
        session.run()
        file.write_text(PROGRAM.replace("(run 2)", "(rewrite (Num a) (Add (Num a) (Num 0)))\n(run 2)"))
        session.restart("search", "rerun")
        session.run("search")
        view = session.view
        assert [r.name for r in view.saturation[0].result.rules] == [*RULES, "sums.egg:9"]  # type: ignore[union-attr]
        assert view.baseline is not None
        assert [r["name"] for r in view.baseline.report["groups"][0]["rules"]] == RULES

    def test_a_broken_edit_leaves_the_last_good_run(self, session: EggSession, file: Path) -> None:
        session.run()
        file.write_text(PROGRAM.replace("(run 2)", "(run 2"))
        session.restart("saturate", "rerun")
        with pytest.raises(RuleError, match=r"sums\.egg:13: parse error"):
            session.run()
        view = session.view
        assert view.failure is not None
        assert (view.failure.kept, view.failure.file, view.failure.line) == (True, "sums.egg", 13)
        assert view.program is not None
        assert view.program.result is not None
        assert view.program.result.outcome == "ok"
        assert [r.name for r in view.saturation[0].result.rules] == RULES  # type: ignore[union-attr]
        done = session.xray(ev.Xray(rule="fold add"))
        assert (done.fired, done.premises[0].matches) == (2, 4)
        file.unlink()
        session.restart("saturate", "rerun")
        with pytest.raises(WorkbenchError, match="no such file"):
            session.run()
        assert view.saturation[0].result is not None
        file.write_text(PROGRAM)
        session.restart("saturate", "rerun")
        session.run()
        assert view.failure is None

    def test_a_failing_check_shows_what_was_reached(self, session: EggSession, file: Path) -> None:
        file.write_text(PROGRAM.replace("(Num 6)))", "(Num 7)))"))
        with pytest.raises(ProgramFailed):
            session.run()
        view = session.view
        assert view.program is not None
        assert [c.outputs for c in view.program.commands if c.outputs] == [["(Num 6)"], ["5"]]
        assert view.saturation[0].result is not None
        assert session.xray(ev.Xray(rule="fold add")).fired == 2
        with pytest.raises(WorkbenchError, match="no graph to break"):
            session.check_break(0)

    def test_before_the_first_run_there_is_nothing_to_ask(self, session: EggSession) -> None:
        with pytest.raises(SessionError, match="has not run yet"):
            session.xray(ev.Xray(rule="fold add"))

    def test_cancelling(self, session: EggSession, file: Path) -> None:
        file.write_text("(relation n (i64))\n(rule ((n a)) ((n (+ a 1))))\n(n 0)\n(run 1000000000)")
        session.on_event = lambda event: session.cancel() if isinstance(event, ev.SaturationStep) else None
        with pytest.raises(Stopped):
            session.run()
        assert session.view.cancelled
        assert session.view.program is not None
        assert session.view.program.result is not None
        assert session.view.program.result.outcome == "stopped"
        session.on_event = None
        file.write_text(PROGRAM)
        session.restart("saturate", "rerun")
        session.run()
        assert session.view.finished is not None


async def test_the_engine_serves_a_program(file: Path, tmp_path: Path) -> None:
    directory = tmp_path / "s"
    watcher = Watcher(await start_engine(checked(SessionSpec(model="sums.egg", kind=EGG, session=str(directory)))))
    await watcher.until(ev.SessionFinished)
    assert watcher.client.program(0) == PROGRAM
    assert watcher.client.rule_path("sums.egg") == file
    assert watcher.client.rule_path("../sums.egg") is None
    assert watcher.client.rule_path("/etc/passwd") is None
    await watcher.client.send(ev.Xray(rule="sums.egg:6"))
    done = await watcher.until(ev.XrayDone)
    assert (done.error, done.group, done.first_failing) == ("", None, 0)
    file.write_text(PROGRAM.replace("(run 2)", "(run 3)"))
    told = await watcher.until(ev.RulesOnDisk)
    assert told.changed == ["sums.egg"]
    await watcher.client.send(ev.Rerun(stage="saturate"))
    await watcher.until(ev.SessionFinished)
    assert "(run 3)" in watcher.client.program(0)
    engine = owner(directory)
    await watcher.client.send(ev.Shutdown())
    await watcher.to_the_end()
    gone(engine)
