"""A saturation that runs away: stopped by each limit, the rule named, what was reached kept, and the next one works."""

from __future__ import annotations

import pytest

from tests.egraph.test_saturate import EMPTY, with_rules
from workbench.egraph.culprit import grown_fastest, ruleset_at_fault
from workbench.egraph.messages import RuleInfo, StepDone
from workbench.egraph.saturate import Limits, SaturationStopped
from workbench.egraph.snapshot import Snapshot

SUMS = """
(ruleset own)
(rule ((= ?e (MNum ?n)) (< ?n 3)) ((MNum (+ ?n 1))) :ruleset own :name "count a little")
(rewrite (MAdd ?a ?b) (MAdd ?b ?a) :ruleset own :name "commute")
(rewrite (MAdd ?a (MAdd ?b ?c)) (MAdd (MAdd ?a ?b) ?c) :ruleset own :name "associate")
"""
CROSS = """
(ruleset own)
(rule ((= ?e (MNum ?n)) (< ?n 3)) ((MNum (+ ?n 1))) :ruleset own :name "count a little")
(rule ((MNum ?x) (MNum ?y)) ((MMod (MNum ?x) (MNum ?y))) :ruleset own :name "cross product")
"""
THREE = CROSS.replace("(MNum ?y)) ((MMod", "(MNum ?y) (MNum ?z)) ((MMod (MNum ?z) (MNum 1)) (MMod")
LITTLE = Limits(seconds=0.3, grace_seconds=0.4)


def a_sum(terms: int) -> str:
    text = '(MVar "v0")'
    for i in range(1, terms):
        text = f'(MAdd (MVar "v{i}") {text})'
    return f"{EMPTY}\n(let $sum {text})\n"


def numbers(count: int) -> str:
    return EMPTY + "".join(f"\n(let $n{i} (MNum {i * 7}))" for i in range(count))


@pytest.mark.parametrize(
    ("rules", "program", "limits", "stopped", "culprit"),
    [
        (SUMS, a_sum(12), Limits(nodes=2000), "node limit (2000)", "'associate' (own.egg:5) grew fastest"),
        (SUMS, a_sum(14), LITTLE, "time limit (0.3 s)", "'associate' (own.egg:5) grew fastest"),
        (SUMS, a_sum(14), Limits(memory_bytes=210 << 20), "memory limit (210 MiB)", "'associate' (own.egg:5)"),
        (CROSS, numbers(150), Limits(nodes=2000), "node limit (2000)", "'cross product' (own.egg:4)"),
        (THREE, numbers(400), LITTLE, "time limit (0.3 s) inside a step of ruleset 'own'", "'cross product'"),
        (THREE, numbers(400), Limits(memory_bytes=210 << 20), "memory limit (210 MiB)", "'cross product'"),
    ],
    ids=["sums, nodes", "sums, time", "sums, memory", "cross, nodes", "cross, time", "cross, memory"],
)
def test_each_limit_names_the_rule_and_keeps_what_was_reached(
    rules: str, program: str, limits: Limits, stopped: str, culprit: str
) -> None:
    steps: list[StepDone] = []
    with with_rules(rules, limits) as saturator:
        result = saturator.saturate(program, steps.append)
        assert result.stopped.startswith(stopped)
        assert result.culprit is not None
        assert culprit in result.culprit.text
        snapshot = Snapshot(result.snapshot)
        assert snapshot.node_count >= max((s.nodes for s in steps[: result.steps]), default=1)
        reached = len(steps) if result.steps is None else result.steps
        shown = saturator.xray(program, "commute" if rules is SUMS else "count a little", max_steps=reached)
        assert shown.premises[0].matches
        assert saturator.saturate(EMPTY).stopped == ""
    mended = rules.replace("(MAdd ?a ?b) (MAdd ?b ?a)", "(MAdd ?a ?a) (MAdd ?a ?a)").replace("(MNum ?y)", "(MNum ?x)")
    with with_rules(mended.replace("(MNum ?z)", "(MNum ?x)"), limits) as saturator:
        assert saturator.saturate(program).stopped == ""


