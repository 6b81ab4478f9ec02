"""Headless runs: what `compile`, `run` and `rules` do, over the same session as the app."""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import InputError, WorkbenchError, printable
from workbench.ir.dtype import BF16, from_numpy
from workbench.session import events as ev
from workbench.session import known
from workbench.session.artifacts import DEFAULT_DIRECTORY
from workbench.session.points import Dims
from workbench.session.progress import Progress
from workbench.session.reference import Given, by_role, check_expected, interpret, read_arrays
from workbench.session.report import build_report
from workbench.session.rounding import rounds
from workbench.session.saturation import digest_of
from workbench.session.session import CompileSession, Stopped
from workbench.session.spec import SessionSpec
from workbench.session.store import check_writable, write_file
from workbench.session.verification import WrongResult, compare_outputs, tolerances


class Interrupted(WorkbenchError):
    """Ctrl-C."""

    exit_status = 130


@contextmanager
def _opened(spec: SessionSpec) -> Iterator[CompileSession]:
    """A session with progress on stderr; Ctrl-C ends it with a word on how to go on."""
    progress = Progress()
    with CompileSession(spec, on_event=progress) as session:
        try:
            yield session
        except Stopped:
            raise WorkbenchError("cancelled") from None
        except KeyboardInterrupt:
            with contextlib.suppress(WorkbenchError):
                session.emit(ev.Cancelled(stage=session.view.stage))
            raise Interrupted("interrupted", f"go on with --session {session.store.directory}") from None
        finally:
            progress.close()


def compile_report(spec: SessionSpec) -> tuple[dict[str, Any], WorkbenchError | None]:
    """Compile with progress on stderr. The report, as far as it got, and the error that ended it.

    Errors before the session is open are raised, and so is Interrupted."""
    with _opened(spec) as session:
        error: WorkbenchError | None = None
        try:
            session.run()
        except WorkbenchError as raised:
            error = raised
        directory = Path(session.spec.artifacts or DEFAULT_DIRECTORY)
        return build_report(session.view, session.spec, session.store.directory, directory), error


def run_model(
    spec: SessionSpec, source: str, destination: str, *, search_again: bool
) -> tuple[dict[str, Any], WrongResult | None]:
    """Execute a model on the inputs of an .npz, write the outputs to another, compare where `out_NAME` are given.

    What is known from earlier searches is used unless `search_again`, at whatever sizes it was found; where `spec` has
    values of dimensions, only what was found at those. Returns a summary, and what is wrong.
    Raises InputError for inputs that do not fit, before anything is compiled."""
    arrays = read_arrays(Path(source))
    _check_destination(Path(destination))
    with _opened(spec) as session, session.told():
        # not asked for: the dimensions that options give may differ from those of a run
        graph = session.import_model(Given(arrays, Path(source).name, asked_for=False))
        given = by_role(arrays, graph, Path(source).name)
        check_expected(graph, given)
        session.split()
        if search_again or not _recall(session):
            session.saturate()
            session.search()
        outputs = session.stitch().run(given.inputs)
        allowed = tolerances(graph)
        ok, _, worst = compare_outputs(outputs, given.outputs, allowed)
        if not ok and rounds(graph, graph.live_from_outputs()):
            allowed = tolerances(graph, interpret(graph, given.inputs, (), session.checkpoint))
            ok, _, worst = compare_outputs(outputs, given.outputs, allowed)
        _write_npz(Path(destination), outputs)
        session.emit(ev.SessionFinished(ok=ok, seconds=session.view.now, report=""))
    summary: dict[str, Any] = {"outputs": {printable(n): list(a.shape) for n, a in outputs.items()}}
    if given.outputs:
        summary["matches_expected"] = ok
        summary["max_rel_err"] = worst
    if ok:
        return summary, None
    loosest = max((allowed[name] for name in given.outputs), key=lambda t: (t.atol_scale, t.undecided))
    return summary, WrongResult(
        f"the outputs differ from those in {printable(source)}: relative error {worst:.3g} (allowed: {loosest})"
    )


def _check_destination(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path}: a directory, not a file to write outputs to")
    check_writable(path.parent)


def _recall(session: CompileSession) -> bool:
    """Take every group's bests from what is known; False where one is missing."""
    rules = digest_of(session.library())
    for g in session.groups:
        own = session.programs[g.representative].dims
        points = session.points_of(g).all() if session.spec.dims else ()
        wanted: list[Dims] = [{name: value for name, value in point.items() if name in own} for point in points]
        found = known.recall(g, rules, session.target, wanted)
        if found is None:
            session.saturated, session.best = {}, {}
            return False
        session.saturated[g.index], session.best[g.index] = found
    return True


def _write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """As np.savez, which takes names as keywords: an output called `file` would not do. bf16, which the format lacks,
    goes as f32."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                kept = array.astype(np.float32) if from_numpy(array.dtype) is BF16 else np.asanyarray(array)
                np.lib.format.write_array(member, kept, allow_pickle=False)
    write_file(path, data.getvalue())


def rules_report(spec: SessionSpec) -> dict[str, Any]:
    """Saturate only: the `rules --json` object."""
    with _opened(spec) as session, session.told():
        session.prepare_saturation()
        session.import_model()
        session.split()
        session.saturate()
        report = build_report(session.view, session.spec, session.store.directory, session.store.directory)
    groups = [{k: v for k, v in g.items() if k != "search"} for g in report["groups"]]
    return {"model": report["model"], "target": report["target"], "groups": groups}
