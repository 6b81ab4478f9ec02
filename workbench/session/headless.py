"""Headless runs: what `compile`, `run` and `rules` do, over the same session as the app."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import WorkbenchError, printable
from workbench.ir.dtype import from_numpy
from workbench.runtime.compare import compare, default_tolerance
from workbench.session import known
from workbench.session.progress import Progress
from workbench.session.reference import read_expected
from workbench.session.report import build_report
from workbench.session.saturation import digest_of
from workbench.session.session import CompileSession, Stopped
from workbench.session.spec import SessionSpec
from workbench.session.store import SPEC, sessions_directory, write_file


def compile_report(spec: SessionSpec) -> tuple[dict[str, Any], WorkbenchError | None]:
    """Compile with progress on stderr. The report, as far as it got, and the error that ended it.

    Errors before the session is open are raised."""
    progress = Progress()
    with CompileSession(spec, on_event=progress) as session:
        error: WorkbenchError | None = None
        try:
            session.run()
        except WorkbenchError as raised:
            error = raised
        except KeyboardInterrupt:
            session.cancel()
            directory = session.store.directory
            raise WorkbenchError("interrupted", f"go on with --session {directory}") from None
        finally:
            progress.close()
        directory = Path(session.spec.artifacts or "luminal_artifacts")
        return build_report(session.view, session.spec, session.store.directory, directory), error


def run_model(spec: SessionSpec, source: str, destination: str, *, search_again: bool) -> tuple[dict[str, Any], bool]:
    """Execute a model on the inputs of an .npz, write the outputs to another, compare where `out_NAME` are given.

    What is known from earlier searches is used unless `search_again`. Returns a summary, and whether all is right.
    Raises InputError for inputs that do not fit, before anything is compiled."""
    from workbench.session.reference import check_inputs

    given = read_expected(Path(source))
    progress = Progress()
    with CompileSession(spec, on_event=progress) as session:
        try:
            session.import_model()
            _, dims = check_inputs(session.graph, given.inputs)
            session.graph.dims.update({n: v for n, v in dims.items() if n not in spec.dims})
            session.expected = given
            session.split()
            if search_again or not _recall(session):
                session.saturate()
                session.search()
            executable = session.stitch()
            outputs = executable.run(given.inputs)
        except Stopped:
            raise WorkbenchError("cancelled") from None
        finally:
            progress.close()
    _write_npz(Path(destination), outputs)
    ok, worst = True, 0.0
    for name, array in given.outputs.items():
        if name not in outputs:
            raise WorkbenchError(f"{source}: the model has no output '{printable(name)}'")
        dtype = from_numpy(outputs[name].dtype)
        assert dtype is not None
        tolerance = default_tolerance(dtype)
        right, _, relative = compare(outputs[name], array, tolerance.rtol, tolerance.atol_scale)
        ok, worst = ok and right, max(worst, relative)
    summary: dict[str, Any] = {"outputs": {printable(n): list(a.shape) for n, a in outputs.items()}}
    if given.outputs:
        summary["matches_expected"] = ok
        summary["max_rel_err"] = worst
    return summary, ok


def _recall(session: CompileSession) -> bool:
    """Take every group's best from what is known; False where one is missing."""
    rules = digest_of(session.library())
    for g in session.groups:
        found = known.recall(g, rules, session.runtime.name, session.graph.dims)
        if found is None:
            session.saturated, session.best = {}, {}
            return False
        session.saturated[g.index], session.best[g.index] = found
    return True


def _write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    data = io.BytesIO()
    np.savez(data, **arrays)  # type: ignore[arg-type]
    write_file(path, data.getvalue())


def rules_report(spec: SessionSpec) -> dict[str, Any]:
    """Saturate only: the `rules --json` object."""
    progress = Progress()
    with CompileSession(spec, on_event=progress) as session:
        try:
            session.import_model()
            session.split()
            session.saturate()
        except Stopped:
            raise WorkbenchError("cancelled") from None
        finally:
            progress.close()
        report = build_report(session.view, session.spec, session.store.directory, session.store.directory)
    groups = [{k: v for k, v in g.items() if k != "search"} for g in report["groups"]]
    return {"model": report["model"], "target": report["target"], "groups": groups}


def rule_table(report: dict[str, Any]) -> str:
    """The rule table over all groups, the costliest first; rules that never fired stand at the end."""
    rows: dict[tuple[str, str], list[Any]] = {}
    for g in report["groups"]:
        for r in g["rules"]:
            row = rows.setdefault((r["name"], f"{r['file']}:{r['line']}"), [r["category"], r["ruleset"], 0, 0.0])
            row[2] += r["matches"]
            row[3] += r["seconds"]
    total = sum(r[3] for r in rows.values()) or 1.0
    lines = [f"{'rule':58} {'category':8} {'ruleset':10} {'matches':>8} {'ms':>8} {'share':>6}  where"]
    for (name, place), (category, ruleset, matches, seconds) in sorted(
        rows.items(), key=lambda item: (item[1][2] == 0, -item[1][3])
    ):
        fired = f"{matches:8}" if matches else "   never"
        lines.append(
            f"{printable(name, 58):58} {category:8} {ruleset:10} {fired} {seconds * 1e3:8.3f} "
            f"{seconds / total:6.1%}  {place}"
        )
    never = sum(1 for r in rows.values() if not r[2])
    return "\n".join([*lines, "", f"{len(rows)} rules, {never} never fired, {total * 1e3:.1f} ms in rules"])


def find_session(name: str) -> Path | None:
    """The session directory that `name` stands for: a path, or the name of a default session."""
    for candidate in (Path(name), sessions_directory() / name):
        if (candidate / SPEC).is_file():
            return candidate
    return None
