"""`luminal-tui diff`: what it says of two sessions, and what it cannot compare."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench import CompileSession
from workbench.egraph.rules import library_directory
from workbench.session.diff import diff_sessions
from workbench.session.difference import match_groups, rule_differences
from workbench.session.difference_text import WIDE, lines
from workbench.session.store import EVENTS, SPEC

Command = Callable[..., tuple[int, str, str]]
MLP, GPT2 = "mlp_ts17", "gpt2_tiny_2l_ts17"
REMOVED = "blas/sgemm_RmCm.egg"
OWN = """
(rule ((= ?e (Matmul ?b ?m ?n ?k ?a ?ab ?am ?ak ?ao ?w ?wb ?wk ?wn ?wo))) ((union ?e ?e)) :ruleset flatten)
"""


@pytest.fixture(scope="module")
def sessions(model_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sessions: `a` and `b`, of one model with different rules and seeds; `c`, of another, not searched."""
    folder = tmp_path_factory.mktemp("diff")
    library = folder / "lib"
    shutil.copytree(library_directory(), library)

    def session(name: str, model: str, **options: Any) -> CompileSession:
        spec = {"session": str(folder / name), "artifacts": str(folder / "artifacts"), "egg": str(library)}
        return CompileSession(model_path(model), limit=1, **{**spec, **options})

    with session("a", MLP) as a:
        a.run()
    (library / REMOVED).unlink()
    with (library / "matmul.egg").open("a") as file:
        file.write(OWN)
    with session("b", MLP, seed=3) as b:
        b.run()
    with session("c", GPT2) as c:
        c.import_model()
        c.split()
        c.saturate()
    return folder


def test_json_says_what_changed_in_rules_options_groups_and_search(
    sessions: Path, luminal: Command
) -> None:
    status, out, _ = luminal("diff", sessions / "a", sessions / "b", "--json")
    assert status == 0
    found = json.loads(out)
    assert {"options", "rules", "groups", "kernels", "timeline", "verify", "latency_ms", "not_compared"} <= set(found)
    assert [o["name"] for o in found["options"]] == ["seed", "library"]
    changes = {r["name"]: r for r in found["rules"]}
    own = next(r for r in found["rules"] if r["file"] == "matmul.egg" and r["change"] == "added")
    assert own["numbers"]["matches"]["before"] is None
    assert own["numbers"]["matches"]["after"] > 0
    gone = changes["sgemm RmCm"]
    assert gone["change"] == "removed"
    assert gone["numbers"]["matches"]["before"] > 0
    assert gone["numbers"]["matches"]["after"] is None
    fewer = [r for r in found["rules"] if r["change"] == "matches"]
    assert "sgemm: epilogue in place of the result" in {r["name"] for r in fewer}
    order = [r["change"] for r in found["rules"]]
    assert order == sorted(order, key=("added", "removed", "matches", "time", "same").index)
    assert [g["matched_by"] for g in found["groups"]] == ["program"] * len(found["groups"])
    before, after = (
        [g["egraph"] for g in json.loads((sessions / n / "report.json").read_text())["groups"]] for n in "ab"
    )
    for group, old, new in zip(found["groups"], before, after, strict=True):
        assert group["numbers"]["enodes"] == {
            "before": old["nodes"], "after": new["nodes"], "ratio": new["nodes"] / old["nodes"]
        }  # fmt: skip
        assert group["numbers"]["candidates"] == {"before": 1, "after": 1, "ratio": 1}
    assert found["verify"]["before"]["ok"]
    assert found["verify"]["after"]["ok"]
    assert found["latency_ms"]["median"]["ratio"] > 0
    assert found["timeline"]["saturate"]["after"] > 0
    assert found["not_compared"] == []


def test_the_text_fits_80_columns_and_names_what_changed(sessions: Path, luminal: Command) -> None:
    status, out, _ = luminal("diff", sessions / "a", sessions / "b")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    removed = (library_directory() / REMOVED).read_text().count(":name")
    assert f"1 added, {removed} removed" in out
    assert "- sgemm RmCm" in out
    assert "seed            0 -> 3" in out


def test_a_session_and_itself_do_not_differ(sessions: Path, luminal: Command) -> None:
    _, out, _ = luminal("diff", sessions / "a", sessions / "a", "--json")
    found = json.loads(out)
    assert found["options"] == []
    assert {r["change"] for r in found["rules"]} == {"same"}
    assert all(g["before"] == g["after"] for g in found["groups"])


def test_what_cannot_be_compared_is_said(sessions: Path, luminal: Command) -> None:
    status, out, _ = luminal("diff", sessions / "b", sessions / "c")
    assert status == 0
    words = " ".join(out.split())
    assert "The models are different" in words
    assert "c has not reached: a search of every group, a verified result, a measured latency" in words
    assert "Groups of b that have none like them in c: 1." in words


