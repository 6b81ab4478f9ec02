"""The command palette: the table of keys, by name."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any

from textual.command import DiscoveryHit, Hit, Hits, Provider

from workbench.tui import keymap
from workbench.tui.keymap import Key


class KeyCommands(Provider):
    """Offers what the keys do on the workbench, where it would work now."""

    def _offered(self) -> list[Key]:
        pane = getattr(self.screen, "focused_pane", None)
        if pane is None:
            return []
        kind = getattr(self.screen, "KIND", keymap.COMPILE)
        return [key for scope in ("app", pane.TITLE.lower()) for key in keymap.keys(scope, kind) if key.palette]

    def _run(self, key: Key) -> partial[Coroutine[Any, Any, bool]]:
        target = self.screen if key.scope == "app" else self.screen.query_one(f"#{key.scope} .body")
        return partial(self.app.run_action, key.id, target)

    async def discover(self) -> Hits:
        for key in self._offered():
            yield DiscoveryHit(f"{key.title}  ({key.label})", self._run(key), help=key.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for key in self._offered():
            name = f"{key.title}  ({key.label})"
            score = max(matcher.match(name), 0.8 * matcher.match(key.help))
            if score > 0:
                yield Hit(score, matcher.highlight(name), self._run(key), help=key.help)
