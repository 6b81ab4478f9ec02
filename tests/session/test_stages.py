"""The Python API: stages one by one, what they refuse, sessions that are opened again, models at the edges."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import workbench
from workbench import CompileSession, Executable, compile_onnx
from workbench.errors import InputError, ModelError, NotViableError, SessionError, WorkbenchError
from workbench.session import events as ev
from workbench.session.session import Stopped
from workbench.session.spec import SessionSpec, checked, parse_dims
from workbench.session.store import CANDIDATES, SessionStore

Model = Callable[[str], Path]
RNG = np.random.default_rng(7)


def saved(
    path: Path, nodes: list[onnx.NodeProto], shape: list[Any], weights: dict[str, np.ndarray] | None = None,
    outputs: tuple[str, ...] = ("y",),
) -> Path:  # fmt: skip
    """A model with the input `x`; its expected outputs are the reference evaluator's."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    domains = {n.domain for n in nodes if n.domain}
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 1) for d in domains)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def test_stages_one_by_one(model_path: Model, expected: Callable[[str], Any], tmp_path: Path) -> None:
    told: list[ev.AnyEvent] = []
    options = {"limit": 3, "session": str(tmp_path / "s"), "artifacts": str(tmp_path / "a")}
    with CompileSession(model_path("mlp_ts17"), on_event=told.append, **options) as session:
        graph = session.import_model()
        assert len(graph) > 0
        groups = session.split()
        assert [g.index for g in groups] == list(range(len(groups)))
        assert set(session.saturate()) == {0}
        best = session.search()
        assert 0 < best[0][0].ms <= best[0][0].first_ms
        exe = session.stitch()
        assert session.verify().ok
        # A stage can be done again; what came after it is to be done again too.
        session.split()
        assert session.executable is None
        with pytest.raises(SessionError, match="call saturate first"):
            session.search()
        with pytest.raises(SessionError, match="call search first"):
            session.stitch()
        session.saturate()
        session.search()
        session.stitch()
        assert session.verify().ok
    assert isinstance(exe, Executable)
    inputs, outputs = expected("mlp_ts17")
    for name, wanted in outputs.items():
        assert np.allclose(exe.run(inputs)[name], wanted, rtol=1e-4, atol=1e-5)
    assert not SessionStore(tmp_path / "s").is_live
    for stage in (session.import_model, session.split, session.run):
        with pytest.raises(SessionError, match=r"is closed"):
            stage()
    assert isinstance(told[0], ev.SessionOpened)


