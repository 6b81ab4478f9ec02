"""The session's log: loguru into log.txt, with levels per module from LUMINAL_LOG.

`LUMINAL_LOG=INFO`, or `LUMINAL_LOG=INFO,search=TRACE,runtime.cpu=DEBUG`: a default, and levels by module below
`workbench`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from workbench.errors import WorkbenchError, printable
from workbench.linefile import LineFile

if TYPE_CHECKING:
    from loguru import Record

DEFAULT_LEVEL = "INFO"


def parse_levels(text: str) -> dict[str | None, str | int | bool]:
    """LUMINAL_LOG as loguru's filter mapping. Raises WorkbenchError for an unknown level."""
    levels: dict[str | None, str | int | bool] = {"": DEFAULT_LEVEL}
    for item in filter(None, (part.strip() for part in text.split(","))):
        module, _, level = item.rpartition("=")
        try:
            logger.level(level.upper())
        except ValueError:
            raise WorkbenchError(
                f"LUMINAL_LOG: '{printable(level, 60)}' is not a level", "TRACE, DEBUG, INFO, WARNING or ERROR"
            ) from None
        levels[f"workbench.{module}" if module else ""] = level.upper()
    return levels


def levels_from_environment() -> dict[str | None, str | int | bool]:
    """What LUMINAL_LOG asks for. Raises WorkbenchError."""
    return parse_levels(os.environ.get("LUMINAL_LOG", ""))


def open_log(path: Path, on_line: Callable[[str, str, str], None]) -> Callable[[], None]:
    """Log to `path`; lines of INFO and above also go to `on_line(level, module, message)`. Returns the closing call.

    Raises WorkbenchError for a bad LUMINAL_LOG, SessionError when `path` cannot be opened. A full disk later costs
    lines of the log, nothing else."""
    levels = levels_from_environment()
    file = LineFile(path)
    with contextlib.suppress(ValueError):
        logger.remove(0)  # loguru's own handler writes to stderr; those of the host program stay

    def write(message: Any) -> None:
        with contextlib.suppress(WorkbenchError):
            file.append(str(message).rstrip("\n").encode(errors="backslashreplace"))

    def forward(message: Any) -> None:
        record: Record = message.record
        on_line(record["level"].name, str(record["name"]).removeprefix("workbench."), record["message"])

    handlers = [
        logger.add(
            write, level=0, filter=levels, format="{time:HH:mm:ss.SSS} {level:<7} {name}: {message}", diagnose=False
        ),
        logger.add(forward, level="INFO", filter="workbench", catch=False),
    ]

    def close() -> None:
        while handlers:
            with contextlib.suppress(ValueError):  # the host program may have removed all handlers
                logger.remove(handlers.pop())
        file.close()

    return close
