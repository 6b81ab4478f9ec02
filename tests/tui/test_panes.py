"""What the panes show of a session, and how they are moved through."""

from __future__ import annotations

import msgspec
import pytest

from tests.tui import llama
from tests.tui.drive import SIZES, Driven, driven
from workbench.session import events as ev
from workbench.session.growth import merged_rules
from workbench.tui.panes.graph import PAGE
from workbench.tui.panes.rule_columns import RULES


def labels(drive: Driven) -> list[str]:
    tree = drive.bench.graph.outline
    return [str(tree.get_node_at_line(line).label) for line in range(tree.last_line + 1)]


MATCHES, MS = (next(i for i, c in enumerate(RULES.columns) if c.title == title) for title in ("matches", "ms"))


def column(drive: Driven, index: int) -> list[str]:
    table = drive.bench.rules.table
    return [table.get_row_at(row)[index].plain.strip() for row in range(table.row_count)]


@pytest.mark.parametrize("size", SIZES)
async def test_all_panes_are_filled(size: tuple[int, int]) -> None:
    async with driven(llama.FakeClient(llama.whole()), size) as drive:
        for key, words in (
            ("1", ("llama-3.2-1b.onnx", "group 1 ×3", "96 nodes", "×2.27")),
            ("2", ("(ruleset lower)", "; chunk 0")),
            ("3", ("matches", "cublas-sgemm-nn", "5 of 25 never fired")),
            ("4", ("240/240", "✓ verified", "5.133 ms", "38 profiled", "numerically wrong")),
        ):
            await drive.press(key)
            await drive.until(lambda words=words: all(word in drive.screen() for word in words))


async def test_the_header_says_what_runs_and_how_far_it_is() -> None:
    async with driven(llama.FakeClient(llama.under_way())) as drive:
        for part in ("llama-3.2-1b.onnx", "cuda", "H200", "llama-7f3a", "search 101/240", "seed 7", "● running"):
            assert part in drive.rows()[0]
        drive.client.more.put_nowait(ev.Paused(at=12.0))
        await drive.until(lambda: "paused" in drive.rows()[0])
        drive.client.more.put_nowait(ev.Resumed(at=12.5))
        drive.client.more.put_nowait(ev.Cancelled(stage="search", at=13.0))
        await drive.until(lambda: "cancelled" in drive.rows()[0])


async def test_a_finished_session_says_whether_it_is_right() -> None:
    async with driven(llama.FakeClient(llama.whole())) as drive:
        assert "✓ finished" in drive.rows()[0]
    wrong = [*llama.whole()[:-1], ev.SessionFinished(ok=False, seconds=24.0, report="r", at=24.6)]
    async with driven(llama.FakeClient(wrong)) as drive:
        assert "✗ finished, not right" in drive.rows()[0]


async def test_the_tree_asks_for_nodes_only_when_a_chunk_is_unfolded() -> None:
    async with driven(llama.FakeClient(llama.whole())) as drive:
        assert drive.client.asked == []
        await drive.press("j", "j", "enter")
        assert drive.client.asked == []
        assert [label.split()[1] for label in labels(drive) if label.startswith("chunk")] == ["1", "3", "5"]
        await drive.press("j", "j", "enter")
        assert drive.client.asked == [3]
        row = llama.node_rows(3)[0]
        await drive.press("j")
        await drive.until(lambda: drive.app.scene.selection.node == row)
        assert f"{row.id} {row.name}" in drive.screen()
        assert "◆" in next(label for label in labels(drive) if label.strip().startswith(str(600 + 95)))


async def test_a_chunk_of_ten_thousand_nodes_is_paged() -> None:
    rows = [ev.NodeRow(i, "Add", "[16]", "f32", f"n{i}", [], i + 1) for i in range(10_000)]
    client = llama.FakeClient(llama.whole(), rows={0: rows})
    async with driven(client) as drive:
        await drive.press("j", "enter", "j", "enter")
        assert sum("Add" in label for label in labels(drive)) == PAGE
        more = next(line for line, label in enumerate(labels(drive)) if "9,800 more" in label)
        drive.bench.graph.outline.cursor_line = more
        await drive.press("enter")
        await drive.until(lambda: sum("Add" in label for label in labels(drive)) == 2 * PAGE)
        assert any("9,600 more" in label for label in labels(drive))
        await drive.press("/")
        await drive.type("n9999")
        await drive.press("enter")
        await drive.until(lambda: any("n9999" in label for label in labels(drive)))
        assert sum("Add" in label for label in labels(drive)) == 1


