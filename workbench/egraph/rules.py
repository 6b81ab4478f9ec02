"""The rule library on disk: which files it has, in what order they load, and what category a rule belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import RuleError

MAX_FILE_BYTES = 4 << 20
CATEGORIES = ("Reshape", "cuBLAS", "Other")
_BY_DIRECTORY = {"flatten": "Reshape", "blas": "cuBLAS", "cublas": "cuBLAS", "cublaslt": "cuBLAS"}


@dataclass(frozen=True, slots=True)
class RuleFile:
    """One .egg file: `name` is its path under the library (`blas/sgemm_RmRm.egg`), `text` its content."""

    name: str
    text: str


def library_directory() -> Path:
    """The library that ships with the project."""
    inside = Path(__file__).resolve().parent.parent / "_egg"
    return inside if inside.is_dir() else Path(__file__).resolve().parent.parent.parent / "egg"


def read_library(directory: Path | None = None, extra: Sequence[Path] = ()) -> tuple[RuleFile, ...]:
    """The library's files, `base.egg` first, then the rest by name, then those of the `extra` directories.

    Raises RuleError for a directory or a file that cannot be read."""
    return tuple(f for root in (directory or library_directory(), *extra) for f in _read_directory(root))


def _read_directory(root: Path) -> list[RuleFile]:
    if not root.is_dir():
        raise RuleError(f"{root}: no such rule directory")
    paths = sorted(root.rglob("*.egg"), key=lambda p: (p.name != "base.egg", str(p)))
    if not paths:
        raise RuleError(f"{root}: no .egg files in it")
    files: list[RuleFile] = []
    for path in paths:
        name = str(path.relative_to(root))
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise RuleError(f"{name}: over {MAX_FILE_BYTES >> 20} MiB, too large for a rule file")
            files.append(RuleFile(name, path.read_text(encoding="utf-8")))
        except OSError as error:
            raise RuleError(f"{name}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise RuleError(f"{name}: not UTF-8 text") from None
    return files


def category(file: str) -> str:
    """The category of the rules in `file`, by its directory."""
    parts = Path(file).parts
    return _BY_DIRECTORY.get(parts[0], "Other") if len(parts) > 1 else "Other"
