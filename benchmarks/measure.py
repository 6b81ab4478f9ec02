"""What a benchmark is, and how its numbers are taken: fresh processes, ours and the peer in turn, medians."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

ROOT = Path(__file__).parents[1]
LARGE_MODELS = ROOT.parent / "shared" / "models"
TEST_MODELS = ROOT / "tests" / "models"
COMMAND = Path(sys.executable).with_name("luminal-tui")


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that a row's `figure` may be."""

    figure: Literal["ours", "ratio", "difference"]
    at_most: float

    def __str__(self) -> str:
        return f"{self.figure} <= {self.at_most:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison, in `unit`; less is better. `peer` is None where there is nothing to compare with."""

    name: str
    ours: float
    unit: str
    peer: float | None = None
    peer_name: str = ""
    bound: Bound | None = None

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's."""
        return self.ours / self.peer if self.peer else None

    @property
    def ok(self) -> bool | None:
        """Whether the bound holds; None without a bound."""
        if self.bound is None:
            return None
        figures = {"ours": self.ours, "ratio": self.ratio, "difference": self.ours - (self.peer or 0.0)}
        figure = figures[self.bound.figure]
        return figure is not None and figure <= self.bound.at_most

    def as_json(self) -> dict[str, Any]:
        """The row as results.json has it."""
        return {
            "name": self.name,
            "ours": self.ours,
            "peer": self.peer,
            "peer_name": self.peer_name,
            "ratio": self.ratio,
            "unit": self.unit,
            "bound": str(self.bound) if self.bound else None,
            "ok": self.ok,
        }


class SkippedError(Exception):
    """The benchmark cannot run here; the message says what is missing."""


class BrokenError(Exception):
    """What was to be measured did not work; the message says how."""


Benchmark = Callable[[], Iterable[Row | SkippedError | BrokenError]]
"""A problem that is yielded ends one row; one that is raised ends the benchmark."""

BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(function: Benchmark) -> Benchmark:
    """Register `function` under its own name."""
    BENCHMARKS[function.__name__] = function
    return function


def in_turn(ours: Callable[[], float], peer: Callable[[], float], repeats: int) -> tuple[float, float]:
    """Medians of `repeats` calls of each. They alternate, and so does who goes first: a machine's mood hits both."""
    figures: dict[Callable[[], float], list[float]] = {ours: [], peer: []}
    for turn in range(repeats):
        for measure in (ours, peer) if turn % 2 == 0 else (peer, ours):
            figures[measure].append(measure())
    return median(figures[ours]), median(figures[peer])


def wall_seconds(command: list[str]) -> float:
    """Wall time of one run of `command`, output thrown away. Raises BrokenError when it fails."""
    started = time.perf_counter()
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    seconds = time.perf_counter() - started
    _check(result, command)
    return seconds


def output_of(command: list[str], timeout: float | None = None, threads: int | None = None) -> str:
    """Standard output of `command`. `threads` limits the numeric libraries in it. Raises BrokenError when it fails."""
    environment = dict(os.environ)
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS") if threads else ():
        environment[variable] = str(threads)
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=environment,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BrokenError(f"{_shown(command)} was not done after {timeout:g} s") from None
    _check(result, command)
    return result.stdout


def in_fresh_python(code: str, *arguments: object, threads: int | None = None) -> Any:
    """What `code` prints as JSON on its last line, run in a new process of this Python with `arguments` in sys.argv."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return json.loads(output_of(command, threads=threads).splitlines()[-1])


def _check(result: subprocess.CompletedProcess[str], command: list[str]) -> None:
    if result.returncode != 0:
        last = (result.stderr.strip() or result.stdout.strip() or "nothing").splitlines()[-1]
        raise BrokenError(f"{_shown(command)} exited {result.returncode}, saying: {last}")


def _shown(command: list[str]) -> str:
    name, *arguments = command
    return " ".join([Path(name).name, *(a if "\n" not in a else "..." for a in arguments)])


def existing(path: Path) -> Path:
    """`path`. Raises SkippedError where it is missing."""
    if not path.exists():
        raise SkippedError(f"{path.name} is not in {path.parent.parent.name}/{path.parent.name}")
    return path


def command() -> str:
    """The path of the installed luminal-tui. Raises SkippedError where it is not installed."""
    if not COMMAND.exists():
        raise SkippedError("luminal-tui is not installed beside this Python: run make venv")
    return str(COMMAND)
