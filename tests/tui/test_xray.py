"""Key x: the question it sends, and the answer as it is drawn."""

from __future__ import annotations

import pytest

from tests.tui import llama
from tests.tui.drive import Driven, driven
from workbench.session import events as ev
from workbench.tui.screens.pick_rule import PickRuleScreen
from workbench.tui.screens.xray import XrayScreen

PREMISES = [
    ev.PremiseRow("(= ?e (Matmul (ECons (MNum 1) ?batch)))", 6, "distinct bindings of ?e, ?batch"),
    ev.PremiseRow("(= (F32) (dtype ?e))", 0, "distinct bindings of ?e, ?batch"),
    ev.PremiseRow("(!= ?batch (ENil))", None, "distinct bindings of ?e, ?batch"),
]


def answer(question: ev.Xray, **changes: object) -> ev.XrayDone:
    fields: dict[str, object] = {
        "rule": question.rule,
        "group": question.group or 0,
        "node": question.node,
        "variable": None if question.node is None else "$t3",
        "root": "" if question.node is None else "?e",
        "file": "flatten/squeeze.egg",
        "line": 9,
        "premises": PREMISES,
        "first_failing": 1,
        "wanted": "(F32)",
        "place": "(dtype ?e)",
        "found_instead": "(I32)",
        "binding": {"?e": "$t3"},
        "at": 60.0,
    }
    return ev.XrayDone(**{**fields, **changes})  # type: ignore[arg-type]


async def asked(drive: Driven) -> ev.Xray:
    await drive.until(lambda: drive.client.sent)
    question = drive.client.sent[-1]
    assert isinstance(question, ev.Xray)
    return question


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_x_on_a_rule_asks_about_the_group_and_shows_the_funnel(size: tuple[int, int]) -> None:
    client = llama.FakeClient(llama.under_way())
    async with driven(client, size) as drive:
        await drive.press("]", "]", "3")
        await drive.until(lambda: drive.bench.rules.group == 1)
        rule = drive.bench.rules._rows[0].name
        await drive.press("x")
        assert await asked(drive) == ev.Xray(rule=rule, group=1)
        assert isinstance(drive.app.screen, XrayScreen)
        await drive.until(lambda: "The engine is asked" in drive.screen())
        client.more.put_nowait(answer(ev.Xray(rule="another", group=1)))
        client.more.put_nowait(answer(ev.Xray(rule=rule, group=1)))
        await drive.until(lambda: "Premise 2 holds for none" in drive.screen())
        shown = drive.screen()
        assert rule in shown
        assert "flatten/squeeze.egg:9" in shown
        assert "never fired" in shown
        rows = [row for row in drive.rows() if "(dtype ?e))" in row]
        assert " 0 " in rows[0]
        assert "(I32)" in shown
        await drive.press("escape")
        assert drive.app.screen is drive.bench


async def test_x_on_a_node_asks_for_a_rule_first() -> None:
    client = llama.FakeClient(llama.under_way())
    async with driven(client) as drive:
        await drive.press("x")
        assert "Select a node" in drive.app.last_toast
        await drive.press("j", "enter", "j", "enter", "j", "j", "x")
        assert isinstance(drive.app.screen, PickRuleScreen)
        await drive.type("lt row")
        await drive.press("down", "up", "down", "enter")
        question = await asked(drive)
        assert question.rule.startswith("cublaslt-row-")
        assert (question.group, question.node) == (0, 1)
        client.more.put_nowait(answer(question))
        await drive.until(lambda: "?e at node 1 ($t3)" in drive.screen())


async def test_escape_leaves_the_list_without_a_question() -> None:
    client = llama.FakeClient(llama.under_way())
    async with driven(client) as drive:
        await drive.press("j", "enter", "j", "enter", "j", "j", "x", "escape")
        assert drive.app.screen is drive.bench
        assert client.sent == []


async def test_a_question_without_an_answer_says_why() -> None:
    client = llama.FakeClient(llama.under_way())
    async with driven(client) as drive:
        await drive.press("3", "x")
        question = await asked(drive)
        client.more.put_nowait(answer(question, premises=[], first_failing=None, error="there is no group 9"))
        await drive.until(lambda: "there is no group 9" in drive.screen())


async def test_hostile_text_and_what_stopped_it_are_shown_escaped() -> None:
    client = llama.FakeClient(llama.under_way())
    async with driven(client) as drive:
        await drive.press("3", "x")
        question = await asked(drive)
        hostile = '"\x1b[31m[bold]red"'
        done = answer(question, found_instead=hostile, binding={"?s": hostile}, stopped="a cross product", note="old")
        client.more.put_nowait(done)
        await drive.until(lambda: "A cross product." in drive.screen())
        assert "\x1b" not in drive.screen()
        assert "\\x1b[31m[bold]red" in drive.screen()


async def test_a_record_has_no_engine_to_ask() -> None:
    client = llama.FakeClient(llama.whole(), read_only=True, live=False)
    async with driven(client) as drive:
        await drive.press("3", "x")
        assert "needs a live engine" in drive.app.last_toast
        await drive.press("1", "j", "enter", "j", "enter", "j", "j", "x")
        assert drive.app.screen is drive.bench
        assert client.sent == []
