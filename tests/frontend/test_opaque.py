"""Operators that are not lowered are run as they are, where somebody can and their results can be held."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from workbench.errors import ModelError
from workbench.frontend import Imported, import_model, importer
from workbench.frontend.inference import Trials
from workbench.ir import ops
from workbench.ir.hlir import Node
from workbench.ir.interpret import interpret
from workbench.runtime import opaque
from workbench.runtime.opaque import run_opaque

WriteModel = Callable[..., Path]
Arrays = Mapping[str, np.ndarray]
RNG = np.random.default_rng(5)
ML, MICROSOFT = "ai.onnx.ml", "com.microsoft"
make = helper.make_node


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    """One process says what operators yield for all tests here."""
    with Trials() as trials, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trials, "__exit__", lambda *_: None)
        patch.setattr(importer, "Trials", lambda: trials)
        yield


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def value(name: str, kind: int = TensorProto.FLOAT, shape: Sequence[int] | None = (4, 8)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def run(imported: Imported, inputs: Arrays) -> dict[str, np.ndarray]:
    def custom(node: Node, operands: list[np.ndarray]) -> np.ndarray:
        assert isinstance(node.op, ops.CustomOp)
        assert all(o.layout.is_contiguous for o in node.operands)
        return run_opaque(imported.graph.custom_ops[node.op.id], operands)

    return interpret(imported.graph, inputs, imported.graph.dims, run_custom=custom)


def peer(path: Path, inputs: Arrays) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


def loop(inside: Sequence[onnx.NodeProto]) -> onnx.GraphProto:
    """A body that carries c on."""
    inputs = [value("i", TensorProto.INT64, ()), value("k", TensorProto.BOOL, ()), value("c")]
    outputs = [value("k2", TensorProto.BOOL, ()), value("c2")]
    return helper.make_graph([*inside, make("Identity", ["k"], ["k2"])], "body", inputs, outputs)


W, V = f32(8, 8) / 3, f32(8, 8) / 3
GELU = make("QuickGelu", ["h"], ["g"], name="odd", domain=MICROSOFT, alpha=1.5)
HEAD = make("MatMul", ["x", "w"], ["h"])
FREE = {"zero": np.zeros((), np.float32), "one": np.array([1]), "first": np.array(0)}

CASES: dict[str, tuple[list[onnx.NodeProto], dict[str, np.ndarray], list[tuple[str, int]]]] = {
    "with an attribute, of onnxruntime's own": ([HEAD, GELU, make("MatMul", ["g", "v"], ["y"])], {}, [("odd", 1)]),
    "with absent inputs and outputs": (
        [HEAD, make("SkipLayerNormalization", ["h", "x", "gain", "", "bias"], ["o", "", "", "sum"], name="odd",
                    domain=MICROSOFT), make("Mul", ["o", "sum"], ["y"])],
        {},
        [("odd", 1)],
    ),
    "a loop as long as its input says, that reads outer values": (
        [HEAD, make("ReduceMax", ["x"], ["most"], keepdims=0), make("Cast", ["most"], ["trips"], to=7),
         make("Loop", ["trips", "", "h"], ["z"], name="odd",
              body=loop([make("MatMul", ["c", "w"], ["m"]), make("Tanh", ["m"], ["c2"])])),
         make("Add", ["z", "x"], ["y"])],
        {},
        [("odd", 1)],
    ),
    "inside an unrolled loop": (
        [make("Loop", ["twice", "", "x"], ["y"], name="l",
              body=loop([make("MatMul", ["c", "w"], ["h"]), GELU, make("Neg", ["g"], ["c2"])]))],
        {"twice": np.array(2)},
        [("l/odd", 1), ("l/odd", 1)],
    ),
    "what is of a size that depends on data, up to the first result that is not": (
        [HEAD, make("Greater", ["h", "zero"], ["mask"]), make("NonZero", ["mask"], ["places"]),
         make("Transpose", ["places"], ["t"], perm=[1, 0]), make("GatherND", ["h", "t"], ["picked"]),
         make("ReduceSum", ["picked"], ["s"], name="odd", keepdims=0), make("Mul", ["h", "s"], ["y"])],
        {},
        [("odd", 4)],
    ),
    "text between two encoders": (
        [HEAD, make("Cast", ["h"], ["i"], to=TensorProto.INT64),
         make("LabelEncoder", ["i"], ["t"], domain=ML, keys_int64s=[0, 1], values_strings=["a", "b"]),
         make("LabelEncoder", ["t"], ["q"], domain=ML, name="odd", keys_strings=["a"], values_floats=[3.0]),
         make("Add", ["q", "h"], ["y"])],
        {},
        [("odd", 2)],
    ),
    "a sequence": (
        [HEAD, make("SequenceConstruct", ["h", "x"], ["pair"]), make("SequenceInsert", ["pair", "h"], ["three"]),
         make("SequenceAt", ["three", "first"], ["e"], name="at"),
         make("ConcatFromSequence", ["three"], ["joined"], axis=0),
         make("ReduceMax", ["joined"], ["most"], keepdims=0), make("Mul", ["e", "most"], ["y"])],
        {},
        [("at", 3), ("most", 4)],
    ),
    "several outputs": (
        [HEAD, make("Loop", ["trips", "", "h", "zero"], ["z", "total"], name="odd", body=helper.make_graph(
            [make("Tanh", ["c"], ["c2"]), make("ReduceSum", ["c2"], ["s"], keepdims=0), make("Add", ["t", "s"], ["t2"]),
             make("Identity", ["k"], ["k2"])],
            "body",
            [value("i", TensorProto.INT64, ()), value("k", TensorProto.BOOL, ()), value("c"), value("t", shape=())],
            [value("k2", TensorProto.BOOL, ()), value("c2"), value("t2", shape=())],
         )),
         make("Mul", ["z", "total"], ["y"])],
        {},
        [("odd", 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_operator_is_run_as_it_is(case: str, write_model: WriteModel) -> None:
    nodes, known, wanted = CASES[case]
    weights = FREE | {"w": W, "v": V, "gain": V[0], "bias": V[1]} | known
    used = {name for node in nodes for name in node.input} | {"w"}
    given = {"x": f32(4, 8) * 2} | ({"trips": np.array(3)} if "trips" in used and case == "several outputs" else {})
    path = write_model(nodes, given, known={k: a for k, a in weights.items() if k in used}, opset=18)
    imported = import_model(path, allow_opaque=True)
    assert [(u.name, u.nodes) for u in imported.opaque] == list(dict.fromkeys(wanted))
    assert {u.runner for u in imported.opaque} == {"onnxruntime"}
    np.testing.assert_allclose(run(imported, given)["y"], peer(path, given)[0], rtol=1e-4, atol=1e-5)


def test_named_dimensions_stay_named(write_model: WriteModel) -> None:
    nodes = [HEAD, make("Reshape", ["h", "flat"], ["r"]), make("Sign", ["r"], ["s"]),
             make("QuickGelu", ["r"], ["g"], domain=MICROSOFT), make("Mul", ["g", "s"], ["y"])]  # fmt: skip
    path = write_model(nodes, {"x": (np.float32, ("b", "s", 8))}, known={"w": W, "flat": np.array([-1, 8])})
    imported = import_model(path, allow_opaque=True, dims={"b": 2, "s": 3})
    assert set(imported.graph.dims) == {"b", "s"}
    for shape in ((2, 3, 8), (1, 5, 8)):
        given = {"x": f32(*shape)}
        imported.graph.dims.update(b=shape[0], s=shape[1])
        np.testing.assert_allclose(run(imported, given)["y"], peer(path, given)[0], rtol=1e-4, atol=1e-5)


def test_equal_operators_are_one_model_and_keep_their_attributes(write_model: WriteModel) -> None:
    gelus = [
        make("QuickGelu", [f"h{i}"], [f"h{i + 1}"], domain=MICROSOFT, alpha=a) for i, a in enumerate((1.0, 1.0, 2.0))
    ]
    path = write_model(gelus, {"h0": f32(4, 8)}, ("h3",))
    specs = import_model(path, allow_opaque=True).graph.custom_ops
    assert len(specs) == 3
    assert len({spec.model for spec in specs.values()}) == 2


def test_what_the_model_says_of_a_shape_is_believed_where_nobody_else_knows(
    write_model: WriteModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model([HEAD, make("Unique", ["h"], ["u"], name="odd"), make("Neg", ["u"], ["y"])], {"x": f32(4, 8)},
                       known={"w": W})  # fmt: skip
    model = onnx.load(path)
    model.graph.value_info.append(value("u", shape=(32,)))
    imported = import_model(model, allow_opaque=True)
    assert [n.shape for n in imported.graph if isinstance(n.op, ops.CustomOp)] == [(32,)]


REFUSED: dict[str, tuple[list[onnx.NodeProto], str]] = {
    "the size of an output depends on data": (
        [HEAD, make("Unique", ["h"], ["y"], name="odd")], r"output 'y' is of a size that depends on data \(what a model"
    ),
    "an output is a sequence": ([make("SequenceConstruct", ["x", "x"], ["y"])], "output 'y' is a sequence"),
    "it is random": ([make("RandomNormalLike", ["x"], ["y"], name="odd")], r"node 'odd' .*RandomNormalLike is random"),
    "it may be random": (
        [make("Greater", ["x", "x"], ["b"]), make("ReduceMax", ["b"], ["t"], keepdims=0),
         make("Dropout", ["x", "", "t"], ["y"], name="odd")], r"node 'odd' .*Dropout is random",
    ),
    "nobody knows it": (
        [make("Swirl", ["x"], ["y"], name="odd\n", domain="acme")],
        r"node 'odd\\n' .*not supported; and it cannot be run as it is: onnxruntime: .*acme.*; reference: .*acme",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_says_which_node_and_why(case: str, write_model: WriteModel) -> None:
    nodes, said = REFUSED[case]
    path = write_model(nodes, {"x": f32(4, 8)}, known={"w": W} if "w" in nodes[0].input else {})
    with pytest.raises(ModelError, match=said) as error:
        import_model(path, allow_opaque=True)
    assert "\n" not in str(error.value)


def test_the_reference_runs_what_onnxruntime_does_not(write_model: WriteModel, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model([make("Binarizer", ["x"], ["y"], domain=ML, threshold=0.5)], {"x": f32(3, 2)})
    x = f32(3, 2)
    with Trials() as trials:
        monkeypatch.setattr(Trials, "__exit__", lambda *_: None)
        monkeypatch.setattr(importer, "Trials", lambda: trials)
        monkeypatch.setenv("PYTHONPATH", str(hide_onnxruntime(path.parent)))
        imported = import_model(path, allow_opaque=True)
        swirl = write_model([make("Swirl", ["x"], ["y"], domain="acme")], {"x": f32(3, 2)})
        with pytest.raises(ModelError, match=r"onnxruntime is not installed.*\(install onnxruntime, if it has"):
            import_model(swirl, allow_opaque=True)
        trials.close()
    assert {spec.runner for spec in imported.graph.custom_ops.values()} == {"reference"}
    np.testing.assert_array_equal(run(imported, {"x": x})["y"], (x > 0.5).astype(np.float32))
    monkeypatch.setattr(opaque, "available", lambda: ())
    with pytest.raises(ModelError.__mro__[1], match="reference is not installed"):
        opaque.prepared.__wrapped__(b"", "reference")


def test_bf16_is_for_the_reference(write_model: WriteModel) -> None:
    nodes = [make("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16), make("NonZero", ["h"], ["places"]),
             make("ReduceMax", ["places"], ["y"], keepdims=0)]  # fmt: skip
    imported = import_model(write_model(nodes, {"x": f32(4, 8)}), allow_opaque=True)
    assert {use.runner for use in imported.opaque} == {"reference"}
    assert run(imported, {"x": np.eye(4, 8, dtype=np.float32)})["y"] == 3


def test_nobody_is_given_a_tensor_that_is_in_another_file(write_model: WriteModel) -> None:
    (secret,) = [onnx.numpy_helper.from_array(f32(4, 8), "s")]
    secret.ClearField("raw_data")
    secret.data_location = TensorProto.EXTERNAL
    secret.external_data.add(key="location", value="../../secret")
    body = loop([make("Add", ["c", "s"], ["c2"])])
    body.initializer.append(secret)
    nodes = [make("ReduceMax", ["x"], ["most"], keepdims=0), make("Cast", ["most"], ["trips"], to=7),
             make("Loop", ["trips", "", "x"], ["y"], name="odd", body=body)]  # fmt: skip
    with pytest.raises(ModelError, match=r"node 'odd' .*data is in another file"):
        import_model(write_model(nodes, {"x": f32(4, 8)}), allow_opaque=True)


def hide_onnxruntime(directory: Path) -> Path:
    """A directory in which Python finds a start-up file that makes onnxruntime impossible to find."""
    (directory / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'onnxruntime' else find(name, *rest)\n"
    )
    return directory


def test_nothing_is_run_so_unless_asked_for(write_model: WriteModel) -> None:
    with pytest.raises(ModelError, match=r"unsupported operators: com.microsoft::QuickGelu x1 \(first: 'odd'\)"):
        import_model(write_model([HEAD, GELU], {"x": f32(4, 8)}, ("g",), known={"w": W}))


def test_an_attribute_that_is_not_lowered_makes_the_node_opaque(write_model: WriteModel) -> None:
    path = write_model([make("Einsum", ["x", "x", "x"], ["y"], equation="ij,jk,kl->il")], {"x": (np.float32, (3, 3))})
    (use,) = import_model(path, allow_opaque=True).opaque
    assert "the equation" in use.why
    with pytest.raises(ModelError, match="the equation"):
        import_model(path)
