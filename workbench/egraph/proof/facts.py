"""What the library's facts say, checked in numbers. A fact is no e-node, so rules of our own show each as one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.egraph.proof.library_calls import Meaningless
from workbench.egraph.proof.semantics import Meaning, Unknown
from workbench.egraph.rules import RuleFile
from workbench.egraph.snapshot import Snapshot
from workbench.ir import dtype as dt
from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir.expr import ITER, Expr

SHOWN = "fact."
"""What the constructors that show facts begin with."""
POINTS = np.arange(13, dtype=np.int64)
"""Values of the iterator at which expressions are compared."""

Holds = Callable[[Meaning, Sequence[int]], str]
"""Says of a fact's arguments (and result) what is wrong with it, or ''."""


@dataclass(frozen=True, slots=True)
class _Fact:
    sorts: tuple[str, ...]
    result: str
    """Sort of the result; '' for a relation."""
    wrong: Holds


@dataclass(frozen=True, slots=True)
class FalseFact:
    """A fact that does not hold."""

    function: str
    difference: str


def observers(files: Sequence[RuleFile]) -> RuleFile:
    """Rules that show, as an e-node, each fact whose meaning is known and that `files` declare."""
    text = ["(ruleset observe)"]
    for name in _declared(files):
        fact = _FACTS[name]
        sorts = [*fact.sorts, *([fact.result] if fact.result else [])]
        names = " ".join(f"?x{i}" for i in range(len(fact.sorts)))
        body = f"(= ?r ({name} {names}))" if fact.result else f"({name} {names})"
        head = f"({SHOWN}{name} {names}{' ?r' if fact.result else ''})"
        text.append(f"(constructor {SHOWN}{name} ({' '.join(sorts)}) IR)")
        text.append(f'(rule ({body}) ({head}) :ruleset observe :name "{SHOWN}{name}")')
    return RuleFile("observe.egg", "\n".join(text))


def _declared(files: Sequence[RuleFile]) -> Iterator[str]:
    whole = "\n".join(f.text for f in files)
    for name, fact in _FACTS.items():
        kind, result = ("function", rf"\s+{fact.result}\b") if fact.result else ("relation", "")
        if re.search(rf"\({kind}\s+{name}\s+\({r'\s+'.join(fact.sorts)}\){result}", whole):
            yield name


def false_facts(meaning: Meaning) -> Iterator[FalseFact]:
    """The facts that do not hold in a saturated e-graph."""
    snapshot = meaning.snapshot
    for node in range(snapshot.node_count):
        op = snapshot.op(node)
        if op.startswith(SHOWN) and not snapshot.is_subsumed(node):
            name = op.removeprefix(SHOWN)
            try:
                word = _FACTS[name].wrong(meaning, snapshot.children(node))
            except (Unknown, Meaningless, ZeroDivisionError):
                continue
            if word:
                yield FalseFact(name, word)


def _at_points(e: Expr, dims: Mapping[str, int]) -> np.ndarray:
    try:
        with np.errstate(divide="ignore"):  # n % z at 0
            return np.broadcast_to(ex.evaluate(e, {**dims, ITER: POINTS}), POINTS.shape)
    except (KeyError, ZeroDivisionError) as error:
        raise Unknown(f"{e}: {error}") from None


def _dtype(meaning: Meaning, arguments: Sequence[int]) -> str:
    is_ = dt.from_numpy(meaning.buffer(arguments[0]).dtype)
    said = meaning.snapshot.dtype(arguments[1])
    return "" if is_ is said else f"a dtype is said to be {said} and is {is_}"


def _row_major(meaning: Meaning, arguments: Sequence[int]) -> str:
    shape, strides = (meaning.snapshot.shape(a) for a in arguments)
    wanted = lay.contiguous(tuple(ex.as_dim(d) for d in shape)).strides
    same = len(strides) == len(wanted) and all(
        np.array_equal(_at_points(a, meaning.dims), _at_points(b, meaning.dims))
        for a, b in zip(strides, wanted, strict=True)
    )
    return "" if same else f"{_list(strides)} is said to be row-major over {_list(shape)}"


