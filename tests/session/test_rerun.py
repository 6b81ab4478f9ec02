"""Change, rerun, compare: rule files edited under a running engine, and under a session."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workbench import CompileSession
from workbench.egraph.rules import library_directory
from workbench.errors import RuleError
from workbench.session import events as ev
from workbench.session.client import SessionSpec, attach, start_engine
from workbench.session.library import locate, place_of
from workbench.session.view import SessionView

from .watching import Watcher

Spec = Callable[..., SessionSpec]
SQUEEZE = "matmul flattening: squeeze leading 1"
BROKEN = '(rule ((= ?e (Nothing ?x))) ((union ?e ?e)) :ruleset flatten :name "broken")\n'
FAILS_LATER = '(rule ((= ?e (MNum ?n))) ((panic "too late")) :ruleset flatten :name "fails later")\n'


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A copy of the rule library to edit."""
    return Path(shutil.copytree(library_directory(), tmp_path / "lib"))


@pytest.fixture
def session(model_path: Callable[[str], Path], tmp_path: Path, library: Path) -> Iterator[CompileSession]:
    with CompileSession(
        model_path("mlp_ts17"), limit=2, egg=str(library), session=str(tmp_path / "s"), artifacts=str(tmp_path / "a")
    ) as it:
        yield it


def append(path: Path, text: str) -> str:
    """Add to a file; what was in it."""
    before = path.read_text()
    path.write_text(before + text)
    return before


async def changed(watcher: Watcher) -> ev.RulesOnDisk:
    return await watcher.until(ev.RulesOnDisk)


async def test_edits_under_an_engine_are_noticed_refused_where_broken_and_compared(spec: Spec, library: Path) -> None:
    watcher = Watcher(await start_engine(spec(limit=2, egg=str(library))))
    await watcher.until(ev.SessionFinished)
    (group,) = watcher.view.groups
    results = watcher.view.saturation[group.index].result
    squeeze, client = library / "flatten/squeeze.egg", watcher.client
    first_lines = squeeze.read_text().count("\n")

    good = append(squeeze, BROKEN)
    told = await changed(watcher)
    assert (told.changed, told.file, told.line) == (["flatten/squeeze.egg"], "flatten/squeeze.egg", first_lines + 1)
    assert "Nothing" in told.error
    assert not told.refused
    assert watcher.view.rules_on_disk == told
    await client.send(ev.Rerun(stage="saturate"))
    refused = await changed(watcher)
    assert refused.refused
    assert refused.error == told.error
    await client.send(ev.Xray(rule=SQUEEZE, group=group.index))
    answer = await watcher.until(ev.XrayDone)
    assert (answer.error, "cannot be read" in answer.note) == ("", True)
    assert not watcher.of(ev.Restarted)
    assert watcher.view.saturation[group.index].result is results
    assert watcher.view.finished is not None
    assert watcher.view.failure is None

    squeeze.write_text(good)
    await client.send(ev.LookAtRules())
    assert (await changed(watcher)).changed == []
    assert watcher.view.rules_on_disk is None

    squeeze.unlink()
    added = library / "own.egg"
    added.write_text("(rule ((= ?e (Matmul ?b ?m ?n ?k ?a ?ab ?am ?ak ?ao ?w ?wb ?wk ?wn ?wo))) ((union ?e ?e)))\n")
    while (told := await changed(watcher)).changed != ["flatten/squeeze.egg", "own.egg"]:
        pass  # a look may fall between the two
    assert told.error == ""
    await client.send(ev.Rerun(stage="saturate"))
    await watcher.until(ev.SessionFinished)
    after = watcher.view.saturation[group.index].result
    assert after is not None
    assert SQUEEZE not in {r.name for r in after.rules}
    (earlier,) = watcher.view.runs
    assert earlier.number == 1
    assert watcher.view.run == 2
    assert watcher.view.baseline is earlier
    assert earlier.report["groups"][0]["search"]["best_ms"] > 0
    assert SQUEEZE in {r["name"] for r in earlier.report["groups"][0]["rules"]}
    await watcher.to_the_present()
    while watcher.view.rules_on_disk is not None:
        await changed(watcher)

    added.write_bytes(b"\xff\xfe")
    told = await changed(watcher)
    assert (told.file, told.line) == ("own.egg", 0)
    assert "UTF-8" in told.error
    shutil.rmtree(library)
    await client.send(ev.LookAtRules())
    while "no such rule directory" not in (await changed(watcher)).error:
        pass  # a look may fall into the middle of the removal
    await client.send(ev.Rerun(stage="search"))  # the last good run can be searched all the same
    assert (await watcher.until(ev.SessionFinished)).ok
    await client.send(ev.Shutdown())
    await watcher.to_the_end()
    replay = Watcher(await attach(client.directory))
    await replay.to_the_end()
    assert replay.view == watcher.view


