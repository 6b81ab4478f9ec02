"""What is said about a small ONNX model before it is run as an opaque operator (see `runtime.trial`)."""

from __future__ import annotations

import msgspec


class Output(msgspec.Struct, frozen=True, array_like=True):
    """`element` is a TensorProto.DataType, 0 where it is no tensor or not known; `dims` are extents, names of them, or
    None where nothing is known of one; None as a whole where not even the rank is known."""

    element: int
    dims: tuple[int | str | None, ...] | None
    kind: str
    """What it is, for people."""


class Trial(msgspec.Struct, frozen=True, array_like=True):
    """`runner` is None where nobody can run the model; `refusals` then say why, by who."""

    outputs: tuple[Output, ...]
    runner: str | None
    refusals: dict[str, str]
