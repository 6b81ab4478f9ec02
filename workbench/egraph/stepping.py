"""Running the schedule on a loaded program: one ruleset at a time, then a report and a look at the limits."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.egraph.messages import StepBegun, StepDone
from workbench.egraph.schedule import schedule_for

SNAPSHOT_BYTES = 700
"""What taking a snapshot needs per e-node, beside the e-graph."""
NODES, SECONDS, MEMORY = "nodes", "seconds", "memory"
"""The limits by name, as options have them behind --egg-."""


class Clock:
    """Time inside the engine, apart from the rest."""

    def __init__(self, egraph: Any) -> None:
        self.egraph = egraph
        self.engine_seconds = 0.0

    def run(self, *commands: Any) -> Any:
        began = time.perf_counter()
        try:
            return self.egraph.run_program(*commands)
        finally:
            self.engine_seconds += time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Bounds:
    """When to stop between two steps: e-nodes, the moment (perf_counter), bytes of address space, steps."""

    nodes: int
    until: float
    memory_bytes: int
    steps: int | None = None


def run_schedule(
    egraph: Any,
    rulesets: Iterable[str],
    facts: set[str],
    bounds: Bounds,
    clock: Clock,
    say: Callable[[StepBegun | StepDone], None],
) -> str:
    """Step through the schedule of `rulesets`; the limit that ended it, or '' when it is saturated or `bounds.steps`
    were made. `say` hears of each step before and after. Functions in `facts` hold no e-nodes."""
    step = 0
    runs: dict[str, list[Any]] = {}
    size: list[Any] = egraph.parse_program("(print-size)", "size")
    before: set[tuple[str, int]] = set(egraph.run_program(*size)[0].sizes)
    known = dict(before)
    nodes = sum(n for name, n in known.items() if name not in facts)
    unsaid = {name: n for name, n in sorted(known.items()) if n}  # the program's own, told with the first step
    for phase in schedule_for(rulesets):
        changed = True
        while changed:
            changed = False
            for ruleset in phase.rulesets:
                if bounds.steps is not None and step >= bounds.steps:
                    return ""
                if ruleset not in runs:
                    runs[ruleset] = egraph.parse_program(f"(run-schedule (run {ruleset}))", "schedule")
                say(StepBegun(ruleset))
                (output,) = clock.run(*runs[ruleset])
                report = output.report
                changed |= report.updated
                sizes, unsaid = unsaid, {}
                nodes_before = nodes
                if report.updated:
                    found = set(egraph.run_program(*size)[0].sizes)
                    changed_sizes = dict(sorted(found - before))
                    before = found
                    nodes += sum(n - known.get(name, 0) for name, n in changed_sizes.items() if name not in facts)
                    known.update(changed_sizes)
                    sizes |= changed_sizes
                say(_report(step, ruleset, report, nodes, nodes - nodes_before, sizes))
                step += 1
                if nodes > bounds.nodes:
                    return NODES
                if time.perf_counter() > bounds.until:
                    return SECONDS
                if sizes and bounds.memory_bytes and address_space() + nodes * SNAPSHOT_BYTES > bounds.memory_bytes:
                    return MEMORY
    return ""


def _report(step: int, ruleset: str, report: Any, nodes: int, added: int, sizes: dict[str, int]) -> StepDone:
    seconds = {n: t.total_seconds() for n, t in report.search_and_apply_time_per_rule.items()}
    after = (*report.merge_time_per_ruleset.values(), *report.rebuild_time_per_ruleset.values())
    return StepDone(
        step=step,
        ruleset=ruleset,
        seconds=sum(seconds.values()),
        matches={n: m for n, m in report.num_matches_per_rule.items() if m},
        rule_seconds=seconds,
        nodes=nodes,
        rebuild_seconds=sum(t.total_seconds() for t in after),
        added=added,
        sizes=sizes,
    )


def address_space() -> int:
    """Bytes of address space of this process, or of memory at its most where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return pages * resource.getpagesize()
