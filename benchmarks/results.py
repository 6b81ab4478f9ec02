"""results.json: what was measured, on what machine, with which versions, when."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.measure import Row

RESULTS = Path(__file__).with_name("results.json")
PACKAGES = ("luminal-tui", "egglog", "llvmlite", "numpy", "onnx", "onnxruntime", "textual")


def write(rows: list[Row], path: Path = RESULTS) -> None:
    """Write `rows` to `path`. Rows measured before stay, unless machine or versions are others now."""
    new = {"machine": machine(), "versions": versions(), "date": datetime.now(UTC).date().isoformat()}
    measured = {row.name: row.as_json() for row in rows}
    kept = [row for row in _previous(path, new) if row["name"] not in measured]
    results = sorted([*kept, *measured.values()], key=lambda row: str(row["name"]))
    path.write_text(json.dumps(new | {"results": results}, indent=2) + "\n")


def _previous(path: Path, new: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        old = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    same = all(old.get(key) == new[key] for key in ("machine", "versions"))
    return list(old["results"]) if same else []


def machine() -> dict[str, Any]:
    """CPU model, cores this process may use, and memory in GB; nothing that names the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": _cpu(), "cores": cores, "memory_gb": round(memory / 1e9, 1), "system": platform.system()}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter to the numbers."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found
