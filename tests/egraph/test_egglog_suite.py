"""egglog's own test programs, where the folder is there: each comes out as egglog itself has it.

The folder is `tests/` of a checkout of egraphs-good/egglog, given by EGGLOG_TESTS or found beside the repository.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.egraph.whole_program import ROOT, SIZES, comparable, run_whole
from workbench.egraph.program_runner import ProgramRunner, Ran
from workbench.egraph.saturate import Limits

FOLDER = Path(os.environ.get("EGGLOG_TESTS", ROOT.parent / "shared" / "egglog" / "tests"))
SECONDS = float(os.environ.get("EGGLOG_SECONDS", "20"))
MEMORY_BYTES = 8 << 30
PROGRAMS = sorted(str(p.relative_to(FOLDER.parent)) for p in FOLDER.rglob("*.egg")) if FOLDER.is_dir() else []

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(not PROGRAMS, reason="egglog's tests are not there; EGGLOG_TESTS names their folder"),
]


@pytest.fixture(scope="module")
def working(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to work in: some of the programs write files."""
    root = tmp_path_factory.mktemp("egglog")
    shutil.copytree(FOLDER, root / FOLDER.name)
    return root


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_comes_out_as_egglog_has_it(program: str, working: Path) -> None:
    whole = run_whole(program, working, SECONDS, MEMORY_BYTES)
    limits = Limits(seconds=3 * SECONDS, memory_bytes=MEMORY_BYTES, nodes=1 << 40)
    if whole.outcome == "over":
        pytest.skip(f"egglog itself is over the limit: {whole.error}")
    with ProgramRunner(program, str(working), limits, allow_files=True) as runner:
        ran = runner.run(runner.read() + SIZES)
    ended = ran.ended
    assert ended.outcome == whole.outcome, (ended.error, ran.stopped, whole.error)
    assert ended.error == whole.error
    if whole.file:
        assert (ended.file, ended.line) == (whole.file, whole.line)
    if whole.outcome == "ok":
        assert [comparable(o) for c in ran.heard.commands for o in c.outputs] == list(whole.outputs)
        assert matches(ran) == whole.matches


def matches(ran: Ran) -> int:
    """Of all rules in all steps."""
    return sum(sum(step.matches.values()) for step in ran.heard.steps)
