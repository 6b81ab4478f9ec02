"""Artifacts in a directory that is used again and again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from workbench import CompileSession


def test_an_earlier_compile_leaves_nothing_among_the_files_of_this_one(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    def compiled(model: str, directory: Path) -> set[str]:
        with CompileSession(model_path(model), limit=1, artifacts=str(directory)) as session:
            session.run()
        return {str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file()}

    (tmp_path / "kernels").mkdir()
    own = {"notes.txt", "hlir_chunk_of_mine.egg", "kernels/mine.ll"}
    for name in own:
        (tmp_path / name).write_text("kept")
    many = compiled("gpt2_tiny_2l_ts17", tmp_path)
    assert {"hlir_chunk_0.egg", "hlir_chunk_1_root.txt"} | own <= many
    alone = compiled("mlp_ts17", tmp_path / "alone")
    names = {"HLIR.dot", "LLIR.dot", "hlir_program.egg", "hlir_root.txt", "rule_stats.txt", "report.json"}
    after = {n for n in compiled("mlp_ts17", tmp_path) if not n.startswith("alone")}
    assert after == {n for n in after if n.startswith("kernels")} | names | own
    assert {n.count("/") for n in alone} == {0, 1}
    texts = [(tmp_path / n).read_text() for n in after - own]
    assert all(texts)
    again = compiled("gpt2_tiny_2l_ts17", tmp_path)
    assert "hlir_program.egg" not in again
    assert own <= again
