"""A schedule as single runs of rulesets, so that each can be counted, timed and be the last.

Both forms that the bindings know are read: egglog's own (`(run r 10)`) and that of egglog-experimental
(`(run-schedule ..)`), which differ: the first stops repeating once a round changed nothing. A schedule with schedulers
of its own keeps state between its runs and is left whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from workbench.egraph.bindings import bindings

DEEPEST = 100
"""Schedules nested deeper are left whole."""


@dataclass(frozen=True, slots=True)
class Once:
    """One run of a ruleset: the command for it."""

    command: Any
    ruleset: str


@dataclass(frozen=True, slots=True)
class Repeat:
    """The parts in order, `times` over, or until a round changes nothing (None). With `early` such a round ends the
    counted ones too."""

    parts: tuple[Schedule, ...]
    times: int | None
    early: bool = False


Schedule = Once | Repeat


class _Whole(Exception):
    """Part of a schedule that cannot be run by itself."""


def unrolled(command: Any) -> Schedule | None:
    """The schedule of a command in single runs; None where it has none, or where it must be run whole."""
    try:
        match command:
            case bindings.RunSchedule():
                return _plain(command.schedule, DEEPEST)
            case bindings.UserDefined(name="run-schedule"):
                return _sequence(_extended(each, DEEPEST) for each in command.args)
            case _:
                return None
    except _Whole:
        return None


def run(schedule: Schedule, once: Callable[[Once], bool]) -> bool:
    """Do all runs in order through `once`, which says whether a run changed something; whether any did."""
    if isinstance(schedule, Once):
        return once(schedule)
    changed = False
    done = 0
    while schedule.times is None or done < schedule.times:
        done += 1
        round_changed = False
        for part in schedule.parts:
            round_changed |= run(part, once)
        changed |= round_changed
        if not round_changed and (schedule.times is None or schedule.early):
            break
    return changed


def _sequence(parts: Iterable[Schedule]) -> Repeat:
    return Repeat(tuple(parts), 1)


def _plain(schedule: Any, room: int) -> Schedule:
    if not room:
        raise _Whole
    match schedule:
        case bindings.Run():
            return Once(bindings.RunSchedule(schedule), schedule.config.ruleset)
        case bindings.Repeat():
            return Repeat((_plain(schedule.schedule, room - 1),), schedule.length, early=True)
        case bindings.Saturate():
            return Repeat((_plain(schedule.schedule, room - 1),), None)
        case bindings.Sequence():
            return _sequence(_plain(each, room - 1) for each in schedule.schedules)
        case _:
            raise _Whole


def _extended(expression: Any, room: int) -> Schedule:
    if not room:
        raise _Whole
    match expression:
        case bindings.Var():
            return _once(expression, expression.name)
        case bindings.Call(name="run"):
            names = [each.name for each in expression.args[:1] if isinstance(each, bindings.Var)]
            return _once(expression, "".join(name for name in names if name != ":until"))
        case bindings.Call(name="saturate"):
            return Repeat(tuple(_extended(each, room - 1) for each in expression.args), None)
        case bindings.Call(name="seq"):
            return _sequence(_extended(each, room - 1) for each in expression.args)
        case bindings.Call(name="repeat"):
            match expression.args:
                case [bindings.Lit(value=bindings.Int(value=times)), *rest]:
                    return Repeat(tuple(_extended(each, room - 1) for each in rest), max(0, times))
            raise _Whole
        case _:
            raise _Whole


def _once(expression: Any, ruleset: str) -> Once:
    return Once(bindings.UserDefined(expression.span, "run-schedule", [expression]), ruleset)
