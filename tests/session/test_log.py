"""LUMINAL_LOG: levels and modules; and handlers of the host program that stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from loguru import logger

from workbench import CompileSession
from workbench.errors import WorkbenchError
from workbench.session.log import open_log, parse_levels
from workbench.session.store import LOG

Lines = list[tuple[str, str, str]]


def say(module: str, *levels: str) -> None:
    for level in levels:
        logger.patch(lambda record: record.update(name=f"workbench.{module}")).log(level, f"{module} {level}")


@pytest.mark.parametrize(
    ("setting", "kept"),
    [
        ("", {"search INFO", "egraph INFO"}),
        ("ERROR", set()),
        ("debug", {"search INFO", "search DEBUG", "egraph INFO"}),
        ("INFO,search=TRACE", {"search INFO", "search DEBUG", "search TRACE", "egraph INFO"}),
        ("search=WARNING, egraph=INFO", {"egraph INFO"}),
    ],
)
def test_levels_by_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, kept: set[str]) -> None:
    monkeypatch.setenv("LUMINAL_LOG", setting)
    lines: Lines = []
    close = open_log(tmp_path / LOG, lambda *line: lines.append(line))
    say("search", "INFO", "DEBUG", "TRACE")
    say("egraph", "INFO")
    close()
    say("search", "INFO")
    assert {line.split(": ", 1)[1] for line in (tmp_path / LOG).read_text().splitlines()} == kept
    assert lines == [("INFO", "search", "search INFO"), ("INFO", "egraph", "egraph INFO")]


@pytest.mark.parametrize("setting", ["LOUD", "search=LOUD", "search=", "INFO,=,x", "10"])
def test_a_bad_setting_is_named_before_anything_is_made(
    model_path: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    with pytest.raises(WorkbenchError, match="LUMINAL_LOG"):
        parse_levels(setting)
    monkeypatch.setenv("LUMINAL_LOG", setting)
    with pytest.raises(WorkbenchError, match="LUMINAL_LOG"):
        CompileSession(model_path("mlp_ts17"), session=str(tmp_path / "s"))
    assert not (tmp_path / "s").exists()


def test_sessions_side_by_side_leave_each_other_and_the_host_their_handlers(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    own: list[str] = []
    handler = logger.add(lambda message: own.append(str(message)), format="{message}")
    try:
        first = CompileSession(model_path("mlp_ts17"), session=str(tmp_path / "a"))
        second = CompileSession(model_path("mlp_ts17"), session=str(tmp_path / "b"))
        first.close()
        first.close()
        second.import_model()
        second.close()
        logger.info("still here")
    finally:
        logger.remove(handler)
    assert own[-1] == "still here\n"
    assert "primitives" in (tmp_path / "b" / LOG).read_text()
