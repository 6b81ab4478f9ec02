"""A program's global variables as rows of hidden tables, one table per sort.

egglog makes a function of each global variable and goes through all of them for every rule that is added, so that a
question about a program of 10,000 variables would take most of its time there. What is shown keeps the variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from workbench.egraph.bindings import bindings
from workbench.egraph.premises import Signature

PREFIX = "named "
"""Of the tables' names. No name in a rule file has a space."""
_PRIMITIVE = frozenset({"i64", "f64", "String", "bool", "Unit", "BigInt", "BigRat", "Rational"})
_HERE = bindings.EgglogSpan(bindings.SrcFile("named", ""), 0, 0)


def declare(egraph: Any, signatures: Mapping[str, Signature]) -> None:
    """Make the tables, for every sort that has e-classes."""
    for sort in dict.fromkeys(s.output for s in signatures.values() if s.output not in _PRIMITIVE):
        schema, old = bindings.Schema(["String"], sort), bindings.Var(_HERE, "old")
        egraph.run_program(bindings.FunctionCommand(_HERE, PREFIX + sort, schema, old, hidden=True))


def bound(commands: Sequence[Any], signatures: Mapping[str, Signature]) -> Sequence[Any]:
    """The commands of a program with rows in place of global variables; as they are where they do more than build
    terms of known constructors."""
    sorts: dict[str, str] = {}
    made: list[Any] = []
    for command in commands:
        if not isinstance(command, bindings.ActionCommand):
            return commands
        action = command.action
        if isinstance(action, bindings.Let):
            sort = _sort_of(action.rhs, signatures, sorts)
            if sort is None or action.lhs in sorts:
                return commands
            row = [_text(action.lhs)]
            action = bindings.Set(action.span, PREFIX + sort, row, _rewritten(action.rhs, sorts))
            sorts[command.action.lhs] = sort
        elif isinstance(action, bindings.Set):
            arguments = [_rewritten(a, sorts) for a in action.args]
            action = bindings.Set(action.span, action.lhs, arguments, _rewritten(action.rhs, sorts))
        elif isinstance(action, bindings.Union):
            action = bindings.Union(action.span, _rewritten(action.lhs, sorts), _rewritten(action.rhs, sorts))
        elif isinstance(action, bindings.Expr_):
            action = bindings.Expr_(action.span, _rewritten(action.expr, sorts))
        else:
            return commands
        made.append(bindings.ActionCommand(action))
    return made


def _sort_of(expression: Any, signatures: Mapping[str, Signature], sorts: Mapping[str, str]) -> str | None:
    if isinstance(expression, bindings.Var):
        return sorts.get(expression.name)
    if not isinstance(expression, bindings.Call) or expression.name not in signatures:
        return None
    output = signatures[expression.name].output
    return None if output in _PRIMITIVE else output


def _rewritten(expression: Any, sorts: Mapping[str, str]) -> Any:
    if isinstance(expression, bindings.Var):
        sort = sorts.get(expression.name)
        return expression if sort is None else lookup(expression.name, sort)
    if isinstance(expression, bindings.Call):
        return bindings.Call(expression.span, expression.name, [_rewritten(a, sorts) for a in expression.args])
    return expression


def lookup(name: str, sort: str) -> Any:
    """The expression for a variable that is a row."""
    return bindings.Call(_HERE, PREFIX + sort, [_text(name)])


def _text(name: str) -> Any:
    return bindings.Lit(_HERE, bindings.String(name))


def variables(egraph: Any, functions: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(name, sort, value) of every global variable, by row and by let. `functions` is of a frozen e-graph."""
    for name, function in functions.items():
        if function.is_let_binding:
            for row in function.rows:
                yield name, function.output_sort, row.output
        elif name.startswith(PREFIX):
            for row in function.rows:
                yield egraph.value_to_string(row.inputs[0]), function.output_sort, row.output


def found(egraph: Any, name: str, sorts: Iterable[str]) -> tuple[str, Any] | None:
    """The sort of a global variable, and the expression for it; None where there is none."""
    variable = bindings.Var(_HERE, name)
    try:
        return egraph.eval_expr(variable)[0], variable
    except bindings.EggSmolError:
        pass
    _, text = egraph.eval_expr(_text(name))
    for sort in sorts:
        try:
            if egraph.lookup_function(PREFIX + sort, [text]) is not None:
                return sort, lookup(name, sort)
        except (bindings.EggSmolError, ValueError, KeyError):
            continue
    return None
