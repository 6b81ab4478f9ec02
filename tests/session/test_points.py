"""Several values of a named dimension: points, which of them a run belongs to, and a search at each."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import CompileSession, compile_onnx
from workbench.errors import InputError, ModelError, NotViableError, WorkbenchError
from workbench.search.extract import extract
from workbench.search.placement import Rejected
from workbench.search.space import Genome, Space
from workbench.session import events as ev
from workbench.session import stitch_stage
from workbench.session.points import MOST_POINTS, Points, by_nearness
from workbench.session.recorded import Stopped
from workbench.session.spec import SessionSpec, checked, parse_dims
from workbench.session.store import CANDIDATES, SessionStore
from workbench.session.verification import WrongResult
from workbench.session.view import SessionView

from .conftest import Command

Model = Callable[[str], Path]
RNG = np.random.default_rng(11)
extents = st.integers(1, 10**6)


def test_the_points_are_all_combinations_and_the_first_values_stand_for_the_model() -> None:
    points = Points({"batch": (4, 1), "seq": (16, 1, 128), "past": (3,)})
    assert len(points.all()) == 6
    assert points.all()[0] == {"batch": 4, "seq": 16, "past": 3}
    assert points.named(points.all()[5]) == {"batch": 1, "seq": 128}
    own = points.of({"seq"})
    assert [p["seq"] for p in own.all()] == [16, 1, 128]
    assert own.place_of({"batch": 1, "seq": 128, "past": 3}) == 2
    assert points.of(()).all() == ({"batch": 4, "seq": 16, "past": 3},)


def test_ranges_meet_at_the_geometric_mean() -> None:
    points = Points({"seq": (16, 128, 1)})
    ranges = [points.ranges(point)["seq"] for point in points.all()]
    assert ranges == [(5, 45), (46, None), (0, 4)]
    assert Points({"seq": (16,)}).ranges({"seq": 16}) == {}


@given(st.lists(extents, min_size=1, max_size=5, unique=True), st.lists(extents, min_size=1, max_size=3, unique=True))
def test_a_run_belongs_to_the_point_whose_ranges_it_is_in(first: list[int], second: list[int]) -> None:
    points = Points({"a": tuple(first), "b": tuple(second)})
    ends = [sorted({1, *(e for p in points.all() for e in points.ranges(p).get(name, ()) if e)}) for name in "ab"]
    for a in ends[0]:
        for b in ends[1]:
            nearest = points.all()[by_nearness(points.all(), {"a": a, "b": b})[0]]
            for name, value in (("a", a), ("b", b)):
                least, most = points.ranges(nearest).get(name, (0, None))
                assert least <= value
                assert most is None or value <= most


def test_an_extent_of_0_belongs_to_the_least_value() -> None:
    assert by_nearness([{"past": 16}, {"past": 1}, {"past": 4}], {"past": 0}) == [1, 2, 0]


def test_values_of_dimensions_as_they_are_typed() -> None:
    assert parse_dims(["seq=1,16,128", "batch=2", "seq=1,16,128"]) == {"seq": (1, 16, 128), "batch": 2}
    for items, said in (
        (["seq=1,,2"], "is not NAME=VALUE"),
        (["seq=1,2,"], "is not NAME=VALUE"),
        (["seq=1,2,1"], "the same value twice: 1,2,1"),
        (["seq=4,0"], "at least 1"),
        (["seq=1,2", "seq=1"], "given twice, as 1,2 and 1"),
        (["a=1,2,3,4", "b=1,2,3,4", "c=1,2"], f"32 points to search at, more than {MOST_POINTS}"),
    ):
        with pytest.raises(WorkbenchError, match=said):
            parse_dims(items)


def test_the_options_keep_the_values(model_path: Model) -> None:
    spec = checked(SessionSpec(model=str(model_path("mlp_dynbatch_ts17")), dims={"batch": [4, 1], "seq": [7]}))  # type: ignore[dict-item]
    assert spec.dims == {"batch": (4, 1), "seq": 7}
    assert spec.representative == {"batch": 4, "seq": 7}
    assert msgspec.json.decode(msgspec.json.encode(spec), type=SessionSpec) == spec
    for dims, said in (({"batch": []}, "no value"), ({"batch": [0]}, "at least 1"), ({"batch": [1.5]}, "options")):
        with pytest.raises(WorkbenchError, match=said):
            checked(SessionSpec(model=spec.model, dims=dims))  # type: ignore[arg-type]


def searches(store: SessionStore) -> list[tuple[int, int, dict[str, int]]]:
    return [(e.group, e.point, e.dims) for e in store.events() if isinstance(e, ev.SearchStarted)]


def test_each_point_has_its_own_search_verdict_and_latency(luminal: Command, model_path: Model, tmp_path: Path) -> None:
    options = ("--dim", "batch=1,4,64", "--limit", "3", "--session", str(tmp_path / "s"))
    status, out, err = luminal("compile", str(model_path("mlp_dynbatch_ts17")), "--json", *options)
    assert status == 0, err
    report = json.loads(out)
    assert report["dims"] == {"batch": 1}
    (group,) = report["groups"]
    assert [p["dims"]["batch"] for p in group["points"]] == [1, 4, 64]
    assert [p["ranges"]["batch"] for p in group["points"]] == [[0, 2], [3, 16], [17, None]]
    assert all(p["search"]["candidates"] == 3 and p["search"]["best_ms"] > 0 for p in group["points"])
    assert group["search"] == group["points"][0]["search"]
    assert all(p["verify"]["ok"] and p["latency_ms"]["median"] > 0 and p["kernels"] for p in report["points"])
    assert report["latency_ms"] == report["points"][0]["latency_ms"]
    # what is stored beside the model is of batch 4
    references = [p["verify"]["reference"] for p in report["points"]]
    assert references == ["interpreter", "interpreter and mlp_dynbatch_ts17.npz", "interpreter"]
    assert "group 1/1 at batch=64: 3 candidates" in err
    assert searches(SessionStore(tmp_path / "s")) == [(0, i, {"batch": b}) for i, b in enumerate((1, 4, 64))]
    assert len((tmp_path / "s" / CANDIDATES).read_bytes().splitlines()) == 9


def test_the_text_of_a_report_has_a_line_for_each_point(luminal: Command, model_path: Model) -> None:
    status, out, _ = luminal("compile", str(model_path("mlp_dynbatch_ts17")), "--dim", "batch=2,8", "--limit", "2")
    assert status == 0
    assert [line.strip().partition(")")[0] for line in out.splitlines() if "batch=8" in line] == [
        "batch=8 (5 and more"
    ] * 2


def test_what_does_not_have_the_dimension_is_searched_once(tmp_path: Path) -> None:
    """A layer of fixed size, and behind a break one whose size has a name."""
    from onnx import helper, numpy_helper

    weights = RNG.standard_normal((2, 8, 8)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["fixed", "w0"], ["a"], name="first"),
            helper.make_node("ReduceMean", ["a"], ["mean"], name="mean", axes=[0]),
            helper.make_node("Mul", ["x", "mean"], ["b"], name="scaled"),
            helper.make_node("MatMul", ["b", "w1"], ["y"], name="second"),
        ],
        "two",
        [helper.make_tensor_value_info("x", 1, ["n", 8]), helper.make_tensor_value_info("fixed", 1, [5, 8])],
        [helper.make_tensor_value_info("y", 1, ["n", 8])],
        [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)],
    )
    path = tmp_path / "two.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    options: dict[str, Any] = {"limit": 2, "breaks": "mean", "session": str(tmp_path / "s")}
    with CompileSession(path, dims={"n": (2, 9)}, artifacts=str(tmp_path / "a"), **options) as session:
        exe = session.run()
        assert [info.points for info in session.view.groups] == [1, 2]
        assert [len(session.best[g.index]) for g in session.groups] == [1, 2]
        assert session.view.overall_progress() == (6, 6)
    assert searches(SessionStore(tmp_path / "s")) == [(0, 0, {}), (1, 0, {"n": 2}), (1, 1, {"n": 9})]
    x, fixed = (RNG.standard_normal((n, 8)).astype(np.float32) for n in (30, 5))
    wanted = (x * (fixed @ weights[0]).mean(axis=0)) @ weights[1]
    np.testing.assert_allclose(exe.run({"x": x, "fixed": fixed})["y"], wanted, rtol=1e-4, atol=1e-5)


def other_genome(space: Space, genome: Genome, dims: dict[str, int]) -> Genome:
    """One choice away from `genome`, with another number of kernels."""
    kernels = len(extract(space, genome, dims).kernels)
    for gene, eclass in enumerate(space.genes):
        for choice in range(len(space.options[eclass])):
            found = (*genome[:gene], choice, *genome[gene + 1 :])
            with contextlib.suppress(Rejected):
                if len(extract(space, found, dims).kernels) != kernels:
                    return found
    raise AssertionError("every genome has as many kernels")


def test_a_run_takes_the_best_of_its_range_and_is_right(model_path: Model, tmp_path: Path) -> None:
    options: dict[str, Any] = {"limit": 2, "artifacts": str(tmp_path), "dims": {"batch": (1, 16)}}
    with CompileSession(model_path("mlp_dynbatch_ts17"), **options) as session:
        for stage in (session.import_model, session.split, session.saturate, session.search):
            stage()
        first, second = session.best[0]
        space = session.saturated[0].space
        assert (first.dims, second.dims) == ({"batch": 1}, {"batch": 16})
        second = dataclasses.replace(second, genome=other_genome(space, first.genome, {"batch": 16}))
        session.best[0] = (first, second)
        exe = session.stitch()
        kernels = [len(extract(space, best.genome, best.dims).kernels) for best in (first, second)]
        session.verify()
    x = RNG.standard_normal((200, 32)).astype(np.float32)
    wanted = exe.run({"x": x})["probs"]
    for rows, point in ((2, 0), (4, 0), (5, 1), (200, 1), (0, 0)):
        dims = {"batch": rows}
        assert len(exe.stitched(exe.chosen(dims), dims).kernels) == kernels[point]
        np.testing.assert_allclose(exe.run({"x": x[:rows]})["probs"], wanted[:rows], atol=1e-5)


def test_what_does_not_work_at_a_size_gives_way_to_the_next_point(
    model_path: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"limit": 2, "artifacts": str(tmp_path), "dims": {"batch": (1, 16)}}
    x = RNG.standard_normal((50, 32)).astype(np.float32)
    with CompileSession(model_path("mlp_dynbatch_ts17"), **options) as session:
        session.run()
        refused = session.best[0][1].genome
        first = other_genome(session.saturated[0].space, refused, {"batch": 1})
        session.best[0] = (dataclasses.replace(session.best[0][0], genome=first), session.best[0][1])
        taken: list[Genome] = []

        def picky(space: Space, genome: Genome, dims: Any) -> Any:
            """As where the second point's kernels work for that alone."""
            if genome == refused and dims != {"batch": 16}:
                raise Rejected("placement", "not at this size")
            taken.append(genome)
            return extract(space, genome, dims)

        monkeypatch.setattr(stitch_stage, "extract", picky)
        exe = session.stitch()
        taken.clear()
        np.testing.assert_allclose(exe.run({"x": x})["probs"].sum(axis=1), 1, atol=1e-5)
        assert refused not in taken

        def picky_of_all(space: Space, genome: Genome, dims: Any) -> Any:
            if dims not in ({"batch": 1}, {"batch": 16}):
                raise Rejected("placement", "not at this size")
            return extract(space, genome, dims)

        monkeypatch.setattr(stitch_stage, "extract", picky_of_all)
        exe = session.stitch()
        with pytest.raises(NotViableError, match="batch=50: not at this size"):
            exe.run({"x": x})


