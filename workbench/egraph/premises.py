"""What a rule asks for: its premises one by one, as parsed and as written, with the sorts of their variables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.egraph.bindings import bindings

LITERAL_SORTS = {"Int": "i64", "Float": "f64", "String": "String", "Bool": "bool", "Unit": "Unit"}
ARITHMETIC = {"+", "-", "*", "/", "%", "min", "max", "abs", "neg"}
"""Primitives whose operands and result are of one sort."""
COMPARISONS = {"<", ">", "<=", ">=", "!="}
"""Primitives whose operands are of one sort."""


@dataclass(frozen=True, slots=True)
class Premise:
    """One top-level fact. `text` is as in the source file, on one line."""

    text: str
    fact: Any


@dataclass(frozen=True, slots=True)
class Premises:
    """A rule's premises in order. `roots` are the variables that a node may be bound to, the likeliest first."""

    premises: tuple[Premise, ...]
    roots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """Argument and result sorts of a function, constructor or relation."""

    inputs: tuple[str, ...]
    output: str


def premises_of(command: Any, backwards: bool = False) -> Premises:
    """The premises of a parsed rule or rewrite; `backwards` reads a two-way rewrite from right to left.

    The left side of a rewrite is its first premise, of a root variable of its own."""
    if isinstance(command, bindings.RuleCommand):
        rule = command.rule
        body = tuple(Premise(_text(fact), fact) for fact in rule.body)
        return Premises(body, tuple(dict.fromkeys((*_united(rule.head), *_roots(p.fact for p in body)))))
    rewrite = command.rewrite
    side = rewrite.rhs if backwards else rewrite.lhs
    taken = {*variables(side), *(v for fact in rewrite.conditions for v in fact_variables(fact))}
    root = "?root"
    while root in taken:
        root += "_"
    first = Premise(_slice(side.span), bindings.Eq(side.span, bindings.Var(side.span, root), side))
    body = (first, *(Premise(_text(fact), fact) for fact in rewrite.conditions))
    return Premises(body, tuple(dict.fromkeys((root, *_roots(p.fact for p in body)))))


def _united(head: Iterable[Any]) -> Iterator[str]:
    for action in head:
        if isinstance(action, bindings.Union):
            for side in (action.lhs, action.rhs):
                if isinstance(side, bindings.Var):
                    yield side.name


def _roots(facts: Iterable[Any]) -> Iterator[str]:
    """Variables that a premise equates with a term, then all others."""
    facts = list(facts)
    for fact in facts:
        if isinstance(fact, bindings.Eq):
            for side in (fact.left, fact.right):
                if isinstance(side, bindings.Var):
                    yield side.name
    for fact in facts:
        yield from fact_variables(fact)


def _text(fact: Any) -> str:
    return _slice(fact.span if isinstance(fact, bindings.Eq) else fact.expr.span)


def _slice(span: Any) -> str:
    """The source under a span, which counts bytes."""
    if not isinstance(span, bindings.EgglogSpan):
        return "?"
    return " ".join(span.file.contents.encode()[span.i : span.j].decode(errors="replace").split())


def expression_text(expression: Any) -> str:
    """A pattern as its source says it."""
    return str(expression.name) if isinstance(expression, bindings.Var) else _slice(expression.span)


def sides(fact: Any) -> tuple[Any, ...]:
    """The patterns of a fact: two of an equation, else one."""
    return (fact.left, fact.right) if isinstance(fact, bindings.Eq) else (fact.expr,)


def variables(expression: Any) -> Iterator[str]:
    """The variables of a pattern, without the nameless."""
    if isinstance(expression, bindings.Var):
        if not expression.name.startswith(("@", "$")) and expression.name != "_":
            yield expression.name
    elif isinstance(expression, bindings.Call):
        for argument in expression.args:
            yield from variables(argument)


def fact_variables(fact: Any) -> list[str]:
    """The variables of a fact, each once, in order."""
    return list(dict.fromkeys(v for side in sides(fact) for v in variables(side)))


def sorts_of(facts: Iterable[Any], signatures: Mapping[str, Signature]) -> dict[str, str]:
    """The sort of each variable that the functions around it tell."""
    known: dict[str, str] = {}
    facts = list(facts)
    before = -1
    while len(known) > before:
        before = len(known)
        for fact in facts:
            _infer_equal(sides(fact), None, signatures, known)
    return known


def _infer(
    expression: Any, expected: str | None, signatures: Mapping[str, Signature], known: dict[str, str]
) -> str | None:
    if isinstance(expression, bindings.Lit):
        return LITERAL_SORTS.get(type(expression.value).__name__)
    if isinstance(expression, bindings.Var):
        if expected is not None:
            known.setdefault(expression.name, expected)
        return known.get(expression.name)
    signature = signatures.get(expression.name)
    if signature is not None:
        for argument, sort in zip(expression.args, signature.inputs, strict=False):
            _infer(argument, sort, signatures, known)
        return signature.output
    if expression.name in ARITHMETIC:
        return _infer_equal(expression.args, expected, signatures, known)
    if expression.name in COMPARISONS:
        _infer_equal(expression.args, None, signatures, known)
        return None
    for argument in expression.args:
        _infer(argument, None, signatures, known)
    return None


def _infer_equal(
    expressions: Iterable[Any], expected: str | None, signatures: Mapping[str, Signature], known: dict[str, str]
) -> str | None:
    """All of one sort: what one tells holds for the others."""
    expressions = list(expressions)
    sort = expected
    for expression in expressions:
        sort = _infer(expression, sort, signatures, known) or sort
    for expression in expressions:
        _infer(expression, sort, signatures, known)
    return sort
