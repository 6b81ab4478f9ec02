"""A saturated e-graph as compact arrays: what extraction, the explorer and the search read.

E-node i has operator `ops[node_op[i]]`, belongs to e-class `node_class[i]`, and has the children
`children[child_start[i]:child_start[i + 1]]`: e-class ids, or -(j + 1) for `literals[j]`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from workbench.errors import NotViableError
from workbench.ir import dtype as dt
from workbench.ir import expr as ex
from workbench.ir.dtype import DType
from workbench.ir.expr import Expr

_COMBINE: dict[str, Callable[[Expr, Expr], Expr]] = {
    "MAdd": ex.add,
    "MMul": ex.mul,
    "MDiv": ex.floordiv,
    "MMod": ex.mod,
}

Literal = int | float | str | bool


class SnapshotData(msgspec.Struct, frozen=True):
    """A snapshot on the wire and on disk: int32 arrays as bytes. `made_by` has, per e-node, the place in `rules` of the
    rule that made it, or -1 where the program did or it is not known."""

    ops: list[str]
    class_sort: list[str]
    node_op: bytes
    node_class: bytes
    child_start: bytes
    children: bytes
    subsumed: bytes
    literals: list[Literal]
    variables: dict[str, int]
    rules: list[str] = []
    made_by: bytes = b""


@dataclass(slots=True)
class Builder:
    """Collects e-nodes for a snapshot."""

    ops: list[str]
    class_sort: list[str]
    node_op: array[int]
    node_class: array[int]
    child_start: array[int]
    children: array[int]
    subsumed: bytearray
    literals: list[Literal]
    variables: dict[str, int]
    made_by: array[int]

    @classmethod
    def empty(cls) -> Builder:
        """A builder without e-nodes."""
        return cls([], [], array("i"), array("i"), array("i", [0]), array("i"), bytearray(), [], {}, array("i"))

    def finish(self, rules: list[str] | None = None) -> SnapshotData:
        """What was collected; `rules` are those that `made_by` numbers."""
        return SnapshotData(
            self.ops,
            self.class_sort,
            self.node_op.tobytes(),
            self.node_class.tobytes(),
            self.child_start.tobytes(),
            self.children.tobytes(),
            bytes(self.subsumed),
            self.literals,
            self.variables,
            rules or [],
            self.made_by.tobytes(),
        )


def _ints(data: bytes) -> array[int]:
    values = array("i")
    values.frombytes(data)
    return values


class Snapshot:
    """Read access to a snapshot."""

    def __init__(self, data: SnapshotData) -> None:
        self.data = data
        self.ops = data.ops
        self.class_sort = data.class_sort
        self.variables = data.variables
        self._node_op = _ints(data.node_op)
        self._node_class = _ints(data.node_class)
        self._start = _ints(data.child_start)
        self._children = _ints(data.children)
        self._made_by = _ints(data.made_by)
        self._exprs: dict[int, Expr] = {}
        self._lists: dict[int, tuple[Expr, ...]] = {}

    @property
    def node_count(self) -> int:
        """Number of e-nodes."""
        return len(self._node_op)

    @property
    def class_count(self) -> int:
        """Number of e-classes."""
        return len(self.class_sort)

    def op(self, node: int) -> str:
        """Operator of an e-node."""
        return self.ops[self._node_op[node]]

    def class_of(self, node: int) -> int:
        """The e-class that an e-node belongs to."""
        return self._node_class[node]

    def children(self, node: int) -> Sequence[int]:
        """Children of an e-node: e-classes, or -(j + 1) for a literal."""
        return self._children[self._start[node] : self._start[node + 1]]

    def is_subsumed(self, node: int) -> bool:
        """Whether rules no longer see an e-node."""
        return bool(self.data.subsumed[node])

    def made_by(self, node: int) -> str | None:
        """The rule that made an e-node first; None where the program did, or it is not known."""
        rule = self._made_by[node] if self._made_by else -1
        return self.data.rules[rule] if rule >= 0 else None

    @property
    def knows_makers(self) -> bool:
        """Whether it was noted which rule made which e-node."""
        return bool(self.data.rules)

    def literal(self, child: int) -> Literal:
        """The literal that a negative child stands for."""
        return self.data.literals[-child - 1]

    @cached_property
    def nodes_of(self) -> list[list[int]]:
        """E-nodes of each e-class, in a fixed order."""
        members: list[list[int]] = [[] for _ in self.class_sort]
        for node, owner in enumerate(self._node_class):
            members[owner].append(node)
        return members

    def dtype(self, eclass: int) -> DType:
        """The dtype that an e-class of sort DType stands for."""
        return dt.BY_TERM[self.op(self.nodes_of[eclass][0])]

    def shape(self, eclass: int) -> tuple[Expr, ...]:
        """The expressions of an EList e-class."""
        found = self._lists.get(eclass)
        if found is None:
            items: list[Expr] = []
            at = eclass
            passed: set[int] = set()
            while True:
                node = self.nodes_of[at][0]
                if self.op(node) == "ENil":
                    break
                if at in passed:
                    raise NotViableError("a list contains itself: a rule made lists equal that are not")
                passed.add(at)
                head, at = self.children(node)
                items.append(self.expr(head))
            found = self._lists[eclass] = tuple(items)
        return found

    def expr(self, eclass: int) -> Expr:
        """The smallest expression of an Expression e-class (a number where there is one).

        Raises ZeroDivisionError where all that it holds divides by zero."""
        found = self._exprs.get(eclass)
        if found is None:
            self._fill_exprs()
            found = self._exprs.get(eclass)
        if found is None:
            raise ZeroDivisionError("an expression that a rule made divides by zero")
        return found

    def _fill_exprs(self) -> None:
        """Bottom-up: each e-class takes its first e-node whose children are known, numbers and atoms first."""
        pending = [n for n in range(self.node_count) if self.class_sort[self._node_class[n]] == "Expression"]
        pending.sort(key=lambda n: len(self.children(n)) - (self.op(n) in ("MNum", "MVar")))
        while pending:
            left: list[int] = []
            for node in pending:
                owner = self._node_class[node]
                if owner in self._exprs:
                    continue
                try:
                    value = self.expr_of(node)
                except ZeroDivisionError:  # it says nothing
                    continue
                if value is None:
                    left.append(node)
                else:
                    self._exprs[owner] = value
            if len(left) == len(pending):
                return
            pending = left

    def expr_of(self, node: int) -> Expr | None:
        """What an e-node of sort Expression says over the smallest expressions of its children; None where those are
        not known yet."""
        children = self.children(node)
        match self.op(node):
            case "MNum":
                return ex.const(int(self.literal(children[0])))
            case "MVar":
                return ex.var(str(self.literal(children[0])))
            case "MIter":
                return ex.Z
            case operator:
                left, right = (self._exprs.get(c) for c in children)
                return None if left is None or right is None else _COMBINE[operator](left, right)
