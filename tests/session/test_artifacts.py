"""Artifacts in a directory that is used again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from workbench import CompileSession


def test_an_earlier_compile_leaves_nothing_among_the_files_of_this_one(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    def compiled(model: str) -> set[str]:
        with CompileSession(model_path(model), limit=1, artifacts=str(tmp_path)) as session:
            session.run()
            assert session.executable is not None
            sources = session.executable.compiled(session.graph.dims).plan.sources
        found = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
        kernels = {f"kernels/{key}.ll" for key in sources}
        assert kernels == {n for n in found if n.startswith("kernels/")} - own
        return found - kernels

    (tmp_path / "kernels").mkdir()
    own = {"notes.txt", "hlir_chunk_of_mine.egg", "kernels/mine.ll"}
    for name in own:
        (tmp_path / name).write_text("kept")
    common = {"HLIR.dot", "LLIR.dot", "rule_stats.txt", "report.json"} | own
    several = {f"hlir_chunk_{i}{end}" for i in range(5) for end in (".egg", "_root.txt")}
    assert compiled("gpt2_tiny_2l_ts17") == common | several
    assert compiled("mlp_ts17") == common | {"hlir_program.egg", "hlir_root.txt"}
