"""The open screen: what it offers, and what becomes of a choice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.tui import llama
from tests.tui.drive import Driven
from workbench.errors import ModelError
from workbench.tui import app as app_module
from workbench.tui.app import WorkbenchApp
from workbench.tui.screens.open import OpenScreen, candidates


@dataclass
class Summary:
    directory: Path
    model: str
    status: str
    started: float
    target: str


@pytest.fixture(autouse=True)
def specs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "_spec", lambda model: ("spec", model))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models").mkdir()
    for name in ("a.onnx", "models/b.onnx", "models/notes.txt"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sessions() -> list[Summary]:
    return [Summary(Path("/s/one"), "/m/[red]llama.onnx", "finished", 1767323045.0, "cpu")]


async def opening(opener: Any) -> WorkbenchApp:
    return WorkbenchApp(None, opener=opener, summaries=sessions)


async def test_it_offers_the_demo_sessions_and_models(here: Path) -> None:
    app = await opening(None)
    async with app.run_test(size=(80, 24)) as pilot:
        drive = Driven(app, pilot, llama.FakeClient([]))
        await drive.until(lambda: "demo" in drive.screen())
        assert isinstance(app.screen, OpenScreen)
        for said in ("demo", "[red]llama.onnx", "finished", "one", "a.onnx", "models/b.onnx"):
            assert said in drive.screen()


async def test_enter_opens_the_demo_and_shows_it(here: Path) -> None:
    asked: list[Any] = []
    client = llama.FakeClient(llama.whole())

    async def opener(target: Any) -> llama.FakeClient:
        asked.append(target)
        return client

    app = await opening(opener)
    async with app.run_test(size=(120, 40)) as pilot:
        drive = Driven(app, pilot, client)
        await drive.press("enter")
        await drive.until(lambda: "✓ finished" in drive.rows()[0])
        assert asked == [("spec", "demo")]
        await drive.press("o", "j", "enter")
        await drive.until(lambda: len(asked) == 2)
        assert asked[1] == Path("/s/one")


async def test_an_error_is_shown_in_place(here: Path) -> None:
    async def opener(target: Any) -> llama.FakeClient:
        raise ModelError("no operator [red]Foo[/red] at node 7", "replace it")

    app = await opening(opener)
    async with app.run_test(size=(80, 24)) as pilot:
        drive = Driven(app, pilot, llama.FakeClient([]))
        await drive.press("/")
        await drive.type("a.onnx")
        await drive.press("enter")
        await drive.until(lambda: "no operator [red]Foo[/red] at node 7" in drive.screen())
        assert "replace it" in drive.screen()
        assert isinstance(app.screen, OpenScreen)
        await drive.press("tab", "escape")
        await drive.until(lambda: not app.is_running)


def test_files_that_complete_a_path(here: Path) -> None:
    assert candidates("") == [("a.onnx", False), ("models/b.onnx", False)]
    assert candidates("mo") == [("models", True)]
    assert candidates("models/") == [("models/b.onnx", False)]
    assert candidates("nowhere/x") == []
