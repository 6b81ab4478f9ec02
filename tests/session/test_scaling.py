"""Growth with the number of copies of the repeating chunk: exponents by rule, limits, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.session.conftest import Command
from workbench.errors import InputError
from workbench.session.scaling import as_text, parse_sizes

RULES = """(ruleset own)
(relation two (IR IR))
(relation three (IR IR IR))
(rule ((= ?a (Exp2 ?s ?x)) (= ?b (Exp2 ?t ?y))) ((two ?a ?b)) :ruleset own :name "two free atoms")
(rule ((= ?a (Exp2 ?s ?x)) (= ?b (Exp2 ?t ?y)) (= ?c (Exp2 ?u ?z))) ((three ?a ?b ?c)) :ruleset own :name "three")
"""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    directory = tmp_path / "rules"
    directory.mkdir()
    (directory / "own.egg").write_text(RULES)
    return directory


def test_a_cross_product_grows_with_its_atoms_and_the_rest_with_depth(
    luminal: Command, model_path: Callable[[str], Path], rules: Path
) -> None:
    model = model_path("llama3_tiny_4l_ts17")
    status, out, err = luminal("rules", model, "--rules", rules, "--scaling", "4,1, 2", "--json")
    assert status == 0
    report: dict[str, Any] = json.loads(out)
    assert (report["sizes"], len(report["members"]), report["chained"]) == ([1, 2, 4], 4, 1)
    rows = {r["name"]: r for r in report["rules"]}
    assert rows["two free atoms"]["matches_exponent"] == pytest.approx([2, 2], abs=0.01)
    assert rows["three"]["matches_exponent"] == pytest.approx([3, 3], abs=0.01)
    assert rows["lower Mul to a map"]["matches_exponent"] == pytest.approx([1, 1], abs=0.01)
    assert rows["lower Sin to a map"]["matches"] == [0, 0, 0]
    assert rows["lower Sin to a map"]["matches_exponent"] == [None, None]
    assert all(0.5 < e <= 1.01 for e in report["egraph"]["nodes_exponent"])
    assert [r["copies"] for r in report["runs"]] == [1, 2, 4]
    assert all(r["repeats"] > 1 and not r["stopped"] and r["seconds"] > 0 for r in report["runs"])
    costs = [r["seconds"][-1] * max(r["seconds_exponent"][-1] or 0, 0) for r in report["rules"] if r["matches"][-1]]
    assert costs.index(max(costs)) == 0
    assert err.splitlines()[-1].startswith("4 copies: ")
    text = as_text(report)
    assert "copies of group 1, of which the model has 4; each reads 1 of the one before" in text
    assert next(line for line in text.splitlines() if line.startswith("three")).endswith("3.00")


def test_a_size_that_hits_a_limit_says_so_and_the_rest_is_there(
    luminal: Command, model_path: Callable[[str], Path]
) -> None:
    model = model_path("llama3_tiny_4l_ts17")
    status, out, _ = luminal("rules", model, "--scaling", "1,2,4,8", "--egg-nodes", "400", "--group", "1", "--json")
    assert status == 0
    report = json.loads(out)
    stopped = [r["stopped"] for r in report["runs"]]
    assert stopped[:2] == ["", ""]
    assert stopped[2] == "node limit (400)"
    assert report["runs"][2]["culprit"].startswith("rule '")
    assert stopped[3] == "not tried, since 4 copies were stopped"
    exponents = report["egraph"]["nodes_exponent"]
    assert exponents[0] > 0
    assert exponents[1:] == [None, None]
    text = as_text(report)
    assert "  4 copies: node limit (400)\n    rule '" in text
    assert "8 copies: not tried" in text


@pytest.mark.parametrize("text", ["", "0", "1,,2", "x", "-1", "1;2", "9999999", "\N{ARABIC-INDIC DIGIT FOUR}"])
def test_what_is_no_list_of_sizes(text: str) -> None:
    with pytest.raises(InputError, match="not a list of numbers of copies"):
        parse_sizes(text)


def test_what_cannot_be_asked_is_refused(luminal: Command, model_path: Callable[[str], Path]) -> None:
    model = model_path("mlp_ts17")
    for arguments, message in (
        (["--scaling", "1,2", "--group", "9"], "there is no group 9"),
        (["--scaling", "1,900000"], "primitives"),
        (["--group", "0"], "give --scaling too"),
    ):
        status, out, err = luminal("rules", model, *arguments)
        assert (status, out) == (2, "")
        assert message in err
