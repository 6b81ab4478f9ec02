"""Large weights inside a model file: left there, and referred to as external data of the file itself.

A protobuf parser copies every byte string that it meets. This cuts the large ones out of the bytes before the parser
sees them, by the wire format (https://protobuf.dev/programming-guides/encoding/): a message is a row of fields, each a
number with a wire type, then a varint, 4 or 8 bytes, or a length and as many bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

OWN_FILE = "\0"
"""The location of external data that lies in the model file itself. No file can be called so."""
LEAST_BYTES = 1 << 16
"""Tensors from this size on are left where they are."""

_GRAPH = 7
"""ModelProto.graph."""
_INITIALIZER = 5
"""GraphProto.initializer."""
_DATA_TYPE, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 2, 9, 13, 14
"""Of TensorProto."""
_NOT_BY_BYTES = frozenset({8, 21, 22, 23, 25, 26})
"""TensorProto.DataType: strings, and elements of less than a byte."""
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class _Field:
    """One field: where it begins, where its value does, where it ends. `value` is that of a varint."""

    number: int
    kind: int
    begin: int
    content: int
    end: int
    value: int = 0


def without_weights(data: memoryview) -> bytes | None:
    """The bytes of a ModelProto with references in place of the large raw data of its initializers; None where there
    are none, or `data` is not as expected (the parser will say what is wrong)."""
    try:
        graphs = [f for f in _fields(data, 0, len(data)) if f.number == _GRAPH]
        if len(graphs) != 1 or graphs[0].kind != _BYTES:
            return None
        (graph,) = graphs
        parts: list[bytes | memoryview] = []
        done = graph.content
        for field in _fields(data, graph.content, graph.end):
            if field.number == _INITIALIZER and field.end - field.content >= LEAST_BYTES and field.kind == _BYTES:
                tensor = _referring(data, field)
                if tensor is not None:
                    parts += [data[done : field.begin], _key(_INITIALIZER, _BYTES), _varint(len(tensor)), tensor]
                    done = field.end
    except (IndexError, ValueError):
        return None
    if not parts:
        return None
    body = b"".join([*parts, data[done : graph.end]])
    return b"".join([data[: graph.begin], _key(_GRAPH, _BYTES), _varint(len(body)), body, data[graph.end :]])


def _referring(data: memoryview, tensor: _Field) -> bytes | None:
    """The tensor with a reference in place of its raw data; None where it has none, or not that alone."""
    fields = list(_fields(data, tensor.content, tensor.end))
    raw = [f for f in fields if f.number == _RAW_DATA]
    types = [f.value for f in fields if f.number == _DATA_TYPE]
    elsewhere = any(f.number in (_EXTERNAL_DATA, _DATA_LOCATION) for f in fields)
    if len(raw) != 1 or raw[0].kind != _BYTES or elsewhere or len(types) != 1 or types[0] in _NOT_BY_BYTES:
        return None
    (held,) = raw
    if held.end - held.content < LEAST_BYTES:
        return None
    entries = {"location": OWN_FILE, "offset": str(held.content), "length": str(held.end - held.content)}
    said = b"".join(_message(_EXTERNAL_DATA, _text(1, key) + _text(2, value)) for key, value in entries.items())
    location = _key(_DATA_LOCATION, _VARINT) + _varint(1)
    return b"".join([data[tensor.content : held.begin], data[held.end : tensor.end], said, location])


def _fields(data: memoryview, at: int, end: int) -> Iterator[_Field]:
    """The fields of the message in data[at:end]. Raises ValueError or IndexError where that is none."""
    while at < end:
        begin = at
        key, at = _read_varint(data, at)
        number, kind = key >> 3, key & 7
        value = 0
        content = at
        if kind == _VARINT:
            value, at = _read_varint(data, at)
        elif kind == _BYTES:
            length, content = _read_varint(data, at)
            at = content + length
        elif kind in (_EIGHT, _FOUR):
            at += 8 if kind == _EIGHT else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at > end:
            raise ValueError("a field that is longer than its message")
        yield _Field(number, kind, begin, content, at, value)


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """(value, position behind it)."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a varint of more than ten bytes")


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _message(number: int, body: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(body)) + body


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode())