def test_a_wrong_point_is_named(model_path: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"limit": 2, "artifacts": str(tmp_path / "a"), "session": str(tmp_path / "s")}
    with CompileSession(model_path("mlp_dynbatch_ts17"), dims={"batch": (2, 8)}, **options) as session:
        session.run()
        reference = session.reference(1)
        reference.values[session.graph.outputs[0]][:] += 1
        with pytest.raises(WrongResult, match=r"wrong at batch=8: largest relative error"):
            session.run("verify")
        assert session.view.verified is not None
        assert not session.view.verified.ok
        assert [session.view.points[i].verified.ok for i in (0, 1)] == [True, False]  # type: ignore[union-attr]
    assert json.loads((tmp_path / "s" / "report.json").read_bytes())["verify"]["ok"] is False


def test_a_session_with_points_goes_on_where_it_was(model_path: Model, tmp_path: Path) -> None:
    options: dict[str, Any] = {"limit": 3, "session": str(tmp_path / "s"), "artifacts": str(tmp_path / "a")}
    path, dims = model_path("mlp_dynbatch_ts17"), {"batch": (1, 8)}

    def stop(event: ev.AnyEvent) -> None:
        if isinstance(event, ev.CandidateEvaluated) and (event.point, event.index) == (1, 0):
            session.cancel()

    with CompileSession(path, dims=dims, **options) as session:
        session.on_event = stop
        with pytest.raises(Stopped):
            session.run()
        assert len(session.ledger) == 4
    with CompileSession(path, dims=dims, **options) as session:
        session.run()
        assert len(session.ledger) == 6
        assert [len(found) for found in session.view.searches.values()] == [2]
        told = session.view
    view = SessionView()
    for event in SessionStore(tmp_path / "s").events():
        view.apply(event)
    assert dataclasses.asdict(view) == dataclasses.asdict(told)
    with pytest.raises(WorkbenchError, match="another dims"):
        CompileSession(path, dims={"batch": (1, 9)}, **options)


