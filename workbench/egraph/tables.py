"""An e-graph at rest, to look things up in: the rows of a function, the e-nodes of an e-class, both as short text."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.egraph.named import PREFIX as NAMED
from workbench.egraph.named import variables
from workbench.egraph.premises import Signature
from workbench.errors import printable

MOST_NODES = 4
"""E-nodes of a class that are shown; the rest is counted."""
MOST_TEXT = 160
"""Characters of one rendered e-node."""
DEPTH = 2
"""How deep a term is shown."""
DATA_DEPTH = 6
"""The same for terms of sorts in which no value has a name, such as expressions: nothing shorter stands for a part."""

Located = tuple[str, Any]
"""A value with its sort: an e-class, or a literal."""


@dataclass(slots=True)
class Table:
    """The rows of one function, found by their result or by one argument."""

    name: str
    signature: Signature
    rows: Sequence[Any]
    _by_output: dict[Any, list[Any]] | None = None
    _by_argument: dict[int, dict[Any, list[Any]]] | None = None

    def of(self, value: Any) -> list[Any]:
        """Rows whose result is `value`."""
        if self._by_output is None:
            self._by_output = defaultdict(list)
            for row in self.rows:
                self._by_output[row.output].append(row)
        return self._by_output.get(value, [])

    def having(self, argument: int, value: Any) -> list[Any]:
        """Rows whose argument at that place is `value`."""
        if self._by_argument is None:
            self._by_argument = {}
        index = self._by_argument.get(argument)
        if index is None:
            index = self._by_argument[argument] = defaultdict(list)
            for row in self.rows:
                index[row.inputs[argument]].append(row)
        return index.get(value, [])


def signatures_of(egraph: Any) -> dict[str, Signature]:
    """Of every function, constructor and relation of an e-graph; not of global variables."""
    return {
        name: Signature(tuple(f.input_sorts), f.output_sort)
        for name, f in egraph.freeze().functions.items()
        if not (f.is_let_binding or name.startswith(NAMED))
    }


class Tables:
    """All functions of an e-graph as it is now. `facts` names those that are tables beside the e-classes."""

    def __init__(self, egraph: Any, facts: Collection[str]) -> None:
        self.facts = facts
        self._functions = egraph.freeze().functions
        self._variables = {name: (sort, value) for name, sort, value in variables(egraph, self._functions)}
        self._tables: dict[str, Table] = {}
        self._names: dict[Located, str] | None = None
        self._data: set[str] | None = None
        self._constructors: dict[str, list[str]] = defaultdict(list)
        """Names by sort of the result."""
        for name, function in self._functions.items():
            if not (function.is_let_binding or name.startswith(NAMED) or name in facts):
                self._constructors[function.output_sort].append(name)
        self._readers = {
            "i64": egraph.value_to_i64,
            "f64": egraph.value_to_f64,
            "String": egraph.value_to_string,
            "bool": egraph.value_to_bool,
        }

    def table(self, name: str) -> Table | None:
        """The rows of a function; None where there is no such function."""
        found = self._tables.get(name)
        if found is None:
            function = self._functions.get(name)
            if function is None or function.is_let_binding:
                return None
            signature = Signature(tuple(function.input_sorts), function.output_sort)
            found = self._tables[name] = Table(name, signature, function.rows)
        return found

    def variable(self, name: str) -> Located | None:
        """What a global variable stands for."""
        return self._variables.get(name)

    def literal(self, sort: str, value: Any) -> Any:
        """The Python value of a literal; None for other sorts."""
        reader = self._readers.get(sort)
        return None if reader is None else reader(value)

    def nodes(self, sort: str, value: Any) -> Iterator[tuple[Table, Any]]:
        """The e-nodes of an e-class."""
        for name in self._constructors.get(sort, ()):
            table = self.table(name)
            assert table is not None
            for row in table.of(value):
                yield table, row

    def show_class(self, sort: str, value: Any) -> str:
        """What stands in an e-class: its e-nodes, the smallest first; what is left out is counted."""
        if sort in self._readers:
            return self.show(sort, value)
        found = sorted(self.nodes(sort, value), key=lambda node: len(node[1].inputs))
        depth = DATA_DEPTH if sort in self.data_sorts() else DEPTH
        shown = [self._show_row(table, row, depth) for table, row in found[:MOST_NODES]]
        left = len(found) - len(shown)
        text = " | ".join(shown) or self._nameless(sort)
        return f"{text} | and {left} more e-nodes" if left else text

    def show(self, sort: str, value: Any, depth: float | None = None) -> str:
        """A value as a short term: a literal, a `$t` variable, or the smallest e-node of the class."""
        if depth is None:
            depth = DATA_DEPTH if sort in self.data_sorts() else DEPTH
        if sort in self._readers:
            plain = self._readers[sort](value)
            if isinstance(plain, str):
                return json.dumps(printable(plain, 60), ensure_ascii=False)
            return str(plain).lower() if isinstance(plain, bool) else repr(plain)
        name = self._named().get((sort, value))
        if name is not None:
            return name
        if depth < 0:
            return ".."
        node = min(self.nodes(sort, value), key=lambda node: len(node[1].inputs), default=None)
        return self._nameless(sort) if node is None else self._show_row(*node, depth)

    def _show_row(self, table: Table, row: Any, depth: float) -> str:
        parts = [table.name]
        room = MOST_TEXT
        sorts, output = table.signature.inputs, table.signature.output
        for place, (sort, value) in enumerate(zip(sorts, row.inputs, strict=True), 1):
            is_rest = place == len(sorts) and sort == output and sorts[0] != output  # of a list, almost as near
            part = self.show(sort, value, depth - (0.1 if is_rest else 1)) if room > 0 else ".."
            room -= len(part) + 1
            parts.append(part)
        return printable(f"({' '.join(parts)})", MOST_TEXT)

    def data_sorts(self) -> set[str]:
        """Sorts whose terms are made of no value that has a name, such as expressions and their lists."""
        if self._data is None:
            parts: dict[str, set[str]] = {}
            for name, function in self._functions.items():
                beside = function.output_sort in self._readers  # a table of numbers, such as who made what
                if not (beside or function.is_let_binding or name.startswith(NAMED) or name in self.facts):
                    parts.setdefault(function.output_sort, set()).update(function.input_sorts)
            named = {sort for sort, _ in self._named()}
            while grown := {s for s, made_of in parts.items() if s not in named and made_of & named}:
                named |= grown
            self._data = parts.keys() - named
        return self._data

    def _named(self) -> dict[Located, str]:
        """The `$t` variable of each value that has one."""
        if self._names is None:
            self._names = {}
            for name, located in self._variables.items():
                if name.startswith("$t"):
                    self._names.setdefault(located, name)
        return self._names

    def _nameless(self, sort: str) -> str:
        return f"(a value of sort {printable(sort, 40)})"
