"""A program as egglog itself runs it: the whole text in one call of the bindings, in a process with limits.

Run as `python -m tests.egraph.whole_program FILE`, it prints what came of it as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SIZES = "\n(print-size)"
"""Added to each program, as egglog's own tests do: the sizes of all functions are an output too."""


@dataclass(frozen=True, slots=True)
class Whole:
    """`outcome` is ok, failed, or over (a limit). `matches` is the sum over all rules and schedules."""

    outcome: str
    error: str = ""
    file: str = ""
    line: int = 0
    outputs: tuple[str, ...] = ()
    matches: int = 0


def comparable(output: str) -> str:
    """An output without what differs from run to run: the times of `print-stats`."""
    return output.split("\n")[0] if output.startswith("Overall statistics") else output


def run_whole(path: str, working: Path, seconds: float, memory_bytes: int) -> Whole:
    """egglog's own outcome of the file at `path`, relative to `working`."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.egraph.whole_program", path, str(memory_bytes)],
            cwd=working,
            env={**os.environ, "PYTHONPATH": str(ROOT), "RUST_BACKTRACE": "0"},
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Whole("over", "time")
    said = done.stderr.decode(errors="replace")[-400:]
    if done.returncode < 0 or "MemoryError" in said:
        return Whole("over", f"status {done.returncode}: {said}")
    assert done.returncode == 0, said
    found = json.loads(done.stdout)
    return Whole(**{**found, "outputs": tuple(found["outputs"])})


def _main() -> None:
    from workbench.egraph.bindings import bindings
    from workbench.egraph.egglog_error import taken_apart
    from workbench.egraph.program_run import cut

    path, limit = sys.argv[1], int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    egraph = bindings.EGraph()
    egraph.set_report_level(bindings.TimeOnly())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        outputs = egraph.parse_and_run_program(Path(path).read_text(encoding="utf-8") + SIZES, path)
    except BaseException as error:
        known = taken_apart(error, path)
        found = {"outcome": "failed", "error": known.message, "file": known.file, "line": known.line, "outputs": []}
    else:
        runs = [o.report for o in outputs if isinstance(o, bindings.RunScheduleOutput)]
        texts = [str(o).rstrip("\n") for o in outputs if not isinstance(o, bindings.RunScheduleOutput)]
        matches = sum(sum(r.num_matches_per_rule.values()) for r in runs)
        found = {"outcome": "ok", "outputs": [comparable(next(cut([t]))) for t in texts], "matches": matches}
    json.dump(found, answers)
    answers.flush()


if __name__ == "__main__":
    _main()
