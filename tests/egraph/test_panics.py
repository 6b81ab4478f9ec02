"""A rule that fails while it runs: the message has its name, its ruleset, and where the numbers came from."""

from __future__ import annotations

import pytest

from tests.egraph.test_saturate import EMPTY, with_rules
from workbench.errors import RuleError

BIG = 4_000_000_000_000_000_000


@pytest.mark.parametrize(
    ("rules", "program", "message"),
    [
        (
            '(rule ((= ?e (MMod ?a (MNum ?y)))) ((MMod ?a (MMul (MNum ?y) (MNum ?y)))) :ruleset own :name "squares")',
            "(let $x (MMod (MIter) (MNum 5)))",
            # the fold only works with what "squares" made
            r"^expression\.egg:\d+: rule 'fold product of numbers' in ruleset 'expression', step \d+: "
            r"\(\* \?a \?b\): call of primitive \* failed \(an i64 overflow\); "
            r"the largest number there is \d+, of rule 'fold .*' \(expression\.egg:\d+\), "
            r"and such numbers stand in MM\w+ of rule 'squares' \(own\.egg:2\)$",
        ),
        (
            '(rule ((= ?e (MNum ?n)))\n ((MNum (* ?n\n 4))) :ruleset own :name "times four")',
            f"(let $x (MNum {BIG}))",
            r"^own\.egg:\d: rule 'times four' in ruleset 'own', step \d+: .*\(an i64 overflow\); "
            rf"the largest number there is {BIG}, of the program",
        ),
        (
            '(rule ((= ?e (MNum ?n))) ((MNum (/ 7 ?n))) :ruleset own :name "divide")',
            "(let $x (MNum 0))",
            r"^own\.egg:2: rule 'divide' in ruleset 'own', step \d+: .*failed \(a division by zero\)$",
        ),
        (
            '(rule ((= ?e (MNum ?n))) ((panic "boo")) :ruleset own :name "boo")',
            "(let $x (MNum 0))",
            r"^ruleset 'own': in step \d+: .*boo",
        ),
    ],
    ids=["an innocent fold", "an overflow", "a division", "a panic"],
)
def test_a_failing_rule_is_named_and_the_origin_of_its_numbers(rules: str, program: str, message: str) -> None:
    with with_rules(f"(ruleset own)\n{rules}") as saturator:
        with pytest.raises(RuleError, match=message):
            saturator.saturate(f"{EMPTY}\n{program}")
        assert saturator.saturate(EMPTY).stopped == ""
