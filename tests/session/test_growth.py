"""Rulesets and functions over the steps, as the events of a real saturation tell them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from workbench.session import growth
from workbench.session.session import CompileSession
from workbench.session.spec import SessionSpec
from workbench.session.view import SaturationView


@pytest.fixture
def saturation(spec: Callable[..., SessionSpec]) -> tuple[SaturationView, Counter[str], Counter[str | None]]:
    """The view of a group, its e-nodes by operator, and by maker."""
    with CompileSession(spec("llama3_tiny_4l_ts17")) as session:
        session.import_model()
        session.split()
        session.saturate()
        snapshot = session.saturated[0].snapshot
        ops = Counter(snapshot.op(n) for n in range(snapshot.node_count))
        makers = Counter(snapshot.made_by(n) for n in range(snapshot.node_count))
        return session.view.saturation[0], ops, makers


def test_the_events_tell_the_size_of_everything_at_each_step(
    saturation: tuple[SaturationView, Counter[str], Counter[str | None]],
) -> None:
    view, ops, makers = saturation
    assert view.result is not None
    functions = {f.name: f for f in growth.function_rows(view.steps)}
    assert {name: functions[name].rows for name in ops} == dict(ops)
    assert set(functions) - set(ops) >= {"dtype", "elem_dtype", "slope", "free"}  # facts, which are no e-nodes
    assert all(len(f.steps) == len(view.steps) for f in functions.values())
    for step in view.steps:
        assert sum(functions[name].steps[step.step] for name in ops) == step.nodes
    sums = functions["Map"]
    assert growth.changes(sums)[-1] == (sums.first_step, sums.rows)  # lowering is one step
    # rulesets
    rulesets = {r.name: r for r in growth.ruleset_rows(view.steps, view.result.rules)}
    assert sum(r.matches for r in rulesets.values()) == sum(r.matches for r in view.result.rules)
    assert sum(r.enodes for r in rulesets.values()) == view.result.nodes - view.steps[0].nodes + view.steps[0].added
    lower = [r.name for r in view.result.rules if r.ruleset == "lower"]
    assert rulesets["lower"].enodes == sum(makers[name] for name in lower) > 0
    # rules
    rows = {r.name: r for r in view.result.rules}
    assert sum(r.enodes for r in rows.values()) == view.result.nodes - makers[None]
    assert all(r.enodes == makers[r.name] for r in rows.values())
    lowering = rows["lower Add to a map"]
    assert lowering.unions == lowering.matches  # a Map beside each Add
    assert lowering.enodes == 2 * lowering.matches  # and its body, an e-class of its own
    assert lowering.first_step == lowering.last_step == sums.first_step
    assert all((r.first_step is None) == (r.matches == 0) for r in rows.values())
    loads = rows["dtype of Load"]
    assert view.steps[loads.first_step].ruleset == view.steps[loads.last_step].ruleset == "types"


def test_rows_of_groups_add_up() -> None:
    one = growth.RulesetRow("r", 3, 1, 2, 10, 0.5, 0.1, 7, [5, 2], 4, 6)
    two = growth.RulesetRow("r", 3, 2, 1, 1, 0.5, 0.1, 1, [1], None, None)
    assert growth.merged_rulesets([one, two]) == [
        growth.RulesetRow("r", 3, 2, 3, 11, 1.0, 0.2, 8, [6, 2], 4, 6)
    ]
    a, b = growth.FunctionRow("f", 3, [1, 3], 0), growth.FunctionRow("f", 5, [0, 2, 5], 1)
    assert growth.merged_functions([a, b]) == [growth.FunctionRow("f", 8, [1, 5, 8], 0)]
