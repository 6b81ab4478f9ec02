"""Which e-nodes an e-class has, and which use it: index arrays over a snapshot, made once, looked up in no time."""

from __future__ import annotations

import numpy as np

from workbench.egraph.snapshot import SnapshotData

IntArray = np.ndarray[tuple[int], np.dtype[np.int32]]
"""int32 of shape (n,)."""


class ClassIndex:
    """The e-nodes of each e-class and the users of each, both as compressed rows: `array[start[c]:start[c + 1]]`."""

    def __init__(self, data: SnapshotData) -> None:
        classes = len(data.class_sort)
        node_class = np.frombuffer(data.node_class, np.int32)
        self._members, self._members_start = _rows(node_class, np.arange(len(node_class), dtype=np.int32), classes)
        child_start = np.frombuffer(data.child_start, np.int32)
        children = np.frombuffer(data.children, np.int32)
        owners = np.repeat(np.arange(len(node_class), dtype=np.int32), np.diff(child_start))
        linked = children >= 0
        children, owners = children[linked], owners[linked]
        if len(children):
            # An e-node that has the class twice among its children uses it once.
            pairs = np.unique(children.astype(np.int64) * len(node_class) + owners)
            children = (pairs // len(node_class)).astype(np.int32)
            owners = (pairs % len(node_class)).astype(np.int32)
        self._users, self._users_start = _rows(children, owners, classes)
        self._node_op = np.frombuffer(data.node_op, np.int32)
        self._made_by = np.frombuffer(data.made_by, np.int32)
        self._rules = {name: number for number, name in enumerate(data.rules)}

    def members(self, eclass: int) -> IntArray:
        """The e-nodes of an e-class, in the snapshot's order."""
        return self._members[self._members_start[eclass] : self._members_start[eclass + 1]]

    def users(self, eclass: int) -> IntArray:
        """The e-nodes that have the e-class among their children, each once, in the snapshot's order."""
        return self._users[self._users_start[eclass] : self._users_start[eclass + 1]]

    def size(self, eclass: int) -> int:
        """Number of e-nodes in an e-class."""
        return int(self._members_start[eclass + 1] - self._members_start[eclass])

    def one_per_operator(self) -> list[int]:
        """An e-node of each operator that has any."""
        first: list[int] = np.unique(self._node_op, return_index=True)[1].tolist()
        return first

    def made_by(self, rule: str) -> IntArray:
        """The e-nodes that a rule made first, in the snapshot's order; none where that is not known."""
        number = self._rules.get(rule)
        if number is None:
            return np.empty(0, np.int32)
        return np.flatnonzero(self._made_by == number).astype(np.int32)


def _rows(keys: IntArray, values: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """`values` sorted by their key, and where each key's begin; values of one key keep their order."""
    start = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(keys, minlength=count), out=start[1:])
    return values[np.argsort(keys, kind="stable")], start
