"""The cuda target without a device: everything up to the search, and one sentence in its place."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workbench.egraph.rules import read_library
from workbench.egraph.saturate import Saturator
from workbench.errors import UnavailableError
from workbench.frontend import import_model
from workbench.ir import llir
from workbench.ir.hlir import Graph
from workbench.search.extract import extract
from workbench.session import events as ev
from workbench.session.client import start_engine
from workbench.session.inspection import split_and_group
from workbench.session.session import CompileSession
from workbench.session.spec import SessionSpec
from workbench.session.store import SessionStore
from workbench.session.xray import answer

from .watching import Watcher

LLAMA = "llama3_tiny_4l_ts17"
Command = Callable[..., tuple[int, str, str]]
Model = Callable[[str], Path]
Spec = Callable[..., SessionSpec]

FIRES = {
    "matmul flattening: squeeze leading 1": 16,
    "prepare row merge: A contiguous, B broadcast": 12,
    "cublas sgemm RmRm": 24,
    "cublas sgemm RmCm": 4,
    "cublasLt: a batch of one affine stride": 19,
    "cublasLt RmRm": 20,
}
"""Matches of the flattening and library rules over the four groups: 16 matmuls, each with a leading batch axis of 1 and
again without. Of those, 2 are Q K^T (RmCm) and 2 o_proj, which reads its A through split heads and has no call; the
other 12 are RmRm. cublasLt has no call for Q K^T and the 2 P V among those 12: a key head serves two query heads, which
no one batch stride says."""


def test_rules_of_cuda_fire_on_llama(luminal: Command, model_path: Model) -> None:
    status, out, _ = luminal("rules", str(model_path(LLAMA)), "--target", "cuda", "--json")
    report = json.loads(out)
    assert (status, report["target"]) == (0, "cuda")
    fired: dict[str, int] = {}
    categories: dict[str, str] = {}
    for group in report["groups"]:
        for rule in group["rules"]:
            fired[rule["name"]] = fired.get(rule["name"], 0) + rule["matches"]
            categories[rule["name"]] = rule["category"]
    assert not any(name.startswith("sgemm") for name in fired)
    shown = {n: c for n, c in fired.items() if c and categories[n] in ("Reshape", "cuBLAS")}
    assert shown == FIRES


@pytest.fixture(scope="module")
def llama() -> Graph:
    return import_model(Path(__file__).parents[1] / "models" / f"{LLAMA}.onnx").graph


@pytest.fixture(scope="module")
def cuda() -> Iterator[Saturator]:
    with Saturator(read_library(target="cuda")) as it:
        yield it


HEADS = "(MMul (MDiv (MIter) (MNum 2)) (MNum 128))"
"""Batch stride of K in Q K^T: 8 query heads over 4 key heads of 16 x 8."""
SPLIT = "(MAdd (MMod (MIter) (MNum 8)) (MMul (MDiv (MIter) (MNum 8)) (MNum 128)))"
"""How o_proj reads along k: 8 elements of a head, then the next head."""
REASONS = [
    ("matmul flattening: squeeze second 1", "q_proj/MatMul",
     "(ECons ..)", "what follows item 1 of argument 1 (batch)",
     "(ENil)"),
    ("matmul flattening: squeeze second 1", "self_attn/MatMul",
     "(MNum 1)", "item 2 of argument 1 (batch)",
     "(MNum 8)"),
    ("matmul flattening: squeeze third 1", "self_attn/MatMul",
     "(ECons ..)", "what follows item 2 of argument 1 (batch)",
     "(ENil)"),
    ("matmul flattening: merge batch, A contiguous, B broadcast", "self_attn/MatMul",
     "(MNum 0)", "item 2 of argument 11 (b_batch)",
     HEADS),
    ("matmul flattening: merge batch, A contiguous, B broadcast", "q_proj/MatMul",
     "(ECons ..)", "what follows item 1 of argument 1 (batch)",
     "(ENil)"),
    ("matmul flattening: merge batch, B contiguous, A broadcast", "self_attn/MatMul",
     "(MNum 0)", "item 2 of argument 6 (a_batch)",
     "(MMul (MIter) (MNum 128))"),
    ("matmul flattening: merge batch, A and B contiguous", "self_attn/MatMul",
     f"(slope {HEADS})", "",
     f"no (slope ..) fact for {HEADS}"),
    ("cublas sgemm RmRm", "o_proj/MatMul",
     "(MIter)", "argument 8 (a_k)",
     SPLIT),
    ("cublas sgemm RmRm", "self_attn/MatMul",
     "(MIter)", "argument 13 (b_n)",
     "(MMul (MIter) (MNum 8))"),
    ("cublas sgemm RmCm", "q_proj/MatMul",
     "(MIter)", "argument 12 (b_k)",
     "(MMul (MIter) (MNum 64))"),
    ("cublas sgemm CmRm", "q_proj/MatMul",
     "(MIter)", "argument 7 (a_m)",
     "(MMul (MIter) (MNum 64))"),
    ("cublas sgemm CmCm", "q_proj/MatMul",
     "(MIter)", "argument 7 (a_m)",
     "(MMul (MIter) (MNum 64))"),
    ("cublasLt RmRm", "self_attn/MatMul_1",
     "(strided_batch (ECons (MMul (MDiv (MIter) (MNum 2)) (MNum 8)) (ENil)))", "",
     "no (strided_batch ..) fact for (ECons (MMul (MDiv (MIter) (MNum 2)) (MNum 8)) (ENil))"),
    ("cublasLt RmCm", "self_attn/MatMul",
     f"(strided_batch (ECons {HEADS} (ENil)))", "",
     f"no (strided_batch ..) fact for (ECons {HEADS} (ENil))"),
    ("cublasLt CmRm", "down_proj/MatMul",
     "(MIter)", "argument 7 (a_m)",
     "(MMul (MIter) (MNum 172))"),
    ("cublasLt CmCm", "lm_head/MatMul",
     "(MIter)", "argument 7 (a_m)",
     "(MMul (MIter) (MNum 64))"),
]  # fmt: skip
"""Rule, matmul, and what was wanted of which part of Matmul, and found there instead."""


@pytest.mark.parametrize(("rule", "where", "wanted", "at", "found"), REASONS)
def test_the_reason_at_a_matmul_is_the_true_one(
    cuda: Saturator, llama: Graph, rule: str, where: str, wanted: str, at: str, found: str
) -> None:
    chunks, programs, groups = split_and_group(llama)
    node = next(i for i in sorted(llama.contractions) if llama[i].label.endswith(where))
    done = answer(cuda, groups, programs, rule, str(node), None)
    assert node in chunks[groups[done.group].representative].nodes
    place = f"{at} of Matmul in ?e" if at else ""
    assert (done.wanted, done.place, done.found_instead) == (wanted, place, found)


def test_the_space_of_cuda_is_extracted_to_its_library_calls(spec: Spec) -> None:
    with CompileSession(spec(LLAMA, target="cuda")) as session:
        session.import_model()
        session.split()
        routines: set[str] = set()
        for group in session.saturate().values():
            rng = random.Random(0)
            for _ in range(12):
                genome = tuple(rng.randrange(len(group.space.options[c])) for c in group.space.genes)
                program = extract(group.space, genome, session.graph.dims)
                routines |= {k.routine for k in program.kernels if isinstance(k, llir.GemmCall)}
    assert routines == {"cublas-sgemm", "cublaslt"}


def test_compile_says_in_one_line_what_is_missing(luminal: Command, model_path: Model, tmp_path: Path) -> None:
    path, artifacts = str(model_path("mlp_ts17")), tmp_path / "artifacts"
    luminal("compile", path, "--limit", "2", "--artifacts", str(artifacts))
    assert (artifacts / "LLIR.dot").exists()
    status, out, err = luminal("compile", path, "--target", "cuda", "--json", "--artifacts", str(artifacts))
    report = json.loads(out)
    assert status == 2
    assert "profiling kernels for cuda needs a CUDA device" in err.splitlines()[-1]
    assert "--target cpu" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert report["target"] == "cuda"
    assert all(g["egraph"]["nodes"] > 0 for g in report["groups"])
    found = {p.name for p in artifacts.iterdir()}
    assert found >= {"HLIR.dot", "hlir_program.egg", "hlir_root.txt", "rule_stats.txt"}
    assert "LLIR.dot" not in found  # that was the cpu's
    assert not list((artifacts / "kernels").glob("*"))
    text = (artifacts / "rule_stats.txt").read_text()
    assert "cublasLt RmRm" in text.split("=== cuBLAS Rules ===")[1].split("===")[0]


def test_a_session_goes_on_after_the_search_that_could_not_be(spec: Spec, tmp_path: Path) -> None:
    seen: list[ev.AnyEvent] = []
    with CompileSession(spec(target="cuda"), on_event=seen.append) as session:
        with pytest.raises(UnavailableError, match="needs a CUDA device"):
            session.run()
        (failed,) = [e for e in seen if isinstance(e, ev.Failed)]
        assert failed.stage == "search"
        assert session.view.opened is not None
        assert (session.view.opened.target, session.view.opened.device) == ("cuda", "no device")
        again = session.saturate(fresh=True)
        assert {i: s.event.nodes for i, s in again.items()} == {i: s.event.nodes for i, s in session.saturated.items()}
        with pytest.raises(UnavailableError):
            session.search()
    kept = [p.name for p in (tmp_path / "s" / "snapshots").iterdir()]
    assert all("-cuda-" in name for name in kept)
    with CompileSession(spec(target="cpu")) as session:  # the same directory
        session.import_model()
        session.split()
        rules = {r.name for s in session.saturate().values() for r in s.event.rules}
    assert "sgemm RmRm" in rules
    assert "cublas sgemm RmRm" not in rules


async def test_the_engine_answers_after_the_search_that_could_not_be(spec: Spec, tmp_path: Path) -> None:
    watcher = Watcher(await start_engine(spec(target="cuda")))
    failed = await watcher.until(ev.Failed)
    assert "needs a CUDA device" in failed.message
    await watcher.client.send(ev.Xray(rule="cublasLt CmRm"))
    done = await watcher.until(ev.XrayDone)
    assert (done.error, done.rule, done.first_failing) == ("", "cublasLt CmRm", 0)
    await watcher.client.send(ev.Rerun(stage="saturate"))
    await watcher.until(ev.GroupSaturated)
    await watcher.until(ev.Failed)
    assert SessionStore(tmp_path / "s").is_live
    await watcher.client.send(ev.Shutdown())
    await watcher.to_the_end()


def test_a_rule_of_another_target_is_named_as_one(luminal: Command, model_path: Model) -> None:
    status, _, err = luminal("xray", str(model_path("mlp_ts17")), "--rule", "cublasLt RmRm")
    assert status == 2
    assert "'cublasLt RmRm' is a rule for cuda (cublaslt/lt_RmRm.egg)" in err
    asked = ("--target", "cuda", "--rule", "cublasLt RmRm", "--json")
    status, out, _ = luminal("xray", str(model_path("mlp_ts17")), *asked)
    assert (status, json.loads(out)["target"]) == (0, "cuda")


def test_inspect_names_the_target(luminal: Command, model_path: Model) -> None:
    for option, target in ("auto", "cpu"), ("cuda", "cuda"):
        status, out, _ = luminal("inspect", str(model_path("mlp_ts17")), "--target", option, "--json")
        assert (status, json.loads(out)["target"]) == (0, target)
