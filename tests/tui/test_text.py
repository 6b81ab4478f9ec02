"""The small drawings: tokens, numbers, bars, sparklines, the plot."""

from __future__ import annotations

import pytest

from workbench.tui import format as fmt
from workbench.tui.plot import step_plot
from workbench.tui.theme import ASCII, DARK, UNICODE, Look
from workbench.tui.tokens import tokens

LOOK, PLAIN = Look(DARK, UNICODE), Look(DARK, ASCII)


def test_tokens_of_a_line() -> None:
    found = [
        (kind, text) for kind, text in tokens('(rule ((= e (Mul a -2.5 "x;y"))) :name "n") ; why') if text.strip("() ")
    ]
    assert found == [
        ("keyword", "rule"),
        ("constructor", "="),
        ("variable", "e"),
        ("constructor", "Mul"),
        ("variable", "a"),
        ("number", "-2.5"),
        ("string", '"x;y"'),
        ("option", ":name"),
        ("string", '"n"'),
        ("comment", "; why"),
    ]


@pytest.mark.parametrize("line", ["", '(let a "open', "((((", "; only", 'é宽 "\\"" $x ?y [z] n-1 |', "\x1b[31m"])
def test_tokens_lose_no_character(line: str) -> None:
    assert "".join(text for _, text in tokens(line)) == line


def test_times() -> None:
    assert [fmt.ms(each) for each in (None, 0.0123, 1.5, 123.45, 4321.9)] == ["-", "0.012", "1.500", "123.5", "4,322"]
    assert [fmt.clock(each) for each in (0, 61.9, 3723)] == ["0:00", "1:01", "1:02:03"]
    assert [fmt.memory(each) for each in (12, 2048, 3 << 30)] == ["12 B", "2.0 KiB", "3.0 GiB"]


@pytest.mark.parametrize("look", [LOOK, PLAIN])
@pytest.mark.parametrize("fraction", [-1.0, 0.0, 0.01, 0.5, 0.999, 1.0, 7.0])
def test_a_bar_is_as_wide_as_asked(look: Look, fraction: float) -> None:
    assert fmt.bar(fraction, 17, look, "red").cell_len == 17


def test_wide_characters_are_cut_by_cells() -> None:
    assert fmt.fit("宽字符宽字符", 7, LOOK) == "宽字符…"
    assert fmt.fit("ab", 4, LOOK) == "ab  "


def test_sparkline_shows_peaks() -> None:
    assert fmt.sparkline([0, 0], 8, LOOK) == ""
    assert fmt.sparkline([0, 1, 8], 8, LOOK) == " ▁█"
    assert len(fmt.sparkline(range(100), 10, LOOK)) == 10
    assert fmt.sparkline([0] * 50 + [9] + [0] * 49, 10, LOOK).strip() == "█"


@pytest.mark.parametrize("look", [LOOK, PLAIN])
@pytest.mark.parametrize("size", [(60, 12), (12, 3), (1, 1), (200, 40)])
def test_the_plot_has_the_size_asked_for(look: Look, size: tuple[int, int]) -> None:
    candidates = [(i, 10.0 / (i + 1)) for i in range(50)]
    lines = step_plot(candidates, candidates, 49, *size, look)
    assert len(lines) == max(3, size[1])
    if size[0] >= 30:
        assert all(line.cell_len <= size[0] for line in lines)


def test_the_plot_goes_down_from_the_first_to_the_best() -> None:
    lines = step_plot([(0, 4.0), (9, 1.0)], [(0, 4.0), (9, 1.0)], 9, 40, 12, PLAIN)
    marks = [line.plain.find("=") for line in lines[:10]]
    assert marks[0] == 10
    assert lines[9].plain.rstrip().endswith("=")


def test_a_plot_of_nothing_and_of_one_point() -> None:
    assert step_plot([], [], 9, 40, 12, LOOK) == []
    assert len(step_plot([(0, 1.0)], [(0, 1.0)], 1, 40, 12, LOOK)) == 12
