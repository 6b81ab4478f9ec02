"""The runs of a session: what each had reached when a rerun took its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MOST_KEPT = 20
"""Runs that are remembered; of older ones nobody asks."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run, number `number` of its session from 1 on. `reason` is why it was begun, `began_at` when, in seconds of
    the session; `report` what it reached, as `run_report` says it; `rules_digest` names the rules it was with."""

    number: int
    reason: str
    began_at: float
    rules_digest: str
    report: dict[str, Any]

    @property
    def name(self) -> str:
        """What it is called on screen."""
        return f"run {self.number}"


def baseline_of(rules_digest: str, earlier: Sequence[Run]) -> Run | None:
    """The run to compare one with `rules_digest` to: the last with other rules, or else simply the last."""
    others = (run for run in reversed(earlier) if run.rules_digest != rules_digest)
    return next(others, earlier[-1] if earlier else None)
