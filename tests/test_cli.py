"""The command as a program: its exit status, what goes to stdout and what to stderr, and how it takes being stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from workbench import cli
from workbench.session.store import CANDIDATES, SessionStore, sessions_directory, state_directory

Model = Callable[[str], Path]
Ended = subprocess.CompletedProcess[str]


@pytest.fixture
def luminal(tmp_path: Path) -> Callable[..., Ended]:
    """`luminal(*arguments)` runs the command in an empty directory, without a terminal."""

    def run(*arguments: object, **options: Any) -> Ended:
        return subprocess.run(
            [*COMMAND, *map(str, arguments)], cwd=tmp_path, text=True, timeout=60, check=False,
            **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | options),
        )  # fmt: skip

    return run


COMMAND = [sys.executable, "-c", "from workbench.cli import main; main()"]


def in_process(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(a) for a in arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def refused(capsys: pytest.CaptureFixture[str], *arguments: object, said: str, status: int = 2) -> None:
    """The command ends with `status` and one line of its own, the last, that contains `said`."""
    code, _, err = in_process(capsys, *arguments)
    lines = err.splitlines()
    assert code == status, err
    assert "Traceback" not in err
    assert [line.startswith("luminal-tui: ") for line in lines].count(True) == 1
    assert lines[-1].startswith("luminal-tui: ")
    assert said in lines[-1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--limit", "0"], "--limit: must be at least 1"),
        (["--limit", "many"], "'many' is not a whole number"),
        (["--seed", "-1"], "--seed"),
        (["--threads", "0"], "--threads"),
        (["--memory-limit", "0"], "--memory-limit"),
        (["--target", "tpu"], "--target"),
        (["--strategy", "luck"], "'luck' is not one of evolve"),
        (["--dim", "x=0"], "--dim"),
        (["--session", "file"], "file"),
        (["--session", "file/below"], "file"),
        (["--artifacts", "file"], "file is not a directory"),
        (["--artifacts", "file/below"], "file is not a directory"),
        (["--egg", "absent"], "absent: no such rule directory"),
        (["--rules", "empty"], "no .egg files"),
        (["--rules", "bytes"], "bytes.egg: not UTF-8"),
        (["--unknown"], "--unknown"),
    ],
)
def test_options_that_cannot_be_are_one_line_and_start_nothing(
    capsys: pytest.CaptureFixture[str], model_path: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    options: list[str], said: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("kept")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes" / "bytes.egg").write_bytes(b"\xff\xfe")
    before = sorted(tmp_path.rglob("*"))
    refused(capsys, "compile", model_path("mlp_ts17"), *options, said=said)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "kept"


def test_a_malformed_rule_is_named_by_file_and_line(
    capsys: pytest.CaptureFixture[str], model_path: Model, tmp_path: Path
) -> None:
    (tmp_path / "base.egg").write_text("; fine\n\n(sort)\n")
    refused(capsys, "compile", model_path("mlp_ts17"), "--egg", tmp_path, said="base.egg:3")
    (tmp_path / "base.egg").write_text("(rule ((nothing ?x)) ())\n")
    refused(capsys, "rules", model_path("mlp_ts17"), "--rules", tmp_path, said="base.egg:1")


def test_weights_that_are_elsewhere_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 4], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="weights.bin")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], [weight],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), tmp_path / "m.onnx")
    options = ("--limit", 1, "--artifacts", tmp_path / "a")
    refused(capsys, "compile", tmp_path / "m.onnx", *options, said="weights are missing (first: 'w')")
    answer = in_process(capsys, "compile", tmp_path / "m.onnx", "--random-weights", *options)
    assert answer[0] == 0, answer[2]


def test_inputs_of_run_that_do_not_fit(
    capsys: pytest.CaptureFixture[str], model_path: Model, tmp_path: Path
) -> None:
    model, good = model_path("mlp_ts17"), np.zeros((4, 32), np.float32)
    files = {
        "name": {"a": good},
        "more": {"x": good, "z": good},
        "shape": {"x": good[:2]},
        "dtype": {"x": good.astype(np.float64)},
        "out": {"x": good, "out_nope": good},
    }
    for name, arrays in files.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
    np.save(tmp_path / "single.npy", good)
    np.savez(tmp_path / "objects.npz", x=np.array([None]))
    (tmp_path / "zip.npz").write_bytes(b"PK\x03\x04 and then nothing")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "shape.npz").read_bytes()[:100])
    (tmp_path / "empty.npz").write_bytes(b"")
    for file, said in (
        ("name.npz", "missing x; unknown a"),
        ("more.npz", "unknown z"),
        ("shape.npz", "[2, 32]"),
        ("dtype.npz", "float64"),
        ("out.npz", "no output 'nope'"),
        ("single.npy", "one array"),
        ("objects.npz", "plain arrays"),
        ("zip.npz", "not an .npz"),
        ("cut.npz", "not an .npz"),
        ("empty.npz", "not an .npz"),
        ("absent.npz", "no such file"),
        (".", "directory"),
    ):
        refused(capsys, "run", model, "-i", tmp_path / file, "-o", tmp_path / "y.npz", said=said)
    np.savez(tmp_path / "good.npz", x=good)
    refused(capsys, "run", model, "-i", tmp_path / "good.npz", "-o", tmp_path, said="directory")
    refused(capsys, "run", model, "-i", tmp_path / "good.npz", "-o", tmp_path / "good.npz/y", said="not a directory")
    assert not (tmp_path / "y.npz").exists()


def test_outputs_that_differ_are_written_and_are_an_error(
    capsys: pytest.CaptureFixture[str], model_path: Model, expected: Callable[[str], Any], tmp_path: Path
) -> None:
    inputs, outputs = expected("mlp_ts17")
    (name,) = outputs
    np.savez(tmp_path / "wrong.npz", **inputs, **{f"out_{name}": outputs[name] * 2})
    options = ("-o", tmp_path / "y.npz", "--limit", 1, "--artifacts", tmp_path / "a")
    refused(
        capsys, "run", model_path("mlp_ts17"), "-i", tmp_path / "wrong.npz", *options, said="differ from", status=1
    )
    with np.load(tmp_path / "y.npz") as got:
        assert np.allclose(got[name], outputs[name], rtol=1e-4)


def test_nothing_viable_is_status_1_with_the_reasons(
    capsys: pytest.CaptureFixture[str], model_path: Model, tmp_path: Path
) -> None:
    options = ("--limit", 3, "--artifacts", tmp_path / "a", "--session", tmp_path / "s")
    refused(
        capsys, "compile", model_path("mlp_ts17"), "--memory-limit", 1, *options, said="memory 3", status=1
    )
    entries = [msgspec.json.decode(line) for line in (tmp_path / "s" / CANDIDATES).read_bytes().splitlines()]
    assert {(e["step"], e["reason"]) for e in entries} == {("memory", "memory")}
    assert all("1 are allowed" in e["detail"] for e in entries)
    assert SessionStore(tmp_path / "s").summary().status == "failed"


def test_a_bad_log_setting_is_one_line(
    capsys: pytest.CaptureFixture[str], model_path: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUMINAL_LOG", "search=LOUD")
    refused(capsys, "compile", model_path("mlp_ts17"), said="LUMINAL_LOG: 'LOUD' is not a level")


def test_the_workbench_needs_a_terminal_but_says_first_what_is_not_there(
    luminal: Callable[..., Ended], model_path: Model
) -> None:
    for arguments, said in (
        ((), "needs a terminal"),
        ((model_path("mlp_ts17"),), "needs a terminal"),
        (("absent.onnx",), "absent.onnx: no such file or session"),
        (("attach", "nowhere"), "nowhere: no such session"),
        (("a" * 3000,), "no such file or session"),
        ((b"\xff.onnx".decode(errors="surrogateescape"),), "no such file or session"),
    ):
        ended = luminal(*arguments)
        assert ended.returncode == 2
        assert ended.stderr.count("\n") == 1
        assert said in ended.stderr, ended.stderr


def test_json_is_all_that_is_on_stdout(luminal: Callable[..., Ended], model_path: Model) -> None:
    ended = luminal("compile", model_path("mlp_ts17"), "--limit", 2, "--json")
    report = json.loads(ended.stdout)
    assert ended.returncode == 0
    assert ended.stderr.splitlines()[0].startswith("import")
    assert "\x1b" not in ended.stderr
    assert (report["verify"]["ok"], report["seed"]) == (True, 0)
    listed = json.loads(luminal("sessions", "--json").stdout)
    (own,) = [s for s in listed if s["directory"] == report["session"]]
    assert own["status"] == "finished"
    devices = json.loads(luminal("devices", "--json").stdout)["devices"]
    assert {d["target"] for d in devices} >= {"cpu"}


def test_a_report_is_printed_as_far_as_it_got(luminal: Callable[..., Ended], model_path: Model) -> None:
    ended = luminal("compile", model_path("mlp_ts17"), "--limit", 2, "--memory-limit", 1, "--json")
    report = json.loads(ended.stdout)
    assert ended.returncode == 1
    assert report["verify"] is None
    assert report["groups"][0]["search"]["rejected"] == {"memory": 2}
    assert report["groups"][0]["search"]["best_ms"] is None


def test_ctrl_c_says_how_to_go_on_and_the_session_does(
    luminal: Callable[..., Ended], model_path: Model, tmp_path: Path
) -> None:
    arguments = ["compile", model_path("mlp_ts17"), "--session", tmp_path / "s", "--artifacts", tmp_path / "a"]
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments), "--limit", "100000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("search"):
            break
    with (tmp_path / "s" / CANDIDATES).open("rb") as candidates:
        while not candidates.read():
            assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all of the group
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.splitlines()[-1] == f"luminal-tui: interrupted (go on with --session {tmp_path / 's'})"
    assert SessionStore(tmp_path / "s").summary().status == "stopped"
    tried = (tmp_path / "s" / CANDIDATES).read_bytes()
    count = tried.count(b"\n")
    ended = luminal(*arguments, "--limit", count + 2, "--json")
    assert json.loads(ended.stdout)["groups"][0]["search"]["candidates"] == count + 2
    after = (tmp_path / "s" / CANDIDATES).read_bytes()
    assert after.startswith(tried)
    assert after.count(b"\n") == count + 2


def test_a_reader_that_leaves_and_a_full_disk_behind_stdout(luminal: Callable[..., Ended], model_path: Model) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        ended = luminal("inspect", model_path("llama3_tiny_4l_ts17"), "--json", stdout=closed)
        assert (ended.returncode, ended.stderr) == (0, "")
        # Progress that nobody reads is no reason to stop.
        quiet = luminal("rules", model_path("mlp_ts17"), "--json", stderr=closed)
        assert quiet.returncode == 0
        assert json.loads(quiet.stdout)["groups"]
    if Path("/dev/full").exists():
        with open("/dev/full", "wb") as full:
            ended = luminal("inspect", model_path("mlp_ts17"), "--json", stdout=full)
        assert (ended.returncode, ended.stderr) == (2, "luminal-tui: the output: No space left on device\n")


def test_what_nobody_thought_of_is_one_line_with_the_traceback_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> int:
        raise KeyError("of a\ntable")

    monkeypatch.setitem(cli.COMMANDS, "devices", (broken, "", cli.COMMANDS["devices"][2]))
    refused(capsys, "devices", said="internal error: KeyError: 'of a\\ntable'")
    assert "KeyError" in (state_directory() / "crash.txt").read_text()


def test_help_lists_every_command_and_starts_fast(luminal: Callable[..., Ended]) -> None:
    ended = luminal("--help")
    assert ended.returncode == 0
    assert all(name in ended.stdout for name in cli.COMMANDS)
    code = "import sys; from workbench.cli import _parser; _parser(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "onnx", "textual", "egglog", "llvmlite"} & set(loaded)


def test_a_refused_model_leaves_no_session(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = set(sessions_directory().iterdir()) if sessions_directory().exists() else set()
    refused(capsys, "compile", tmp_path / "absent.onnx", said="no such file")
    refused(capsys, "compile", tmp_path, said="is a directory")
    assert (set(sessions_directory().iterdir()) if sessions_directory().exists() else set()) == before
