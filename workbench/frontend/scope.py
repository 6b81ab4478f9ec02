"""Where names have their meaning: the model's graph, a subgraph inside it, or the body of a function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.errors import ModelError, printable
from workbench.frontend.region import Unheld
from workbench.frontend.registry import standard
from workbench.frontend.values import Value


class Scope:
    """Values by name, '' being the absent one. A name that is not here means what it means in `parent`.

    `given` are the attributes that a function's body may refer to; `place` is put before the labels of nodes. `unheld`
    are values that the graph cannot hold (see `opaque`)."""

    __slots__ = ("given", "initializers", "opsets", "parent", "place", "unheld", "values")

    def __init__(
        self,
        opsets: Mapping[str, int],
        initializers: Mapping[str, Any] | None = None,
        parent: Scope | None = None,
        given: Mapping[str, Any] | None = None,
        place: str = "",
    ) -> None:
        self.opsets = opsets
        self.initializers = initializers or {}
        self.parent = parent
        self.given = given
        self.place = place
        self.values: dict[str, Value | None] = {"": None}
        self.unheld: dict[str, Unheld] = {}

    def opset(self, domain: str) -> int:
        """The version of `domain` that nodes here are read under."""
        return self.opsets.get(standard(domain), 1)

    def holder(self, name: str) -> Scope:
        """The innermost scope that says what `name` is.

        Raises ModelError when none does."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values or name in scope.initializers or name in scope.unheld:
                return scope
            scope = scope.parent
        raise ModelError(f"'{printable(name)}' is read, but nothing makes it")

    def unheld_value(self, name: str) -> Unheld | None:
        """The value of that name where it is one that the graph cannot hold.

        Raises ModelError when nothing says what it is."""
        return self.holder(name).unheld.get(name)
