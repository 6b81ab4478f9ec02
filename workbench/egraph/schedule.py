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
    """The schedule with rulesets it does not know (a user's own) as a phase before clean-up."""
    known = {r for phase in SCHEDULE for r in phase.rulesets}
    present = list(dict.fromkeys(rulesets))
    own = tuple(r for r in present if r not in known)
    if not own:
        return SCHEDULE
    return (*SCHEDULE[:-1], Phase("user", (*own, "expression", "types")), SCHEDULE[-1])
