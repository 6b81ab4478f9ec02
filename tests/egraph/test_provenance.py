"""Which rule made which e-node: every kind of action, in every kind of rule."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.choices import saturated
from tests.egraph.test_rules import ended
from tests.small_graphs import constant, linear
from workbench.egraph.messages import StepDone
from workbench.egraph.rules import RuleFile, read_library
from workbench.egraph.saturate import Saturator
from workbench.egraph.snapshot import Snapshot
from workbench.ir import dtype as dt
from workbench.ir import ops
from workbench.ir.hlir import Graph

LANGUAGE = """
(datatype Item (Leaf i64) (Pair Item Item) (Named String) (Twice Item))
(sort Many (Vec Item))
(constructor Bag (Many) Item)
(function weight (Item) Item :merge new)
(ruleset own)
"""
PROGRAM = "(let $root (Pair (Leaf 1) (Leaf 2)))"


def made(rules: str, program: str = PROGRAM) -> dict[str, str | None]:
    """The maker of each e-node, by the e-node as text."""
    with Saturator([RuleFile("own.egg", LANGUAGE + rules)]) as saturator:
        snapshot = Snapshot(saturator.saturate(program).snapshot)
    return {text(snapshot, node): snapshot.made_by(node) for node in range(snapshot.node_count)}


def text(snapshot: Snapshot, node: int) -> str:
    """An e-node, its children by the smallest e-node of their class."""
    parts = [snapshot.op(node)]
    for child in snapshot.children(node):
        if child < 0:
            parts.append(str(snapshot.literal(child)))
        else:
            members = snapshot.nodes_of[child]
            parts.append(text(snapshot, min(members, key=lambda n: len(snapshot.children(n)))) if members else "-")
    return f"({' '.join(parts)})"


PAIR = "(= ?e (Pair ?a ?b))"
ACTIONS = {
    "let": f'(rule ({PAIR}) ((let ?t (Twice ?a)) (Twice ?t)) :ruleset own :name "r")',
    "set": f'(rule ({PAIR}) ((set (weight (Twice ?a)) (Twice (Twice ?a)))) :ruleset own :name "r")',
    "union": f'(rule ({PAIR}) ((union (Twice ?a) (Twice (Twice ?a)))) :ruleset own :name "r")',
    "subsume": f'(rule ({PAIR}) ((Twice (Twice ?a)) (subsume (Twice ?a))) :ruleset own :name "r")',
    "delete": f'(rule ({PAIR}) ((Twice (Twice ?a)) (delete (Leaf 9))) :ruleset own :name "r")',
    "nested": f'(rule ({PAIR}) ((Twice (Twice ?a))) :ruleset own :name "r")',
}


@pytest.mark.parametrize("kind", ACTIONS)
def test_an_action_makes_e_nodes_of_its_rule(kind: str) -> None:
    found = made(ACTIONS[kind])
    assert {t: maker for t, maker in found.items() if maker != "r"} == dict.fromkeys(
        ["(Leaf 1)", "(Leaf 2)", "(Pair (Leaf 1) (Leaf 2))"]
    )
    assert Counter(found.values())["r"] == 2


def test_rewrites_of_all_kinds_make_e_nodes() -> None:
    rules = """
    (rewrite (Pair ?a ?b) (Twice ?a) :ruleset own :name "one way" :when ((= ?b (Leaf 2))))
    (rewrite (Leaf 1) (Named "one") :subsume :ruleset own)
    (birewrite (Twice ?a) (Pair ?a (Named "both")) :ruleset own :name "two ways")
    """
    found = made(rules)
    assert found['(Twice (Leaf 1))'] == "one way"
    assert found["(Named one)"] == "own.egg:9"
    assert found["(Pair (Leaf 1) (Named both))"] == found["(Named both)"] == "two ways=>"
    assert set(found.values()) == {None, "one way", "own.egg:9", "two ways=>"}


def test_a_rewrite_still_subsumes() -> None:
    rules = '(rewrite (Leaf ?n) (Named "leaf") :subsume :ruleset own)'
    with Saturator([RuleFile("own.egg", LANGUAGE + rules)]) as saturator:
        data = saturator.saturate(PROGRAM).snapshot
    snapshot = Snapshot(data)
    assert {snapshot.op(n) for n, gone in enumerate(data.subsumed) if gone} == {"Leaf"}


def test_the_first_rule_that_made_an_e_node_is_its_maker() -> None:
    rules = """
    (ruleset later)
    (rule ((= ?e (Pair ?a ?b))) ((Twice ?a)) :ruleset own :name "first")
    (rule ((= ?e (Pair ?a ?b))) ((Twice ?a) (Twice ?b)) :ruleset later :name "second")
    """
    found = made(rules, PROGRAM + "(let $known (Leaf 7))")
    assert (found["(Twice (Leaf 1))"], found["(Twice (Leaf 2))"], found["(Leaf 7)"]) == ("first", "second", None)


def test_a_maker_stays_with_its_e_node_when_classes_are_joined() -> None:
    rules = """
    (rule ((= ?e (Pair ?a ?b))) ((Twice (Twice ?a)) (Named "x")) :ruleset own :name "make")
    (rule ((= ?e (Pair ?a ?b))) ((union ?a ?b)) :ruleset own :name "join")
    """
    found = made(rules)
    assert Counter(found.values()) == {None: 3, "make": 3}
    assert found["(Twice (Twice (Leaf 1)))"] == "make"


def test_containers_and_functions_in_a_head_are_left_as_they_are() -> None:
    rules = '(rule ((= ?e (Pair ?a ?b))) ((Bag (vec-of (Twice ?a) ?b)) (set (weight ?e) ?a)) :ruleset own :name "r")'
    found = made(rules)
    assert Counter(found.values()) == {None: 3, "r": 2}


def test_tables_of_makers_are_seen_nowhere() -> None:
    steps: list[StepDone] = []
    with Saturator([RuleFile("own.egg", LANGUAGE + ACTIONS["let"])]) as saturator:
        result = saturator.saturate(PROGRAM, steps.append)
        shown = saturator.xray(PROGRAM, "r")
    assert {name for s in steps for name in s.sizes} == {"Leaf", "Pair", "Twice"}
    assert steps[-1].nodes == 5
    assert result.snapshot.ops == [op for op in result.snapshot.ops if " " not in op]
    assert not any("made" in op for op in result.snapshot.ops)
    assert [p.matches for p in shown.premises] == [1]


def test_a_rule_that_is_wrong_is_refused_as_it_is_written() -> None:
    wrong = '(rule ((= ?e (Pair ?a ?b))) ((Pair ?a 1)) :ruleset own :name "r")'
    with pytest.raises(Exception, match=r"^own.egg:8: ") as raised:
        made("\n" + wrong)
    assert "made" not in str(raised.value)


def test_what_the_library_adds_to_a_matmul_is_its_rules(saturator: Saturator) -> None:
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (3, 4), dt.F32)
    product = linear(graph, x, constant(graph, np.ones((4, 5), np.float32)))
    case = saturated(saturator, ended(graph, product))
    snapshot = case.space.snapshot
    with Saturator([f for f in read_library() if f.name == "base.egg"]) as bare:
        alone = Snapshot(bare.saturate(case.program.text).snapshot)
    makers = Counter(snapshot.made_by(n) for n in range(snapshot.node_count))
    assert makers[None] == alone.node_count  # all that the rules added is theirs
    assert makers["recognize matmul: no batch axis"] == makers["sgemm RmRm"] == 1
