"""F16 and BF16 in the IR: stored in two bytes, summed wider, compared with room for their rounding."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.small_graphs import elementwise, linear, whole
from workbench.chunking import split
from workbench.egraph.program import emit
from workbench.ir import dtype as dt
from workbench.ir import llir, ops
from workbench.ir.dtype import DType
from workbench.ir.hlir import Graph
from workbench.ir.interpret import interpret
from workbench.runtime import arena
from workbench.runtime.compare import compare, default_tolerance

HALF = pytest.mark.parametrize("dtype", [dt.F16, dt.BF16], ids=str)


def test_every_dtype_is_found_by_name_term_and_numpy_type() -> None:
    assert len({d.name for d in dt.DTYPES}) == len(dt.BY_TERM) == len(dt.DTYPES)
    for dtype in dt.DTYPES:
        assert dt.BY_NAME[dtype.name] is dt.BY_TERM[dtype.term] is dt.from_numpy(dtype.numpy) is dtype
        assert default_tolerance(dtype).rtol >= 0
    assert dt.from_numpy(ml_dtypes.bfloat16) is dt.BF16
    assert (dt.F16.itemsize, dt.BF16.itemsize) == (2, 2)


def multiplied(dtype: DType, k: int) -> Graph:
    graph = Graph("half")
    a = graph.add(ops.Input("a"), [], (3, k), dtype, "a")
    b = graph.add(ops.Input("b"), [], (k, 4), dtype, "b")
    product = linear(graph, a, b)
    graph.add(ops.Output("y"), [whole(product)], product.shape, dtype)
    return graph


@HALF
def test_a_matmul_rounds_once(dtype: DType) -> None:
    """Summed in two bytes, 512 products lose digits; the interpreter rounds the exact sum."""
    rng = np.random.default_rng(0)
    a, b = (rng.random(s).astype(dtype.numpy) for s in ((3, 512), (512, 4)))
    got = interpret(multiplied(dtype, 512), {"a": a, "b": b})["y"]
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert got.dtype == dtype.numpy
    np.testing.assert_array_equal(got, exact.astype(dtype.numpy))
    stepwise = np.zeros((3, 4), dtype.numpy)
    for i in range(512):
        stepwise = stepwise + a[:, i : i + 1] * b[i : i + 1]
    assert np.abs(stepwise - exact).max() > 4 * np.abs(got.astype(np.float64) - exact).max()


@HALF
@pytest.mark.parametrize("name", ["Add", "Mul", "LessThan", "Exp2", "Sin", "Sqrt", "Recip", "Erf", "Floor", "Round"])
def test_functions_are_those_of_wider_floats_rounded(dtype: DType, name: str) -> None:
    graph = Graph(name)
    arity = ops.ELEMENTWISE[name].arity
    inputs = [graph.add(ops.Input(f"x{i}"), [], (64,), dtype) for i in range(arity)]
    made = elementwise(graph, name, *inputs)
    graph.add(ops.Output("y"), [whole(made)], made.shape, made.dtype)
    rng = np.random.default_rng(1)
    arrays = [(rng.random(64) + 0.25).astype(dtype.numpy) for _ in inputs]
    got = interpret(graph, {f"x{i}": a for i, a in enumerate(arrays)})["y"]
    wide = ops.ELEMENTWISE[name].compute(*(a.astype(np.float64) for a in arrays))
    assert got.dtype == made.dtype.numpy
    tolerance = default_tolerance(made.dtype)
    assert compare(got, np.asarray(wide), tolerance.rtol, tolerance.atol_scale)[0]


@HALF
def test_results_are_compared_as_floats(dtype: DType) -> None:
    tolerance = default_tolerance(dtype)
    one = np.array([1.0, -2.0, np.inf], dtype.numpy)
    near = np.array([1.0, -2.0, np.inf]) * (1 + tolerance.rtol / 2)
    assert compare(one, near.astype(dtype.numpy), tolerance.rtol, tolerance.atol_scale)[0]
    assert not compare(one, np.array([1.0, -2.2, np.inf], dtype.numpy), tolerance.rtol, tolerance.atol_scale)[0]
    assert not compare(one, np.array([1.0, -2.0, np.nan], dtype.numpy), tolerance.rtol, tolerance.atol_scale)[0]


@HALF
def test_programs_and_the_arena_know_it(dtype: DType) -> None:
    graph = multiplied(dtype, 8)
    (chunk,) = split(graph, ())
    text = emit(graph, chunk.nodes, chunk.inputs, chunk.outputs).text
    assert f'(Input 0 "a" ({dtype.term})' in text
    buffers = [llir.Buffer(0, dtype, 100, "boundary", 0), llir.Buffer(1, dtype, 100, "output", 1)]
    copied = llir.MapKernel(1, (100,), llir.Load(0, llir.axis(0), dtype), (1,))
    program = llir.Program(buffers, [copied], [1])
    assert arena.lifetimes(program)[1].nbytes == 200