def _shape(meaning: Meaning, arguments: Sequence[int]) -> str:
    count = meaning.buffer(arguments[0]).size
    shape = meaning.snapshot.shape(arguments[1])
    said = int(np.prod([ex.evaluate(d, meaning.dims) for d in shape], dtype=np.int64))
    return "" if said == count else f"{count} elements are said to be of shape {_list(shape)}"


def _magnitude(meaning: Meaning, arguments: Sequence[int]) -> str:
    value, most = meaning.buffer(arguments[0]), int(meaning.snapshot.literal(arguments[1]))
    largest = max(abs(int(value.min())), abs(int(value.max()))) if value.size else 0
    return "" if largest <= most else f"nothing is said to exceed {most} in magnitude, and {largest} does"


def _free(meaning: Meaning, arguments: Sequence[int]) -> str:
    e = meaning.snapshot.expr(arguments[0])
    return "" if len(set(_at_points(e, meaning.dims).tolist())) == 1 else f"{e} is said to be free of the iterator"


def _slope(meaning: Meaning, arguments: Sequence[int]) -> str:
    e, c = (meaning.snapshot.expr(a) for a in arguments)
    straight = _at_points(c, meaning.dims) * POINTS
    same = ITER not in ex.variables(c) and np.array_equal(_at_points(e, meaning.dims), straight)
    return "" if same else f"the slope of {e} is said to be {c}"


def _row_constant(meaning: Meaning, arguments: Sequence[int]) -> str:
    strides = meaning.snapshot.shape(arguments[0])
    still = bool(strides) and not _at_points(strides[-1], meaning.dims).any()
    return "" if still else f"{_list(strides)} is said to be constant along its last axis"


def _strided_batch(meaning: Meaning, arguments: Sequence[int]) -> str:
    strides = meaning.snapshot.shape(arguments[0])
    affine = all(len(set(np.diff(_at_points(s, meaning.dims)).tolist())) == 1 for s in strides)
    return "" if len(strides) < 2 and affine else f"{_list(strides)} is said to be a batch of one stride"


def _list(items: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, items))}]"


_FACTS = {
    "dtype": _Fact(("IR",), "DType", _dtype),
    "row_major": _Fact(("EList",), "EList", _row_major),
    "shape": _Fact(("IR",), "EList", _shape),
    "magnitude": _Fact(("IR",), "i64", _magnitude),
    "free": _Fact(("Expression",), "", _free),
    "slope": _Fact(("Expression",), "Expression", _slope),
    "row_constant": _Fact(("EList",), "", _row_constant),
    "strided_batch": _Fact(("EList",), "", _strided_batch),
}


def unequal_expressions(snapshot: Snapshot, dims: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    """E-nodes of index expressions, lists and dtypes that differ from what else their e-class holds, with a word."""
    checks = {"Expression": _expressions, "EList": _lists, "DType": _dtypes}
    for eclass, sort in enumerate(snapshot.class_sort):
        if sort in checks and len(snapshot.nodes_of[eclass]) > 1:
            try:
                yield from checks[sort](snapshot, eclass, dims)
            except (Unknown, ZeroDivisionError):
                continue


def _expressions(snapshot: Snapshot, eclass: int, dims: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    value = _at_points(snapshot.expr(eclass), dims)
    for node in snapshot.nodes_of[eclass]:
        own = snapshot.expr_of(node)
        if own is not None and not np.array_equal(_at_points(own, dims), value):
            yield node, f"{own} is said to equal {snapshot.expr(eclass)}"


def _lists(snapshot: Snapshot, eclass: int, dims: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    nodes = snapshot.nodes_of[eclass]
    heads = [snapshot.children(n)[0] for n in nodes if snapshot.op(n) == "ECons"]
    values = {tuple(_at_points(snapshot.expr(h), dims).tolist()) for h in heads}
    if len({snapshot.op(node) for node in nodes}) > 1 or len(values) > 1:
        yield nodes[-1], "lists of different items or lengths are said to be equal"


def _dtypes(snapshot: Snapshot, eclass: int, dims: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    nodes = snapshot.nodes_of[eclass]
    yield nodes[-1], f"{' and '.join(sorted(snapshot.op(n) for n in nodes))} are said to be equal"
