"""Sorts whose values hold others: what is in a value, so that it can be looked at as an e-node of its contents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from workbench.egraph.bindings import bindings

_OPERATORS = {"Vec": "vec-of", "Set": "set-of", "MultiSet": "multiset-of", "Map": "map-of"}


@dataclass(frozen=True, slots=True)
class Container:
    """A declared container sort: `presort` is Vec, Set, MultiSet or Map, `items` the sorts of what it holds."""

    presort: str
    items: tuple[str, ...]

    @property
    def operator(self) -> str:
        """The operator that its values are shown with: those of a Map are key, value, key, value."""
        return _OPERATORS[self.presort]


def containers_of(command: Any) -> Iterator[tuple[str, Container]]:
    """The container sorts that a command declares."""
    match command:
        case bindings.Sort() if command.presort_and_args is not None:
            presort, arguments = command.presort_and_args
            yield from _container(command.name, presort, arguments)
        case bindings.Datatypes():
            for _, name, declared in command.datatypes:
                if isinstance(declared, bindings.NewSort):
                    yield from _container(name, declared.name, declared.args)
        case _:
            pass


def _container(name: str, presort: str, arguments: list[Any]) -> Iterator[tuple[str, Container]]:
    items = tuple(a.name for a in arguments if isinstance(a, bindings.Var))
    if presort in _OPERATORS and len(items) == len(arguments) == (2 if presort == "Map" else 1):
        yield name, Container(presort, items)


class Contents:
    """Reads the values of one e-graph."""

    def __init__(self, egraph: Any) -> None:
        self._egraph = egraph

    def of(self, container: Container, value: Any) -> Iterator[tuple[str, Any]]:
        """The values held, each with its sort, in an order that is the same each time."""
        match container.presort:
            case "Vec":
                held = self._egraph.value_to_vec(value)
            case "Set":
                held = sorted(self._egraph.value_to_set(value))
            case "MultiSet":
                held = sorted(self._egraph.value_to_multiset(value))
            case _:
                keys, values = container.items
                for key, item in sorted(self._egraph.value_to_map(value).items()):
                    yield keys, key
                    yield values, item
                return
        for item in held:
            yield container.items[0], item
