"""The library calls of the cuda target: where each rule fires, each way to miss it narrowly, and the numbers that the
calls compute by cuBLAS's own documentation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings

from tests import cublas
from tests.choices import Case, extracted, leaf_values, matches_of, random_genome, saturated
from tests.egraph.test_rules import any_matmul, batched, biased, libraries, plain
from tests.small_graphs import matmul, whole
from workbench.egraph.saturate import Saturator
from workbench.ir import dtype as dt
from workbench.ir import expr as ex
from workbench.ir import interpret, llir, ops
from workbench.ir import layout as lay
from workbench.ir.dtype import DType
from workbench.ir.expr import ZERO, Expr, Z, const
from workbench.ir.hlir import Graph, Operand
from workbench.ir.layout import Layout
from workbench.runtime.compare import compare, default_tolerance
from workbench.search.placement import Rejected

LAYOUTS = ("RmRm", "RmCm", "CmRm", "CmCm")
LT_DTYPES = (dt.F32, dt.F16, dt.BF16, dt.F64)


@dataclass(frozen=True)
class Call:
    """A recognised matmul as a program has it: 4 x 5 x 6 unless said otherwise, strides in `z`."""

    a_m: Expr
    a_k: Expr
    b_k: Expr
    b_n: Expr
    m: int = 4
    n: int = 5
    batch: tuple[int, ...] = ()
    a_batch: tuple[Expr, ...] = ()
    b_batch: tuple[Expr, ...] = ()
    dtypes: tuple[DType, DType, DType] = (dt.F32, dt.F32, dt.F32)

    @property
    def text(self) -> str:
        def listed(items: Sequence[Expr]) -> str:
            return f"(ECons {ex.to_egglog(items[0])} {listed(items[1:])})" if items else "(ENil)"

        a, b, result = (f"({d.term})" for d in self.dtypes)
        batch = listed([const(d) for d in self.batch])
        a_steps, b_steps = (" ".join(map(ex.to_egglog, s)) for s in ((self.a_m, self.a_k), (self.b_k, self.b_n)))
        return f"""
            (let $a (Input 0 "" {a} (ECons (MNum 1000) (ENil)))) (let $b (Input 1 "" {b} (ECons (MNum 1000) (ENil))))
            (let $e (Matmul {batch} (MNum {self.m}) (MNum {self.n}) (MNum 6)
                            $a {listed(self.a_batch)} {a_steps} (MNum 0) $b {listed(self.b_batch)} {b_steps} (MNum 0)))
            (set (dtype $e) {result})"""


def call_of(layout: str, kind: str) -> Call:
    """What a rule fires on: matrices of that layout, or a single row of A, or a single column of B."""
    m, n = 1 if kind == "row" else 4, 1 if kind == "column" else 5
    a_m, a_k = (Z * 6, Z) if layout[:2] == "Rm" else (Z, Z * m)
    b_k, b_n = (Z * n, Z) if layout[2:] == "Rm" else (Z, Z * 6)
    return Call(ZERO if m == 1 else a_m, a_k, b_k, ZERO if n == 1 else b_n, m, n)


RULES: dict[str, tuple[str, str]] = {}
"""Layout and kind of each library rule."""
for _layout in LAYOUTS:
    for _kind in ("", *(["row"] if _layout[:2] == "Rm" else []), *(["column"] if _layout[2:] == "Cm" else [])):
        for _library in ("cublas sgemm", "cublasLt"):
            RULES[f"{_library} {_layout}{f': {_kind} vector' if _kind else ''}"] = _layout, _kind
BATCH_RULE = "cublasLt: a batch of one affine stride"
HALF_RULE = "cublasLt: matmul of halves"
EPILOGUES = {
    "cublas sgemm: epilogue in place of the result": (biased(), biased(dt.F64)),
    "cublasLt: epilogue in place of the result": (biased(dt.F16), biased(dt.I32)),
}
"""A matmul that each fires behind, and one that its library does not take."""


def narrow_misses(name: str) -> dict[str, Call]:
    """What the rule must leave alone, each wrong in one thing."""
    layout, kind = RULES[name]
    good = call_of(layout, kind)
    misses = {
        "A of another dtype": replace(good, dtypes=(dt.F64, dt.F32, dt.F32)),
        "B of another dtype": replace(good, dtypes=(dt.F32, dt.BF16, dt.F32)),
        "a result of another dtype": replace(good, dtypes=(dt.F32, dt.F32, dt.F64)),
        "integers": replace(good, dtypes=(dt.I32, dt.I32, dt.I32)),
    }
    if name.startswith("cublas sgemm"):
        misses |= {f"all {d}": replace(good, dtypes=(d, d, d)) for d in LT_DTYPES if d is not dt.F32}
    else:
        two = replace(good, batch=(2, 3), a_batch=(Z * 24, Z * 48), b_batch=(Z * 90, Z * 30))
        misses["two batch axes that do not merge"] = two
        for operand in ("a_batch", "b_batch"):
            grouped = {"a_batch": (Z * 24,), "b_batch": (Z * 30,), operand: (Z // 2 * 30,)}
            misses[f"{operand} in groups"] = replace(good, batch=(4,), **grouped)
    unit = {"a": "a_k" if layout[:2] == "Rm" else "a_m", "b": "b_n" if layout[2:] == "Rm" else "b_k"}
    leading = {"a": "a_m" if layout[:2] == "Rm" else "a_k", "b": "b_k" if layout[2:] == "Rm" else "b_n"}
    for operand, axis in unit.items():
        misses[f"{operand} steps by two"] = replace(good, **{axis: Z * 2})
    for operand, axis in leading.items():
        if (operand, kind) in (("a", "row"), ("b", "column")):
            misses[f"more than one {kind}"] = replace(good, **{"m" if operand == "a" else "n": 2})
            continue
        misses[f"a leading dimension of 0 in {operand}"] = replace(good, **{axis: ZERO})
        misses[f"{operand} is not affine"] = replace(good, **{axis: Z * Z})
    return misses


MISSES = [(name, what) for name in RULES for what in narrow_misses(name)]


def test_every_rule_of_cuda_alone_is_in_the_table(saturator: Saturator, cuda: Saturator) -> None:
    of_cpu, of_cuda = ({r.name for r in s.rules} for s in (saturator, cuda))
    assert of_cuda - of_cpu == {*RULES, BATCH_RULE, *EPILOGUES, HALF_RULE}
    assert {n for n in of_cpu - of_cuda if not n.startswith(("sgemm", "dgemm"))} == set()


@pytest.mark.parametrize("name", EPILOGUES)
def test_an_epilogue_stands_behind_a_call_that_it_reads_whole(cuda: Saturator, name: str) -> None:
    fires, misses = EPILOGUES[name]
    case = saturated(cuda, fires, target="cuda")
    assert case.matches[name] > 0
    assert "InPlace" in {case.space.snapshot.op(n) for options in case.space.options for n in options}
    for graph in (misses, biased(fires[fires.inputs[0]].dtype, part=3)):
        assert saturated(cuda, graph, target="cuda").matches.get(name, 0) == 0


@pytest.mark.parametrize("name", RULES)
def test_a_library_rule_fires_on_its_layout(cuda: Saturator, name: str) -> None:
    layout, kind = RULES[name]
    matches, snapshot = matches_of(cuda, call_of(layout, kind).text)
    assert matches[name] == 1
    made = [snapshot.op(n) for n in snapshot.nodes_of[snapshot.variables["$e"]]]
    assert ("Cublas" if name.startswith("cublas sgemm") else "CublasLt") in made
    batch = replace(call_of(layout, kind), batch=(3,), a_batch=(Z * 24,), b_batch=(ZERO,))
    assert matches_of(cuda, batch.text)[0].get(name, 0) >= 1


@pytest.mark.parametrize(("name", "what"), MISSES)
def test_a_library_rule_does_not_fire_beside_it(cuda: Saturator, name: str, what: str) -> None:
    assert matches_of(cuda, narrow_misses(name)[what].text)[0].get(name, 0) == 0


@pytest.mark.parametrize("dtype", LT_DTYPES, ids=str)
@pytest.mark.parametrize("name", [n for n in RULES if n.startswith("cublasLt")])
def test_cublaslt_takes_every_dtype_that_it_has(cuda: Saturator, name: str, dtype: DType) -> None:
    text = replace(call_of(*RULES[name]), dtypes=(dtype, dtype, dtype)).text
    matches, snapshot = matches_of(cuda, text)
    assert matches[name] == 1
    (call,) = (n for n in range(snapshot.node_count) if snapshot.op(n) == "CublasLt")
    assert snapshot.dtype(snapshot.children(call)[1]) is dtype


def test_a_batch_of_one_affine_stride(cuda: Saturator) -> None:
    for strides, fires in (
        ("(ECons (MMul (MIter) (MNum 24)) (ENil))", True),
        ("(ECons (MNum 0) (ENil))", True),
        ("(ECons (MMul (MDiv (MIter) (MNum 2)) (MNum 24)) (ENil))", False),
        ("(ENil)", False),  # a fact from the start
    ):
        assert (matches_of(cuda, f"(let $l {strides})")[0].get(BATCH_RULE, 0) > 0) == fires


def test_a_matmul_of_too_many_batch_axes_is_left_to_the_sum(cuda: Saturator) -> None:
    case = saturated(cuda, batched((2, 2, 2, 2), [ZERO] * 4, [ZERO] * 4), target="cuda")
    assert {n for n in case.matches if "cublas" in n and n != BATCH_RULE} == set()


def halves(
    a: DType, b: DType, result: DType, part: int = 20, shape: tuple[int, ...] = (4, 5), layout: str = "RmCm"
) -> Graph:
    """A matmul of halves as the importer writes it: operands as f32, and the result, or a part of it, rounded."""
    graph = Graph()
    inputs = [graph.add(ops.Input(n), [], (size,), d) for n, size, d in (("a", 24, a), ("b", 30, b))]
    wide = [graph.add(ops.Cast(dt.F32), [whole(x)], x.shape, dt.F32) for x in inputs]
    a_steps = (Z * 6, ZERO, Z) if layout[:2] == "Rm" else (Z, ZERO, Z * 4)
    b_steps = (ZERO, Z, Z * 5) if layout[2:] == "Rm" else (ZERO, Z * 6, Z)
    product = matmul(graph, wide[0], Layout((4, 5, 6), a_steps), wide[1], Layout((4, 5, 6), b_steps))
    read = Operand(product.id, lay.contiguous(shape if part == 20 else (part,)))
    rounded = graph.add(ops.Cast(result), [read], read.layout.shape, result)
    graph.add(ops.Output("y"), [whole(rounded)], rounded.shape, result)
    return graph


@pytest.mark.parametrize("dtype", [dt.F16, dt.BF16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_matmul_of_halves_is_a_call_on_halves(cuda: Saturator, layout: str, dtype: DType) -> None:
    graph = halves(dtype, dtype, dtype, layout=layout)
    case = saturated(cuda, graph, target="cuda")
    assert case.matches[HALF_RULE] == 1
    call = next(c for c in library_programs(case) if c.dtype is dtype)
    assert (call.routine, call.layout) == ("cublaslt", layout)
    values = leaf_values(graph, graph.dims)
    wanted = dict(values)
    interpret.evaluate(graph, case.chunk.nodes, wanted, graph.dims, keep=[*values, *case.chunk.outputs])
    got = cublas.lt_matmul(call, values[call.a.buffer], values[call.b.buffer])
    assert got.dtype == dtype.numpy
    allowed = default_tolerance(dtype)
    assert compare(got, wanted[case.chunk.outputs[0]], allowed.rtol, allowed.atol_scale)[0]


@pytest.mark.parametrize(
    "graph",
    [
        halves(dt.F16, dt.BF16, dt.F16),
        halves(dt.F16, dt.F16, dt.BF16),
        halves(dt.F16, dt.F16, dt.F64),
        halves(dt.F64, dt.F64, dt.F16),
        halves(dt.F16, dt.F16, dt.F16, part=10),
    ],
    ids=["other operand", "other result", "wider result", "no halves", "part of the result"],
)
def test_other_matmuls_between_conversions_stay_in_f32(cuda: Saturator, graph: Graph) -> None:
    assert saturated(cuda, graph, target="cuda").matches.get(HALF_RULE, 0) == 0


def test_a_matmul_of_halves_may_have_its_result_in_another_shape(cuda: Saturator) -> None:
    graph = halves(dt.F16, dt.F16, dt.F16, shape=(2, 2, 5))
    assert saturated(cuda, graph, target="cuda").matches[HALF_RULE] == 1


# Which library calls a space has


def calls(case: Case) -> set[str]:
    """Library calls that the space offers."""
    snapshot = case.space.snapshot
    offered = {n for options in case.space.options for n in options}
    return {snapshot.op(n) for n in offered} & {"Sgemm", "Cublas", "CublasLt"}


def test_each_target_has_its_own_library_calls(saturator: Saturator, cuda: Saturator) -> None:
    graph = plain(4, 5, 6)
    assert calls(saturated(saturator, graph)) == {"Sgemm"}
    assert calls(saturated(cuda, graph, target="cuda")) == {"Cublas", "CublasLt"}
    assert libraries(saturated(cuda, graph, target="cuda")) == set()
    # What the e-graph holds, a space of the other target does not offer.
    assert calls(saturated(cuda, graph, target="cpu")) == set()
    assert calls(saturated(saturator, graph, target="cuda")) == set()


@pytest.mark.parametrize("dtype", LT_DTYPES, ids=str)
def test_dtypes_choose_the_library(cuda: Saturator, dtype: DType) -> None:
    case = saturated(cuda, plain(4, 5, 6, "RmCm", dtype), target="cuda")
    assert calls(case) == ({"Cublas", "CublasLt"} if dtype is dt.F32 else {"CublasLt"})


# Numbers


def library_programs(case: Case) -> list[llir.GemmCall]:
    """Every library call that the space offers and that can be extracted."""
    snapshot, space = case.space.snapshot, case.space
    found: list[llir.GemmCall] = []
    rng = random.Random(0)
    for eclass, options in enumerate(space.options):
        for place, node in enumerate(options):
            if snapshot.op(node) not in ("Cublas", "CublasLt"):
                continue
            genome = list(random_genome(space, rng))
            if eclass in space.gene_of:
                genome[space.gene_of[eclass]] = place
            try:
                program = extracted(case, tuple(genome))
            except Rejected as rejected:
                if rejected.reason != "library-refuses":
                    raise
                continue
            (call,) = (k for k in program.kernels if isinstance(k, llir.GemmCall))
            sources = {b.id: b.source for b in program.buffers}
            found.append(
                replace(
                    call,
                    a=replace(call.a, buffer=sources[call.a.buffer]),
                    b=replace(call.b, buffer=sources[call.b.buffer]),
                )
            )
    return found


def assert_right(case: Case) -> list[str]:
    """Run every library call as documented and compare with the interpreter; the routines that ran."""
    graph = case.graph
    values = leaf_values(graph, graph.dims)
    wanted = dict(values)
    interpret.evaluate(graph, case.chunk.nodes, wanted, graph.dims, keep=[*values, *case.chunk.outputs])
    expected = wanted[case.chunk.outputs[0]]
    ran = []
    for call in library_programs(case):
        run = {"cublas-sgemm": cublas.gemm_batched, "cublaslt": cublas.lt_matmul}[call.routine]
        got = run(call, values[call.a.buffer], values[call.b.buffer])
        tolerance = default_tolerance(call.dtype)
        assert got.dtype == expected.dtype == call.dtype.numpy
        ok, _, worst = compare(got, expected, tolerance.rtol, tolerance.atol_scale)
        assert ok, (call, worst)
        ran.append(f"{call.routine} {call.layout}")
    return ran


@pytest.mark.parametrize("dtype", LT_DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_computes_what_the_interpreter_does(cuda: Saturator, layout: str, dtype: DType) -> None:
    ran = assert_right(saturated(cuda, plain(4, 5, 6, layout, dtype), target="cuda"))
    assert set(ran) == {f"cublaslt {layout}", *([f"cublas-sgemm {layout}"] if dtype is dt.F32 else [])}


@pytest.mark.parametrize("sizes", [(1, 5, 6), (4, 1, 6), (4, 5, 1), (1, 1, 6), (1, 1, 1)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_vectors_compute_what_the_interpreter_does(
    cuda: Saturator, layout: str, sizes: tuple[int, int, int]
) -> None:
    assert_right(saturated(cuda, plain(*sizes, layout), target="cuda"))


@pytest.mark.parametrize(
    ("graph", "routines"),
    [
        (batched((3,), [Z * 24], [Z * 30]), {"cublas-sgemm", "cublaslt"}),
        (batched((3,), [Z * 24], [ZERO]), {"cublas-sgemm", "cublaslt"}),
        (batched((4,), [Z * 24], [Z // 2 * 30]), {"cublas-sgemm"}),
        (batched((2, 3), [Z * 72, Z * 24], [Z * 90, Z * 30]), {"cublas-sgemm", "cublaslt"}),
        (batched((2, 3), [Z * 24, Z * 48], [Z * 90, Z * 30]), {"cublas-sgemm"}),
        (batched((2, 1), [Z * 24, ZERO], [Z * 30, ZERO]), {"cublas-sgemm", "cublaslt"}),
    ],
    ids=["strided", "B the same", "B in groups", "two axes merged", "two axes apart", "an axis of one"],
)
def test_a_batch_is_one_call_where_the_library_can(cuda: Saturator, graph: Graph, routines: set[str]) -> None:
    ran = assert_right(saturated(cuda, graph, target="cuda"))
    assert {r.split()[0] for r in ran} == routines


@settings(max_examples=60)
@given(graph=any_matmul(dtypes=(dt.F32, dt.F32, *LT_DTYPES)))
def test_any_library_call_computes_what_the_interpreter_does(cuda: Saturator, graph: Graph) -> None:
    assert_right(saturated(cuda, graph, target="cuda"))


def test_a_library_call_that_cannot_be_is_caught_by_the_reference() -> None:
    """The reference is no rubber stamp: a wrong leading dimension or transposition shows."""
    memory = np.arange(24, dtype=np.float32)
    matrix = llir.GemmOperand(0, 6, 1, (0,))
    call = llir.GemmCall(0, 4, 4, 6, matrix, replace(matrix, row_stride=4), dt.F32, "cublas-sgemm", "RmRm", (0,))
    right = cublas.gemm_batched(call, memory, memory)
    np.testing.assert_allclose(right.reshape(4, 4), memory.reshape(4, 6) @ memory.reshape(6, 4))
    with pytest.raises(AssertionError, match="leading dimension of 3"):
        cublas.gemm_batched(replace(call, b=replace(call.b, row_stride=3)), memory, memory)
    apart = replace(call, a=replace(matrix, batch_offsets=(0, 1, 3)), b=replace(call.b, batch_offsets=(0, 0, 0)))
    with pytest.raises(AssertionError, match="no one stride"):
        cublas.lt_matmul(apart, memory, memory)
