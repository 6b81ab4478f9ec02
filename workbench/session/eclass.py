"""What the explorer says about an e-class: plain data that crosses the socket and is printed by `explore --json`."""

from __future__ import annotations

import msgspec


class ChildRow(msgspec.Struct, frozen=True):
    """A child of an e-node that is an e-class: its place among the arguments from 1 on, the class, its sort, how many
    e-nodes it has, and its short term. `value`: an index expression, a list of them or a dtype, shown by its value."""

    place: int
    eclass: int
    sort: str
    nodes: int
    text: str
    value: bool = False


class KernelUse(msgspec.Struct, frozen=True):
    """A kernel of the best candidate: the e-class that it computes and that class's short term. `name`, `ms` (of one
    call, the mean over all `calls` in the whole program) are there once the compiled program was measured."""

    eclass: int
    text: str
    name: str = ""
    ms: float | None = None
    calls: int = 0


class ENodeRow(msgspec.Struct, frozen=True):
    """An e-node. `made_by` is the rule that made it first and `file`, `line` where that stands; empty where the program
    made it, or where that is not known (see `EClassPage.makers_known`). `option`: the search may choose it. `chosen`:
    the best candidate computes its class by it, in `kernels`; `more_kernels` counts those that are not listed."""

    id: int
    eclass: int
    op: str
    term: str
    children: list[ChildRow]
    made_by: str = ""
    file: str = ""
    line: int = 0
    subsumed: bool = False
    option: bool = False
    chosen: bool = False
    kernels: list[KernelUse] = []
    more_kernels: int = 0


class BestLine(msgspec.Struct, frozen=True):
    """The best candidate of the group so far: its number in the search, and its time for one chunk."""

    index: int
    ms: float
    timed: bool = False
    """Whether its kernels were timed one by one."""


class EClassPage(msgspec.Struct, frozen=True):
    """E-nodes of an e-class (`about` class), those that have it as a child (users), or those that a rule made (rule;
    then `eclass` is -1).

    `rows` are those from `offset` on, out of `total` that the filter leaves of `unfiltered`. `name` is the variable
    of the program that stands for the class, `nodes` are the HLIR nodes of chunk `member` that it computes
    (`node_texts`: operator, shape, dtype, label), `text` is its short term. `size`, `users` and `options` count its
    e-nodes, those that use it, and those that the search may choose. `in_best`: whether the best candidate computes
    the class in memory or in a kernel's body; `instead` are the kernels that compute it on the spot where it would
    be loaded. `stopped` is the limit that ended the saturation."""

    group: int
    member: int
    about: str
    eclass: int
    sort: str = ""
    name: str = ""
    names: list[str] = []
    nodes: list[int] = []
    node_texts: list[str] = []
    text: str = ""
    rule: str = ""
    size: int = 0
    users: int = 0
    options: int = 0
    rows: list[ENodeRow] = []
    offset: int = 0
    total: int = 0
    unfiltered: int = 0
    searched: bool = True
    """Not so of an egglog program: there is nothing to choose."""
    best: BestLine | None = None
    in_best: bool = False
    instead: list[KernelUse] = []
    more_instead: int = 0
    makers_known: bool = False
    egraph_classes: int = 0
    egraph_nodes: int = 0
    stopped: str = ""
    note: str = ""
