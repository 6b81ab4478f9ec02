"""Bad input: one clear line, exit 2, no traceback, nothing half-written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from workbench import CompileSession

from .conftest import Command

Model = Callable[[str], Path]


def refused(answer: tuple[int, str, str], *words: str) -> None:
    status, _, err = answer
    lines = [line for line in err.splitlines() if line.startswith("luminal-tui: ")]
    assert status == 2, err
    assert len(lines) == 1, err
    assert "Traceback" not in err
    for word in words:
        assert word in lines[0], lines[0]


def save(path: Path, nodes: list[onnx.NodeProto], opset: int = 17) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), path)
    return path


def test_files_that_are_no_models(luminal: Command, model_path: Model, tmp_path: Path) -> None:
    text, cut = tmp_path / "text.onnx", tmp_path / "cut.onnx"
    text.write_text("this is no model")
    cut.write_bytes(model_path("mlp_ts17").read_bytes()[:5000])
    refused(luminal("compile", "absent.onnx"), "no such file")
    refused(luminal("compile", str(tmp_path)), "directory")
    refused(luminal("compile", str(text)), "text.onnx")
    refused(luminal("compile", str(cut)), "cut.onnx")
    old = save(tmp_path / "old.onnx", [helper.make_node("Relu", ["x"], ["y"])], 3)
    refused(luminal("compile", str(old)), "opset 3")


def test_unsupported_operators_are_all_listed(luminal: Command, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Unique", ["x"], ["a"], name="first one"),
        helper.make_node("Unique", ["x"], ["b"]),
        helper.make_node("RandomNormalLike", ["x"], ["c"], name="noise"),
        helper.make_node("Add", ["a", "b"], ["d"]),
        helper.make_node("Concat", ["c", "d"], ["y"], axis=0),
    ]
    path = save(tmp_path / "m.onnx", nodes)
    refused(luminal("compile", str(path)), "Unique x2", "first one", "RandomNormalLike x1", "noise")


def test_cycles_and_dangling_edges(luminal: Command, tmp_path: Path) -> None:
    cycle = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
             helper.make_node("Relu", ["b"], ["y"])]  # fmt: skip
    refused(luminal("inspect", str(save(tmp_path / "cycle.onnx", cycle))), "cycle")
    dangling = [helper.make_node("Add", ["x", "nowhere"], ["y"])]
    refused(luminal("inspect", str(save(tmp_path / "dangling.onnx", dangling))), "nowhere")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--breaks", "("], "regular expression"),
        (["--breaks", "no such node"], "no node name matches"),
        (["--dim", "batch"], "NAME=VALUE"),
        (["--dim", "nope=3"], "nope"),
        (["--strategy", "luck"], "luck"),
        (["--target", "cuda"], "cuda"),
        (["--rules", "nowhere"], "nowhere"),
        (["--expected", "nowhere.npz"], "nowhere.npz"),
    ],
)
def test_options_that_cannot_be(luminal: Command, model_path: Model, options: list[str], word: str) -> None:
    refused(luminal("compile", str(model_path("mlp_ts17")), "--limit", "1", *options), word)


def test_malformed_rules_are_named_by_file_and_line(luminal: Command, model_path: Model, tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "mine.egg").write_text('; a comment\n(rule ((= ?e (Nope ?x))) ((union ?e ?x)) :name "n")\n')
    refused(luminal("rules", str(model_path("mlp_ts17")), "--rules", str(rules)), "mine.egg:2")


def test_inputs_of_run(luminal: Command, model_path: Model, tmp_path: Path) -> None:
    path = str(model_path("mlp_ts17"))
    bad, pickled, wrong = tmp_path / "bad.npz", tmp_path / "pickled.npz", tmp_path / "wrong.npz"
    bad.write_text("no zip")
    np.savez(pickled, x=np.array([{"a": 1}], dtype=object))
    np.savez(wrong, x=np.zeros((2, 2), np.float32))
    for given, word in ((bad, "bad.npz"), (pickled, "pickled.npz"), (wrong, "[2, 2]")):
        refused(luminal("run", path, "-i", str(given), "-o", str(tmp_path / "y.npz")), word)
    assert not (tmp_path / "y.npz").exists()


def test_a_live_session_is_not_touched(luminal: Command, model_path: Model, tmp_path: Path) -> None:
    path = str(model_path("mlp_ts17"))
    with CompileSession(path, limit=1, session=str(tmp_path / "s")):
        refused(luminal("compile", path, "--session", str(tmp_path / "s")), "live", "attach")
    refused(luminal("compile", str(model_path("llama3_tiny_4l_ts17")), "--session", str(tmp_path / "s")), "model")


def test_a_full_disk_is_one_line(model_path: Model, tmp_path: Path) -> None:
    code = (
        "import resource, sys; from workbench.cli import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)); "
        "main(['compile', sys.argv[1], '--limit', '3', '--session', sys.argv[2], '--artifacts', sys.argv[3]])"
    )
    arguments = [str(model_path("llama3_tiny_4l_ts17")), str(tmp_path / "s"), str(tmp_path / "a")]
    ended = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "cannot be written" in ended.stderr
    assert not list(tmp_path.rglob("*.part"))


def test_missing_weights_are_named(luminal: Command, model_path: Model) -> None:
    path = model_path("llama3_8b_32l_graph")
    refused(luminal("compile", str(path), "--limit", "1"), "weights are missing", "--random-weights")
