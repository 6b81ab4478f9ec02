"""Messages between the session and a device worker, in the frames of `workbench.frames`. The bytes of arrays follow
their `Bind` frame unframed, in order, so that their size has no limit and they are copied once. Arrays that lie in a
file or are made up do not come: the worker maps or makes them itself."""

from __future__ import annotations

import msgspec

from workbench.runtime.compare import Tolerance
from workbench.runtime.protocol import Plan, Profile, ProfileOptions, Rejection


class InFile(msgspec.Struct, frozen=True, tag="file", array_like=True):
    """The array begins at byte `offset` of the file, while that has this size and time of change (ns)."""

    path: str
    offset: int
    size: int
    changed: int


class Random(msgspec.Struct, frozen=True, tag="random", array_like=True):
    """The array is what `ir.weights.MadeUp` makes of the seed."""

    seed: int


class Uniform(msgspec.Struct, frozen=True, tag="uniform", array_like=True):
    """All elements are the one that follows."""


class ArrayHeader(msgspec.Struct, frozen=True, array_like=True):
    """An array. Its bytes follow (C order) where `source` does not say how to get it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: InFile | Random | Uniform | None = None


class Bind(msgspec.Struct, frozen=True, tag="bind"):
    """Keep arrays under `key`. `expected` are the outputs in the plans' order (empty: do not verify), and
    `tolerances` what each may be off by (empty: what their dtypes allow)."""

    key: str
    arrays: tuple[ArrayHeader, ...]
    expected: tuple[ArrayHeader, ...]
    tolerances: tuple[Tolerance, ...]


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Forget what is kept under `key`; has no answer."""

    key: str


class Evaluate(msgspec.Struct, frozen=True, tag="evaluate"):
    """Compile, run, verify and time `plan` with the arrays of `key`. `bindings` maps plan buffer to array name; `once`,
    over the same buffers, is run before, and its outputs are bound as well. `kernel_runs` over 0 asks for the profile
    of each kernel, from that many runs."""

    key: str
    plan: Plan
    bindings: dict[int, str]
    options: ProfileOptions
    kernel_runs: int
    once: Plan | None = None


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Asks for a `Pong`."""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Asks the worker to end."""


Request = Bind | Release | Evaluate | Ping | Shutdown


class Phase(msgspec.Struct, frozen=True, tag="phase"):
    """What the worker does from now on: compile, first-run or profile."""

    name: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The end of an `Evaluate`: one of the two is set."""

    profile: Profile | None = None
    rejection: Rejection | None = None


class Bound(msgspec.Struct, frozen=True, tag="bound"):
    """The end of a `Bind`."""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The worker is there; `rss` is its memory in bytes (0 when unknown)."""

    pid: int
    rss: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The request itself was wrong (an unknown key or array)."""

    message: str


Answer = Phase | Done | Bound | Pong | Failed