async def test_filtering_the_graph_keeps_what_matches_and_escape_brings_all_back() -> None:
    async with driven(llama.FakeClient(llama.whole())) as drive:
        before = labels(drive)
        await drive.press("/")
        await drive.type("sumreduce f32")
        await drive.until(lambda: any("SumReduce" in label for label in labels(drive)))
        nodes = [label for label in labels(drive)[1:] if not label.startswith("chunk")]
        assert nodes
        assert all("SumReduce" in label and "f32" in label for label in nodes)
        await drive.press("escape")
        await drive.until(lambda: labels(drive) == before)
        await drive.press("/")
        await drive.type("no such node")
        await drive.until(lambda: "no node matches" in drive.screen())


async def test_h_folds_and_goes_to_the_parent() -> None:
    async with driven(llama.FakeClient(llama.whole())) as drive:
        await drive.press("j", "right", "j")
        await drive.until(lambda: drive.app.scene.selection.chunk == 0)
        await drive.press("h")
        await drive.until(lambda: drive.app.scene.selection.chunk is None)
        await drive.press("h")
        assert not any(label.startswith("chunk") for label in labels(drive))
        await drive.press("G")
        await drive.until(lambda: drive.app.scene.selection.group == 3)
        await drive.press("g")
        await drive.until(lambda: drive.app.scene.selection.group is None)


async def test_selecting_a_node_marks_its_line_in_the_program() -> None:
    rows = [ev.NodeRow(i, "Add", "[16]", "f32", "", [(i - 1, "z")], i + 1) for i in range(300)]
    text = "\n".join(f"(let n{i} (Add n{i - 1}))" for i in range(300))
    async with driven(llama.FakeClient(llama.whole(), rows={0: rows}, texts={0: text})) as drive:
        await drive.press("j", "enter", "j", "enter")
        drive.bench.graph.outline.cursor_line = 2 + 150
        await drive.until(lambda: drive.bench.program.program.cursor > 100)
        line = drive.bench.program.program.cursor
        assert drive.app.scene.selection.node.line == line + 1
        assert f"(let n{line} " in drive.screen()


async def test_a_program_of_five_megabytes_shows_its_two_ends() -> None:
    text = "\n".join(f'(let n{i} (Mul n{i - 1} "weight {i}" (MNum {i})))' for i in range(120_000))
    assert len(text) > 5_000_000
    client = llama.FakeClient(llama.whole(), texts={0: text})
    async with driven(client) as drive:
        await drive.press("j")
        await drive.until(lambda: "(let n5 " in drive.screen())
        await drive.press("2", "G")
        await drive.until(lambda: "(let n119999 " in drive.screen())


async def test_searching_the_program_goes_from_match_to_match() -> None:
    async with driven(llama.FakeClient(llama.whole())) as drive:
        await drive.press("j", "2", "/", *"add", "enter")
        program = drive.bench.program.program
        wanted = [i for i, line in enumerate(llama.program(0).splitlines()) if "add" in line.lower()]
        await drive.until(lambda: program.cursor == wanted[0])
        await drive.press(".")
        assert program.cursor == wanted[1]
        await drive.press(",", ",")
        assert program.cursor == wanted[-1]
        assert f"{len(wanted)} match" in drive.screen()


async def test_rules_are_summed_over_groups_until_one_is_selected() -> None:
    async with driven(llama.FakeClient(llama.whole())) as drive:
        place = column(drive, 0).index("lower-map")
        total = sum(row.matches for group in range(4) for row in llama.rule_rows(group) if row.name == "lower-map")
        assert column(drive, MATCHES)[place] == f"{total:,}"
        await drive.press("]", "]")
        one = next(row.matches for row in llama.rule_rows(1) if row.name == "lower-map")
        await drive.until(lambda: f"{one:,}" in column(drive, MATCHES))
        await drive.press("3", "a")
        await drive.until(lambda: f"{total:,}" in column(drive, MATCHES))


def test_steps_of_groups_add_up_whatever_their_number() -> None:
    short = ev.RuleRow("a", "Other", "r", "f", 1, 3, 0.5, [1, 2], 4, 5, 10, 3)
    long = ev.RuleRow("a", "Other", "r", "f", 1, 6, 0.25, [3, 2, 1], 2, 3, 1, 1)
    never = ev.RuleRow("a", "Other", "r", "f", 1, 0, 0.25, [0])
    assert merged_rules([short, long, never]) == [
        ev.RuleRow("a", "Other", "r", "f", 1, 9, 1.0, [4, 4, 1], 2, 5, 11, 4)
    ]


