"""The order in which rulesets run. Each phase repeats its rulesets, one step each, until none changes anything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Phase:
    """One stretch of the schedule."""

    name: str
    rulesets: tuple[str, ...]


SCHEDULE = (
    Phase("expression", ("expression",)),
    Phase("types", ("types",)),
    Phase("recognize", ("recognize",)),
    Phase("flatten", ("prepare", "expression", "flatten")),
    Phase("library", ("library",)),
    Phase("lower", ("lower",)),
    Phase("fuse", ("fuse",)),
    Phase("clean-up", ("clean-up",)),
)


def schedule_for(rulesets: Iterable[str]) -> tuple[Phase, ...]:
    """The schedule over `rulesets`, those that have rules; ones that it does not know (a user's own) are a phase before
    clean-up. egglog ends in a panic when it is to run a ruleset that nothing declared."""
    present = dict.fromkeys(rulesets)
    known = {r for phase in SCHEDULE for r in phase.rulesets}
    own = tuple(r for r in present if r not in known)
    phases = list(SCHEDULE)
    if own:
        phases.insert(-1, Phase("user", (*own, "expression", "types")))
    there = (Phase(p.name, tuple(r for r in p.rulesets if r in present)) for p in phases)
    return tuple(p for p in there if p.rulesets)