@pytest.mark.parametrize(
    ("stage", "hint"),
    [("split", "import_model"), ("saturate", "split"), ("search", "saturate"), ("stitch", "search"),
     ("verify", "stitch")],
)  # fmt: skip
def test_a_stage_called_too_early_says_what_to_call(model_path: Model, stage: str, hint: str) -> None:
    with CompileSession(model_path("mlp_ts17"), limit=1) as session:
        with pytest.raises(SessionError, match=f"call {hint} first"):
            getattr(session, stage)()
        with pytest.raises(SessionError, match="call import_model first"):
            _ = session.graph
        with pytest.raises(SessionError, match="'luck' is not a stage"):
            session.run("luck")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"strategy": "luck"}, "luck"),
        ({"target": "tpu"}, "tpu"),
        ({"limit": 0}, "limit: 0"),
        ({"limit": "many"}, "int"),
        ({"seed": -1}, "seed: -1"),
        ({"threads": 0}, "threads: 0"),
        ({"memory_limit": 0}, "memory-limit: 0"),
        ({"dims": {"batch": "four"}}, "int"),
        ({"artifacts": 3}, "str"),
        ({"model": "absent.onnx"}, "no such file"),
        ({"model": "odd\udcff.onnx"}, "UTF-8"),
        ({"model": "/dev/null"}, "not a regular file"),
    ],
)
def test_options_that_cannot_be_leave_nothing_behind(
    model_path: Model, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    spec = SessionSpec(model=str(model_path("mlp_ts17")), session=str(tmp_path / "s"))
    with pytest.raises(WorkbenchError, match=said):
        CompileSession(spec, **options)
    assert not (tmp_path / "s").exists()


def test_paths_may_be_path_objects_and_mean_the_same_from_anywhere(
    model_path: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = checked(SessionSpec(model=model_path("mlp_ts17"), session=tmp_path / "s"))  # type: ignore[arg-type]
    assert (spec.model, spec.session) == (str(model_path("mlp_ts17")), str(tmp_path / "s"))
    monkeypatch.chdir(model_path("mlp_ts17").parent)
    CompileSession("mlp_ts17.onnx", session=str(tmp_path / "s")).close()
    monkeypatch.chdir(tmp_path)
    CompileSession(model_path("mlp_ts17"), session=Path("s")).close()
    assert SessionStore(tmp_path / "s").read_spec().model == str(model_path("mlp_ts17"))


@pytest.mark.parametrize("text", ["batch", "=4", "batch=0", "batch=-1", "batch=x", "batch=1e3", "batch=" + "9" * 30])
def test_dims_are_whole_numbers(text: str) -> None:
    assert parse_dims(["a=1", "b=20", "a=1"]) == {"a": 1, "b": 20}
    with pytest.raises(WorkbenchError, match="--dim"):
        parse_dims([text])
    with pytest.raises(WorkbenchError, match="given twice"):
        parse_dims(["a=1", "a=2"])


def test_a_failed_opening_gives_the_directory_back(model_path: Model, tmp_path: Path) -> None:
    CompileSession(model_path("mlp_ts17"), session=str(tmp_path / "s")).close()
    with pytest.raises(SessionError, match="another model"):
        CompileSession(model_path("gpt2_tiny_2l_ts17"), session=str(tmp_path / "s"))
    assert not SessionStore(tmp_path / "s").is_live
    (tmp_path / "s" / CANDIDATES).unlink()
    (tmp_path / "s" / CANDIDATES).mkdir()
    with pytest.raises(SessionError, match="Is a directory"):
        CompileSession(model_path("mlp_ts17"), session=str(tmp_path / "s"))
    assert not SessionStore(tmp_path / "s").is_live


def test_a_session_opened_again_tries_nothing_twice(model_path: Model, tmp_path: Path) -> None:
    options: dict[str, Any] = {"limit": 5, "session": str(tmp_path / "s"), "artifacts": str(tmp_path / "a")}

    def run(**more: Any) -> tuple[Any, list[dict[str, Any]]]:
        with CompileSession(model_path("mlp_ts17"), **(options | more)) as session:
            session.run()
            best = session.best
        return best, [msgspec.json.decode(x) for x in (tmp_path / "s" / CANDIDATES).read_bytes().splitlines()]

    best, entries = run()
    assert run() == (best, entries)
    _, seeded = run(seed=1)
    assert seeded[:5] == entries
    assert {e["search"] for e in seeded[5:]}.isdisjoint({e["search"] for e in entries})
    _, more = run(limit=7)
    assert more[:10] == seeded
    assert [e["index"] for e in more[10:]] == [5, 6]
    assert len({(e["search"], e["genome"]) for e in more}) == len(more)


def test_a_cancel_stops_what_runs_and_nothing_after(model_path: Model, tmp_path: Path) -> None:
    options = {"limit": 1000, "session": str(tmp_path / "s"), "artifacts": str(tmp_path / "a")}
    session = CompileSession(model_path("llama3_tiny_4l_ts17"), **options)

    def stop_in(kind: type[ev.Event]) -> None:
        session.on_event = lambda event: session.cancel() if isinstance(event, kind) else None

    with session:
        stop_in(ev.SaturationStep)
        with pytest.raises(Stopped):
            session.run()
        assert session.view.cancelled
        assert len(session.saturated) < len(session.groups)
        with pytest.raises(SessionError, match="call saturate first"):
            session.search()
        stop_in(ev.CandidateEvaluated)
        with pytest.raises(Stopped):
            session.run("saturate")
        assert len(session.ledger) == 1
        with pytest.raises(SessionError, match="call search first"):
            session.stitch()
        session.on_event = None
        session.import_model()  # the cancel is over
        assert session.groups == []


def test_a_paused_search_waits(model_path: Model, tmp_path: Path) -> None:
    options = {"limit": 4, "session": str(tmp_path / "s"), "artifacts": str(tmp_path / "a")}
    reached = threading.Event()

    def listen(event: ev.AnyEvent) -> None:
        if isinstance(event, ev.CandidateEvaluated) and event.index == 1:
            session.pause()
            reached.set()

    with CompileSession(model_path("mlp_ts17"), on_event=listen, **options) as session:
        thread = threading.Thread(target=session.run)
        thread.start()
        assert reached.wait(60)
        assert session.view.paused
        assert len(session.ledger) == 2
        session.resume()
        thread.join(60)
        assert session.view.finished is not None
        assert not session.view.paused


def test_a_wrong_result_is_an_error_with_a_report(
    model_path: Model, expected: Callable[[str], Any], tmp_path: Path
) -> None:
    inputs, outputs = expected("mlp_ts17")
    (name,) = outputs
    for value, largest in ((outputs[name] + 1, 2.0), (np.full_like(outputs[name], np.inf), 1e308)):
        np.savez(tmp_path / "wrong.npz", **{f"in_{n}": a for n, a in inputs.items()}, **{f"out_{name}": value})
        options = {"limit": 1, "session": str(tmp_path / "s"), "expected": str(tmp_path / "wrong.npz")}
        with (
            CompileSession(model_path("mlp_ts17"), artifacts=str(tmp_path / "a"), **options) as session,
            pytest.raises(NotViableError, match="wrong"),
        ):
            session.run()
        assert SessionStore(tmp_path / "s").summary().status == "failed"
        report = msgspec.json.decode((tmp_path / "s" / "report.json").read_bytes())
        assert report["verify"]["ok"] is False
        assert report["verify"]["max_abs_err"] >= largest / 2
        finished = [e for e in SessionStore(tmp_path / "s").events() if isinstance(e, ev.SessionFinished)]
        assert not finished[-1].ok


def test_expected_files_that_do_not_fit(model_path: Model, expected: Callable[[str], Any], tmp_path: Path) -> None:
    inputs, outputs = expected("mlp_ts17")
    (name,) = outputs
    given = {f"in_{n}": a for n, a in inputs.items()}
    for arrays, said in (
        ({**given, "out_nope": outputs[name]}, "no output 'nope'"),
        ({**given, f"out_{name}": outputs[name][:1]}, "has shape"),
        ({**given, "in_more": outputs[name]}, "unknown more"),
        ({f"out_{name}": outputs[name]}, "missing"),
    ):
        np.savez(tmp_path / "e.npz", **arrays)
        with CompileSession(model_path("mlp_ts17"), expected=str(tmp_path / "e.npz")) as session:
            with pytest.raises(InputError, match=said):
                session.import_model()
            assert session.view.failure is None  # single stages leave it to the caller


def test_an_expected_file_for_another_size_is_left_out(model_path: Model, tmp_path: Path) -> None:
    path = model_path("mlp_dynbatch_ts17")
    with np.load(path.with_suffix(".npz")) as data:
        rows = data["in_x"].shape[0]
    options: dict[str, Any] = {"limit": 2, "artifacts": str(tmp_path), "dims": {"batch": rows + 1}}
    with CompileSession(path, **options) as session:
        session.run()
        assert session.graph.dims == {"batch": rows + 1}
        assert session.view.verified is not None
        assert session.view.verified.reference == "interpreter"
    with (
        CompileSession(path, expected=str(path.with_suffix(".npz")), **options) as session,
        pytest.raises(InputError, match=f"--dim {rows + 1}"),
    ):
        session.run()
    with CompileSession(path, dims={"height": 3}) as session, pytest.raises(ModelError, match="height"):
        session.run()


def test_what_is_unrolled_has_the_length_of_the_inputs_to_verify_with(tmp_path: Path) -> None:
    weights = {"w": (1, 8, 3), "r": (1, 8, 2)}
    path = saved(
        tmp_path / "rnn.onnx",
        [helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=2)],
        ["length", 1, 3],
        {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in weights.items()},
    )
    x = RNG.standard_normal((4, 1, 3)).astype(np.float32)
    np.savez(path.with_suffix(".npz"), in_x=x, out_y=reference(path, {"x": x})[0])
    with CompileSession(path, limit=2, artifacts=str(tmp_path)) as session:
        session.run()
        assert session.imported is not None
        assert session.imported.fixed_dims == {"length": 4}
        assert session.view.verified is not None
        assert "rnn.npz" in session.view.verified.reference


def test_an_executable_takes_any_layout_and_any_size_of_its_dimensions(model_path: Model, tmp_path: Path) -> None:
    exe = compile_onnx(model_path("mlp_dynbatch_ts17"), limit=2, artifacts=str(tmp_path))
    x = RNG.standard_normal((6, 32)).astype(np.float32)
    wanted = exe.run({"x": x})["probs"]
    assert exe.inputs == {"x": "[batch, 32] f32"}
    for same in (np.asfortranarray(x), x[::-1][::-1], np.repeat(x, 2, axis=0)[::2]):
        assert np.array_equal(exe.run({"x": same})["probs"], wanted)
    assert exe.run({"x": x[:0]})["probs"].shape == (0, 10)
    for count in range(1, 20):  # more sizes than code is kept for
        rows = np.resize(x, (count, 32))
        assert exe.run({"x": rows})["probs"].shape == (count, 10)
    assert not np.shares_memory(exe.run({"x": x})["probs"], wanted)
    with pytest.raises(InputError, match="rows differ"):
        exe.run({"x": [[1.0], [1.0, 2.0]]})  # type: ignore[dict-item]


def blocks(count: int, op: Callable[[int, str, str], list[onnx.NodeProto]]) -> list[onnx.NodeProto]:
    """A chain of layers, each a matmul, what `op` makes, and a residual sum."""
    nodes: list[onnx.NodeProto] = []
    for i in range(count):
        x = f"h{i}" if i else "x"
        nodes += [
            helper.make_node("MatMul", [x, f"w{i}"], [f"m{i}"], name=f"matmul{i}"),
            *op(i, f"m{i}", f"o{i}"),
            helper.make_node("Add", [x, f"o{i}"], ["y" if i == count - 1 else f"h{i + 1}"], name=f"add{i}"),
        ]
    return nodes


def square(count: int) -> dict[str, np.ndarray]:
    return {f"w{i}": RNG.standard_normal((16, 16)).astype(np.float32) / 4 for i in range(count)}


def reference(path: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(str(path)).run(None, inputs)


def test_opaque_operators_of_grouped_layers_keep_their_own_attributes(tmp_path: Path) -> None:
    name = "Binarizer"

    def opaque(i: int, source: str, out: str) -> list[onnx.NodeProto]:
        return [helper.make_node(name, [source], [out], name=f"odd{i}", domain="ai.onnx.ml", threshold=0.1 * i)]

    path = saved(tmp_path / "m.onnx", blocks(4, opaque), [8, 16], square(4))
    x = RNG.standard_normal((8, 16)).astype(np.float32)
    with CompileSession(path) as session, pytest.raises(ModelError, match=f"{name} x4"):
        session.run()
    options: dict[str, Any] = {"limit": 3, "allow_opaque": True, "artifacts": str(tmp_path / "a")}
    with CompileSession(path, breaks=r"add\d", **options) as session:
        exe = session.run()
        assert max(len(g.members) for g in session.groups) >= 3
        assert len(session.graph.custom_ops) == 4
    assert np.allclose(exe.run({"x": x})["y"], reference(path, {"x": x})[0], rtol=1e-4, atol=1e-5)


def test_breaks_of_the_model_and_of_a_pattern(tmp_path: Path) -> None:
    def cut(i: int, source: str, out: str) -> list[onnx.NodeProto]:
        return [
            helper.make_node("Relu", [source], [f"r{i}"]),
            helper.make_node("GraphBreak", [f"r{i}"], [out], domain="luminal", name=f"cut{i}"),
        ]

    def plain(i: int, source: str, out: str) -> list[onnx.NodeProto]:
        return [helper.make_node("Relu", [source], [out])]

    weights = square(3)
    path = saved(tmp_path / "m.onnx", blocks(3, cut), [8, 16], weights)
    without = saved(tmp_path / "plain.onnx", blocks(3, plain), [8, 16], weights)
    x = RNG.standard_normal((8, 16)).astype(np.float32)
    (wanted,) = reference(without, {"x": x})
    for mode, chunks in (("explicit", 4), ("none", 1), ("add0$", 5)):
        with CompileSession(path, limit=2, breaks=mode, artifacts=str(tmp_path / "a")) as session:
            exe = session.run()
            assert len(session.chunks) == chunks, mode
        assert np.allclose(exe.run({"x": x})["y"], wanted, rtol=1e-4, atol=1e-5)


def test_models_at_the_edges(tmp_path: Path) -> None:
    x = RNG.standard_normal((2, 3)).astype(np.float32)
    cases: dict[str, tuple[list[onnx.NodeProto], tuple[str, ...]]] = {
        "the input itself": ([helper.make_node("Identity", ["x"], ["y"])], ("y",)),
        "one value twice": (
            [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Identity", ["a"], ["y"]),
             helper.make_node("Identity", ["a"], ["z"])],
            ("y", "z"),
        ),
        "names that are keywords": (
            [helper.make_node("Neg", ["x"], ["file"]), helper.make_node("Abs", ["x"], ["self/args"])],
            ("file", "self/args"),
        ),
        "an output that is also used": (
            [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Exp", ["y"], ["z"])], ("y", "z")
        ),
    }  # fmt: skip
    for i, (title, (nodes, outputs)) in enumerate(cases.items()):
        path = saved(tmp_path / f"m{i}.onnx", nodes, [2, 3], outputs=outputs)
        exe = compile_onnx(path, limit=1, artifacts=str(tmp_path / "a"))
        got = exe.run({"x": x})
        assert list(got) == list(outputs), title
        for name, wanted in zip(outputs, reference(path, {"x": x}), strict=True):
            assert np.allclose(got[name], wanted, rtol=1e-5), title


def test_the_package_imports_late_and_knows_its_names() -> None:
    assert workbench.CompileSession is CompileSession
    with pytest.raises(AttributeError, match="Nope"):
        _ = workbench.Nope