async def test_the_columns_that_matter_are_seen_at_once_and_the_rest_by_scrolling() -> None:
    async with driven(llama.FakeClient(llama.whole())) as drive:
        heading = next(row for row in drive.rows() if "matches" in row)
        assert all(title in heading for title in ("rule", "ms", "share", "by step", "e-nodes", "unions"))
        row = next(row for row in llama.rule_rows(0) if row.name == "lower-map")
        total = sum(r.enodes for group in range(4) for r in llama.rule_rows(group) if r.name == row.name)
        assert column(drive, 5)[column(drive, 0).index("lower-map")] == f"{total:,}"
        await drive.press("3", "z")
        await drive.until(lambda: "where" in drive.screen())
        assert f"{row.first_step}-{row.last_step}" in drive.screen()
    async with driven(llama.FakeClient(llama.whole()), (80, 24)) as drive:
        await drive.press("3")
        await drive.until(lambda: "e-nodes" in drive.screen() and "unions" in drive.screen())


async def test_v_goes_from_rules_to_rulesets_to_functions() -> None:
    async with driven(llama.FakeClient(llama.whole())) as drive:
        await drive.press("3", "v")
        await drive.until(lambda: "rulesets · all groups" in drive.screen())
        names = column(drive, 0)
        lower = names.index("lower")
        assert set(names) == {row.ruleset for row in llama.rule_rows(0)}
        assert [column(drive, index)[lower] for index in (1, 5, 7)] == ["4/4", "+12,800", "32"]
        await drive.press("v")
        await drive.until(lambda: "functions · all groups" in drive.screen())
        assert [column(drive, index) for index in (0, 1, 3)] == [["Map", "Load"], ["2,880", "800"], ["+2,520", "+0"]]
        assert column(drive, 4)[0] == "▁▂▃▄▅▆▇█"
        await drive.press("<")
        assert column(drive, 0) == ["Load", "Map"]
        await drive.press("v")
        assert drive.bench.rules.table.row_count == len(llama.RULES)
        assert drive.bench.rules.sort_column == RULES.sort


async def test_the_rule_that_ran_away_is_named_in_the_title() -> None:
    events = llama.whole()
    place = next(i for i, event in enumerate(events) if isinstance(event, ev.GroupSaturated) and event.stopped)
    culprit = ev.Culprit("lower-map", "lower", "egg/lower.egg", 84, 3.0, "rule 'lower-map' grew fastest")
    events[place] = msgspec.structs.replace(events[place], culprit=culprit)
    async with driven(llama.FakeClient(events)) as drive:
        assert "'lower-map' ran away" in drive.screen()
        await drive.press("]")
        await drive.until(lambda: "ran away" not in drive.screen())


async def test_rules_sort_by_any_column_in_both_directions() -> None:
    async with driven(llama.FakeClient(llama.whole())) as drive:

        def times() -> list[float]:
            return [float(each) for each in column(drive, MS)]

        assert times() == sorted(times(), reverse=True)
        await drive.press("3", "i")
        assert times() == sorted(times())
        await drive.press("<")
        counts = [0 if each == "·" else int(each.replace(",", "")) for each in column(drive, MATCHES)]
        assert counts == sorted(counts, reverse=True)
        await drive.press("<")
        assert column(drive, 0) == sorted(column(drive, 0))
        await drive.press("=")
        assert column(drive, 0) == sorted(column(drive, 0), reverse=True)
        for _ in RULES.columns:
            await drive.press(">")
        assert drive.bench.rules.sort_column == 0


async def test_a_click_on_a_header_sorts_and_a_second_one_inverts() -> None:
    async with driven(llama.FakeClient(llama.whole())) as drive:
        await drive.pilot.click("#rules-table", offset=(4, 0))
        assert column(drive, 0) == sorted(column(drive, 0))
        await drive.pilot.click("#rules-table", offset=(4, 0))
        assert column(drive, 0) == sorted(column(drive, 0), reverse=True)


async def test_rules_that_never_fired_stand_out() -> None:
    async with driven(llama.FakeClient(llama.whole())) as drive:
        table = drive.bench.rules.table
        for row in range(table.row_count):
            cells = table.get_row_at(row)
            never = cells[0].plain.strip() in llama.NEVER
            assert (cells[MATCHES].plain == "·") == never
            assert ("italic" in str(cells[0].style)) == never
        assert "5 of 25 never fired" in drive.screen()


async def test_filtering_rules() -> None:
    async with driven(llama.FakeClient(llama.whole()), (120, 40)) as drive:
        await drive.press("3", "/")
        await drive.type("cublas lt")
        await drive.press("enter")
        assert {name.split("-")[0] for name in column(drive, 0)} == {"cublaslt"}
        assert "filter cublas lt" in drive.screen()
        await drive.press("escape")
        assert drive.bench.rules.table.row_count == len(llama.RULES)


