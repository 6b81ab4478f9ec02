"""The distinct values of a kernel's body, in the order of their computation: what is scheduled and written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.ir import expr as ex
from workbench.ir.dtype import DType
from workbench.ir.expr import Expr
from workbench.ir.layout import Dim
from workbench.ir.llir import GATHERED, Apply, Body, GatherLoad, Immediate, Load, Position, Reduced


@dataclass(slots=True)
class Term:
    """One distinct value of a kernel's body. `args` are earlier terms; `op` is a function's name, or one of `const`,
    `load`, `gather`, `position` and `reduced` (pass number `value` of a row). In a gather's address,
    `gathered(args[0])` is the index."""

    op: str
    args: tuple[int, ...]
    dtype: DType
    value: float | int | bool = 0
    buffer: int = -1
    address: Expr = ex.ZERO
    extent: Dim = 0
    level: int = -1
    """The innermost loop that the value depends on; -1 when on none."""
    vector: bool = False
    """Whether it depends on the vector's loop."""

    @property
    def key(self) -> tuple[object, ...]:
        """What the term computes, without where."""
        return (self.op, self.args, self.dtype, repr(self.value), self.value, self.buffer, self.address, self.extent)

    @classmethod
    def from_key(cls, key: tuple[Any, ...]) -> Term:
        """A fresh term from its key."""
        op, args, dtype, _, value, buffer, address, extent = key
        return cls(op, args, dtype, value, buffer, address, extent)


def gathered(term: int) -> str:
    """The variable that stands for the clamped index `term` in the address of a gather."""
    return f"{GATHERED}{term}"


def linearise(body: Body) -> list[Term]:
    """The distinct values of `body`, operands first, the body itself last."""
    return linearise_all([body])[0]


def linearise_all(bodies: Sequence[Body]) -> tuple[list[Term], list[int]]:
    """The distinct values of all `bodies`, operands first, and which of them each body is."""
    terms: list[Term] = []
    known: dict[object, int] = {}
    done: dict[int, int] = {}

    def visit(node: Body) -> int:
        if id(node) in done:
            return done[id(node)]
        match node:
            case Immediate(value, dtype):
                term = Term("const", (), dtype, value=value)
            case Load(buffer, address, dtype):
                term = Term("load", (), dtype, buffer=buffer, address=address)
            case GatherLoad(buffer, address, index, extent, dtype):
                at = visit(index)
                moved = ex.substitute(address, {GATHERED: ex.var(gathered(at))})
                term = Term("gather", (at,), dtype, buffer=buffer, address=moved, extent=extent)
            case Position(value, dtype):
                term = Term("position", (), dtype, address=value)
            case Reduced(index, dtype):
                term = Term("reduced", (), dtype, value=index)
            case Apply(name, operands, dtype):
                term = Term(name, tuple(visit(o) for o in operands), dtype)
        if term.key not in known:
            known[term.key] = len(terms)
            terms.append(term)
        done[id(node)] = known[term.key]
        return done[id(node)]

    roots = [visit(body) for body in bodies]
    return terms, roots
