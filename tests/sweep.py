"""Every model at hand, compiled by the command as its users would, each in a process of its own.

`python -m tests.sweep [--limit N] [NAME ..]` prints one line per model: its chunks and groups, the error against the
outputs stored beside it and against the interpreter, latency, time and memory. A model without weights is saturated,
for both targets. Returns 1 when a model is refused or wrong."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests import models_at_hand
from workbench.targets import TARGETS

COMMAND = "import sys; from workbench.cli import main; sys.exit(main())"
PATIENCE = 1800
"""Seconds for one model."""


def run(arguments: list[str], directory: Path) -> tuple[dict[str, Any] | None, str, float]:
    """What the command prints with --json (None where that is nothing), its last message, and its seconds."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments, "--json"],
        capture_output=True, cwd=directory, text=True, timeout=PATIENCE,
    )  # fmt: skip
    said = done.stderr.strip().rsplit("\n", 1)[-1] if done.returncode else ""
    return json.loads(done.stdout) if done.stdout.strip() else None, said, time.perf_counter() - began


def compiled(path: Path, limit: int, directory: Path) -> tuple[str, bool]:
    """The line of a model with weights, and whether it is right."""
    report, said, took = run(["compile", str(path), "--limit", str(limit)], directory)
    if report is None or report["verify"] is None:
        return f"{took:8.1f} s  {said}", False
    verify, latency = report["verify"], report["latency_ms"]
    against_stored = f"{path.stem}.npz" in verify["reference"]
    line = (
        f"{report['nodes']:7}{report['chunks']:7}{len(report['groups']):7}{took:8.1f} s{report['peak_rss_mb']:8.0f} MB"
        f"{latency['median']:10.3f} ms  relative {verify['max_rel_err']:.1e} against {verify['reference']}"
    )
    dims = ", ".join(f"{n}={v}" for n, v in report["dims"].items())
    return f"{line}{f', {dims}' if dims else ''}", bool(verify["ok"]) and against_stored


def saturated(path: Path, directory: Path) -> tuple[str, bool]:
    """The line of a model without weights, and whether all of it was saturated."""
    parts: list[str] = []
    for target in TARGETS:
        report, said, took = run(["rules", str(path), "--target", target], directory)
        if report is None:
            return f"{took:8.1f} s  {said}", False
        groups = report["groups"]
        if not parts:
            nodes, chunks = sum(g["nodes"] * len(g["members"]) for g in groups), sum(len(g["members"]) for g in groups)
            parts.append(f"{nodes:7}{chunks:7}{len(groups):7}{took:8.1f} s  no weights: saturated for")
        e_nodes = sum(g["egraph"]["nodes"] for g in groups)
        parts.append(f"{target} ({e_nodes:,} e-nodes, {took:.1f} s)")
    return " ".join(parts), True


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of models; all where none is given")
    parser.add_argument("--limit", type=int, default=8, help="candidates per group (default: %(default)s)")
    options = parser.parse_args(arguments)
    wrong: list[str] = []
    print(f"{'model':28}{'prims':>7}{'chunks':>7}{'groups':>7}{'time':>10}{'memory':>11}{'latency':>13}  error")
    with tempfile.TemporaryDirectory() as directory:
        for name in options.names or models_at_hand.NAMES:
            path = models_at_hand.find(f"{name}.onnx").resolve()
            has_outputs = path.with_suffix(".npz").exists()
            there = Path(directory)
            line, ok = compiled(path, options.limit, there) if has_outputs else saturated(path, there)
            if not ok:
                wrong.append(name)
            print(f"{name:28}{line}", flush=True)
    print(f"{len(wrong)} refused or wrong: {', '.join(wrong)}" if wrong else "all right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
