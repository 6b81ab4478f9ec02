"""What egglog says of an error, taken apart: the place, and the message without the source that it repeats."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PLACE = r"^In (?P<line>\d+):\d+-(?:(?P<last>\d+):)?\d+ of (?P<file>{file}): "
LONGEST = 2000


@dataclass(frozen=True, slots=True)
class EgglogError:
    """`message` is on one line; `file` is empty and `line` 0 where egglog does not say."""

    message: str
    file: str = ""
    line: int = 0


def taken_apart(error: BaseException, file: str = "") -> EgglogError:
    """An error of the engine; `file` is the one it is likeliest in, whose name may hold anything."""
    text = str(error)
    # Where there are two places, the first is of what the second is at odds with.
    places = list(re.finditer(_PLACE.format(file=re.escape(file)), text, re.MULTILINE))
    places = places or list(re.finditer(_PLACE.format(file=r"[^\n:]+"), text, re.MULTILINE))
    if not places:
        return EgglogError(_one_line(text) or type(error).__name__)
    found = places[-1]
    first = int(found["line"])
    repeated = int(found["last"] or first) - first + 1
    rest = text[found.end() :].split("\n", repeated)
    message = rest[repeated] if len(rest) > repeated else ""
    said = _one_line(message) or _one_line(text[found.end() :])
    return EgglogError(said, found["file"], first)


def _one_line(text: str) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"
