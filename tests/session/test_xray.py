"""The X-ray as a command, and as a question to a running session."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from workbench.cli import main
from workbench.session import events as ev
from workbench.session.session import CompileSession
from workbench.session.spec import SessionSpec
from workbench.session.view import SessionView
from workbench.session.xray import model_desk

KEYS = {"rule", "file", "line", "node", "premises", "first_failing", "found_instead"}
LLAMA = "llama3_tiny_4l_ts17"

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """`command(*arguments)`: exit status, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["xray", *arguments])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


@pytest.fixture
def llama(model_path: Callable[[str], Path]) -> str:
    return str(model_path(LLAMA))


def test_json_has_the_keys_that_are_promised(command: Command, llama: str) -> None:
    status, out, err = command(llama, "--rule", "sgemm RmCm", "--group", "1", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert set(found) >= KEYS
    assert (found["rule"], found["file"], found["node"]) == ("sgemm RmCm", "blas/sgemm_RmCm.egg", None)
    text = Path("egg/blas/sgemm_RmCm.egg").read_text().splitlines()[found["line"] - 1]
    assert text.startswith("(rule ")
    assert all(set(p) == {"text", "matches", "counts"} for p in found["premises"])
    assert found["premises"][found["first_failing"]]["matches"] == 0
    assert "(MMul (MIter)" in found["found_instead"]


def test_a_node_is_an_id_of_any_member_or_a_variable_of_the_program(command: Command, llama: str) -> None:
    _, out, _ = command(llama, "--rule", "sgemm RmCm", "--group", "1", "--node", "$t14", "--json")
    by_variable = json.loads(out)
    assert (by_variable["variable"], by_variable["root"]) == ("$t14", "?e")
    assert by_variable["found_instead"] == "(MMul (MIter) (MNum 172))"
    _, out, _ = command(llama, "--rule", "sgemm RmCm", "--node", str(by_variable["node"]), "--json")
    by_id = json.loads(out)
    assert {**by_id, "seconds": 0} == {**by_variable, "seconds": 0}


def test_text_says_the_funnel_and_the_reason(command: Command, llama: str) -> None:
    status, out, _ = command(llama, "--rule", "sgemm RmCm", "--group", "1", "--node", "$t14")
    assert status == 0
    assert "  premise 1 holds for none of them\n    wanted  (MIter)\n    at      argument 12 (b_k)" in out
    status, out, _ = command("demo", "--rule", "dtype of Input")
    assert "every premise holds" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rule", "sgem RmCm"), "there is no rule 'sgem RmCm' (close to it: 'sgemm RmCm'"),
        (("--rule", "qqqq\x1b"), r"there is no rule 'qqqq\x1b' (luminal-tui rules MODEL lists them)"),
        (("--rule", "sgemm RmCm", "--node", "99999"), "node 99999 is not in any chunk"),
        (("--rule", "sgemm RmCm", "--node", "$t9999"), "node $t9999 is not in any chunk"),
        (("--rule", "sgemm RmCm", "--node", "a\x1bb"), r"'a\x1bb' is not a node"),
        (("--rule", "sgemm RmCm", "--node", "$t3", "--group", "77"), "there is no group 77"),
        (("--rule", "multiply by one", "--node", "$t3"), "is of sort IR"),
        ((), "--rule"),
    ],
)
def test_what_is_not_there_is_one_line_and_status_2(command: Command, arguments: tuple[str, ...], said: str) -> None:
    status, out, err = command("demo", *arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_rule_of_ones_own_is_asked_by_its_place(command: Command, tmp_path: Path) -> None:
    rule = "(rule ((= ?e (Sqrt ?s ?x)) (= (Bool) (dtype ?e))) ((set (dtype ?e) (F32))) :ruleset types)"
    (tmp_path / "mine.egg").write_text(f"\n{rule}")
    status, out, _ = command("demo", "--rule", "mine.egg:2", "--rules", str(tmp_path), "--json")
    found = json.loads(out)
    assert (status, found["file"], found["line"], found["first_failing"]) == (0, "mine.egg", 2, 1)
    assert (found["wanted"], found["found_instead"]) == ("(Bool)", "(F32)")


class TestDesk:
    """Questions to a session that goes on meanwhile."""

    @pytest.fixture
    def session(self, tmp_path: Path, llama: str) -> CompileSession:
        return CompileSession(SessionSpec(model=llama, session=str(tmp_path / "s"), target="cpu"))

    @staticmethod
    def asked(session: CompileSession, *questions: ev.Xray) -> list[ev.XrayDone]:
        """The answers, in order."""
        answers: list[ev.XrayDone] = []
        all_there = threading.Event()

        def on_event(event: ev.AnyEvent) -> None:
            if isinstance(event, ev.XrayDone):
                answers.append(event)
                if len(answers) == len(questions):
                    all_there.set()

        session.on_event = on_event
        desk = model_desk(session)
        try:
            for question in questions:
                desk.ask(question)
            assert all_there.wait(30)
        finally:
            desk.close()
        return answers

    def test_answers_are_events_that_the_view_keeps(self, session: CompileSession) -> None:
        with session:
            session.import_model()
            session.split()
            node = next(i for i, v in session.programs[1].variables.items() if v == "$t14")
            good, bad = self.asked(
                session, ev.Xray(rule="sgemm RmCm", group=1, node=node), ev.Xray(rule="nope", group=1)
            )
            assert (good.rule, good.group, good.node, good.error) == ("sgemm RmCm", 1, node, "")
            assert good.found_instead == "(MMul (MIter) (MNum 172))"
            assert "no rule 'nope'" in bad.error
            assert session.view.xray == bad
            assert session.view.failure is None
            replayed = SessionView()
            for event in session.store.events():
                replayed.apply(event)
            assert replayed.xray == bad
        assert ev.decode(ev.encode(good)) == good

    def test_before_the_split_there_is_nothing_to_ask(self, session: CompileSession) -> None:
        with session:
            (answer,) = self.asked(session, ev.Xray(rule="sgemm RmCm"))
        assert "not split yet" in answer.error

    def test_rules_that_changed_since_are_told(self, session: CompileSession, tmp_path: Path) -> None:
        with session:
            session.import_model()
            session.split()
            session.saturate()
            (same,) = self.asked(session, ev.Xray(rule="sgemm RmCm", group=0))
            (tmp_path / "more").mkdir()
            (tmp_path / "more" / "x.egg").write_text("; nothing")
            session.spec = msgspec.structs.replace(session.spec, rules=(str(tmp_path / "more"),))
            (other,) = self.asked(session, ev.Xray(rule="sgemm RmCm", group=0))
        assert same.note == ""
        assert "have changed" in other.note


def test_the_command_to_an_engine_is_read_back() -> None:
    line = msgspec.json.encode(ev.Xray(rule="a", group=1, node=2))
    assert ev.decode_command(line) == ev.Xray(rule="a", group=1, node=2)
