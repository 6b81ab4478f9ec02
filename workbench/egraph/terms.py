"""The e-nodes of a snapshot as short terms: `(Map [16, 64] (EMul (Load $t3 [z*64, z] 0) (Load $t5 [0, z] 0)) f32)`.

A class that the program names is shown by its name, a class of index expressions, shapes or dtypes by its value, any
other by one e-node, the program's own or else the smallest, as deep as `DEPTH`; below that by its number, `#57`.
"""

from __future__ import annotations

import json

from workbench.egraph.eclasses import ClassIndex
from workbench.egraph.snapshot import Literal, Snapshot
from workbench.errors import printable
from workbench.ir import dtype as dt

DEPTH = 3
"""How deep classes without a name are shown by an e-node of theirs."""
MOST_TEXT = 600
"""Characters of one term; what is longer ends in an ellipsis."""
MOST_ITEMS = 64
"""Items of a shown list."""
SMALLEST_OF = 64
"""E-nodes of a class among which the smallest is looked for."""

_EXPRESSION = frozenset({"MNum", "MVar", "MIter", "MAdd", "MMul", "MDiv", "MMod"})
_LIST = frozenset({"ENil", "ECons"})


class Terms:
    """Renders one snapshot. Everything is shown safe for a terminal."""

    def __init__(self, snapshot: Snapshot, index: ClassIndex) -> None:
        self.snapshot, self.index = snapshot, index
        self._names: dict[int, list[str]] = {}
        for name, eclass in snapshot.variables.items():
            self._names.setdefault(eclass, []).append(name)
        for names in self._names.values():
            names.sort(key=lambda name: (not name.startswith("$t"), len(name), name))
        self._values: dict[int, str] = {}
        self._short: dict[tuple[int, int], str] = {}
        made: dict[str, set[str]] = {}
        for node in index.one_per_operator():
            made.setdefault(snapshot.class_sort[snapshot.class_of(node)], set()).add(snapshot.op(node))
        self._has_expressions = made.get("Expression", set()) <= _EXPRESSION
        """Otherwise a sort of a foreign program happens to be called so."""
        self._has_lists = made.get("EList", set()) <= _LIST

    def names(self, eclass: int) -> list[str]:
        """The global variables that stand for an e-class, those of nodes first."""
        return self._names.get(eclass, [])

    def short(self, eclass: int, depth: int = DEPTH) -> str:
        """An e-class by its value, its name, an e-node, or its number, in this order."""
        found = self._short.get((eclass, depth))
        if found is None:
            found = self._short[eclass, depth] = self._shorten(eclass, depth)
        return found

    def node(self, node: int, depth: int = DEPTH) -> str:
        """An e-node with its children as short terms."""
        parts = [self.snapshot.op(node)]
        room = MOST_TEXT
        for child in self.snapshot.children(node):
            if room <= 0:
                parts.append("..")
                break
            part = self.literal(self.snapshot.literal(child)) if child < 0 else self.short(child, depth - 1)
            room -= len(part) + 1
            parts.append(part)
        return printable(f"({' '.join(parts)})", MOST_TEXT)

    @staticmethod
    def literal(value: Literal) -> str:
        """A literal as egglog writes it."""
        if isinstance(value, str):
            return printable(json.dumps(value, ensure_ascii=False), 80)
        return str(value).lower() if isinstance(value, bool) else repr(value)

    def value(self, eclass: int) -> str:
        """What a class of index expressions, lists of them or dtypes stands for; empty for any other."""
        found = self._values.get(eclass)
        if found is None:
            sort = self.snapshot.class_sort[eclass]
            if sort == "Expression" and self._has_expressions:
                found = self._expression(eclass)
            elif sort == "EList" and self._has_lists:
                found = self._list(eclass)
            else:
                found = self._dtype(eclass) if sort == "DType" else ""
            found = self._values[eclass] = printable(found, MOST_TEXT)
        return found

    def _shorten(self, eclass: int, depth: int) -> str:
        value = self.value(eclass)
        if value:
            return value
        names = self.names(eclass)
        if names:
            return printable(names[0], 60)
        members = self.index.members(eclass)[:SMALLEST_OF]
        if depth < 0 or not len(members):
            return f"#{eclass}"
        # What the program wrote says best what it is, then what is smallest.
        made_by, children = self.snapshot.made_by, self.snapshot.children
        shown = min(map(int, members), key=lambda n: (made_by(n) is not None, len(children(n))))
        return self.node(shown, depth)

    def _expression(self, eclass: int) -> str:
        try:
            return str(self.snapshot.expr(eclass))
        except KeyError:  # no finite term is left of it
            return ""
        except ValueError:  # an atom that no program of ours has
            self._has_expressions = False
            return ""

    def _list(self, eclass: int) -> str:
        items: list[str] = []
        at = eclass
        while len(items) < MOST_ITEMS:
            members = self.index.members(at)
            if not len(members):
                return ""
            node = int(members[0])
            if self.snapshot.op(node) == "ENil":
                return f"[{', '.join(items)}]"
            head, at = self.snapshot.children(node)
            items.append(self.short(head, 0))
        return f"[{', '.join(items)}, ..]"

    def _dtype(self, eclass: int) -> str:
        members = self.index.members(eclass)
        known = dt.BY_TERM.get(self.snapshot.op(int(members[0]))) if len(members) else None
        return "" if known is None else known.name
