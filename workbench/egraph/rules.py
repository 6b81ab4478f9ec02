"""The rule library on disk: which files it has, which of them are for a target, in what order they load, and what
category a rule belongs to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import RuleError, printable
from workbench.targets import TARGETS

MAX_FILE_BYTES = 4 << 20
_BY_DIRECTORY = {"flatten": "Reshape", "blas": "BLAS", "cublas": "cuBLAS", "cublaslt": "cuBLAS"}
_TARGET_LINE = re.compile(r";+\s*target\s*:(.*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RuleFile:
    """One .egg file: `name` is its path under the library (`blas/sgemm_RmRm.egg`), `text` its content."""

    name: str
    text: str

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets that its rules are for: those its header names (`; Target: cuda`), or every one.

        The header is the comment that the file begins with. Raises RuleError (file:line) for a word that is none."""
        found: list[str] = []
        for number, line in enumerate(self.text.splitlines(), 1):
            line = line.strip()
            if line and not line.startswith(";"):
                break
            named = _TARGET_LINE.fullmatch(line)
            if named is None:
                continue
            words = named.group(1).replace(",", " ").split()
            for word in words or ("",):
                if word not in TARGETS:
                    raise RuleError(
                        f"{printable(self.name)}:{number}: '{printable(word, 40)}' is not a target",
                        f"`; Target:` takes {' or '.join(TARGETS)}",
                    )
            found += words
        return tuple(found) or TARGETS


def library_directory() -> Path:
    """The library that ships with the project."""
    inside = Path(__file__).resolve().parent.parent / "_egg"
    return inside if inside.is_dir() else Path(__file__).resolve().parent.parent.parent / "egg"


def read_library(
    directory: Path | None = None, extra: Sequence[Path] = (), target: str | None = "cpu"
) -> tuple[RuleFile, ...]:
    """The library's files for `target` (None: for any), `base.egg` first, then the rest by name, then those of the
    `extra` directories.

    Raises RuleError for a directory or a file that cannot be read, and for a header that names no target."""
    library = directory or library_directory()
    files = _read_directory(library, target)
    if not files:
        raise RuleError(f"{printable(str(library))}: none of its rule files is for the target {target}")
    return (*files, *(f for root in extra for f in _read_directory(root, target)))


def _read_directory(root: Path, target: str | None) -> list[RuleFile]:
    shown = printable(str(root))
    if not root.is_dir():
        raise RuleError(f"{shown}: no such rule directory")
    paths = sorted(root.rglob("*.egg"), key=lambda p: (p.name != "base.egg", str(p)))
    if not paths:
        raise RuleError(f"{shown}: no .egg files in it")
    files: list[RuleFile] = []
    for path in paths:
        name = str(path.relative_to(root))
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise RuleError(f"{printable(name)}: over {MAX_FILE_BYTES >> 20} MiB, too large for a rule file")
            file = RuleFile(name, path.read_text(encoding="utf-8"))
        except OSError as error:
            raise RuleError(f"{printable(name)}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise RuleError(f"{printable(name)}: not UTF-8 text") from None
        if target is None or target in file.targets:
            files.append(file)
    return files


def category(file: str) -> str:
    """The category of the rules in `file`, by its directory: Reshape, BLAS, cuBLAS or Other."""
    parts = Path(file).parts
    return _BY_DIRECTORY.get(parts[0], "Other") if len(parts) > 1 else "Other"
