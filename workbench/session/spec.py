"""What a session is asked to do: the options that the command, the app and the Python API share."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from workbench.errors import WorkbenchError

DEMO = "demo"
DEFAULT_LIMIT = 120


class SessionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`model` is a path, or `demo`. `limit` is candidates per group; `breaks` is auto, none, explicit or a regular
    expression on node names; `dims` gives named dimensions their representative values. `rules` are directories added
    to the library, `egg` one that replaces it. `expected` is an .npz with `in_NAME` and `out_NAME` arrays. `session` and
    `artifacts` are directories, chosen where None."""

    model: str = DEMO
    target: str = "auto"
    limit: int = DEFAULT_LIMIT
    seed: int = 0
    strategy: str = "evolve"
    breaks: str = "auto"
    dims: dict[str, int] = {}
    rules: tuple[str, ...] = ()
    egg: str | None = None
    random_weights: bool = False
    allow_opaque: bool = False
    threads: int | None = None
    expected: str | None = None
    session: str | None = None
    artifacts: str | None = None
    memory_limit: int | None = None
    run: int = 0
    """Counts reruns: a rerun search tries and times everything anew."""
    toggled: tuple[int, ...] = ()
    """HLIR nodes at which the user turned a break on or off."""


def parse_dims(items: Iterable[str]) -> dict[str, int]:
    """`NAME=VALUE` items as a mapping. Raises WorkbenchError for anything else."""
    dims: dict[str, int] = {}
    for item in items:
        found = re.fullmatch(r"([^=]+)=(\d+)", item)
        if not found or int(found.group(2)) < 1:
            raise WorkbenchError(f"--dim: '{item}' is not NAME=VALUE with a whole number of at least 1")
        dims[found.group(1)] = int(found.group(2))
    return dims
