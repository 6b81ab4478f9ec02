"""Which rule a saturation ran away on: the one whose matches or time grew fastest before a limit ended it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from workbench.egraph.messages import Culprit, RuleInfo, StepDone
from workbench.errors import printable

LAST_STEPS = 16
"""Steps, of all rulesets, that are looked at for the ruleset at fault."""
LAST_RUNS = 4
"""Runs of that ruleset that are looked at for the rule."""
TELLING_SECONDS = 1e-3
"""Less time than this, of all rules in these runs together, is noise and tells nothing of growth."""


def ruleset_at_fault(steps: Sequence[StepDone], by_time: bool) -> str | None:
    """The ruleset that took most of the time of the last steps, or made most of their e-nodes."""
    weight: Counter[str] = Counter()
    last = steps[-LAST_STEPS:]
    before = steps[-LAST_STEPS - 1].nodes if len(steps) > LAST_STEPS else 0
    for step in last:
        microseconds = (step.seconds + step.rebuild_seconds) * 1e6
        weight[step.ruleset] += int(microseconds) if by_time else max(0, step.nodes - before)
        before = step.nodes
    return weight.most_common(1)[0][0] if weight else None


def grown_fastest(steps: Iterable[StepDone], ruleset: str, rules: Iterable[RuleInfo]) -> Culprit | None:
    """The rule of `ruleset` whose matches or time grew most over its last runs, by its part of the whole growth; where
    nothing grew but it went on and on, the one that matched most in all runs; None where none of them matched."""
    all_runs = [s for s in steps if s.ruleset == ruleset]
    runs = all_runs[-LAST_RUNS:]
    own = {r.name: r for r in rules if r.ruleset == ruleset}
    matches = {name: [float(s.matches.get(name, 0)) for s in runs] for name in own}
    seconds = {name: [s.rule_seconds.get(name, 0.0) for s in runs] for name in own}
    if not any(any(series) for series in matches.values()):
        return None
    if sum(map(sum, seconds.values())) < TELLING_SECONDS:
        seconds = {name: [0.0] * len(runs) for name in own}
    any_growth = _grew(matches) or _grew(seconds)
    if len(runs) > 1 and not any_growth:
        total = {name: sum(s.matches.get(name, 0) for s in all_runs) for name in own}
        name = max(own, key=lambda n: total[n])
        words = f"matched on and on: {total[name]:,} times in {len(all_runs):,} runs of ruleset"
        return named(own[name], f"{words} '{printable(ruleset, 40)}'")
    more, longer = _parts(matches, any_growth), _parts(seconds, any_growth)
    name = max(own, key=lambda n: (max(more[n], longer[n]), matches[n][-1]))
    by_matches = more[name] >= longer[name]
    series = matches[name] if by_matches else seconds[name]
    return named(own[name], _words(series, by_matches, ruleset), _growth(series))


def named(rule: RuleInfo, words: str, growth: float | None = None) -> Culprit:
    """The rule as the culprit; `words` continue a sentence that begins with its name and place."""
    text = f"rule '{printable(rule.name, 80)}' ({printable(rule.file)}:{rule.line}) {words}"
    return Culprit(rule.name, rule.ruleset, rule.file, rule.line, growth, text)


def _grew(series: dict[str, list[float]]) -> bool:
    return any(each[-1] > min(each) for each in series.values())


def _parts(series: dict[str, list[float]], growth: bool) -> dict[str, float]:
    """Each rule's part of what all rules grew by; without `growth`, of what they came to."""
    grown = {name: each[-1] - min(each) if growth else each[-1] for name, each in series.items()}
    whole = sum(grown.values()) or 1.0
    return {name: value / whole for name, value in grown.items()}


def _growth(series: Sequence[float]) -> float | None:
    """The factor from one run to the next, on average over those in which there was something."""
    there = [value for value in series if value]
    return (there[-1] / there[0]) ** (1 / (len(there) - 1)) if len(there) > 1 else None


def _words(series: Sequence[float], by_matches: bool, ruleset: str) -> str:
    there = [value for value in series if value]
    shown = [f"{value:,.0f}" if by_matches else f"{value:.3g}" for value in there]
    unit = "matches" if by_matches else "s"
    growth = _growth(series)
    if growth is None:
        return f"came to {shown[-1]} {unit} in one run of ruleset '{printable(ruleset, 40)}'"
    return (
        f"grew fastest: from {shown[0]} to {shown[-1]} {unit} in {len(there)} runs of ruleset "
        f"'{printable(ruleset, 40)}', {growth:.2g}x a run"
    )
