"""Length-prefixed msgpack messages over a pipe: how the session talks to its child processes."""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Iterable
from typing import Any, BinaryIO

import msgspec

MAX_BYTES = 1 << 31
_CHUNK = 1 << 20
_HEADER = struct.Struct("<I")
_ENCODER = msgspec.msgpack.Encoder()


class Closed(Exception):
    """The other side is gone."""


class TimedOut(Exception):
    """Nothing came within the time allowed."""


def send(pipe: BinaryIO, message: Any, raw: Iterable[memoryview] = ()) -> None:
    """Write one message (msgpack of a struct or plain data), then `raw` bytes, unframed. Raises Closed when the reader
    is gone."""
    body = _ENCODER.encode(message)
    try:
        for part in (memoryview(_HEADER.pack(len(body)) + body), *raw):
            left = part
            while len(left):  # an unbuffered pipe may take less than it is given
                left = left[pipe.write(left[:_CHUNK]) :]
        pipe.flush()
    except (OSError, ValueError) as error:
        raise Closed from error


def receive(pipe: BinaryIO, deadline: float | None = None) -> bytes:
    """The next message's body. `deadline` is a time.monotonic() value.

    Raises Closed at the end of the stream and TimedOut past the deadline. `pipe` must be unbuffered when a deadline is
    given, since readiness is asked of its descriptor."""
    (length,) = _HEADER.unpack(_exactly(pipe, _HEADER.size, deadline))
    if length > MAX_BYTES:
        raise Closed(f"a message of {length} bytes")
    return _exactly(pipe, length, deadline)


def _exactly(pipe: BinaryIO, count: int, deadline: float | None) -> bytes:
    parts: list[bytes] = []
    while count:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise TimedOut
        part = pipe.read(count) if deadline is None else os.read(pipe.fileno(), count)
        if not part:
            raise Closed
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