def test_a_ruleset_that_kills_in_its_first_step_is_tried_rule_by_rule() -> None:
    rules = THREE + '(rule ((MNum ?x) (MNum ?y)) ((MMod (MNum ?x) (MNum ?x))) :ruleset own :name "behind it")'
    with with_rules(rules, LITTLE) as saturator:
        result = saturator.saturate(numbers(400))
        assert result.culprit is not None
        assert result.culprit.text == (
            "rule 'cross product' (own.egg:4) does not come back within 0.5 s, run alone"
        )


def test_an_xray_of_a_program_that_runs_away_is_of_what_was_before() -> None:
    with with_rules(THREE, LITTLE) as saturator:
        shown = saturator.xray(numbers(400), "cross product", seconds=0.5)
        assert shown.premises[0].matches == 400
        assert "cross product too large" in shown.stopped


def test_a_program_that_takes_too_long_by_itself_is_refused() -> None:
    with with_rules("; none", Limits(seconds=0.01, grace_seconds=0.0)) as saturator:
        assert saturator.rules
        with pytest.raises(SaturationStopped, match=r"it read the program: it ran past 0\.01 s \(raise --egg-sec"):
            saturator.saturate(numbers(20_000))


def step(number: int, ruleset: str, nodes: int, seconds: float = 0.0, **matches: int) -> StepDone:
    each = {name: seconds / len(matches) for name in matches}
    return StepDone(number, ruleset, seconds, matches, each, nodes)


RULES = [RuleInfo("x", "r", "a.egg", 0), RuleInfo("y", "r", "a.egg", 1), RuleInfo("z", "s", "a.egg", 2)]


def test_the_ruleset_at_fault_made_the_most_e_nodes_or_took_the_most_time() -> None:
    steps = [step(0, "r", 10, 0.5, x=1), step(1, "s", 500, 0.1, z=1), step(2, "r", 520, 0.5, x=2)]
    assert ruleset_at_fault(steps, by_time=False) == "s"
    assert ruleset_at_fault(steps, by_time=True) == "r"
    assert ruleset_at_fault([], by_time=True) is None


def test_the_rule_that_grew_by_most_is_named_though_another_is_larger() -> None:
    steps = [step(i, "r", 10, 0.0, x=1000, y=10 * 3**i) for i in range(4)]
    found = grown_fastest(steps, "r", RULES)
    assert found is not None
    assert (found.rule, found.line, found.growth) == ("y", 1, pytest.approx(3.0))
    assert found.text == "rule 'y' (a.egg:1) grew fastest: from 10 to 270 matches in 4 runs of ruleset 'r', 3x a run"


def test_a_rule_that_only_went_on_is_named_by_its_matches_and_not_by_the_noise_of_the_clock() -> None:
    steps = [step(i, "r", 10 * i, 2e-6 + i * 1e-9, x=1, y=2) for i in range(900)]
    jitter = {"x": 9e-6, "y": 1e-6}  # the last run of x took longest, by microseconds
    steps.append(StepDone(900, "r", 1e-5, {"x": 1, "y": 2}, jitter, 9000))
    found = grown_fastest(steps, "r", RULES)
    assert found is not None
    assert (found.rule, found.growth) == ("y", None)
    assert found.text == "rule 'y' (a.egg:1) matched on and on: 1,802 times in 901 runs of ruleset 'r'"


def test_time_that_is_more_than_noise_tells_of_growth_where_matches_do_not() -> None:
    steps = [step(i, "r", 10, 0.002 * 2**i, x=5) for i in range(4)]
    found = grown_fastest(steps, "r", RULES)
    assert found is not None
    assert (found.rule, found.growth) == ("x", pytest.approx(2.0))
    assert "from 0.002 to 0.016 s in 4 runs" in found.text


def test_a_rule_that_fired_once_is_named_without_growth() -> None:
    found = grown_fastest([step(0, "r", 10, 0.0, x=7)], "r", RULES)
    assert found is not None
    assert (found.rule, found.growth) == ("x", None)
    assert found.text.endswith("came to 7 matches in one run of ruleset 'r'")
    assert grown_fastest([step(0, "s", 10, 0.0, z=7)], "r", RULES) is None
