"""Which rule made an e-node: rule heads are instrumented so that each constructor call also notes its rule.

Beside each constructor C stands a table with the same arguments and the number of a rule, the first one kept. Its rows
move with the e-graph when classes are joined, so at the end each e-node finds its own. The tables are hidden: no size,
no snapshot, no X-ray counts them. A rule that cannot be instrumented stays as it is, and what it makes has no maker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from workbench.egraph.bindings import bindings

PREFIX = "made "
"""Of the tables' names. No name in a rule file has a space."""
PROGRAM = -1
"""The number of the program itself, and of what is not known."""
_BEFORE = f"{PREFIX}before"
"""The ruleset that notes what the program made, before any rule runs."""
_HERE = bindings.EgglogSpan(bindings.SrcFile("provenance", ""), 0, 0)


class Provenance:
    """Instruments the commands of a rule library, in the order in which they run."""

    def __init__(self) -> None:
        self._arguments: dict[str, list[str]] = {}
        """Argument sorts of each constructor that has a table."""
        self._noted = 0

    def begin(self, egraph: Any) -> None:
        """Make room in a new e-graph."""
        egraph.run_program(bindings.AddRuleset(_HERE, _BEFORE))

    def run(self, egraph: Any, command: Any, rules: Sequence[tuple[int, str]]) -> None:
        """Run a command, instrumented where it holds rules: `rules` are their numbers and names, two for a two-way
        rewrite. Raises what egglog says of the command as it was written."""
        written = list(as_rules(command))
        for rule, (number, name) in zip(written, rules, strict=True):
            try:
                egraph.run_program(bindings.RuleCommand(renamed(rule, self._head(rule.head, number), name)))
            except bindings.EggSmolError:  # as written it works, or says what is wrong
                plain = bindings.RuleCommand(renamed(rule, rule.head, name))
                egraph.run_program(plain if len(written) > 1 else command)
        if not written:
            egraph.run_program(command)
        for name, sorts in constructors_of(command):
            self._arguments[name] = sorts
            egraph.run_program(*_table(name, sorts))

    def note_program(self, egraph: Any) -> None:
        """Note that all e-nodes there are now were made by the program."""
        egraph.run_program(bindings.RunSchedule(bindings.Run(_HERE, bindings.RunConfig(_BEFORE))))

    def makers(self, egraph: Any, functions: Any, name: str) -> dict[tuple[Any, ...], int]:
        """The number of the rule that made each e-node of a constructor, by its arguments. `functions` is of a frozen
        e-graph."""
        table = functions.get(PREFIX + name)
        if table is None:
            return {}
        numbers: dict[Any, int] = {}
        found: dict[tuple[Any, ...], int] = {}
        for row in table.rows:
            number = numbers.get(row.output)
            if number is None:
                number = numbers[row.output] = egraph.value_to_i64(row.output)
            found[tuple(row.inputs)] = number
        return found

    def _head(self, head: Iterable[Any], rule: int) -> list[Any]:
        actions: list[Any] = []

        def noted(expression: Any) -> Any:
            """The expression, its constructor calls noted in front of it, the innermost first."""
            if not isinstance(expression, bindings.Call):
                return expression
            arguments = [noted(a) for a in expression.args]
            call = bindings.Call(expression.span, expression.name, arguments)
            if expression.name not in self._arguments:
                return call
            self._noted += 1
            variable = f"{PREFIX}{self._noted}"
            number = bindings.Lit(expression.span, bindings.Int(rule))
            actions.append(bindings.Set(expression.span, PREFIX + expression.name, arguments, number))
            actions.append(bindings.Let(expression.span, variable, call))
            return bindings.Var(expression.span, variable)

        for action in head:
            span = action.span
            match action:
                case bindings.Let():
                    again = bindings.Let(span, action.lhs, noted(action.rhs))
                case bindings.Set():
                    again = bindings.Set(span, action.lhs, [noted(a) for a in action.args], noted(action.rhs))
                case bindings.Union():
                    again = bindings.Union(span, noted(action.lhs), noted(action.rhs))
                case bindings.Change():
                    again = bindings.Change(span, action.change, action.sym, [noted(a) for a in action.args])
                case bindings.Expr_():
                    again = bindings.Expr_(span, noted(action.expr))
                case _:
                    again = action
            actions.append(again)
        return actions


def constructors_of(command: Any) -> Iterator[tuple[str, list[str]]]:
    """The constructors of e-class sorts that a command declares, with the sorts of their arguments."""
    match command:
        case bindings.Constructor():
            yield command.name, list(command.schema.input)
        case bindings.Datatype():
            yield from ((v.name, list(v.types)) for v in command.variants)
        case bindings.Datatypes():
            for _, _, kind in command.datatypes:
                if isinstance(kind, bindings.SubVariants):
                    yield from ((v.name, list(v.types)) for v in kind.variants)


def as_rules(command: Any) -> Iterator[Any]:
    """The rules that a command stands for: one, or two of a two-way rewrite, or none."""
    match command:
        case bindings.RuleCommand():
            yield command.rule
        case bindings.RewriteCommand():
            yield _rule_of(command.rewrite, command.rewrite.lhs, command.rewrite.rhs, command.name, command.subsume)
        case bindings.BiRewriteCommand():
            yield _rule_of(command.rewrite, command.rewrite.lhs, command.rewrite.rhs, command.name)
            yield _rule_of(command.rewrite, command.rewrite.rhs, command.rewrite.lhs, command.name)


def _rule_of(rewrite: Any, left: Any, right: Any, ruleset: str, subsume: bool = False) -> Any:
    root = bindings.Var(rewrite.span, f"?{PREFIX}root")
    head = [bindings.Union(rewrite.span, root, right)]
    if subsume and isinstance(left, bindings.Call):
        head.append(bindings.Change(rewrite.span, bindings.Subsume(), left.name, left.args))
    body = [bindings.Eq(rewrite.span, root, left), *rewrite.conditions]
    return bindings.Rule(rewrite.span, head, body, rewrite.name, ruleset)


def renamed(rule: Any, head: list[Any], name: str, ruleset: str | None = None) -> Any:
    """The rule with another head and name, and in another ruleset where one is given."""
    place = rule.ruleset if ruleset is None else ruleset
    return bindings.Rule(
        rule.span, head, rule.body, name, place, rule.eval_mode, rule.no_decomp, rule.include_subsumed
    )


def _table(name: str, sorts: list[str]) -> list[Any]:
    """The table beside a constructor, and the rule that notes the program's e-nodes in it."""
    table, old = PREFIX + name, bindings.Var(_HERE, "old")
    arguments = [bindings.Var(_HERE, f"a{i}") for i in range(len(sorts))]
    head = [bindings.Set(_HERE, table, arguments, bindings.Lit(_HERE, bindings.Int(PROGRAM)))]
    body = [bindings.Fact(bindings.Call(_HERE, name, arguments))]
    rule = bindings.Rule(_HERE, head, body, f"{_BEFORE} {name}", _BEFORE, include_subsumed=True)
    declared = bindings.FunctionCommand(_HERE, table, bindings.Schema(sorts, "i64"), old, hidden=True)
    return [declared, bindings.RuleCommand(rule)]
