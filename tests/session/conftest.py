"""Running the command in this process, and small sessions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.cli import main

Command = Callable[..., tuple[int, str, str]]


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
