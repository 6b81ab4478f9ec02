"""What every test may ask for: models by name, their expected numbers, and a home that is not the user's."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import models_at_hand

Arrays = models_at_hand.Arrays

# A shared machine stalls now and then; how long an example takes is no property of the code under test.
settings.register_profile("steady", deadline=None)
settings.load_profile("steady")


def _find(file_name: str) -> Path:
    try:
        return models_at_hand.find(file_name)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def model_path() -> Callable[[str], Path]:
    """`model_path(name)`: the path of NAME.onnx; the test is skipped where no folder has it."""
    return lambda name: _find(f"{name}.onnx")


@pytest.fixture(scope="session")
def expected() -> Callable[[str], tuple[Arrays, Arrays]]:
    """`expected(name)`: the model's (inputs, outputs) by their names in the graph; outputs are onnxruntime's."""

    return lambda name: models_at_hand.stored(_find(f"{name}.npz"))


@pytest.fixture(scope="session", autouse=True)
def own_home() -> Iterator[Path]:
    """Caches, settings and sessions go to a folder of the test run. Its path is short, as those of sockets must be."""
    home = Path(tempfile.mkdtemp(prefix="lt-"))
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("CACHE", "CONFIG", "DATA", "STATE"):
            patch.setitem(os.environ, f"XDG_{kind}_HOME", str(home / kind.lower()))
        yield home
    shutil.rmtree(home, ignore_errors=True)
