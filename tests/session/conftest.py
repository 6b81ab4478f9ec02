"""Running the command in this process, and small sessions."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workbench.cli import main
from workbench.session import verification
from workbench.session.spec import SessionSpec
from workbench.session.store import SessionStore

from .watching import owner

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def short_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads the latency that a test measures."""
    monkeypatch.setattr(verification, "LATENCY_SECONDS", 0.01)


@pytest.fixture
def luminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """`luminal(*arguments)`: exit status, stdout and stderr of the command, run in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


@pytest.fixture
def spec(model_path: Callable[[str], Path], tmp_path: Path) -> Iterator[Callable[..., SessionSpec]]:
    """`spec(...)`: a session below tmp_path; whatever engine holds it at the end of the test is killed."""
    used: list[Path] = []

    def make(model: str = "mlp_ts17", name: str = "s", **options: object) -> SessionSpec:
        used.append(tmp_path / name)
        options.setdefault("limit", 3)
        return SessionSpec(
            model=str(model_path(model)), session=str(used[-1]), artifacts=str(tmp_path / "artifacts"), **options
        )

    yield make
    for directory in used:
        if SessionStore(directory).is_live:
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(owner(directory), signal.SIGKILL)
