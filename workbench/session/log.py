"""The session's log: loguru into log.txt, with levels per module from LUMINAL_LOG.

`LUMINAL_LOG=INFO`, or `LUMINAL_LOG=INFO,search=TRACE,runtime.cpu=DEBUG`: a default, and levels by module below
`workbench`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from workbench.errors import WorkbenchError

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
                f"LUMINAL_LOG: '{level}' is not a level", "TRACE, DEBUG, INFO, WARNING or ERROR"
            ) from None
        levels[f"workbench.{module}" if module else ""] = level.upper()
    return levels


def open_log(path: Path, on_line: Callable[[str, str, str], None]) -> Callable[[], None]:
    """Log to `path`; lines of INFO and above also go to `on_line(level, module, message)`. Returns the closing call."""
    logger.remove()
    levels: Any = parse_levels(os.environ.get("LUMINAL_LOG", ""))

    def forward(message: Any) -> None:
        record: Record = message.record
        on_line(record["level"].name, str(record["name"]).removeprefix("workbench."), record["message"])

    to_file = logger.add(path, level=0, filter=levels, format="{time:HH:mm:ss.SSS} {level:<7} {name}: {message}")
    to_events = logger.add(forward, level="INFO", filter="workbench")

    def close() -> None:
        for handler in (to_file, to_events):
            logger.remove(handler)

    return close
