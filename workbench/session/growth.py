"""How an e-graph grew: by ruleset and by function, over the steps of its saturation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workbench.session.events import RuleRow, SaturationStep


@dataclass(frozen=True, slots=True)
class RulesetRow:
    """One ruleset in one saturation. `seconds` are in its rules, `rebuild_seconds` behind them; `enodes` is by how many
    the e-graph grew in its steps, `steps` the same for each of its runs."""

    name: str
    rules: int
    fired: int
    runs: int
    matches: int
    seconds: float
    rebuild_seconds: float
    enodes: int
    steps: list[int]
    first_step: int | None
    last_step: int | None


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """One constructor, relation or function: its `rows` at the end, after each step, and the step in which it first had
    some. The tables that the program and the rules have, not only those of e-nodes."""

    name: str
    rows: int
    steps: list[int]
    first_step: int | None


def ruleset_rows(steps: Sequence[SaturationStep], rules: Sequence[RuleRow]) -> list[RulesetRow]:
    """One row per ruleset that has rules or ran, in the order in which they first ran."""
    names = dict.fromkeys([*(s.ruleset for s in steps), *(r.ruleset for r in rules)])
    rows: list[RulesetRow] = []
    for name in names:
        own = [s for s in steps if s.ruleset == name]
        matched = [s.step for s in own if s.matches]
        rows.append(
            RulesetRow(
                name=name,
                rules=sum(r.ruleset == name for r in rules),
                fired=sum(r.ruleset == name and r.matches > 0 for r in rules),
                runs=len(own),
                matches=sum(s.matches for s in own),
                seconds=sum(s.seconds for s in own),
                rebuild_seconds=sum(s.rebuild_seconds for s in own),
                enodes=sum(s.added for s in own),
                steps=[s.added for s in own],
                first_step=matched[0] if matched else None,
                last_step=matched[-1] if matched else None,
            )
        )
    return rows


def function_rows(steps: Sequence[SaturationStep]) -> list[FunctionRow]:
    """One row per function that ever had rows, the largest first."""
    sizes: dict[str, list[int]] = {}
    first: dict[str, int] = {}
    for place, step in enumerate(steps):
        for name, size in step.sizes.items():
            series = sizes.setdefault(name, [0] * place)
            series += [series[-1] if series else 0] * (place - len(series))
            series.append(size)
            if size:
                first.setdefault(name, step.step)
    for series in sizes.values():
        series += [series[-1]] * (len(steps) - len(series))
    rows = [FunctionRow(name, series[-1], series, first.get(name)) for name, series in sizes.items()]
    return sorted((r for r in rows if any(r.steps)), key=lambda r: (-r.rows, r.name))


def changes(row: FunctionRow) -> list[tuple[int, int]]:
    """(step, rows) where the number of rows changed."""
    found: list[tuple[int, int]] = []
    for step, rows in enumerate(row.steps):
        if rows != (found[-1][1] if found else 0):
            found.append((step, rows))
    return found


def added_up(series: Iterable[Sequence[int]], *, carry: bool = False) -> list[int]:
    """The sums by place of series that may differ in length; with `carry` a shorter one goes on with its last value."""
    several = [list(each) for each in series if each]
    longest = max(map(len, several), default=0)
    return [sum(_at(each, place, carry) for each in several) for place in range(longest)]


def _at(series: list[int], place: int, carry: bool) -> int:
    if place < len(series):
        return series[place]
    return series[-1] if carry else 0


def merged_rules(rows: Iterable[RuleRow]) -> list[RuleRow]:
    """Rows of the same rule in several groups added up, their steps too."""
    by_rule: dict[tuple[str, str, str, int], list[RuleRow]] = {}
    for row in rows:
        by_rule.setdefault((row.name, row.ruleset, row.file, row.line), []).append(row)
    return [same[0] if len(same) == 1 else _merged_rule(same) for same in by_rule.values()]


def _merged_rule(rows: list[RuleRow]) -> RuleRow:
    one = rows[0]
    return RuleRow(
        name=one.name,
        category=one.category,
        ruleset=one.ruleset,
        file=one.file,
        line=one.line,
        matches=sum(r.matches for r in rows),
        seconds=sum(r.seconds for r in rows),
        steps=added_up(r.steps for r in rows),
        first_step=min((r.first_step for r in rows if r.first_step is not None), default=None),
        last_step=max((r.last_step for r in rows if r.last_step is not None), default=None),
        enodes=_sum(r.enodes for r in rows),
        unions=_sum(r.unions for r in rows),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def merged_rulesets(rows: Iterable[RulesetRow]) -> list[RulesetRow]:
    """Rows of the same ruleset in several groups added up; `rules` are the same in all."""
    by_name: dict[str, list[RulesetRow]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    return [
        RulesetRow(
            name=name,
            rules=max(r.rules for r in same),
            fired=max(r.fired for r in same),
            runs=sum(r.runs for r in same),
            matches=sum(r.matches for r in same),
            seconds=sum(r.seconds for r in same),
            rebuild_seconds=sum(r.rebuild_seconds for r in same),
            enodes=sum(r.enodes for r in same),
            steps=added_up(r.steps for r in same),
            first_step=min((r.first_step for r in same if r.first_step is not None), default=None),
            last_step=max((r.last_step for r in same if r.last_step is not None), default=None),
        )
        for name, same in by_name.items()
    ]


def merged_functions(rows: Iterable[FunctionRow]) -> list[FunctionRow]:
    """Rows of the same function in several groups added up."""
    totals: Counter[str] = Counter()
    by_name: dict[str, list[FunctionRow]] = {}
    for row in rows:
        totals[row.name] += row.rows
        by_name.setdefault(row.name, []).append(row)
    return [
        FunctionRow(
            name,
            totals[name],
            added_up((r.steps for r in same), carry=True),
            min((r.first_step for r in same if r.first_step is not None), default=None),
        )
        for name, same in by_name.items()
    ]
