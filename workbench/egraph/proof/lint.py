"""What can be said of rules without running them: premises that are missing, products, rules that can never fire."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.egraph.bindings import bindings
from workbench.egraph.premises import fact_variables, sides, variables
from workbench.egraph.program import EMITTED
from workbench.egraph.proof.library_calls import CALLS
from workbench.egraph.proof.reading import Read, ReadRule, calls, calls_of
from workbench.errors import printable


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to look at. `kind` is one word or two, `text` says what is wrong, `advice` what to do."""

    kind: str
    rule: str
    file: str
    line: int
    text: str
    advice: str


def lint(own: Read, library: Read) -> list[Finding]:
    """Findings about the rules of `own`, which are read together with those of `library` (both may be the same)."""
    found: list[Finding] = []
    both = [*library.rules, *(r for r in own.rules if own is not library)]
    makeable = _makeable(both, library.stated | own.stated)
    names = [r.name for r in both if r.name]
    for rule in own.rules:
        found += _naming(rule, names)
        found += _products(rule)
        found += _unmade(rule, makeable)
        found += _library_calls(rule)
    return found


def _finding(kind: str, rule: ReadRule, text: str, advice: str) -> Finding:
    return Finding(kind, rule.shown, rule.file, rule.line, text, advice)


def _naming(rule: ReadRule, names: Sequence[str]) -> Iterator[Finding]:
    if not rule.name:
        yield _finding("no name", rule, "the rule has no name", 'add :name "what it does"')
    elif names.count(rule.name) > 1:
        yield _finding("duplicate name", rule, f"the name '{printable(rule.name)}' is used twice", "rename one")
    if not rule.ruleset:
        yield _finding(
            "no ruleset", rule, "the rule is in no ruleset, and the schedule runs rulesets", "add :ruleset NAME"
        )


def _products(rule: ReadRule) -> Iterator[Finding]:
    """Premises that share no variable: every match of the one with every match of the other."""
    parts: list[tuple[set[str], str]] = []
    for premise in rule.premises:
        names = set(fact_variables(premise.fact))
        if not names:
            continue
        joined = [p for p in parts if p[0] & names]
        parts = [p for p in parts if not p[0] & names]
        first = joined[0][1] if joined else premise.text
        parts.append((names.union(*(p[0] for p in joined)), first))
    if len(parts) > 1:
        texts = " and ".join(_shortened(text) for _, text in parts[:3])
        yield _finding(
            "cross product",
            rule,
            f"{len(parts)} groups of premises share no variable: {texts}",
            "bind them to each other, or the rule is tried on every pair",
        )


def _shortened(text: str) -> str:
    return printable(text, 60)


def _makeable(rules: Sequence[ReadRule], stated: Iterable[str]) -> set[str]:
    """What a program can hold at some time: what programs are written in and what rules that can fire make."""
    makeable = {*EMITTED, *stated}
    waiting = list(rules)
    while True:
        able = [r for r in waiting if not _missing(r, makeable)]
        if not able:
            return makeable
        waiting = [r for r in waiting if r not in able]
        for rule in able:
            for expression in rule.conclusions:
                makeable |= set(calls(expression))


def _missing(rule: ReadRule, makeable: set[str]) -> list[str]:
    wanted = dict.fromkeys(name for premise in rule.premises for name in calls_of(premise))
    return [name for name in wanted if name not in makeable and not _is_primitive(name)]


def _is_primitive(name: str) -> bool:
    """Functions on numbers and strings, which are no tables."""
    return not name[:1].isalpha() or name in ("min", "max", "abs", "log2", "not", "and", "or", "xor")


def _unmade(rule: ReadRule, makeable: set[str]) -> Iterator[Finding]:
    for name in _missing(rule, makeable):
        yield _finding(
            "never fires",
            rule,
            f"it asks for {printable(name)}, which no program and no rule that can fire makes",
            "check the name, or add the rule that makes it",
        )


def _library_calls(rule: ReadRule) -> Iterator[Finding]:
    made = [c for e in rule.conclusions for c in _calls_in(e) if c.name in CALLS]
    if not made:
        return
    typed = set(_typed(rule))
    result = set(_united_with_calls(rule))
    for call in made:
        arguments = [a for a in call.args if not isinstance(a, bindings.Lit)]
        if call.name == "CublasLt":
            arguments = arguments[1:]
        lists = [arguments[0], arguments[5], arguments[9]] if len(arguments) >= 12 else []
        operands = [arguments[4], arguments[8]] if len(arguments) >= 12 else []
        for operand in operands:
            if isinstance(operand, bindings.Var) and operand.name not in typed:
                yield _finding(
                    "no dtype",
                    rule,
                    f"the operand {operand.name} of {call.name} has no dtype premise",
                    f"ask for (= (F32) (dtype {operand.name}))",
                )
        for name in sorted(result - typed):
            yield _finding(
                "no dtype", rule, f"the result {name} has no dtype premise", f"ask for (= (F32) (dtype {name}))"
            )
        yield from _rank(rule, call, lists)


def _rank(rule: ReadRule, call: Any, lists: Sequence[Any]) -> Iterator[Finding]:
    """The three batch lists of a call must be as long as each other: closed lists, or the three of one Matmul."""
    open_lists = [_open_end(x) for x in lists]
    matmuls = [c for p in rule.premises for s in sides(p.fact) for c in _calls_in(s) if c.name == "Matmul"]
    of_one = any(
        open_lists == [_open_end(m.args[0]), _open_end(m.args[5]), _open_end(m.args[10])]
        for m in matmuls
        if len(m.args) == 14
    )
    if any(open_lists) and not of_one:
        loose = ", ".join(sorted({name for name in open_lists if name}))
        yield _finding(
            "no rank",
            rule,
            f"the rank of {call.name} is not bound: {loose}",
            "take all three batch lists from one Matmul, or close them with (ENil)",
        )
    kept = {v for x in call.args for v in variables(x)}
    for premise in rule.premises:
        for side in sides(premise.fact):
            for inner in _calls_in(side):
                end = _open_end(inner) if inner.name == "ECons" else None
                if end is not None and end not in kept:
                    yield _finding(
                        "no rank",
                        rule,
                        f"the list {_shortened(premise.text)} goes on as {end}, which {call.name} does not get",
                        "close it with (ENil), or an axis is dropped",
                    )
                    return


def _open_end(expression: Any) -> str | None:
    """The variable that a list ends in; None where it is closed."""
    while isinstance(expression, bindings.Call) and expression.name == "ECons":
        expression = expression.args[1]
    return str(expression.name) if isinstance(expression, bindings.Var) else None


def _calls_in(expression: Any) -> Iterator[Any]:
    if isinstance(expression, bindings.Call):
        yield expression
        for argument in expression.args:
            yield from _calls_in(argument)


def _typed(rule: ReadRule) -> Iterator[str]:
    for premise in rule.premises:
        for side in sides(premise.fact):
            for call in _calls_in(side):
                if call.name == "dtype" and isinstance(call.args[0], bindings.Var):
                    yield str(call.args[0].name)


def _united_with_calls(rule: ReadRule) -> Iterator[str]:
    """Variables that a library call is united with."""
    if not isinstance(rule.command, bindings.RuleCommand):
        return
    for action in rule.command.rule.head:
        if isinstance(action, bindings.Union):
            for one, other in ((action.lhs, action.rhs), (action.rhs, action.lhs)):
                is_call = isinstance(one, bindings.Call) and one.name in CALLS
                if is_call and isinstance(other, bindings.Var):
                    yield str(other.name)
