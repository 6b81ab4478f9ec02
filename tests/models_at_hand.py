"""The models that tests and tools use, by name, and what is stored beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from workbench.frontend import Imported, import_model
from workbench.ir.interpret import interpret

_TESTS = Path(__file__).resolve().parent
LARGER = _TESTS.parents[1] / "shared" / "models"
"""More models than the repository holds, where they are."""
FOLDERS = (_TESTS / "models", LARGER)
"""Where models are looked for, those of the repository first."""
NAMES = sorted({path.stem for folder in FOLDERS for path in folder.glob("*.onnx")})

Arrays = dict[str, np.ndarray]


def find(file_name: str) -> Path:
    """The path of a file in one of FOLDERS. Raises FileNotFoundError."""
    for folder in FOLDERS:
        if (folder / file_name).is_file():
            return folder / file_name
    raise FileNotFoundError(f"{file_name} is neither in tests/models nor in ../shared/models")


def stored(path: Path) -> tuple[Arrays, Arrays]:
    """Inputs and expected outputs of the model at `path`."""
    with np.load(path.with_suffix(".npz")) as arrays:
        inputs, outputs = (
            {key.removeprefix(side): arrays[key] for key in arrays.files if key.startswith(side)}
            for side in ("in_", "out_")
        )
    return inputs, outputs


def computed(path: Path) -> tuple[Imported, Arrays, Arrays]:
    """The imported model, what the interpreter finds for the stored inputs, and what is expected."""
    inputs, expected = stored(path)
    imported = import_model(path, input_shapes={name: array.shape for name, array in inputs.items()})
    return imported, interpret(imported.graph, inputs), expected
