"""Proof of rule libraries: the shipped one holds, planted errors are found and blamed on the right rule, lint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from workbench.egraph.proof.check import Checked, as_json, as_text, check_rules
from workbench.egraph.proof.examples import examples_of, expanded
from workbench.egraph.proof.lint import Finding, lint
from workbench.egraph.proof.reading import read_rules
from workbench.egraph.proof.semantics import difference
from workbench.egraph.rules import RuleFile, read_library
from workbench.errors import RuleError


@pytest.fixture(scope="module")
def shipped() -> Checked:
    return check_rules(programs=60)


def test_every_shipped_rule_is_proved_by_example_near_miss_and_random_programs(shipped: Checked) -> None:
    assert {p.rule.name: p.complaints for p in shipped.proofs if p.verdict != "proved"} == {}
    assert [p.rule.name for p in shipped.proofs if not (p.examples and p.near_misses)] == []
    assert {p.rule.name for p in shipped.proofs} == {r.shown for r in read_rules(read_library(target=None)).rules}
    fired_at_random = [p for p in shipped.proofs if p.programs > p.examples]
    assert len(fired_at_random) > len(shipped.proofs) / 2


def test_the_shipped_library_is_clean(shipped: Checked) -> None:
    assert list(shipped.findings) == []
    assert as_text(shipped).splitlines()[-1].startswith(f"{len(shipped.proofs)} rules: {len(shipped.proofs)} proved;")


# Errors as people make them, each in a rule that is otherwise as the shipped ones are

MATMUL = "(Matmul {batch} ?m ?n ?k ?a {a} ?a_m ?a_k ?a_offset ?b {b} ?b_k ?b_n ?b_offset)"
ANY = MATMUL.format(batch="(ECons ?d ?batch)", a="(ECons ?a0 ?a_batch)", b="(ECons ?b0 ?b_batch)")
REST = MATMUL.format(batch="?batch", a="?a_batch", b="?b_batch")
ROWS = "?a ?a_batch ?a_m (MIter) ?a_offset ?b ?b_batch ?b_k (MIter) ?b_offset"
TYPED = "(= (F32) (dtype ?a)) (= (F32) (dtype ?b)) (= (F32) (dtype ?e))"
SLOPES = "(= ?lda (slope ?a_m)) (!= ?lda (MNum 0)) (= ?ldb (slope ?b_k)) (!= ?ldb (MNum 0))"
CALL = "?a ?a_batch ?lda ?a_offset ?b ?b_batch ?ldb ?b_offset"


def rule(premises: str, action: str, ruleset: str, name: str) -> str:
    return f'(rule ({premises}) ({action}) :ruleset {ruleset} :name "{name}")\n'


UNSOUND = {
    "squeeze without its 1": rule(f"(= ?e {ANY})", f"(union ?e {REST})", "flatten", "squeeze without its 1"),
    "a wrong layout": rule(
        f"(= ?e (Matmul ?batch ?m ?n ?k {ROWS})) {SLOPES} {TYPED}",
        f'(union ?e (Sgemm "RmCm" ?batch ?m ?n ?k {CALL}))',
        "library",
        "a wrong layout",
    ),
    "no dtype": rule(
        f"(= ?e (Matmul ?batch ?m ?n ?k {ROWS})) {SLOPES}",
        f'(union ?e (Sgemm "RmRm" ?batch ?m ?n ?k {CALL}))',
        "library",
        "no dtype",
    ),
    "a batch axis is dropped": rule(
        f"(= ?e {ANY}) (= ?a_k (MIter)) (= ?b_n (MIter)) {SLOPES} {TYPED}",
        f'(union ?e (Sgemm "RmRm" ?batch ?m ?n ?k {CALL}))',
        "library",
        "a batch axis is dropped",
    ),
    "a sum is inlined": rule(
        "(= ?x (Load ?a ?strides ?offset)) (= ?a (Sum ?s ?k ?body))",
        "(union ?x (Inline ?body ?s ?strides ?offset))",
        "fuse",
        "a sum is inlined",
    ),
    "a wrong slope": rule(
        "(= ?e (MMul (MIter) ?c)) (free ?c)", "(set (slope ?e) (MMul ?c (MNum 2)))", "expression", "a wrong slope"
    ),
    "a remainder lost": rule("(= ?e (MMod ?a ?b))", "(union ?e ?a)", "expression", "a remainder lost"),
}


RARE = ("a wrong layout", "no dtype", "a batch axis is dropped")
"""What it takes more random programs to show."""


@pytest.mark.parametrize("name", UNSOUND)
def test_a_planted_error_is_refuted_by_name_line_and_program(tmp_path: Path, name: str) -> None:
    (tmp_path / "planted.egg").write_text(f"; Target: cpu\n\n{UNSOUND[name]}")
    checked = check_rules(tmp_path, programs=80 if name in RARE else 40)
    (proof,) = checked.proofs
    assert (proof.verdict, proof.rule.name, proof.rule.file, proof.rule.line) == ("refuted", name, "planted.egg", 3)
    assert proof.counterexample is not None
    assert "(let $root " in proof.counterexample.program
    assert proof.counterexample.difference
    text = as_text(checked)
    assert text.startswith(f"planted.egg:3: refuted: {name}")
    assert checked.refuted == [proof]


def test_a_rule_whose_every_call_is_refused_fails(tmp_path: Path) -> None:
    exchanged = rule(
        f"(= ?e (Matmul ?batch ?m ?n ?k {ROWS})) {SLOPES} (!= ?k ?n) {TYPED}",
        '(union ?e (Sgemm "RmRm" ?batch ?m ?n ?k ?a ?a_batch ?ldb ?a_offset ?b ?b_batch ?lda ?b_offset))',
        "library",
        "leading dimensions exchanged",
    )
    given = '; Given (let $a (Input 0 "" (F32) [60])) (let $b (Input 1 "" (F32) [60]))\n'
    matmul = "(let $c (Matmul [] #4 #5 #6 $a [] #z*6 #z #0 $b [] #z*5 #z #0))"
    fires = f'; Fires "leading dimensions exchanged" on {matmul}'
    (tmp_path / "planted.egg").write_text(f"; Target: cpu\n{given}{fires} (set (dtype $c) (F32))\n{exchanged}")
    checked = check_rules(tmp_path, programs=0)
    assert [p.verdict for p in checked.proofs] == ["failed"]
    assert "the library refuses every call that it makes (1)" in as_text(checked)


def test_what_the_language_does_not_know_is_unchecked(tmp_path: Path) -> None:
    makes = rule("(= ?e (Exp2 ?s ?x))", "(union ?e (Mine ?s ?x))", "lower", "to mine")
    (tmp_path / "own.egg").write_text(f"; Target: cpu\n(constructor Mine (EList Elem) IR)\n{makes}")
    assert [p.verdict for p in check_rules(tmp_path, programs=8).proofs] == ["unchecked"]


@pytest.mark.parametrize(
    ("said", "difference"),
    [
        ("(set (magnitude ?e) 0)", "nothing is said to exceed 0"),
        ("(set (shape ?e) (ENil))", "are said to be of shape []"),
    ],
)
def test_a_false_fact_about_a_buffer_is_refuted(tmp_path: Path, said: str, difference: str) -> None:
    given = '; Given (let $u (Input 0 "" (U8) [4]))\n; Fires "says so" on (let $y (Cast [4] (Load $u [z] #0) (I32)))\n'
    says = rule("(= ?e (Cast ?s ?x (I32)))", said, "lower", "says so")
    (tmp_path / "planted.egg").write_text(f"; Target: cpu\n{given}{says}")
    checked = check_rules(tmp_path, programs=0)
    assert [p.verdict for p in checked.proofs] == ["refuted"]
    assert difference in as_text(checked)


HUGE = "(MNum 4000000)"


@pytest.mark.parametrize(
    "action",
    [
        '(union ?e (Map ?s (EIota (MVar "nowhere") (F32)) (F32)))',
        "(union ?e (Map ?s (EIota (MDiv (MIter) (MNum 0)) (F32)) (F32)))",
        "(union ?e (Map (ECons (MNum -3) (ENil)) (EExp2 ?x) (F32)))",
        f'(union ?e (Sgemm "RmRm" (ENil) {HUGE} {HUGE} {HUGE} (Iota ?s (MIter) (F32)) (ENil) {HUGE} (MNum 0) '
        f"(Iota ?s (MIter) (F32)) (ENil) {HUGE} (MNum 0)))",
    ],
)
def test_a_hostile_rule_gets_a_verdict(tmp_path: Path, action: str) -> None:
    hostile = rule("(= ?e (Exp2 ?s ?x))", action, "lower", "hostile")
    (tmp_path / "own.egg").write_text(f"; Target: cpu\n{hostile}")
    (proof,) = check_rules(tmp_path, programs=8).proofs
    assert proof.verdict in ("refuted", "unchecked")


def test_an_example_of_no_rule_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "own.egg").write_text('; Fires "nothing" on (let $e #1)\n' + LINT["no name"])
    with pytest.raises(RuleError, match=r"own\.egg:1: there is no rule 'nothing'"):
        check_rules(tmp_path, programs=0)


def test_in_a_whole_library_what_others_make_of_it_is_not_blamed(tmp_path: Path) -> None:
    for file in read_library():
        text = file.text
        if file.name == "flatten/squeeze.egg":
            text = text.replace("(ECons (MNum 1) ?batch)", "(ECons ?one ?batch)", 1)
        path = tmp_path / file.name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text if "; Target:" in text else f"; Target: cpu\n{text}")
    checked = check_rules(tmp_path, programs=24)
    wrong = [p for p in checked.proofs if p.verdict == "refuted"]
    assert [p.rule.name for p in wrong] == ["matmul flattening: squeeze leading 1"]
    assert any("near miss" in complaint for complaint in wrong[0].complaints)


def test_a_copy_of_a_shipped_rule_is_tried_beside_it(tmp_path: Path) -> None:
    (squeeze,) = (f for f in read_library() if f.name == "flatten/squeeze.egg")
    (tmp_path / "squeeze.egg").write_text("; Target: cpu\n" + squeeze.text)
    checked = check_rules(tmp_path, programs=8)
    assert {p.verdict for p in checked.proofs} == {"proved"}
    assert {f.kind for f in checked.findings} == {"duplicate name"}


def test_an_exploding_rule_is_stopped_and_said(tmp_path: Path) -> None:
    (tmp_path / "grow.egg").write_text(
        "; Target: cpu\n"
        + rule("(= ?e (MMul (MIter) (MNum ?n)))", "(MMul (MIter) (MNum (+ ?n 1)))", "expression", "ever more")
    )
    checked = check_rules(tmp_path, programs=2)
    (proof,) = checked.proofs
    assert proof.verdict == "failed"
    assert "limit" in proof.complaints[0]


# Examples


def examples(text: str) -> list[tuple[str, str, bool]]:
    return [(e.rule, " ".join(e.program.split()), e.fires) for e in examples_of(RuleFile("x.egg", text))]


def test_examples_are_read_from_comments() -> None:
    text = """; Given (let $a #n)
; Fires "first" on (let $b
;   [z*4 2])
; Not on z*4 => z/2 and #n => #3
; Fires "second {Add Mul}" on ({} $a)
; Not on (let $c #1)
"""
    four = '(ECons (MMul (MIter) (MNum 4)) (ECons (MNum 2) (ENil)))'
    half = '(ECons (MDiv (MIter) (MNum 2)) (ECons (MNum 2) (ENil)))'
    assert examples(text) == [
        ("first", f'(let $a (MVar "n")) (let $b {four})', True),
        ("first", f"(let $a (MNum 3)) (let $b {half})", False),
        ("second Add", '(let $a (MVar "n")) (Add $a)', True),
        ("second Mul", '(let $a (MVar "n")) (Mul $a)', True),
        ("second Add", "(let $c (MNum 1))", False),
        ("second Mul", "(let $c (MNum 1))", False),
    ]


def test_expressions_are_written_short() -> None:
    assert expanded("#z%3+n*2") == '(MAdd (MMod (MIter) (MNum 3)) (MMul (MVar "n") (MNum 2)))'
    assert expanded("[]") == "(ENil)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("; Not on 1 => 2\n", "x.egg:1: a near miss without an example"),
        ('; Fires "r" on [1]\n; Not on 7 => 2\n', "x.egg:2: '7' is not in the example"),
        ('; Fires "r" on [1-2]\n', "x.egg:1: '1-2' is no expression"),
    ],
)
def test_an_example_that_cannot_be_read_says_where(text: str, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        examples_of(RuleFile("x.egg", text))


def test_an_example_that_does_not_hold_fails_its_rule(tmp_path: Path) -> None:
    (tmp_path / "own.egg").write_text(
        "; Target: cpu\n"
        '; Fires "double" on (let $e #n)\n'
        '; Fires "double" on (let $e #n+n)\n'
        "; Not on #n+n => #m+m\n"
        + rule("(= ?e (MAdd ?a ?a))", "(union ?e (MMul ?a (MNum 2)))", "expression", "double")
    )
    (proof,) = check_rules(tmp_path, programs=0).proofs
    assert proof.verdict == "failed"
    assert proof.complaints == [
        "it does not fire on its example at own.egg:2",
        "it fires on its near miss at own.egg:4",
    ]


# Lint


def findings(text: str) -> Sequence[Finding]:
    return lint(read_rules([RuleFile("x.egg", text)]), read_rules(read_library(target=None)))


LINT = {
    "no name": "(rule ((= ?e (MIter))) ((free ?e)) :ruleset expression)",
    "duplicate name": rule("(= ?e (MIter))", "(MNum 1)", "expression", "one times"),
    "no ruleset": '(rule ((= ?e (MIter))) ((MNum 1)) :name "r")',
    "cross product": rule("(= ?e (MNum ?n)) (= ?f (MVar ?v))", "(MMul ?e ?f)", "expression", "r"),
    "never fires": rule("(= ?e (Conv ?x))", "(union ?e ?x)", "lower", "r"),
    "no dtype": UNSOUND["no dtype"],
    "no rank": UNSOUND["a batch axis is dropped"].replace("?a_batch ?lda", "(ENil) ?lda"),
}


@pytest.mark.parametrize("kind", LINT)
def test_lint_finds_it(kind: str) -> None:
    found = findings(LINT[kind])
    assert {f.kind for f in found} == {kind}
    assert all((f.file, f.line) == ("x.egg", 1) and f.text and f.advice for f in found)


def test_what_a_rule_that_can_fire_makes_can_be_asked_for() -> None:
    declared = "(constructor Mine (IR) IR)\n"
    makes = rule("(= ?e (Exp2 ?s ?x))", "(Mine ?e)", "lower", "makes")
    asks = rule("(= ?e (Mine ?x))", "(union ?e ?x)", "lower", "asks")
    assert findings(declared + makes + asks) == []
    assert [f.rule for f in findings(declared + asks)] == ["asks"]


def test_a_file_that_does_not_parse_says_where(tmp_path: Path) -> None:
    (tmp_path / "bad.egg").write_text("\n(rule ((= ?e (MIter)\n")
    with pytest.raises(RuleError, match=r"bad\.egg:"):
        check_rules(tmp_path, programs=1)


# The report


def test_json_has_rules_and_lint(shipped: Checked) -> None:
    made = as_json(shipped)
    assert {"name", "file", "line", "targets", "verdict", "matches", "counterexample"} <= made["rules"][0].keys()
    assert made["lint"] == []


def test_floats_differ_at_the_scale_of_the_whole() -> None:
    right = np.array([1000.0, 1e-3, np.nan, np.inf], np.float32)
    assert difference(right, right + np.float32(1e-3)) == ""
    assert difference(right, np.array([1000.0, 5.0, np.nan, np.inf], np.float32)).startswith("element 1 is 5.0")
    assert difference(right, np.array([1000.0, 1e-3, 1.0, np.inf], np.float32)).startswith("element 2")
    assert "f64" in difference(right, right.astype(np.float64))


