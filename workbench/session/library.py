"""Where the rule files of a session are: which have changed, and the path of the one that a rule or an error names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path, PurePath

from workbench.egraph.rules import MAX_FILE_BYTES, RuleFile, library_directory
from workbench.session.spec import SessionSpec

Signature = tuple[tuple[str, int, int, int], ...]
"""Path, inode, size in bytes and nanoseconds of the last write of each rule file."""


def directories(spec: SessionSpec) -> tuple[Path, ...]:
    """The library directories in use: the built-in one or what replaces it, then those added."""
    return (Path(spec.egg) if spec.egg else library_directory(), *map(Path, spec.rules))


def signature(roots: Sequence[Path]) -> Signature:
    """What tells, without reading them, that rule files have changed. A directory that is not there has none."""
    found: list[tuple[str, int, int, int]] = []
    for root in roots:
        for path in sorted(root.rglob("*.egg")):
            with contextlib.suppress(OSError):  # gone since it was listed, or not ours: reading it says so
                status = path.stat()
                found.append((str(path), status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def changed_files(before: Sequence[RuleFile], after: Sequence[RuleFile]) -> list[str]:
    """Names of the files that were edited, added or removed, sorted. Libraries may have files of the same name."""
    return sorted({file.name for file in {*before} ^ {*after}})


def locate(roots: Sequence[Path], file: str, rule: str = "") -> Path | None:
    """The path of a rule file by its path under a library; None for what no library has, or what would lead out of it.

    Where several libraries have a file of that name, the one in which `rule` is named."""
    name = PurePath(file)
    if not file or "\0" in file or name.is_absolute() or ".." in name.parts or name.suffix != ".egg":
        return None
    paths = [root / name for root in roots if os.path.isfile(root / name)]
    if len(paths) > 1 and rule:
        naming = [path for path in paths if f'"{rule}"' in _text(path)]
        paths = naming or paths
    return paths[0].absolute() if paths else None


def locate_program(spec: SessionSpec, file: str) -> Path | None:
    """The path of a file that an egglog program is or includes; None where it is not beside or below the program."""
    program = os.path.join(spec.working, spec.model)
    root = os.path.dirname(os.path.realpath(program))
    if not file or "\0" in file or not file.endswith(".egg"):
        return None
    path = os.path.realpath(os.path.join(spec.working, file))
    inside = os.path.commonpath((path, root)) == root
    return Path(path) if inside and os.path.isfile(path) else None


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(MAX_FILE_BYTES)
    except OSError:
        return ""


def place_of(message: str, roots: Sequence[Path]) -> tuple[str, int]:
    """The rule file, as a path under its library, and the line that an error message begins with; ('', 0) for none."""
    named = {PurePath(path).relative_to(root).as_posix() for root in roots for path, *_ in signature([root])}
    for name in sorted(named, key=len, reverse=True):
        if message.startswith(f"{name}:"):
            digits = message[len(name) + 1 :].partition(":")[0]
            return name, int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
    return "", 0
