"""A rule that explodes in a session: the limits are options, the rule is named, the session goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.session.conftest import Command
from workbench.errors import WorkbenchError
from workbench.session import events as ev
from workbench.session.session import CompileSession
from workbench.session.spec import SessionSpec, checked, parse_bytes
from workbench.session.xray import model_desk

EXPLOSIVE = """(ruleset own)
(rule ((= ?e (MNum ?n)) (< ?n 1000000)) ((MNum (+ ?n 1)) (MAdd ?e (MIter))) :ruleset own :name "count up")
(rule ((= ?e (MAdd ?a (MIter)))) ((MAdd (MIter) ?a)) :ruleset own :name "turn round")
"""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    directory = tmp_path / "rules"
    directory.mkdir()
    (directory / "own.egg").write_text(EXPLOSIVE)
    return directory


def test_the_command_names_the_rule_and_prints_what_was_reached(
    luminal: Command, model_path: Callable[[str], Path], rules: Path
) -> None:
    status, out, err = luminal(
        "rules", model_path("mlp_ts17"), "--rules", rules, "--egg-nodes", "900", "--json", "--session", "s"
    )
    assert status == 0
    (group,) = json.loads(out)["groups"]
    assert group["egraph"]["stopped"] == "node limit (900)"
    assert group["egraph"]["culprit"]["file"] == "own.egg"
    assert group["egraph"]["culprit"]["line"] == 2
    counted = next(r for r in group["rules"] if r["name"] == "count up")["matches"]
    assert f"'count up' (own.egg:2) matched on and on: {counted:,} times" in group["egraph"]["culprit"]["text"]
    assert group["egraph"]["culprit"]["text"] in err
    by_name = {r["name"]: r for r in group["rules"]}
    made = by_name["count up"]["enodes"] + by_name["turn round"]["enodes"]
    assert made > group["egraph"]["nodes"] / 2
    assert sum(f["rows"] for f in group["functions"] if f["name"] in ("MNum", "MAdd")) > made
    status, out, _ = luminal("rules", model_path("mlp_ts17"), "--rules", rules, "--egg-nodes", "900", "--session", "s")
    assert status == 0
    assert "saturation stopped at its node limit (900)" in out


def test_a_session_goes_on_behind_a_killed_step(
    spec: Callable[..., SessionSpec], rules: Path
) -> None:
    (rules / "own.egg").write_text(
        "(ruleset own)\n"
        '(rule ((MNum ?a) (MNum ?b) (MNum ?c) (MNum ?d) (MNum ?e) (MNum ?f) (MNum ?g) (MNum ?h)) '
        '((MMod (MNum (% (+ ?a (* ?b (+ ?c (* ?d (+ ?e (* ?f (+ ?g ?h))))))) 9973)) (MIter))) '
        ':ruleset own :name "star")'
    )
    answers: list[ev.XrayDone] = []
    with CompileSession(spec(rules=(str(rules),), egg_seconds=1.0)) as session:
        session.import_model()
        session.split()
        session.saturate()
        result = session.saturated[0].event
        assert result.stopped.startswith("time limit (1 s) inside a step of ruleset 'own'")
        assert result.culprit is not None
        assert result.culprit.text == "rule 'star' (own.egg:2) is the only one of ruleset 'own'"
        assert result.steps is not None
        assert len(session.view.saturation[0].steps) == result.steps
        assert next(r for r in result.rules if r.name.startswith("lower Add")).matches > 0
        desk = model_desk(session)
        session.on_event = lambda event: answers.append(event) if isinstance(event, ev.XrayDone) else None
        answers.append(desk._answer(ev.Xray(rule="lower Add to a map", group=0)))
        desk.close()
        assert answers[-1].premises[0].matches
        session.search()  # the kernels are there: own rules run behind the library's
        assert session.best
        (rules / "own.egg").write_text("(ruleset own)\n")
        session.restart("saturate", "rules changed")
        session.saturate(fresh=True)
        assert session.saturated[0].event.stopped == ""


def test_no_kernel_because_of_a_limit_is_said_so(spec: Callable[..., SessionSpec]) -> None:
    with CompileSession(spec(egg_nodes=20)) as session:
        session.import_model()
        session.split()
        session.saturate()
        assert session.saturated[0].event.stopped == "node limit (20)"
        with pytest.raises(WorkbenchError, match=r"no valid graph.*stopped at its node limit \(20\); rule '"):
            session.search()


@pytest.mark.parametrize(
    ("text", "amount"), [("5", 5), ("512M", 512 << 20), ("4G", 4 << 30), ("1.5GiB", 3 << 29), ("2kb", 2048)]
)
def test_amounts_of_memory(text: str, amount: int) -> None:
    assert parse_bytes(text) == amount


@pytest.mark.parametrize("text", ["", "4X", "-1", "G", "1e9", "4 Gb/s", "9" * 30])
def test_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(ValueError, match="not an amount of memory"):
        parse_bytes(text)


@pytest.mark.parametrize(
    "arguments",
    [["--egg-nodes", "0"], ["--egg-seconds", "nan"], ["--egg-seconds", "-1"], ["--egg-memory", "12Q"]],
)
def test_limits_that_cannot_be_are_refused(luminal: Command, arguments: list[str]) -> None:
    status, _, err = luminal("rules", "demo", *arguments)
    assert status == 2
    assert arguments[0] in err
    assert err.count("\n") == 1


def test_too_little_memory_is_refused_before_anything_is_on_disk() -> None:
    with pytest.raises(WorkbenchError, match="--egg-memory: 1024 is less than"):
        checked(SessionSpec(egg_memory=1024))
