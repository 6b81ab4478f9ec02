"""`python -m benchmarks [NAME ..]`: run the benchmarks, print a table, write results.json. A broken bound exits 1."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from benchmarks import explorer, importing, latency, lengths, rules, saturation, scale, startup
from benchmarks.measure import BENCHMARKS, BrokenError, Row, SkippedError
from benchmarks.results import RESULTS, write

MODULES = (explorer, importing, latency, lengths, rules, saturation, scale, startup)
"""Imported for the benchmarks they register."""

HEADINGS = ("benchmark", "ours", "peer", "ratio", "unit", "bound", "", "peer is")


def main(names: Sequence[str]) -> int:
    """Run the named benchmarks, or all. Returns the exit status."""
    if unknown := [name for name in names if name not in BENCHMARKS]:
        print(f"no such benchmark: {', '.join(unknown)} (there are {', '.join(BENCHMARKS)})", file=sys.stderr)
        return 2
    rows: list[Row] = []
    broken = False
    for name in names or BENCHMARKS:
        print(f"{name} ..", file=sys.stderr, flush=True)
        for outcome in outcomes(name):
            match outcome:
                case Row():
                    rows.append(outcome)
                case SkippedError():
                    print(f"{name}: skipped: {outcome}")
                case BrokenError():
                    print(f"{name}: BROKEN: {outcome}")
                    broken = True
    if rows:
        print_table(rows)
        write(rows)
        print(f"written to {RESULTS.parent.name}/{RESULTS.name}")
    return 1 if broken or any(row.ok is False for row in rows) else 0


def outcomes(name: str) -> Iterator[Row | SkippedError | BrokenError]:
    """What the benchmark yields, then the problem that ended it, if one did."""
    try:
        yield from BENCHMARKS[name]()
    except (SkippedError, BrokenError) as problem:
        yield problem


def print_table(rows: Sequence[Row]) -> None:
    """One aligned line a row, with its bound and whether it holds."""
    lines = [HEADINGS, *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def cells(row: Row) -> tuple[str, ...]:
    """A row's text, column by column."""
    verdict = {True: "pass", False: "FAIL", None: ""}[row.ok]
    peer = "" if row.peer is None else f"{row.peer:.3g}"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    bound = str(row.bound) if row.bound else "recorded"
    return row.name, f"{row.ours:.3g}", peer, ratio, row.unit, bound, verdict, row.peer_name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