async def test_the_search_pane_follows_the_search_and_then_the_selection() -> None:
    async with driven(llama.FakeClient(llama.under_way())) as drive:
        await drive.until(lambda: "group 1 /model/layers.0/add" in drive.screen())
        await drive.press("]")
        await drive.until(lambda: "group 0  best" in drive.screen())
        await drive.press("]", "]")
        await drive.until(lambda: "has not been searched yet" in drive.screen())


async def test_events_that_come_later_are_painted() -> None:
    client = llama.FakeClient(llama.imported())
    async with driven(client) as drive:
        assert "The search has not begun" in drive.screen()
        for event in [*llama.saturated(), *llama.searched(), *llama.finished()]:
            client.more.put_nowait(event)
        await drive.until(lambda: "✓ finished" in drive.rows()[0] and "✓ verified" in drive.screen())
        assert drive.bench.rules.table.row_count == len(llama.RULES)


async def test_a_restart_forgets_and_a_new_split_is_shown() -> None:
    client = llama.FakeClient(llama.whole())
    async with driven(client) as drive:
        await drive.press("j", "enter", "j", "enter")
        asked = list(client.asked)
        client.more.put_nowait(ev.Restarted(stage="split", reason="break", seed=9, at=30.0))
        await drive.until(lambda: "seed 9" in drive.rows()[0] and not drive.bench.rules.table.row_count)
        for event in llama.imported()[6:8]:
            client.more.put_nowait(event)
        await drive.until(lambda: any("group 1" in label for label in labels(drive)))
        assert len(client.asked) > len(asked) or not any(label.startswith("chunk") for label in labels(drive))


async def test_of_many_groups_only_those_around_the_selected_one_have_a_bar() -> None:
    groups = [ev.GroupInfo(i, i, [i], 40, f"d{i}") for i in range(30)]
    chunks = [ev.ChunkInfo(i, 40, [], [], "") for i in range(30)]
    start = [ev.SearchStarted(group=i, limit=60, choices=2, space_log10=1.0, members=1, at=4.0) for i in range(21)]
    past = [llama.imported()[0], ev.ChunksSplit(chunks=chunks, breaks=[], mode="auto"), ev.GroupsFormed(groups=groups)]
    async with driven(llama.FakeClient([*past, *start])) as drive:
        await drive.until(lambda: "8 of 30 groups shown" in drive.screen())
        bars = [line.plain.split()[1] for line in drive.bench.search.board.lines if line.plain.startswith("group")]
        assert "20" in bars
        assert "3" not in bars


def at_two_points() -> list[ev.AnyEvent]:
    """The session of `whole`, its second group searched at two lengths."""
    points = [ev.PointInfo({"s": 16}, {"s": (0, 45)}), ev.PointInfo({"s": 128}, {"s": (46, None)})]
    told: list[ev.AnyEvent] = []
    again: list[ev.AnyEvent] = []
    for event in llama.whole():
        match event:
            case ev.GraphImported():
                told.append(msgspec.structs.replace(event, points=points))
            case ev.GroupsFormed(groups=groups):
                told.append(ev.GroupsFormed(groups=[msgspec.structs.replace(g, points=1 + g.index) for g in groups]))
            case ev.SearchStarted(group=1):
                told.append(msgspec.structs.replace(event, dims=points[0].dims, ranges=points[0].ranges))
                again.append(msgspec.structs.replace(event, point=1, dims=points[1].dims, ranges=points[1].ranges))
            case ev.CandidateEvaluated(group=1) | ev.BestImproved(group=1) | ev.SearchFinished(group=1):
                told.append(event)
                again.append(msgspec.structs.replace(event, point=1))
            case ev.StageFinished(stage="search"):
                told += [*again, event]
            case ev.Measured():
                told += [event, msgspec.structs.replace(event, point=1, median=77.25)]
            case ev.Verified():
                told += [event, msgspec.structs.replace(event, point=1, max_abs_err=0.5)]
            case _:
                told.append(event)
    return told


@pytest.mark.parametrize("size", SIZES)
async def test_a_group_has_a_search_at_each_of_its_points(size: tuple[int, int]) -> None:
    async with driven(llama.FakeClient(at_two_points()), size) as drive:
        assert "s=16,128" in labels(drive)[0]
        await drive.press("4", "]", "]")
        await drive.until(lambda: "s=16 (up to 45)" in drive.screen())
        for words in ("group 0", "group 1 s=16", "group 1 s=128", "max abs err 5.00e-01", "latency at s=16 5.133 ms"):
            assert words in drive.screen()
        await drive.press(">")
        await drive.until(lambda: "s=128 (46 and more)" in drive.screen())
        assert "latency at s=128 77.250 ms" in drive.screen()
        assert "group 1 s=128" in drive.bench.search.info
        await drive.press(">", "<")
        assert "s=128 (46 and more)" in drive.screen()
