"""The data of constants, bound late: in memory, in a file that is mapped and not read, or made up from a seed.

What a constant's data is can be said in a few numbers (`MadeUp`, `place_in_file`), so that another process maps or
makes it for itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workbench.errors import ModelError, printable
from workbench.ir.dtype import DType

if TYPE_CHECKING:
    from workbench.ir.hlir import Graph

RANDOM_SCALE = 0.02
"""Standard deviation of made-up weights."""
_PERIOD = 4_194_301
"""Elements after which made-up weights repeat, for drawing them takes longer than copying. A prime: no two rows of a
matrix are the same."""


@dataclass(frozen=True, slots=True)
class ExternalData:
    """Where the data of a constant lies when it is not in memory. `path` is checked to be inside the model's folder;
    the file may be missing (a graph-only model)."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class RandomData(ExternalData):
    """A constant whose file is missing and whose data is made up, from `seed`, when it is loaded."""

    seed: int


@dataclass(frozen=True, slots=True)
class MadeUp:
    """An array that is made where it is used: floats are normal with RANDOM_SCALE, all else is 0."""

    seed: int
    shape: tuple[int, ...]
    dtype: DType

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def make(self) -> np.ndarray:
        """The array; the same each time."""
        if not self.dtype.is_float:
            return np.zeros(self.shape, self.dtype.numpy)
        count = math.prod(self.shape)
        drawn = np.random.default_rng(self.seed).standard_normal(min(count, _PERIOD), np.float32)
        drawn = (drawn * np.float32(RANDOM_SCALE)).astype(self.dtype.numpy, copy=False)
        made = np.empty(count, self.dtype.numpy)
        for at in range(0, count, _PERIOD):
            made[at : at + _PERIOD] = drawn[: count - at]
        return made.reshape(self.shape)


class FileMap(np.memmap):
    """The bytes of a file, mapped. `version` is the file's size and time of change when it was mapped."""

    version: tuple[int, int]


def map_file(path: Path) -> np.ndarray | None:
    """The bytes of a file, mapped; None where there is no such file. Raises ModelError when it cannot be read."""
    try:
        if not path.is_file():
            return None
        version = _version(path)
        if not version[0]:
            return np.empty(0, np.uint8)
        mapped = FileMap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"cannot read {printable(str(path))}: {reason}") from error
    mapped.version = version
    return mapped


def _version(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bytes of an array begin: in which file, which `version` of it, at which byte."""

    path: Path
    version: tuple[int, int]
    offset: int


def place_in_file(array: np.ndarray) -> Place | None:
    """Where a contiguous view of a `FileMap` lies in the file; None for any other array."""
    root: object = array
    while isinstance(root, np.ndarray) and isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, FileMap) or not array.flags.c_contiguous:
        return None
    holder: object = root.base
    if not isinstance(holder, mmap):  # what is computed from a map is of its class too
        return None
    begin = int(array.__array_interface__["data"][0]) - int(root.__array_interface__["data"][0])
    return Place(Path(str(root.filename)), root.version, begin)


def map_place(place: Place, length: int) -> np.ndarray:
    """`length` bytes from `place` on, mapped. Raises ModelError when the file is gone, or is another by now."""
    mapped = map_file(place.path)
    if not isinstance(mapped, FileMap) or mapped.version != place.version:
        raise _changed(place.path)
    return mapped[place.offset : place.offset + length]


def _changed(path: Path) -> ModelError:
    message = f"{printable(path.name)}, which holds weights, changed since the model was opened"
    return ModelError(message, "open it again")


def check_unchanged(array: np.ndarray) -> None:
    """Raises ModelError when `array` lies in a file that is not what it was when it was mapped: reading on from a file
    that became shorter would end the process."""
    place = place_in_file(array)
    if place is None:
        return
    try:
        same = _version(place.path) == place.version
    except OSError:
        same = False
    if not same:
        raise _changed(place.path)


def load_constant(graph: Graph, node_id: int) -> np.ndarray:
    """The data of Constant `node_id`, in the node's shape. Data in a file is mapped, not read; made-up data is made.

    Raises ModelError when the file is missing or has changed."""
    found = constant_source(graph, node_id)
    return found.make() if isinstance(found, MadeUp) else found


def constant_source(graph: Graph, node_id: int) -> np.ndarray | MadeUp:
    """As `load_constant`, and what is made up is not made yet."""
    node, data = graph[node_id], graph.constants[node_id]
    shape = tuple(int(str(d)) for d in node.shape)
    if isinstance(data, np.ndarray):
        check_unchanged(data)
        return data.reshape(shape)
    if isinstance(data, RandomData):
        return MadeUp(data.seed, shape, node.dtype)
    mapped = map_file(data.path)
    if mapped is None or data.offset + data.length > mapped.size:
        raise ModelError(
            f"the weights of '{printable(node.label)}' are in {data.path.name}, which is missing or too short",
            "put the file beside the model, or ask for random weights",
        )
    return mapped[data.offset : data.offset + data.length].view(node.dtype.numpy).reshape(shape)


def in_memory_form(array: np.ndarray, dtype: DType) -> np.ndarray:
    """`array` flat, in `dtype`, contiguous and aligned: a view of what it is wherever that will do."""
    return np.require(array, dtype.numpy, ["C", "A"]).reshape(-1)
