"""Tensors of a model: sizes checked before anything is allocated, data kept by reference, missing weights marked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import ModelError, printable
from workbench.frontend.inside import OWN_FILE
from workbench.ir.dtype import from_numpy
from workbench.ir.weights import ExternalData, RandomData, map_file

_MOST_BYTES = 1 << 46


class TensorReader:
    """Reads the TensorProtos of the model at `path`, which has external data in itself where it `holds_weights`; files
    are mapped once each."""

    def __init__(self, path: Path, random_weights: bool = False, *, holds_weights: bool = False) -> None:
        self.path = path
        self.holds_weights = holds_weights
        self.folder = path.parent.resolve()
        self.random_weights = random_weights
        self.missing: list[str] = []
        self._mapped: dict[str, tuple[Path, np.ndarray | None]] = {}

    def read(self, tensor: Any) -> tuple[np.ndarray | ExternalData, tuple[int, ...], np.dtype]:
        """Data, shape and element type of `tensor`.

        Raises ModelError when what it declares does not fit what it holds."""
        shape, dtype = _declared(tensor)
        count = math.prod(shape)
        if tensor.data_location == 1:
            return self._external(tensor, shape, dtype), shape, dtype
        if tensor.HasField("raw_data"):
            raw = tensor.raw_data
            width = _stored_bytes(tensor.data_type, dtype, count)
            if len(raw) != width:
                raise _mismatch(tensor, shape, dtype, width, len(raw))
            if width == count * dtype.itemsize and from_numpy(dtype) is not None:
                return np.frombuffer(raw, dtype).reshape(shape), shape, dtype
        else:
            stored = _stored_elements(tensor)
            if stored != count and dtype.itemsize * count > 2 * stored * 8:
                raise _mismatch(tensor, shape, dtype, count, stored, "elements")
        return _decoded(tensor), shape, dtype

    def array(self, tensor: Any) -> np.ndarray:
        """The elements of a tensor that must be at hand (an attribute).

        Raises ModelError when they are in a file that is missing."""
        data, _, _ = self.read(tensor)
        if isinstance(data, ExternalData):
            raise ModelError(f"tensor '{printable(tensor.name)}' is in {data.path.name}, which is missing")
        return data

    def _external(self, tensor: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | ExternalData:
        fields = {entry.key: entry.value for entry in tensor.external_data}
        try:
            offset = int(fields.get("offset") or 0)
            length = int(fields["length"]) if fields.get("length") else math.prod(shape) * dtype.itemsize
        except ValueError:
            raise ModelError(f"{_where(tensor)} has an offset or length that is no integer") from None
        if offset < 0 or length != math.prod(shape) * dtype.itemsize:
            raise _mismatch(tensor, shape, dtype, math.prod(shape) * dtype.itemsize, length)
        path, mapped = self._map(fields.get("location", ""), tensor)
        if mapped is None:
            self.missing.append(tensor.name)
            if self.random_weights:
                return RandomData(path, offset, length, len(self.missing))  # names have no say
            return ExternalData(path, offset, length)
        if offset + length > mapped.size:
            raise ModelError(f"{_where(tensor)} ends at byte {offset + length} of {path.name}, which has {mapped.size}")
        return mapped[offset : offset + length].view(dtype).reshape(shape)

    def _map(self, location: str, tensor: Any) -> tuple[Path, np.ndarray | None]:
        found = self._mapped.get(location)
        if found is None:
            path = self.path if self.holds_weights and location == OWN_FILE else self._inside(location, tensor)
            found = self._mapped[location] = (path, map_file(path))
        return found

    def _inside(self, location: str, tensor: Any) -> Path:
        """The file that external data is in, which must lie in the model's folder, whatever links lead there."""
        try:
            path = (self.folder / location).resolve() if "\0" not in location else self.folder
        except (OSError, RuntimeError) as error:  # a name that is too long, links in a circle
            raise ModelError(f"{_where(tensor)} cannot be found: {printable(str(error))}") from error
        if not path.is_relative_to(self.folder) or path == self.folder:
            raise ModelError(f"{_where(tensor)} lies outside the model's folder: '{printable(location)}'")
        return path


def _where(tensor: Any) -> str:
    return f"external data of '{printable(tensor.name)}'"


def _declared(tensor: Any) -> tuple[tuple[int, ...], np.dtype]:
    from onnx import helper

    shape = tuple(tensor.dims)
    if any(d < 0 for d in shape):
        raise ModelError(f"tensor '{printable(tensor.name)}' declares a negative extent: {list(shape)}")
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except (KeyError, ValueError, TypeError):
        raise ModelError(
            f"tensor '{printable(tensor.name)}' has an unknown element type ({tensor.data_type})"
        ) from None
    if math.prod(shape) * dtype.itemsize > _MOST_BYTES:
        raise ModelError(f"tensor '{printable(tensor.name)}' declares an absurd size: {list(shape)}")
    return shape, dtype


def _stored_bytes(data_type: int, dtype: np.dtype, count: int) -> int:
    packed = {21: 2, 22: 2, 23: 2, 25: 4, 26: 4}.get(data_type)  # int4, uint4, float4 and the 2-bit types
    return -(-count // packed) if packed else count * dtype.itemsize


def _stored_elements(tensor: Any) -> int:
    return max(
        len(tensor.float_data),
        len(tensor.int32_data),
        len(tensor.int64_data),
        len(tensor.double_data),
        len(tensor.uint64_data),
        len(tensor.string_data),
    )


def _decoded(tensor: Any) -> np.ndarray:
    from onnx import numpy_helper

    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError) as error:
        raise ModelError(f"tensor '{printable(tensor.name)}' cannot be decoded: {error}") from error


def _mismatch(
    tensor: Any, shape: tuple[int, ...], dtype: np.dtype, wanted: int, held: int, unit: str = "bytes"
) -> ModelError:
    return ModelError(
        f"tensor '{printable(tensor.name)}' declares {list(shape)} {dtype} ({wanted} {unit}) but holds {held}"
    )
