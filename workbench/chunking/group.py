"""Groups: chunks whose programs are the same once names are set aside. One e-graph and one search serve a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """`members` are chunk indices in order; `representative` is the first. `digest` identifies the program."""

    index: int
    representative: int
    members: tuple[int, ...]
    digest: str


def group(digests: Sequence[str]) -> list[Group]:
    """Groups of equal `digests` (one per chunk, of the normalised program), by first member."""
    members: dict[str, list[int]] = {}
    for chunk, digest in enumerate(digests):
        members.setdefault(digest, []).append(chunk)
    return [Group(i, chunks[0], tuple(chunks), d) for i, (d, chunks) in enumerate(members.items())]
