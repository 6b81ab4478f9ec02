"""What every test may ask for: models by name, their expected numbers, and a home that is not the user's."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]
MODEL_FOLDERS = (ROOT / "tests" / "models", ROOT.parent / "shared" / "models")

SHARED_MODELS = sorted({path.stem for folder in MODEL_FOLDERS for path in folder.glob("*.onnx")})
"""Names of all the models here and in the larger folder beside the repository, where there is one."""

Arrays = dict[str, np.ndarray]

# A shared machine stalls now and then; how long an example takes is no property of the code under test.
settings.register_profile("steady", deadline=None)
settings.load_profile("steady")


def _find(file_name: str) -> Path:
    for folder in MODEL_FOLDERS:
        if (folder / file_name).is_file():
            return folder / file_name
    pytest.skip(f"{file_name} is neither in tests/models nor in ../shared/models")


@pytest.fixture(scope="session")
def model_path() -> Callable[[str], Path]:
    """`model_path(name)`: the path of NAME.onnx; the test is skipped where no folder has it."""
    return lambda name: _find(f"{name}.onnx")


@pytest.fixture(scope="session")
def expected() -> Callable[[str], tuple[Arrays, Arrays]]:
    """`expected(name)`: the model's (inputs, outputs) by their names in the graph; outputs are onnxruntime's."""

    def load(name: str) -> tuple[Arrays, Arrays]:
        with np.load(_find(f"{name}.npz")) as arrays:
            sides = {
                side: {key.removeprefix(side): arrays[key] for key in arrays.files if key.startswith(side)}
                for side in ("in_", "out_")
            }
        return sides["in_"], sides["out_"]

    return load


@pytest.fixture(scope="session", autouse=True)
def own_home() -> Iterator[Path]:
    """Caches, settings and sessions go to a folder of the test run. Its path is short, as those of sockets must be."""
    home = Path(tempfile.mkdtemp(prefix="lt-"))
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("CACHE", "CONFIG", "DATA", "STATE"):
            patch.setitem(os.environ, f"XDG_{kind}_HOME", str(home / kind.lower()))
        yield home
    shutil.rmtree(home, ignore_errors=True)