def test_a_saturation_that_fails_gives_back_the_run_before(session: CompileSession, library: Path) -> None:
    session.run()
    view = session.view
    good, best = dict(session.saturated), dict(session.best)
    shown, searched, timeline = view.saturation, view.search, dict(view.timeline)
    for text, where in ((FAILS_LATER, "too late"), (BROKEN, "flatten/squeeze.egg:")):
        before = append(library / "flatten/squeeze.egg", text)
        session.restart("saturate", "rerun")
        assert view.saturation == {}
        with pytest.raises(RuleError, match=where):
            session.run("saturate")
        (library / "flatten/squeeze.egg").write_text(before)
        assert view.failure is not None
        assert (view.failure.stage, view.failure.kept) == ("saturate", True)
        assert (view.saturation, view.search) == (shown, searched)
        assert view.finished is not None
        assert (view.run, view.runs) == (1, [])
        assert {s: view.timeline[s] for s in ev.STAGES} == timeline
        assert (session.saturated, session.best) == (good, best)
    assert view.failure is not None
    assert view.failure.file == "flatten/squeeze.egg"
    assert view.failure.line == before.count("\n") + 1
    session.restart("search", "again")
    session.run("search")
    assert session.view.failure is None
    replayed = SessionView()
    for event in session.store.events():
        replayed.apply(event)
    assert replayed == session.view


def test_what_fails_at_first_gives_nothing_back(session: CompileSession, library: Path) -> None:
    append(library / "flatten/squeeze.egg", FAILS_LATER)
    with pytest.raises(RuleError):
        session.run()
    assert session.view.failure is not None
    assert not session.view.failure.kept
    assert session.rules_in_use is None


def test_runs_are_compared_with_the_last_one_of_other_rules() -> None:
    view = SessionView()
    group = ev.GroupInfo(0, 0, [0], 3, "d")
    view.apply(ev.GroupsFormed(groups=[group]))

    def run(digest: str, ms: float) -> None:
        view.apply(
            ev.GroupSaturated(
                group=0, classes=1, nodes=1, seconds=0.1, overhead_seconds=0.0, rules=[], rules_digest=digest
            )
        )
        view.apply(ev.SearchStarted(group=0, limit=1, choices=1, space_log10=0.3, members=1))
        view.apply(ev.BestImproved(group=0, index=0, ms=ms, first_ms=ms))

    run("old", 4.0)
    assert view.baseline is None
    view.apply(ev.Restarted(stage="search", reason="new seed", seed=1))
    run("old", 3.0)
    assert view.baseline is not None
    assert view.baseline.number == 1  # no other rules yet: the run before
    view.apply(ev.Restarted(stage="saturate", reason="rerun", seed=1))
    assert not view.saturated
    view.apply(ev.Cancelled(stage="saturate"))
    for ms in (2.0, 1.0):  # what was cancelled is no run to compare with
        view.apply(ev.Restarted(stage="saturate", reason="rerun", seed=1))
        run("new", ms)
    assert [(r.number, r.reason, r.rules_digest) for r in view.runs] == [
        (1, "opened", "old"), (2, "new seed", "old"), (4, "rerun", "new")
    ]  # fmt: skip
    assert view.run == 5
    baseline = view.baseline
    assert baseline is not None
    assert (baseline.name, baseline.report["groups"][0]["search"]["best_ms"]) == ("run 2", 3.0)


def test_only_files_of_the_libraries_are_found(tmp_path: Path, library: Path) -> None:
    other = tmp_path / "other"
    (other / "flatten").mkdir(parents=True)
    (other / "flatten/squeeze.egg").write_text('(rule () () :name "mine")\n')
    (tmp_path / "secret.egg").write_text("")
    roots = (library, other)
    assert locate(roots, "flatten/squeeze.egg", SQUEEZE) == library / "flatten/squeeze.egg"
    assert locate(roots, "flatten/squeeze.egg", "mine") == other / "flatten/squeeze.egg"
    assert locate(roots, "flatten/squeeze.egg", "neither") == library / "flatten/squeeze.egg"
    for name in ("", "nowhere.egg", "../secret.egg", str(tmp_path / "secret.egg"), "flatten", "a\0.egg", "-x"):
        assert locate(roots, name) is None
    assert place_of("flatten/squeeze.egg:12: what", roots) == ("flatten/squeeze.egg", 12)
    assert place_of("flatten/squeeze.egg: not UTF-8 text", roots) == ("flatten/squeeze.egg", 0)
    assert place_of("../secret.egg:1: what", roots) == ("", 0)