def test_run_works_from_what_is_known_at_other_sizes(luminal: Command, model_path: Model, tmp_path: Path) -> None:
    path = str(model_path("mlp_dynbatch_ts17"))
    x = RNG.standard_normal((50, 32)).astype(np.float32)

    def run(rows: int, *more: str) -> tuple[np.ndarray, bool]:
        np.savez(tmp_path / "x.npz", x=x[:rows])
        session = tmp_path / f"s{len(list(tmp_path.iterdir()))}"
        options = ("--limit", "2", "--seed", "90", "--session", str(session), *more)
        status, _, err = luminal("run", path, "-i", str(tmp_path / "x.npz"), "-o", str(tmp_path / "y.npz"), *options)
        assert status == 0, err
        searched = any(isinstance(e, ev.SearchStarted) for e in SessionStore(session).events())
        return np.load(tmp_path / "y.npz")["probs"], searched

    whole, _ = run(50)
    for rows in (1, 7, 16, 0):
        got, searched = run(rows)
        assert not searched
        np.testing.assert_allclose(got, whole[:rows], atol=1e-5)
    assert run(9, "--dim", "batch=33,3")[1], "values that are asked for are searched at"
    assert not run(9, "--dim", "batch=33,3")[1]


def test_inputs_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    from onnx import helper

    sides = [helper.make_tensor_value_info(name, 1, ["n", 4]) for name in "abc"]
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["c"])], "sum", sides[:2], sides[2:])
    path = tmp_path / "sum.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())
    exe = compile_onnx(path, limit=1, artifacts=str(tmp_path / "a"))
    with pytest.raises(InputError, match="'b' gives dimension 'n' the value 3, another input 2"):
        exe.run({"a": np.zeros((2, 4), np.float32), "b": np.zeros((3, 4), np.float32)})


