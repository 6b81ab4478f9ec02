"""How much of a saturation is Python's own: the time around the egglog engine."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.measure import Bound, BrokenError, Row, benchmark, command, output_of

REPEATS = 3


@benchmark
def saturation_overhead() -> Iterator[Row]:
    """The demo's groups: overhead over overhead and engine time together."""
    program = command()
    share = median(overhead_share(program) for _ in range(REPEATS))
    yield Row("saturation_overhead", share, "share", bound=Bound("ours", 0.5))


def overhead_share(program: str) -> float:
    """Python's share of the saturation seconds in one compile of the demo, from the session's event log."""
    with tempfile.TemporaryDirectory() as folder:
        session = Path(folder) / "session"
        output_of([program, "compile", "demo", "--limit", "1", "--session", str(session)], timeout=600)
        events = [json.loads(line) for line in (session / "events.jsonl").read_text().splitlines()]
    saturated = [event for event in events if event["type"] == "group_saturated"]
    if not saturated:
        raise BrokenError("the session's events.jsonl has no group_saturated event")
    overhead = sum(event["overhead_seconds"] for event in saturated)
    return float(overhead / (overhead + sum(event["seconds"] for event in saturated)))
