"""The interpreter against NumPy, primitive by primitive."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.small_graphs import constant, elementwise, linear, matmul, residual_mlp, whole
from workbench.ir import dtype as dt
from workbench.ir import interpret, ops
from workbench.ir import layout as lay
from workbench.ir.dtype import DType
from workbench.ir.expr import Z, const, var
from workbench.ir.hlir import Graph, Operand

RNG = np.random.default_rng(3)
ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3.0e38, -1.5], np.float32)


def run(graph: Graph, **inputs: np.ndarray) -> np.ndarray:
    (result,) = interpret.interpret(graph, inputs).values()
    return result


def one_node(op: ops.Op, arrays: list[np.ndarray], shape: lay.Shape, dtype: DType) -> np.ndarray:
    """The value of a node that reads `arrays` whole."""
    graph = Graph()
    nodes = [constant(graph, a) for a in arrays]
    made = graph.add(op, [whole(n) for n in nodes], shape, dtype)
    graph.add(ops.Output("y"), [whole(made)], shape, dtype)
    return run(graph)


FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "Add": lambda x, y: x + y,
    "Mul": lambda x, y: x * y,
    "Mod": lambda x, y: np.mod(x, y),
    "LessThan": lambda x, y: x < y,
    "Exp2": np.exp2,
    "Log2": np.log2,
    "Sin": np.sin,
    "Sqrt": np.sqrt,
    "Recip": lambda x: np.float32(1) / x,
    "Erf": lambda x: np.array([math.erf(v) for v in x.reshape(-1)], np.float32).reshape(x.shape),
    "Floor": np.floor,
    "Round": np.rint,
}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
@pytest.mark.parametrize("values", ["normal", "odd"])
def test_elementwise_functions_are_numpys(name: str, values: str) -> None:
    arity = ops.ELEMENTWISE[name].arity
    arrays = [RNG.standard_normal((2, 8), np.float32) if values == "normal" else np.roll(ODD, i) for i in range(arity)]
    result = ops.ELEMENTWISE[name].result or dt.F32
    with np.errstate(all="ignore"):
        wanted = FUNCTIONS[name](*arrays)
    np.testing.assert_array_equal(one_node(ops.Elementwise(name), arrays, arrays[0].shape, result), wanted)


def test_every_elementwise_function_is_tested() -> None:
    assert set(FUNCTIONS) | {"Select"} == set(ops.ELEMENTWISE)


def test_a_selection_takes_either_side() -> None:
    condition, yes, no = RNG.random(8) < 0.5, ODD, np.arange(8, dtype=np.float32)
    found = one_node(ops.Elementwise("Select"), [condition, yes, no], (8,), dt.F32)
    np.testing.assert_array_equal(found, np.where(condition, yes, no))


def test_casts_truncate_toward_zero() -> None:
    values = np.array([-2.9, -0.5, 0.5, 2.9], np.float32)
    assert one_node(ops.Cast(dt.I32), [values], (4,), dt.I32).tolist() == [-2, 0, 0, 2]
    assert one_node(ops.Cast(dt.BOOL), [values * 0 + [0, 1, -1, np.nan]], (4,), dt.BOOL).tolist() == [0, 1, 1, 1]


def test_an_iota_is_computed_from_its_position() -> None:
    value = (Z // 3) * 10 + Z % 3
    found = one_node(ops.Iota(value), [], (2, 3), dt.I64)
    assert found.tolist() == [[0, 1, 2], [10, 11, 12]]
    assert one_node(ops.Iota(const(7)), [], (2,), dt.F32).tolist() == [7, 7]


@pytest.mark.parametrize("axis", [0, 1])
def test_a_gather_clamps_its_index(axis: int) -> None:
    data = RNG.standard_normal((4, 5), np.float32)
    index = np.array([[-3, 0, 1, 99, 2]] * 3 if axis == 0 else [[-3, 0, 1]] * 4, np.int64)
    clamped = np.clip(index, 0, data.shape[axis] - 1)
    found = one_node(ops.Gather(axis), [index, data], index.shape, dt.F32)
    np.testing.assert_array_equal(found, np.take_along_axis(data, clamped, axis))


def test_the_last_write_of_a_scatter_holds() -> None:
    arrays = [np.zeros(5, np.float32), np.array([1, 3, 1, 77]), np.array([1, 2, 3, 4], np.float32)]
    assert one_node(ops.Scatter(), arrays, (5,), dt.F32).tolist() == [0, 3, 0, 2, 4]


@pytest.mark.parametrize("dtype", [dt.F32, dt.F64, dt.I32, dt.I64], ids=str)
@pytest.mark.parametrize("name", ["SumReduce", "MaxReduce"])
def test_reductions_run_over_the_last_axis(name: str, dtype: DType) -> None:
    data = (RNG.standard_normal((3, 4, 5)) * 9).astype(dtype.numpy)
    wanted = data.sum(-1) if name == "SumReduce" else data.max(-1)
    np.testing.assert_allclose(one_node(ops.Reduce(name), [data], (3, 4), dtype), wanted, rtol=1e-6)


def test_sums_are_exact_where_f32_would_drift() -> None:
    data = np.full((1, 1 << 16), 0.1, np.float32)
    found = one_node(ops.Reduce("SumReduce"), [data], (1,), dt.F32)
    assert found[0] == np.float32(np.float64(np.float32(0.1)) * (1 << 16))


def test_reductions_of_nothing_and_of_odd_values() -> None:
    nothing = np.zeros((2, 0), np.float32)
    assert one_node(ops.Reduce("SumReduce"), [nothing], (2,), dt.F32).tolist() == [0, 0]
    assert one_node(ops.Reduce("MaxReduce"), [nothing], (2,), dt.F32).tolist() == [-np.inf, -np.inf]
    least = one_node(ops.Reduce("MaxReduce"), [nothing.astype(np.int32)], (2,), dt.I32)
    assert least.tolist() == [np.iinfo(np.int32).min] * 2
    odd = np.array([[np.nan, 1], [np.inf, -np.inf], [-np.inf, -np.inf]], np.float32)
    np.testing.assert_array_equal(one_node(ops.Reduce("MaxReduce"), [odd], (3,), dt.F32), [np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(one_node(ops.Reduce("SumReduce"), [odd], (3,), dt.F32), [np.nan, np.nan, -np.inf])
    flags = np.array([[False, True], [False, False]])
    assert one_node(ops.Reduce("MaxReduce"), [flags], (2,), dt.BOOL).tolist() == [True, False]


@pytest.mark.parametrize(
    "equation",
    [
        "mk,kn->mn", "bmk,kn->bmn", "bmk,bnk->bmn", "abmk,bnk->abmn", "bk,k->b", "k,k->", "bk,bk->b", "k,nbk->bn",
        "1mk,n1k->mn",
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [dt.F32, dt.I32], ids=str)
def test_a_sum_of_products_is_a_contraction_whatever_each_operand_repeats(equation: str, dtype: DType) -> None:
    extents = {"a": 2, "b": 3, "m": 4, "n": 5, "k": 6, "1": 1}
    terms, result = equation.split("->")
    names = [*result, "k"]
    graph, arrays, operands = Graph(), [], []
    for term in terms.split(","):
        arrays.append((RNG.standard_normal([extents[c] for c in term]) * 5).astype(dtype.numpy))
        order = sorted(range(len(term)), key=lambda i: names.index(term[i]) if term[i] in names else -1)
        view = lay.permute(lay.contiguous(arrays[-1].shape), order)
        kept = [term[i] for i in order if term[i] != "1"]
        view = lay.reshape(view, tuple(extents[c] for c in kept))
        assert view is not None
        for axis, name in enumerate(names):
            if name not in kept:
                view = lay.insert_axis(view, axis)
        view = lay.expand(view, (2, *(extents[c] for c in names)))
        operands.append(Operand(constant(graph, arrays[-1]).id, view))
    shape = (2, *(extents[c] for c in result))
    product = graph.add(ops.Elementwise("Mul"), operands, (*shape, extents["k"]), dtype)
    total = graph.add(ops.Reduce("SumReduce"), [whole(product)], shape, dtype)
    graph.add(ops.Output("y"), [whole(total)], shape, dtype)
    left, right = (x.reshape([n for n in x.shape if n != 1]) for x in arrays)
    wanted = np.einsum(equation.replace("1", ""), left.astype(np.float64), right.astype(np.float64))
    np.testing.assert_allclose(run(graph), np.broadcast_to(wanted, shape), rtol=1e-5, atol=1e-5)


def test_a_sum_that_reads_its_product_another_way() -> None:
    """The product [m, n, k] is summed over m."""
    a, b = RNG.standard_normal((3, 4), np.float32), RNG.standard_normal((4, 5), np.float32)
    graph = Graph()
    left, right = constant(graph, a), constant(graph, b)
    views = (
        lay.expand(lay.insert_axis(lay.contiguous((3, 4)), 1), (3, 5, 4)),
        lay.expand(lay.permute(lay.contiguous((4, 5)), (1, 0)), (3, 5, 4)),
    )
    operands = [Operand(left.id, views[0]), Operand(right.id, views[1])]
    product = graph.add(ops.Elementwise("Mul"), operands, (3, 5, 4), dt.F32)
    turned = lay.permute(lay.contiguous((3, 5, 4)), (1, 2, 0))
    total = graph.add(ops.Reduce("SumReduce"), [Operand(product.id, turned)], (5, 4), dt.F32)
    graph.add(ops.Output("y"), [whole(total)], (5, 4), dt.F32)
    np.testing.assert_allclose(run(graph), np.einsum("mk,kn->nk", a, b), rtol=1e-5)


def test_named_dimensions_take_their_values_at_run_time() -> None:
    n = var("n")
    graph = Graph(dims={"n": 2})
    x = graph.add(ops.Input("x"), [], (n, 3), dt.F32)
    turned = graph.add(ops.Cast(dt.F32), [Operand(x.id, lay.permute(lay.contiguous((n, 3)), (1, 0)))], (3, n), dt.F32)
    graph.add(ops.Output("y"), [whole(turned)], (3, n), dt.F32)
    for rows in (1, 2, 5):
        data = RNG.standard_normal((rows, 3), np.float32)
        np.testing.assert_array_equal(interpret.interpret(graph, {"x": data}, {"n": rows})["y"], data.T)
    with pytest.raises(KeyError, match="n"):
        interpret.interpret(graph, {"x": np.zeros((1, 3), np.float32)}, {})
    with pytest.raises(KeyError, match="x"):
        interpret.interpret(graph, {})


def test_what_is_not_kept_is_dropped_after_its_last_use() -> None:
    graph = residual_mlp(layers=2)
    inputs = {"x": RNG.standard_normal((1, 4, 8), np.float32)}
    wanted = interpret.interpret(graph, inputs)["y"]
    for order in (range(len(graph)), depth_first(graph)):
        kept = graph.outputs[0]
        values = {graph.inputs[0]: inputs["x"].reshape(-1)}
        interpret.evaluate(graph, order, values, {}, keep={kept})
        np.testing.assert_array_equal(values[kept].reshape(wanted.shape), wanted)
        assert len(values) <= 2  # the last node's operands are dropped when the next one would begin


def depth_first(graph: Graph) -> list[int]:
    """A topological order in which ids do not ascend."""
    order: list[int] = []

    def visit(node_id: int) -> None:
        if node_id not in order:
            for operand in reversed(graph[node_id].operands):
                visit(operand.source)
            order.append(node_id)

    for output in graph.outputs:
        visit(output)
    assert order != sorted(order)
    return order


def test_a_product_that_is_asked_for_is_kept() -> None:
    graph = residual_mlp(layers=1)
    product = next(n.id for n in graph if n.op == ops.Elementwise("Mul"))
    x = RNG.standard_normal((1, 4, 8), np.float32)
    values = {graph.inputs[0]: x.reshape(-1)}
    interpret.evaluate(graph, range(len(graph)), values, {}, keep={product, graph.outputs[0]})
    weight = graph.constants[1]
    assert isinstance(weight, np.ndarray)
    np.testing.assert_allclose(values[product].reshape(4, 8, 8), x.reshape(4, 1, 8) * weight.T, rtol=1e-6)


def test_progress_is_told_before_each_node() -> None:
    graph = Graph()
    x = constant(graph, np.ones(2, np.float32))
    y = elementwise(graph, "Sqrt", x)
    seen: list[tuple[int, int]] = []
    interpret.evaluate(graph, [x.id, y.id], {}, {}, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 2), (1, 2)]


def test_a_custom_operator_needs_something_to_run_it() -> None:
    graph = Graph()
    x = constant(graph, np.arange(4, dtype=np.float32))
    custom = graph.add(ops.CustomOp(0), [whole(x)], (4,), dt.F32, "MyOp")
    graph.add(ops.Output("y"), [whole(custom)], (4,), dt.F32)
    with pytest.raises(ValueError, match="MyOp"):
        interpret.interpret(graph, {})
    found = interpret.interpret(graph, {}, run_custom=lambda node, operands: operands[0] * 2)
    assert found["y"].tolist() == [0, 2, 4, 6]


def test_a_matrix_vector_product_is_a_contraction_and_a_weighted_sum_is_not() -> None:
    from workbench.ir.hlir import is_contraction

    graph = Graph()
    a, b = (constant(graph, RNG.standard_normal((2, 3, 4), np.float32)) for _ in range(2))
    same = matmul(graph, a, lay.contiguous((2, 3, 4)), b, lay.contiguous((2, 3, 4)))
    assert not is_contraction(graph, same)
    row = constant(graph, np.ones((1, 4), np.float32))
    weight = constant(graph, np.ones((4, 5), np.float32))
    assert is_contraction(graph, linear(graph, row, weight))


@pytest.mark.parametrize("shape", [((2, 3, 5), (2, 5, 7)), ((9, 5), (5, 2)), ((1, 5), (5, 11))])
def test_products_widened_by_parts_are_those_of_the_whole(
    shape: tuple[tuple[int, ...], tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = (np.random.default_rng(1).standard_normal(s).astype(np.float32) for s in shape)
    a, b = (x.reshape(-1, *x.shape[-2:]) for x in (a, b))
    monkeypatch.setattr(interpret, "_WIDENED", 12)
    np.testing.assert_allclose(
        interpret._products(a, b.swapaxes(1, 2)), a.astype(np.float64) @ b.astype(np.float64), rtol=1e-14, atol=1e-14
    )