def test_a_size_that_the_import_did_not_reckon_with_is_refused(tmp_path: Path) -> None:
    """The last row of as many as there are: of none, there is none."""
    from onnx import helper, numpy_helper

    known = {"last": np.array([-1]), "end": np.array([2**62]), "axis": np.array([0])}
    graph = helper.make_graph(
        [helper.make_node("Slice", ["x", *known], ["y"])],
        "last",
        [helper.make_tensor_value_info("x", 1, ["n", 4])],
        [helper.make_tensor_value_info("y", 1, [None, 4])],
        [numpy_helper.from_array(array, name) for name, array in known.items()],
    )
    path = tmp_path / "last.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())
    exe = compile_onnx(path, limit=1, artifacts=str(tmp_path / "a"))
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    for n in (1, 3):
        np.testing.assert_array_equal(exe.run({"x": x[:n]})["y"], x[n - 1 : n])
    with pytest.raises(InputError, match="for n-1 of at least 0, and that is -1 for n=0"):
        exe.run({"x": x[:0]})


def test_a_dimension_that_decides_the_structure_has_one_value(model_path: Model, tmp_path: Path) -> None:
    path = model_path("silero_vad_16k_sequence")
    with (
        CompileSession(path, dims={"sequence_length": (2, 3)}, session=str(tmp_path / "s")) as session,
        pytest.raises(ModelError, match=r"'sequence_length' decides what there is to compute.* 2,3"),
    ):
        session.import_model()


def test_a_window_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    from onnx import helper

    graph = helper.make_graph(
        [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3], strides=[2])],
        "window",
        [helper.make_tensor_value_info("x", 1, [1, 2, "n"])],
        [helper.make_tensor_value_info("y", 1, None)],
    )
    path = tmp_path / "window.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())
    exe = compile_onnx(path, dims={"n": 7}, limit=1, artifacts=str(tmp_path / "a"))
    x = RNG.standard_normal((1, 2, 7)).astype(np.float32)
    for n in (3, 7):
        wanted = np.lib.stride_tricks.sliding_window_view(x[..., :n], 3, axis=2)[..., ::2, :].max(-1)
        np.testing.assert_array_equal(exe.run({"x": x[..., :n]})["y"], wanted)
    with pytest.raises(InputError, match="for n-3 of at least 0, and that is -1 for n=2"):
        exe.run({"x": x[..., :2]})
    with pytest.raises(WorkbenchError, match="n-3 of at least 0"):
        compile_onnx(path, dims={"n": 2}, limit=1, artifacts=str(tmp_path / "b"))
