"""Draw the screenshots anew, from real runs: `make screenshots`.

Each picture is an SVG as Textual exports it, and a PNG of the same for places that show no SVG. The sessions are real:
the built-in demo compiled from nothing, watched while it searches, then read back when it is done.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import resvg_py

from workbench.session.client import Client, SessionSpec, attach, start_engine
from workbench.session.events import Shutdown
from workbench.session.view import SessionView
from workbench.tui.screenshot import capture

HERE = Path(__file__).resolve().parent
FONT = "DejaVu Sans Mono"
FONT_PLACES = ("/usr/share/fonts", "/usr/local/share/fonts", "~/.local/share/fonts", "/Library/Fonts")


@dataclass(frozen=True, slots=True)
class Picture:
    """What to press before the picture is taken, and when."""

    name: str
    size: tuple[int, int]
    keys: list[str] = field(default_factory=list)
    theme: str = "dark"


EXPLORER = ["1", "]", "]", "right", "down", "right", *["down"] * 15, "m", "enter"]
"""The e-class of a projection of the second group, its chosen e-node unfolded."""

FINISHED = [
    Picture("workbench", (160, 48), ["1", "down", "down", "right", "down", "right", *["down"] * 9]),
    Picture("workbench-light", (160, 48), ["1", "down", "right", "down"], theme="light"),
    Picture("narrow-graph", (80, 24), ["1", "down", "right", "down", "right"]),
    Picture("narrow-search", (80, 24), ["4"]),
    Picture("program", (120, 40), ["1", "down", "right", "down", "right", "down", "down", "2", "z"]),
    Picture("rules", (120, 40), ["3", "z"]),
    Picture("explorer", (120, 40), EXPLORER),
]


def searched(candidates: int) -> Callable[[SessionView], bool]:
    """True once that many candidates were evaluated over all groups."""
    return lambda view: sum(s.done for s in view.search.values()) >= candidates


async def draw(directory: Path) -> None:
    """Run the demo, take every picture."""
    spec = SessionSpec(model="demo", limit=90, session=str(directory / "demo"), artifacts=str(directory / "artifacts"))
    client = await start_engine(spec)
    await take(client, Picture("searching", (160, 48), ["4"]), searched(130))
    for picture in FINISHED:
        await take(await attach(Path(spec.session or "")), picture, lambda view: view.finished is not None)
    client = await attach(Path(spec.session or ""))
    await client.send(Shutdown())
    await client.close()


async def take(client: Client, picture: Picture, until: Callable[[SessionView], bool]) -> None:
    """One picture, as SVG and PNG."""
    path = HERE / f"{picture.name}.svg"
    await capture(client, path, picture.size, picture.keys, until, theme=picture.theme, timeout=300)
    await client.close()
    text = path.read_text(encoding="utf-8").replace("Fira Code", FONT)
    path.write_text(text, encoding="utf-8")
    if fonts := monospace_fonts():
        png = resvg_py.svg_to_bytes(svg_string=text, font_files=fonts, font_family=FONT, monospace_family=FONT, zoom=1)
        path.with_suffix(".png").write_bytes(bytes(png))
    print(path.name)


def monospace_fonts() -> list[str]:
    """Files of the font that the pictures are drawn in."""
    found = [str(p) for place in FONT_PLACES for p in Path(os.path.expanduser(place)).rglob("DejaVuSansMono*.ttf")]
    if not found:
        print(f"no PNG: the font {FONT} is not installed (package fonts-dejavu-core)", file=sys.stderr)
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(draw(Path(scratch)))
