"""`compile`, `run`, `inspect` and friends: the journey on real models, and its JSON contract."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from workbench import CompileSession, compile_onnx
from workbench.errors import InputError, SessionError
from workbench.session.store import SessionStore

from .conftest import Command

REPORT_KEYS = {
    "model", "target", "seed", "nodes", "chunks", "groups", "verify", "latency_ms", "timeline",
    "unattributed_seconds", "total_seconds", "peak_rss_mb", "kernels", "session", "artifacts",
}  # fmt: skip
GROUPED = {
    "llama3_tiny_4l_ts17": [1, 4, 3, 1],
    "llama3_tiny_4l_dynamo": [1, 4, 3, 1],
    "gpt2_tiny_2l_ts17": [1, 2, 1, 1],
}

Model = Callable[[str], Path]


@pytest.mark.parametrize("name", sorted(GROUPED))
def test_compile_groups_the_layers_and_proves_the_result(luminal: Command, model_path: Model, name: str) -> None:
    status, out, _ = luminal("compile", str(model_path(name)), "--limit", "6", "--json")
    report = json.loads(out)
    assert status == 0
    assert set(report) >= REPORT_KEYS
    assert [len(g["members"]) for g in report["groups"]] == GROUPED[name]
    assert report["verify"]["ok"] is True
    assert "npz" in report["verify"]["reference"]
    for group in report["groups"]:
        assert set(group) >= {"representative", "members", "nodes", "egraph", "rules", "search"}
        assert set(group["egraph"]) >= {"classes", "nodes", "seconds"}
        assert {r["matches"] > 0 for r in group["rules"]} == {True, False}
        assert set(group["rules"][0]) >= {"name", "category", "ruleset", "file", "line", "matches", "seconds"}
        search = group["search"]
        assert search["candidates"] == 6
        assert search["best_ms"] <= search["first_ms"]
        assert search["profiled"] + sum(search["rejected"].values()) == search["candidates"]
    stages = [t["stage"] for t in report["timeline"]]
    assert stages == ["import", "split", "emit", "saturate", "search", "stitch", "verify"]
    attributed = sum(t["seconds"] for t in report["timeline"])
    assert attributed + report["unattributed_seconds"] == pytest.approx(report["total_seconds"], abs=1e-3)
    assert all(set(k) >= {"name", "calls", "ms", "gflops", "gbps"} for k in report["kernels"])


@pytest.mark.parametrize("name", ["minilm_6l_ts17", "vit_tiny_4l_ts17", "whisper_encoder_tiny_2l_ts17"])
def test_encoders_are_right_and_share_searches(model_path: Model, tmp_path: Path, name: str) -> None:
    with CompileSession(model_path(name), limit=4, artifacts=str(tmp_path / "artifacts")) as session:
        session.run()
        assert session.view.verified is not None
        assert session.view.verified.ok
        assert max(len(g.members) for g in session.groups) >= 2


def test_artifacts_are_those_that_are_promised(luminal: Command, model_path: Model, tmp_path: Path) -> None:
    luminal("compile", str(model_path("mlp_ts17")), "--limit", "3", "--artifacts", str(tmp_path / "one"))
    found = {p.name for p in (tmp_path / "one").iterdir()}
    assert found >= {"HLIR.dot", "LLIR.dot", "hlir_program.egg", "hlir_root.txt", "rule_stats.txt", "report.json"}
    assert any((tmp_path / "one" / "kernels").iterdir())
    text = (tmp_path / "one" / "rule_stats.txt").read_text()
    assert all(f"=== {c} Rules ===" in text for c in ("Reshape", "cuBLAS", "Other"))
    luminal("compile", "demo", "--limit", "2", "--artifacts", str(tmp_path / "many"))
    assert (tmp_path / "many" / "hlir_chunk_3.egg").exists()
    assert (tmp_path / "many" / "hlir_chunk_3_root.txt").read_text() == "$root\n"


def test_run_gives_the_expected_outputs_and_then_reuses_the_best(
    luminal: Command, model_path: Model, expected: Callable[[str], tuple[dict, dict]], tmp_path: Path
) -> None:
    path = model_path("mlp_ts17")
    data, out = path.with_suffix(".npz"), tmp_path / "y.npz"
    for attempt in ("first", "second"):
        session = tmp_path / attempt
        options = ("--limit", "4", "--session", str(session))
        status, text, _ = luminal("run", str(path), "-i", str(data), "-o", str(out), "--json", *options)
        assert status == 0
        assert json.loads(text)["matches_expected"] is True
        with np.load(out) as got:
            for name, wanted in expected("mlp_ts17")[1].items():
                assert np.abs(got[name] - wanted).max() <= 1e-4 * np.abs(wanted).max()
    events = b"".join(SessionStore(tmp_path / "second").read_events())
    assert b"candidate_evaluated" not in events


def test_one_executable_serves_every_batch_size(model_path: Model, tmp_path: Path) -> None:
    options = {"limit": 3, "dims": {"batch": 4}, "artifacts": str(tmp_path)}
    exe = compile_onnx(model_path("mlp_dynbatch_ts17"), **options)
    rows = np.random.default_rng(0).standard_normal((7, 32)).astype(np.float32)
    whole = exe.run({"x": rows})["probs"]
    assert whole.shape == (7, 10)
    assert np.allclose(whole.sum(axis=1), 1, atol=1e-5)
    for count in (1, 4):
        assert np.allclose(exe.run({"x": rows[:count]})["probs"], whole[:count], atol=1e-5)


def test_inputs_that_do_not_fit_are_named(model_path: Model, tmp_path: Path) -> None:
    exe = compile_onnx(model_path("mlp_ts17"), limit=2, artifacts=str(tmp_path))
    good = np.zeros((4, 32), np.float32)
    for given, said in (
        ({}, "missing x"),
        ({"x": good, "y": good}, "unknown y"),
        ({"x": good.astype(np.float64)}, "float64"),
        ({"x": good[:3]}, r"\[3, 32\]"),
        ({"x": good[0]}, r"\[32\]"),
    ):
        with pytest.raises(InputError, match=said):
            exe.run(given)


def test_stages_ask_for_what_comes_before_them(model_path: Model) -> None:
    with CompileSession(model_path("mlp_ts17"), limit=2) as session:
        for stage in (session.split, session.saturate, session.search, session.stitch, session.verify):
            with pytest.raises(SessionError):
                stage()


def test_inspect_says_what_would_happen(luminal: Command, model_path: Model) -> None:
    status, out, _ = luminal("inspect", str(model_path("llama3_tiny_4l_ts17")), "--json")
    found = json.loads(out)
    assert status == 0
    assert found["unsupported"] == []
    assert found["graph"]["chunks"] == 9
    assert [len(g["members"]) for g in found["graph"]["groups"]] == [1, 4, 3, 1]
    assert {u["name"] for u in found["operators"]} >= {"MatMul", "Softmax", "Gather"}


def test_rules_lists_every_rule_without_a_search(luminal: Command, model_path: Model) -> None:
    status, out, _ = luminal("rules", str(model_path("mlp_ts17")), "--json")
    found = json.loads(out)
    assert status == 0
    assert set(found) == {"model", "target", "groups"}
    rules = found["groups"][0]["rules"]
    assert len({r["name"] for r in rules}) == len(rules)
    assert any(r["matches"] == 0 for r in rules)
    assert any(r["name"] == "sgemm RmCm" and r["matches"] for r in rules)


def test_devices_and_sessions_print_json(luminal: Command) -> None:
    assert json.loads(luminal("devices", "--json")[1])["devices"][0]["target"] == "cpu"
    assert isinstance(json.loads(luminal("sessions", "--json")[1]), list)


def test_a_finished_session_is_replayed_from_its_ledger(model_path: Model, tmp_path: Path) -> None:
    options = {"limit": 5, "session": str(tmp_path / "s"), "artifacts": str(tmp_path / "a")}
    with CompileSession(model_path("mlp_ts17"), **options) as session:
        session.run()
        first = (session.best[0][0].genome, session.best[0][0].ms, len(session.ledger))
    with CompileSession(model_path("mlp_ts17"), **options) as session:
        session.run()
        assert (session.best[0][0].genome, session.best[0][0].ms, len(session.ledger)) == first
        session.restart("search", "again")
        session.run("search")
        assert len(session.ledger) == 2 * first[2]


def test_a_memory_limit_rejects_with_its_reason(luminal: Command, model_path: Model) -> None:
    status, _, err = luminal("compile", str(model_path("mlp_ts17")), "--limit", "3", "--memory-limit", "64")
    assert status == 1
    assert "memory 3" in err


def test_breaks_change_the_chunks(luminal: Command, model_path: Model) -> None:
    path = str(model_path("llama3_tiny_4l_ts17"))
    for mode, chunks in (("none", 1), (r"layers\.1/Add_1$", 2)):
        _, out, _ = luminal("inspect", path, "--breaks", mode, "--json")
        assert json.loads(out)["graph"]["chunks"] == chunks


def test_a_break_can_be_toggled_and_the_rest_follows(model_path: Model, tmp_path: Path) -> None:
    with CompileSession(model_path("llama3_tiny_4l_ts17"), limit=1, artifacts=str(tmp_path)) as session:
        session.import_model()
        session.split()
        before = len(session.chunks)
        middle = session.chunks[0].nodes[len(session.chunks[0].nodes) // 2]
        session.toggle_break(middle)
        session.restart("split", "break")
        session.run("split")
        assert len(session.chunks) == before + 1
        assert session.view.verified is not None
        assert session.view.verified.ok