def test_sessions_on_egglog_programs_are_compared(luminal: Command, tmp_path: Path) -> None:
    program, more = tmp_path / "p.egg", '(rewrite (Add (Add a b) c) (Add a (Add b c)) :name "assoc")'
    for name, rules in (("e1", ""), ("e2", more)):
        program.write_text(f"""
            (datatype M (Num i64) (Add M M))
            (rewrite (Add a b) (Add b a) :name "comm")
            {rules}
            (let x (Add (Num 1) (Add (Num 2) (Num 3))))
            (run 3)
        """)
        assert luminal("egg", program, "--session", tmp_path / name)[0] == 0
    status, out, _ = luminal("diff", tmp_path / "e1", tmp_path / "e2", "--json")
    found = json.loads(out)
    assert status == 0
    assert {r["name"]: r["change"] for r in found["rules"]} == {"assoc": "added", "comm": "matches"}
    assert found["groups"][0]["numbers"]["enodes"]["ratio"] > 1
    assert found["not_compared"] == []


@pytest.mark.parametrize("width", [60, 80, WIDE, 160])
def test_no_line_is_longer_than_it_may_be(sessions: Path, width: int) -> None:
    difference = diff_sessions(str(sessions / "a"), str(sessions / "c"))
    shown = ["".join(text for text, _ in line) for line in lines(difference, width)]
    assert max(map(len, shown)) <= width


def test_what_is_no_session_or_damaged_is_said_in_one_line(sessions: Path, luminal: Command, tmp_path: Path) -> None:
    assert luminal("diff", sessions / "a", "nowhere")[0::2] == (
        2, "luminal-tui: nowhere: no such session (luminal-tui sessions lists them)\n"
    )  # fmt: skip
    shutil.copytree(sessions / "a", tmp_path / "damaged", ignore=shutil.ignore_patterns("snapshots"))
    (tmp_path / "damaged" / EVENTS).write_bytes(b'{"type":"fly"}\n')
    status, _, err = luminal("diff", sessions / "a", tmp_path / "damaged")
    assert status == 2
    assert f"{EVENTS}:1: cannot be read" in err
    (tmp_path / "damaged" / EVENTS).unlink()
    assert "nothing has happened" in luminal("diff", tmp_path / "damaged", sessions / "a")[2]
    (tmp_path / "damaged" / SPEC).write_bytes(b"{")
    assert "damaged" in luminal("diff", tmp_path / "damaged", sessions / "a")[2]


def rule(name: str, matches: int, line: int = 1, seconds: float = 0.0) -> dict[str, Any]:
    return {
        "name": name, "category": "Other", "ruleset": "r", "file": "own.egg", "line": line, "matches": matches,
        "seconds": seconds,
    }  # fmt: skip


def test_anonymous_rules_are_followed_when_lines_shift() -> None:
    before = [rule("own.egg:3", 5, 3), rule("own.egg:9", 7, 9)]
    after = [rule("own.egg:4", 5, 4), rule("own.egg:10", 8, 10)]
    found = {r.name: r for r in rule_differences(before, after)}
    assert {name: r.change for name, r in found.items()} == {"own.egg:4": "same", "own.egg:10": "matches"}
    assert found["own.egg:10"].numbers["matches"].before == 7
    one_more = [*after, rule("own.egg:12", 1, 12)]
    assert {r.change for r in rule_differences(before, one_more)} == {"added", "removed"}


def test_rules_of_several_groups_are_summed_and_noise_in_time_is_no_change() -> None:
    before = [rule("x", 1, seconds=0.010), rule("x", 2, seconds=0.010), rule("y", 1, seconds=0.0001)]
    after = [rule("x", 3, seconds=0.040), rule("y", 1, seconds=0.0009)]
    found = {r.name: r for r in rule_differences(before, after)}
    assert found["x"].change == "time"
    assert found["x"].numbers["seconds"].ratio == pytest.approx(2)
    assert found["y"].change == "same"


def test_groups_are_matched_by_program_first() -> None:
    def group(digest: str, representative: int) -> dict[str, Any]:
        return {"digest": digest, "representative": representative}

    before = [group("p", 0), group("q", 1), group("r", 5)]
    after = [group("q", 0), group("x", 5), group("y", 9)]
    matched = match_groups(before, after, same_model=True)
    assert matched == [(1, 0, "program"), (2, 1, "representative"), (None, 2, ""), (0, None, "")]
    assert match_groups(before, after, same_model=False)[1] == (None, 1, "")
