"""Every rule of the library: a program it fires on, one it does not, and, where it makes kernels, their numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.choices import (
    Case,
    assert_computes_the_same,
    forced_genomes,
    matches_of,
    random_genome,
    saturated,
)
from tests.small_graphs import byte_matmul, constant, elementwise, matmul, whole
from workbench.egraph.saturate import Saturator
from workbench.ir import dtype as dt
from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir import ops
from workbench.ir.dtype import DType
from workbench.ir.expr import ZERO, Expr, Z, const, var
from workbench.ir.hlir import Graph, Node, Operand
from workbench.ir.layout import Layout, Shape

# Graphs, by what is in them


def ended(graph: Graph, *nodes: Node) -> Graph:
    """`graph` with outputs."""
    for i, node in enumerate(nodes):
        graph.add(ops.Output(f"y{i}"), [whole(node)], node.shape, node.dtype)
    return graph


def function_of(name: str, dtype: DType = dt.F32) -> Graph:
    """The function of inputs or of another function of them, and a transposed copy of its result."""
    graph = Graph(name)
    arity = ops.ELEMENTWISE[name].arity
    inputs = [graph.add(ops.Input(f"x{i}"), [], (3, 4), dtype, f"x{i}") for i in range(arity)]
    if name == "Select":
        inputs[0] = elementwise(graph, "LessThan", inputs[1], inputs[2])
    elif name in ("Sqrt", "Log2", "Recip"):  # of positive values
        inputs = [elementwise(graph, "Exp2", inputs[0])]
    made = elementwise(graph, name, *inputs)
    turned = lay.permute(lay.contiguous((3, 4)), (1, 0))
    again = graph.add(ops.Cast(made.dtype), [Operand(made.id, turned)], (4, 3), made.dtype)
    return ended(graph, made, again)


def cast() -> Graph:
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (5,), dt.F32)
    return ended(graph, graph.add(ops.Cast(dt.I32), [whole(x)], (5,), dt.I32))


def copy() -> Graph:
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (2, 3), dt.F32)
    view = lay.permute(lay.contiguous((2, 3)), (1, 0))
    return ended(graph, graph.add(ops.Cast(dt.F32), [Operand(x.id, view)], (3, 2), dt.F32))


def iotas() -> Graph:
    """Two positions of one formula over spaces of other shapes, the second read in part by the sum of both."""
    graph = Graph()
    value = Z * 10 + Z // 3
    small = graph.add(ops.Iota(value), [], (4, 6), dt.I64)
    large = graph.add(ops.Iota(value), [], (4, 8), dt.I64)
    part = Operand(large.id, lay.slice_axis(lay.contiguous((4, 8)), 1, 0, 1, 6))
    return ended(graph, graph.add(ops.Elementwise("Add"), [whole(small), part], (4, 6), dt.I64))


def gather() -> Graph:
    """Of computed data, by a computed index that runs over the ends."""
    graph = Graph()
    index = graph.add(ops.Input("i"), [], (4, 5), dt.I64)
    data = graph.add(ops.Input("x"), [], (3, 5), dt.F32)
    doubled = elementwise(graph, "Add", index, index)
    picked = graph.add(ops.Gather(0), [whole(doubled), whole(elementwise(graph, "Sin", data))], (4, 5), dt.F32)
    return ended(graph, elementwise(graph, "Add", picked, picked))


def scatter(mode: str = "add", turned: bool = False, again: bool = False) -> Graph:
    """Writes of computed values at computed positions, some outside and some the same, into computed data, which is
    read `again` or not."""
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (4, 5), dt.F32)
    index, update = graph.add(ops.Input("i"), [], (2, 9), dt.I64), graph.add(ops.Input("u"), [], (2, 9), dt.F32)
    data, at = elementwise(graph, "Sin", x), elementwise(graph, "Mul", index, index)
    value = elementwise(graph, "Sin", update)
    view = lay.contiguous((4, 5))
    into = Operand(data.id, lay.permute(view, (1, 0)) if turned else view)
    made = graph.add(ops.Scatter(mode), [into, whole(at), whole(value)], into.layout.shape, dt.F32)
    return ended(graph, elementwise(graph, "Exp2", made), *([data] if again else []))


def reduction(name: str, shape: Shape = (3, 4, 5), dtype: DType = dt.F32) -> Graph:
    graph = Graph()
    x = graph.add(ops.Input("x"), [], shape, dtype)
    squared = elementwise(graph, "Mul", x, x)
    total = graph.add(ops.Reduce(name), [whole(squared)], shape[:-1], dtype)
    return ended(graph, total if shape[:-1] == () else elementwise(graph, "Add", total, total))


def scaled() -> Graph:
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (3,), dt.F32)
    half = constant(graph, np.array(0.5, np.float32))
    spread = Operand(half.id, lay.expand(lay.contiguous(()), (3,)))
    return ended(graph, graph.add(ops.Elementwise("Mul"), [whole(x), spread], (3,), dt.F32))


def stored_sum() -> Graph:
    """What is loaded is an input or a sum; nothing is computed by a map that something loads."""
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (3, 4), dt.F32)
    total = graph.add(ops.Reduce("SumReduce"), [whole(x)], (3,), dt.F32)
    return ended(graph, elementwise(graph, "Sqrt", total))


def per_row(name: str, dtype: DType = dt.F32, axis: int = 1) -> Graph:
    """x times its own sum or maximum over the last axis, which is spread along `axis`."""
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (5, 5), dtype)
    reduced = graph.add(ops.Reduce(name), [whole(elementwise(graph, "Add", x, x))], (5,), dtype)
    spread = Operand(reduced.id, lay.expand(lay.insert_axis(lay.contiguous((5,)), axis), (5, 5)))
    return ended(graph, graph.add(ops.Elementwise("Mul"), [whole(x), spread], (5, 5), dtype))


def behind(name: str, part: int = 6) -> Graph:
    """The sine of the first `part` of six sums or maxima."""
    graph = Graph()
    x = graph.add(ops.Input("x"), [], (2, 3, 7), dt.F32)
    reduced = graph.add(ops.Reduce(name), [whole(x)], (2, 3), dt.F32)
    shape: Shape = (2, 3) if part == 6 else (part,)
    return ended(graph, graph.add(ops.Elementwise("Sin"), [Operand(reduced.id, lay.contiguous(shape))], shape, dt.F32))


def biased(dtype: DType = dt.F32, part: int = 4) -> Graph:
    """A matmul and a bias for the first `part` of its four rows, and the sine of that."""
    graph = Graph()
    a, b, bias = (graph.add(ops.Input(n), [], s, dtype) for n, s in (("a", (4, 6)), ("b", (6, 5)), ("c", (5,))))
    left = lay.expand(lay.insert_axis(lay.contiguous((4, 6)), 1), (4, 5, 6))
    right = lay.expand(lay.permute(lay.contiguous((6, 5)), (1, 0)), (4, 5, 6))
    product = matmul(graph, a, left, b, right)
    spread = Operand(bias.id, lay.expand(lay.contiguous((5,)), (part, 5)))
    read = Operand(product.id, Layout((part, 5), lay.contiguous((4, 5)).strides))
    moved = graph.add(ops.Elementwise("Add"), [read, spread], (part, 5), dtype)
    return ended(graph, elementwise(graph, "Mul", moved, moved))


@cache
def multiplied(
    a: tuple[Expr, ...],
    b: tuple[Expr, ...],
    shape: Shape,
    dtype: DType = dt.F32,
    sum_shape: Shape | None = None,
    offsets: tuple[int, int] = (0, 0),
) -> Graph:
    """The matmul of views with strides `a` and `b` over the product's `shape` [.., m, n, k]."""
    graph = Graph("matmul", dims=dict(DIMS))
    nodes, views = [], []
    for name, strides, offset in zip("ab", (a, b), offsets, strict=True):
        strides = tuple(ZERO if d == 1 else s for d, s in zip(shape, strides, strict=True))
        view = Layout(shape, strides, const(offset))
        needed: lay.Dim = const(offset) + 1
        for d, s in zip(shape, strides, strict=True):  # every stride here grows along its axis
            needed = needed + ex.substitute(s, {"z": ex.as_expr(d) - 1})
        if not ex.variables(needed):
            needed = ex.as_dim(needed)
        nodes.append(graph.add(ops.Input(name), [], (needed,), dtype, name))
        views.append(view)
    if sum_shape is None:
        return ended(graph, matmul(graph, nodes[0], views[0], nodes[1], views[1]))
    operands = [Operand(n.id, v) for n, v in zip(nodes, views, strict=True)]
    product = graph.add(ops.Elementwise("Mul"), operands, shape, dtype)
    view = Layout((*sum_shape, shape[-1]), lay.contiguous(shape).strides)
    return ended(graph, graph.add(ops.Reduce("SumReduce"), [Operand(product.id, view)], sum_shape, dtype))


DIMS = {"n": 3, "s": 5}


def plain(m: int, n: int, k: int, layout: str = "RmRm", dtype: DType = dt.F32) -> Graph:
    a_m, a_k = (Z * k, Z) if layout[:2] == "Rm" else (Z, Z * m)
    b_k, b_n = (Z * n, Z) if layout[2:] == "Rm" else (Z, Z * k)
    return multiplied((a_m, ZERO, a_k), (ZERO, b_n, b_k), (m, n, k), dtype)


def batched(batch: Shape, a: Sequence[Expr], b: Sequence[Expr], m: lay.Dim = 4, n: int = 5, k: int = 6) -> Graph:
    """Row-major matrices; `a` and `b` are the batch strides."""
    return multiplied((*a, Z * k, ZERO, Z), (*b, ZERO, Z, Z * n), (*batch, m, n, k))


# What each rule fires on, and what it must leave alone

Program = Callable[[], Graph] | str
UNKNOWN = """
(let $shape (ECons (MNum 4) (ENil)))
(let $view (ECons (MIter) (ENil)))
(let $input (Input 0 "" (F32) $shape))
(let $untyped (Matmul (ENil) (MNum 4) (MNum 1) (MNum 1) $input (ENil) (MIter) (MNum 0) (MNum 0)
                      $input (ENil) (MNum 0) (MNum 0) (MNum 0)))
(let $x (Load $untyped $view (MNum 0)))
"""
"""`$x` is an element of a buffer whose dtype no rule knows."""


UNKNOWN_SCATTER = '(Scatter "none" $shape $x $shape (Load $input $view (MNum 0)) $x)'


def expression(text: str) -> str:
    return f"(let $e {text})"


def unary(name: str) -> str:
    return UNKNOWN + f"(let $y ({name} $shape $x))"


def binary(name: str) -> str:
    return UNKNOWN + f"(let $y ({name} $shape $x $x))"


RULES: dict[str, tuple[Program, Program]] = {
    # expression.egg
    "fold product of numbers": (expression("(MMul (MNum 2) (MNum 3))"), expression('(MMul (MNum 2) (MVar "n"))')),
    "fold sum of numbers": (expression("(MAdd (MNum 2) (MNum 3))"), expression('(MAdd (MNum 2) (MVar "n"))')),
    "multiply by one": (expression('(MMul (MVar "n") (MNum 1))'), expression('(MMul (MVar "n") (MNum 2))')),
    "one times": (expression("(MMul (MNum 1) (MDiv (MIter) (MNum 2)))"), expression("(MMul (MNum 2) (MIter))")),
    "number behind a dimension": (expression('(MMul (MNum 2) (MVar "n"))'), expression('(MMul (MVar "n") (MNum 2))')),
    "fold numbers behind a product": (
        expression('(MMul (MMul (MVar "n") (MNum 2)) (MNum 3))'),
        expression('(MMul (MMul (MVar "n") (MNum 2)) (MVar "m"))'),
    ),
    "a number is free of the iterator": (expression("(MNum 7)"), expression('(MVar "n")')),
    "a dimension is free of the iterator": (expression('(MVar "n")'), expression("(MIter)")),
    "a sum is free of the iterator": (expression('(MAdd (MVar "n") (MNum 1))'), expression("(MAdd (MIter) (MNum 1))")),
    "a product is free of the iterator": (
        expression('(MMul (MVar "n") (MNum 2))'),
        expression("(MMul (MIter) (MNum 2))"),
    ),
    "a quotient is free of the iterator": (
        expression('(MDiv (MVar "n") (MNum 2))'),
        expression("(MDiv (MIter) (MNum 2))"),
    ),
    "a remainder is free of the iterator": (
        expression('(MMod (MVar "n") (MNum 2))'),
        expression('(MMod (MVar "n") (MIter))'),
    ),
    "slope of a unit stride": (expression("(MIter)"), expression("(MNum 1)")),
    "slope of a scaled stride": (
        expression('(MMul (MIter) (MMul (MVar "n") (MNum 4)))'),
        expression("(MMul (MIter) (MDiv (MIter) (MNum 2)))"),
    ),
    "slope of a broadcast": (expression("(MNum 0)"), expression("(MNum 1)")),
    # dtype.egg
    "dtype of Input": (copy, iotas),
    "dtype of Iota": (iotas, copy),
    "dtype of Cast": (cast, gather),
    "dtype of CustomOp": (UNKNOWN + "(let $y (CustomOp 0 $shape (RNil) (F32)))", copy),
    "dtype of Load": (copy, UNKNOWN),
    "dtype of Immediate": (scaled, copy),
    "dtype of LessThan": (lambda: function_of("LessThan"), copy),
    "dtype of Select": (
        lambda: function_of("Select"),
        UNKNOWN + "(let $y (Select $shape (Load $input $view (MNum 0)) $x $x))",
    ),
    "dtype of Gather": (
        gather,
        UNKNOWN + "(let $y (Gather $shape (Load $input $view (MNum 0)) $untyped $view (MNum 0) 0 (MNum 4)))",
    ),
    "dtype of Scatter": (scatter, UNKNOWN + f"(let $y {UNKNOWN_SCATTER})"),
    "dtype of Sum": (lambda: reduction("SumReduce"), UNKNOWN + "(let $y (Sum (ENil) (MNum 4) $x))"),
    "dtype of Max": (lambda: reduction("MaxReduce"), UNKNOWN + "(let $y (Max (ENil) (MNum 4) $x))"),
    # lower.egg
    "lower Select to a map": (
        lambda: function_of("Select"),
        UNKNOWN.replace("$x ", "$i ")
        + "(let $x (Load $input $view (MNum 0))) (let $y (Select $shape $x $x $x))",  # the condition is F32
    ),
    "lower a copy to a map": (copy, cast),
    "lower Cast to a map": (cast, copy),
    "lower Iota to a map": (iotas, copy),
    "lower Gather to a map": (gather, copy),
    "lower Scatter to a loop of writes": (scatter, UNKNOWN + f"(let $y {UNKNOWN_SCATTER})"),
    "lower Sum along the summed axis": (
        lambda: reduction("SumReduce"),
        UNKNOWN + "(let $y (Sum (ENil) (MNum 4) $x))",
    ),
    "lower Sum along the kept axis": (lambda: reduction("SumReduce"), lambda: reduction("SumReduce", (4,))),
    "lower Max along the reduced axis": (
        lambda: reduction("MaxReduce"),
        UNKNOWN + "(let $y (Max (ENil) (MNum 4) $x))",
    ),
    "lower Max along the kept axis": (lambda: reduction("MaxReduce"), lambda: reduction("MaxReduce", (4,))),
    "lower CustomOp to an opaque call": (UNKNOWN + "(let $y (CustomOp 0 $shape (RNil) (F32)))", copy),
    # fuse/
    "inline an elementwise producer": (lambda: function_of("Sqrt"), stored_sum),
    "constant along the last axis": ("(let $l (ECons (MNum 0) (ENil)))", "(let $l (ECons (MIter) (ENil)))"),
    "constant along the last axis, of a longer list": (
        "(let $l (ECons (MIter) (ECons (MNum 0) (ENil))))",
        "(let $l (ECons (MNum 0) (ECons (MIter) (ENil))))",
    ),
    "sum once per row of its consumer": (
        lambda: per_row("SumReduce"),
        lambda: per_row("SumReduce", axis=0),  # another sum for each element of the row
    ),
    "max once per row of its consumer": (lambda: per_row("MaxReduce"), lambda: per_row("MaxReduce", axis=0)),
    "go on where a sum ends": (lambda: behind("SumReduce"), lambda: behind("SumReduce", part=5)),
    "go on where a max ends": (lambda: behind("MaxReduce"), lambda: behind("MaxReduce", part=5)),
    "sgemm: epilogue in place of the result": (biased, lambda: biased(dt.F64)),
    "dgemm: epilogue in place of the result": (lambda: biased(dt.F64), biased),
    "scatter in place of the data": (scatter, lambda: scatter(turned=True)),
    # clean_up.egg
    "clean up Select": (lambda: function_of("Select"), UNKNOWN + "(let $y (Select $shape $x $x $x))"),
    "clean up Cast": (cast, UNKNOWN + "(let $y (Cast $shape $x (I32)))"),
    "clean up Iota": (iotas, copy),
    "clean up Gather": (gather, UNKNOWN + "(let $y (Gather $shape $x $untyped $view (MNum 0) 0 (MNum 4)))"),
    "clean up Scatter": (scatter, UNKNOWN + f"(let $y {UNKNOWN_SCATTER})"),
    "clean up Sum": (lambda: reduction("SumReduce"), UNKNOWN + "(let $y (Sum (ENil) (MNum 4) $x))"),
    "clean up Max": (lambda: reduction("MaxReduce"), UNKNOWN + "(let $y (Max (ENil) (MNum 4) $x))"),
    # matmul.egg
    "recognize matmul: no batch axis": (
        lambda: plain(4, 5, 6),
        lambda: multiplied((Z * 6, ZERO, Z), (ZERO, Z, Z * 5), (4, 5, 6), sum_shape=(3, 5)),  # of a part of the rows
    ),
    "recognize matmul: one batch axis": (
        lambda: batched((2,), [Z * 24], [Z * 30]),
        lambda: multiplied(  # both operands move along n
            (Z * 24, Z * 6, Z, Z), (Z * 30, ZERO, Z, Z * 5), (2, 4, 5, 6)
        ),
    ),
    "recognize matmul: two batch axes": (
        lambda: batched((2, 3), [Z * 72, Z * 24], [Z * 90, Z * 30]),
        lambda: multiplied(  # the first operand does not move along n, but the second one along m
            (Z * 72, Z * 24, Z * 6, ZERO, Z), (Z * 90, Z * 30, Z, Z, Z * 5), (2, 3, 4, 5, 6)
        ),
    ),
    "recognize matmul: three batch axes": (
        lambda: batched((2, 2, 2), [Z * 96, Z * 48, Z * 24], [Z * 120, Z * 60, Z * 30]),
        lambda: batched((1, 2, 2, 2), [ZERO, Z * 96, Z * 48, Z * 24], [ZERO, Z * 120, Z * 60, Z * 30]),
    ),
    # flatten/
    "matmul flattening: squeeze leading 1": (
        lambda: batched((1, 2), [ZERO, Z * 24], [ZERO, Z * 30]),
        lambda: batched((2, 1), [Z * 24, ZERO], [Z * 30, ZERO]),
    ),
    "matmul flattening: squeeze second 1": (
        lambda: batched((2, 1), [Z * 24, ZERO], [Z * 30, ZERO]),
        lambda: batched((2, 3, 1), [Z * 72, Z * 24, ZERO], [Z * 90, Z * 60, ZERO]),
    ),
    "matmul flattening: squeeze third 1": (
        lambda: batched((2, 3, 1), [Z * 72, Z * 24, ZERO], [Z * 90, Z * 60, ZERO]),
        lambda: batched((2, 1, 3), [Z * 72, ZERO, Z * 24], [Z * 90, ZERO, Z * 60]),
    ),
    "prepare batch merge: A and B contiguous": (
        lambda: batched((2, 3), [Z * 72, Z * 24], [Z * 90, Z * 30]),
        lambda: batched((2, 3), [Z * 72, Z * 24], [Z * 90, ZERO]),
    ),
    "matmul flattening: merge batch, A and B contiguous": (
        lambda: batched((2, 3), [Z * 72, Z * 24], [Z * 90, Z * 30]),
        lambda: batched((2, 3), [Z * 72, Z * 24], [Z * 100, Z * 30]),  # a gap between B's groups of three
    ),
    "prepare batch merge: A contiguous, B broadcast": (
        lambda: batched((2, 3), [Z * 72, Z * 24], [ZERO, ZERO]),
        lambda: batched((2, 3), [Z * 72, Z * 24], [ZERO, Z * 30]),
    ),
    "matmul flattening: merge batch, A contiguous, B broadcast": (
        lambda: batched((2, 3), [Z * 72, Z * 24], [ZERO, ZERO]),
        lambda: batched((2, 3), [Z * 24, Z * 48], [ZERO, ZERO]),  # the batch axes of A are swapped
    ),
    "prepare row merge: A contiguous, B broadcast": (
        lambda: batched((2,), [Z * 24], [ZERO]),
        lambda: batched((2,), [Z * 24], [Z * 30]),
    ),
    "matmul flattening: merge batch into rows, A contiguous, B broadcast": (
        lambda: batched((2,), [Z * 24], [ZERO]),
        lambda: batched((2,), [Z * 30], [ZERO]),  # a gap between A's matrices
    ),
    "matmul flattening: batch of single rows, B broadcast": (
        lambda: batched((3,), [Z * 6], [ZERO], m=1),
        lambda: batched((3,), [Z * 6], [Z * 30], m=1),
    ),
    "prepare batch merge: B contiguous, A broadcast": (
        lambda: batched((2, 3), [ZERO, ZERO], [Z * 90, Z * 30]),
        lambda: batched((2, 3), [ZERO, Z * 24], [Z * 90, Z * 30]),
    ),
    "matmul flattening: merge batch, B contiguous, A broadcast": (
        lambda: batched((2, 3), [ZERO, ZERO], [Z * 90, Z * 30]),
        lambda: batched((2, 3), [ZERO, ZERO], [Z * 30, Z * 60]),
    ),
    # exact_integers.egg
    "exact integer matmul in F32": (
        lambda: byte_matmul(4, 5, 6, zero=7, scaled=True),
        lambda: byte_matmul(4, 5, 600),  # 128 * 255 * 600 is beyond 2^24
    ),
    "exact integer matmul in F64": (
        lambda: byte_matmul(4, 5, 600, zero=7),
        lambda: byte_matmul(4, 5, 500, zero=7),  # F32 counts that
    ),
    # blas/
    "sgemm RmRm": (lambda: plain(4, 5, 6), lambda: plain(4, 5, 6, dtype=dt.I32)),
    "sgemm RmCm": (lambda: plain(4, 5, 6, "RmCm"), lambda: plain(4, 5, 6, "RmCm", dt.F64)),
    "sgemm CmRm": (lambda: plain(4, 5, 6, "CmRm"), lambda: plain(4, 5, 6, "CmRm", dt.I64)),
    "sgemm CmCm": (lambda: plain(4, 5, 6, "CmCm"), lambda: plain(4, 5, 6, "CmRm")),
    "sgemm RmRm: row vector": (lambda: plain(1, 5, 6), lambda: plain(1, 5, 6, dtype=dt.F64)),
    "sgemm RmCm: row vector": (lambda: plain(1, 5, 6, "RmCm"), lambda: plain(2, 5, 6, "RmCm")),
    "sgemm RmCm: column vector": (lambda: plain(4, 1, 6, "RmCm"), lambda: plain(4, 1, 6, "RmCm", dt.I32)),
    "sgemm CmCm: column vector": (lambda: plain(4, 1, 6, "CmCm"), lambda: plain(4, 2, 6, "CmCm")),
    **{
        f"dgemm {name}": (
            lambda m=m, n=n, layout=layout: plain(m, n, 6, layout, dt.F64),
            lambda m=m, n=n, layout=layout: plain(m, n, 6, layout),
        )
        for layout in ("RmRm", "RmCm", "CmRm", "CmCm")
        for name, m, n in ((layout, 4, 5), (f"{layout}: row vector", 1, 5), (f"{layout}: column vector", 4, 1))
        if name not in ("RmRm: column vector", "CmRm: row vector", "CmRm: column vector", "CmCm: row vector")
    },
}
for _name, _rule in ops.ELEMENTWISE.items():
    _fires = (lambda name: lambda: function_of(name))(_name)
    _untyped = {1: unary, 2: binary}.get(_rule.arity)
    if _untyped is not None:
        if _name != "LessThan":  # always boolean
            RULES[f"dtype of {_name}"] = (_fires, _untyped(_name))
        RULES[f"lower {_name} to a map"] = (_fires, copy if _name == "LessThan" else _untyped(_name))
        RULES[f"clean up {_name}"] = (_fires, copy if _name == "LessThan" else _untyped(_name))


def test_every_rule_is_in_the_table(saturator: Saturator) -> None:
    assert {r.name for r in saturator.rules} == set(RULES)


def matches_in(saturator: Saturator, program: Program) -> dict[str, int]:
    if isinstance(program, str):
        return matches_of(saturator, program)[0]
    return dict(saturated(saturator, program()).matches)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_fires_where_it_should_and_not_beside_it(saturator: Saturator, name: str) -> None:
    fires, misses = RULES[name]
    assert matches_in(saturator, fires).get(name, 0) > 0
    assert matches_in(saturator, misses).get(name, 0) == 0


GRAPHS: dict[str, Callable[[], Graph]] = {
    f"{name}, {'where it fires' if side == 0 else 'beside it'}": pair[side]  # type: ignore[misc]
    for name, pair in RULES.items()
    for side in (0, 1)
    if not isinstance(pair[side], str)
}


@cache
def already_computed() -> set[str]:
    return set()


@pytest.mark.parametrize("which", GRAPHS)
def test_every_kernel_computes_the_same(saturator: Saturator, which: str) -> None:
    case = saturated(saturator, GRAPHS[which]())
    if case.program.digest not in already_computed():
        already_computed().add(case.program.digest)
        check(case, random_count=4)


def check(case: Case, random_count: int) -> list[list[str]]:
    """All alternatives of every e-class in turn, and genomes at random."""
    rng = random.Random(0)
    genomes = [*forced_genomes(case.space, rng), *(random_genome(case.space, rng) for _ in range(random_count))]
    return assert_computes_the_same(case, genomes or [()])


@pytest.mark.parametrize(
    "text",
    [
        pair[0]
        for name, pair in RULES.items()
        if isinstance(pair[0], str) and pair[0].startswith("(let $e")
    ],
)
def test_expression_rules_keep_the_value(saturator: Saturator, text: str) -> None:
    def value(term: list[object], n: int) -> int:
        match term:
            case ["MNum", number]:
                return int(str(number))
            case ["MVar", _]:
                return n
            case ["MIter"]:
                return n + 4
            case [operator, left, right]:
                a, b = value(left, n), value(right, n)  # type: ignore[arg-type]
                return {"MAdd": a + b, "MMul": a * b, "MDiv": a // max(b, 1), "MMod": a % max(b, 1)}[str(operator)]
        raise AssertionError(term)

    snapshot = matches_of(saturator, text)[1]
    expression_class = snapshot.variables["$e"]
    for n in (1, 2, 7):
        found = ex.evaluate(snapshot.expr(expression_class), {"n": n, "m": n, "z": n + 4})
        assert found == value(parsed(text.removeprefix("(let $e ")[:-1]), n)


def parsed(text: str) -> list[object]:
    tokens = text.replace("(", " ( ").replace(")", " ) ").split()

    def form() -> object:
        token = tokens.pop(0)
        if token != "(":
            return token
        items: list[object] = []
        while tokens[0] != ")":
            items.append(form())
        tokens.pop(0)
        return items

    found = form()
    assert isinstance(found, list)
    return found


# Matmuls


def libraries(case: Case) -> set[str]:
    """Layouts of the library calls in the e-graph."""
    snapshot = case.space.snapshot
    return {
        str(snapshot.literal(snapshot.children(n)[0]))
        for n in range(snapshot.node_count)
        if snapshot.op(n) == "Sgemm"
    }


@pytest.mark.parametrize("mode", ops.SCATTER_MODES)
def test_a_scatter_takes_the_place_of_data_that_nothing_else_reads(saturator: Saturator, mode: str) -> None:
    alone = check(saturated(saturator, scatter(mode)), 8)
    shared = check(saturated(saturator, scatter(mode, again=True)), 8)
    assert ["MapKernel", "ScatterKernel", "MapKernel"] in alone  # the data, the writes, what follows
    assert all(kernels.count("MapKernel") >= 3 for kernels in shared)


@pytest.mark.parametrize("layout", ["RmRm", "RmCm", "CmRm", "CmCm"])
def test_each_layout_is_its_own_library_call(saturator: Saturator, layout: str) -> None:
    case = saturated(saturator, plain(4, 5, 6, layout))
    assert libraries(case) == {layout}
    assert [layout] in check(case, 8)


@pytest.mark.parametrize("dtype", [dt.F64, dt.I32, dt.I64], ids=str)
@pytest.mark.parametrize("layout", ["RmRm", "RmCm", "CmRm", "CmCm"])
def test_only_f32_goes_to_sgemm(saturator: Saturator, layout: str, dtype: DType) -> None:
    case = saturated(saturator, plain(4, 5, 6, layout, dtype))
    assert libraries(case) == set()
    check(case, 4)


@pytest.mark.parametrize("sizes", [(1, 5, 6), (4, 1, 6), (4, 5, 1), (1, 1, 6), (1, 5, 1), (4, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize("layout", ["RmRm", "CmCm"])
def test_thin_matrices(saturator: Saturator, layout: str, sizes: tuple[int, int, int]) -> None:
    check(saturated(saturator, plain(*sizes, layout)), 4)


def test_a_sum_over_part_of_a_product_is_no_matmul(saturator: Saturator) -> None:
    """It reads the product through row-major strides, but its shape is another."""
    for sum_shape in ((3, 5), (4, 2)):
        graph = multiplied((Z * 6, ZERO, Z), (ZERO, Z, Z * 5), (4, 5, 6), sum_shape=sum_shape)
        case = saturated(saturator, graph)
        assert libraries(case) == set()
        check(case, 4)


def test_a_stride_that_is_no_multiple_of_the_iterator_has_no_slope(saturator: Saturator) -> None:
    case = saturated(saturator, multiplied((Z * Z, ZERO, Z), (ZERO, Z, Z * 5), (4, 5, 6)))
    assert libraries(case) == set()
    check(case, 4)


def test_batches_that_step_in_groups_are_one_call(saturator: Saturator) -> None:
    """Each key head serves two query heads: B moves by (z/2)*30."""
    case = saturated(saturator, batched((4,), [Z * 24], [Z // 2 * 30]))
    assert libraries(case) == {"RmRm"}
    ran = check(case, 8)
    assert ["RmRm"] in ran


def extents_of_library_calls(case: Case) -> set[tuple[int | Expr, ...]]:
    """Batch extents and rows of each library call."""
    snapshot = case.space.snapshot
    found: set[tuple[int | Expr, ...]] = set()
    for node in range(snapshot.node_count):
        if snapshot.op(node) == "Sgemm":
            children = snapshot.children(node)
            found.add(tuple(map(ex.as_dim, (*snapshot.shape(children[1]), snapshot.expr(children[2])))))
    return found


N, S = var("n"), var("s")
MERGES = {
    "rows": (batched((2, 3), [Z * 72, Z * 24], [ZERO, ZERO]), (24,)),
    "rows under a leading 1": (batched((1, 2, 3), [ZERO, Z * 72, Z * 24], [ZERO] * 3), (24,)),
    "a batch of columns": (batched((2, 3), [ZERO, ZERO], [Z * 90, Z * 30]), (6, 4)),
    "both move": (batched((2, 3), [Z * 72, Z * 24], [Z * 90, Z * 30]), (6, 4)),
    "both move over three axes": (
        batched((2, 2, 2), [Z * 96, Z * 48, Z * 24], [Z * 120, Z * 60, Z * 30]),
        (8, 4),
    ),
    "a last axis of one": (batched((2, 3, 1), [Z * 72, Z * 24, ZERO], [Z * 90, Z * 60, ZERO]), (2, 3, 4)),
    "a named batch, both move": (batched((N, 3), [Z * 72, Z * 24], [Z * 90, Z * 30]), (N * 3, 4)),
    "a named inner batch, both move": (batched((2, N), [Z * N * 24, Z * 24], [Z * N * 30, Z * 30]), (N * 2, 4)),
    "three axes": (batched((2, 2, 2), [Z * 96, Z * 48, Z * 24], [ZERO] * 3), (32,)),
    "single rows": (batched((3,), [Z * 18], [ZERO], m=1), (3,)),
    "a named batch": (batched((N, 3), [Z * 72, Z * 24], [ZERO, ZERO]), (N * 12,)),
    "a named inner batch": (batched((2, N), [Z * N * 24, Z * 24], [ZERO, ZERO]), (N * 8,)),
    "named rows": (batched((2,), [Z * S * 6], [ZERO], m=S), (S * 2,)),
    "all named": (batched((N,), [Z * S * 6], [ZERO], m=S), (N * S,)),
}
APART = {
    "B moves along one axis": batched((2, 3), [Z * 72, Z * 24], [ZERO, Z * 30]),
    "B is padded": batched((2, 3), [Z * 72, Z * 24], [Z * 100, Z * 30]),
    "both move, A in the other order": batched((2, 3), [Z * 24, Z * 48], [Z * 90, Z * 30]),
    "A is padded": batched((2, 3), [Z * 80, Z * 24], [ZERO, ZERO]),
    "A is transposed": batched((2, 3), [Z * 24, Z * 48], [ZERO, ZERO]),
    "A is broadcast": batched((2, 3), [ZERO, Z * 24], [ZERO, ZERO]),
    "A is grouped": batched((2, 4), [Z * 48, Z // 2 * 24], [ZERO, ZERO]),
    "named, padded": batched((2, N), [Z * N * 30, Z * 24], [ZERO, ZERO]),
}


@pytest.mark.parametrize("which", MERGES)
def test_batches_merge(saturator: Saturator, which: str) -> None:
    graph, wanted = MERGES[which]
    case = saturated(saturator, graph)
    assert wanted in extents_of_library_calls(case)
    check(case, 6)


@pytest.mark.parametrize("which", APART)
def test_batches_stay_apart(saturator: Saturator, which: str) -> None:
    case = saturated(saturator, APART[which])
    assert {len(e) for e in extents_of_library_calls(case)} == {3}
    check(case, 6)


@pytest.mark.parametrize("dims", [{"n": 1, "s": 1}, {"n": 4, "s": 1}, {"n": 2, "s": 7}])
def test_named_dimensions_take_any_value(saturator: Saturator, dims: dict[str, int]) -> None:
    for which in (w for w in MERGES if "named" in w):
        case = saturated(saturator, MERGES[which][0])
        rng = random.Random(1)
        assert_computes_the_same(case, [random_genome(case.space, rng) for _ in range(4)], dims)


@st.composite
def any_matmul(draw: st.DrawFn, dtypes: Sequence[DType] = (dt.F32, dt.F32, dt.F32, dt.F64, dt.I32)) -> Graph:
    """Random sizes, layouts, batch strides (contiguous, swapped, broadcast, grouped, padded), offsets and dtypes."""
    m, n, k = (draw(st.integers(1, 5)) for _ in range(3))
    batch = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
    dtype = draw(st.sampled_from(dtypes))

    def strides(rows: int, columns: int) -> tuple[list[Expr], Expr, Expr]:
        pad = draw(st.sampled_from((0, 0, 1)))
        row, column = (columns + pad, 1) if draw(st.booleans()) else (1, rows + pad)
        if draw(st.integers(0, 9)) == 0:
            row, column = row * 2, column * 2
        if draw(st.integers(0, 9)) == 0:
            row = 0  # every row the same
        order = list(range(len(batch)))
        if draw(st.booleans()):
            order = list(draw(st.permutations(order)))
        step = max(1, rows * max(row, 1) + columns * max(column, 1)) if draw(st.booleans()) else rows * columns
        found: list[Expr] = [ZERO] * len(batch)
        everywhere = draw(st.integers(0, 2)) == 0
        for axis in reversed(order):
            match draw(st.sampled_from(("step", "step", "step", "broadcast", "grouped"))):
                case _ if everywhere:
                    pass
                case "step":
                    found[axis] = Z * step
                    step *= batch[axis]
                case "grouped":
                    found[axis] = Z // 2 * step
                    step *= batch[axis]
        return found, Z * row, Z * column

    a_batch, a_m, a_k = strides(m, k)
    b_batch, b_k, b_n = strides(k, n)
    offsets = (draw(st.integers(0, 3)), draw(st.integers(0, 3)))
    return multiplied(
        (*a_batch, a_m, ZERO, a_k), (*b_batch, ZERO, b_n, b_k), (*batch, m, n, k), dtype, offsets=offsets
    )


@settings(max_examples=40)
@given(graph=any_matmul())
def test_any_matmul_is_computed_right_by_every_kernel(saturator: Saturator, graph: Graph) -> None:
    check(saturated(saturator, graph), 2)


@st.composite
def any_elementwise(draw: st.DrawFn) -> Graph:
    """Values and views of values, reductions and gathers among them: what inlining has to compose."""
    graph = Graph("any")
    rank = draw(st.integers(1, 3))
    shape: Shape = tuple(draw(st.integers(1, 5)) for _ in range(rank))
    values = [graph.add(ops.Input(f"x{i}"), [], shape, dt.F32) for i in range(2)]
    for _ in range(draw(st.integers(1, 6))):
        operands: list[Operand] = []
        source = draw(st.sampled_from(values))
        target = view_of(draw, source)
        kind = draw(st.sampled_from(("Add", "Mul", "Sin", "copy", "Sum", "Max", "gather")))
        match kind:
            case "Add" | "Mul":
                partners = [v for v in values if lay.numel(v.shape) == lay.numel(target.shape)]
                partner = draw(st.sampled_from(partners)) if partners else None
                other = lay.reshape(lay.contiguous(partner.shape), target.shape) if partner else None
                operands = [Operand(source.id, target)]
                operands.append(Operand(partner.id, other) if partner and other else operands[0])
                values.append(graph.add(ops.Elementwise(kind), operands, target.shape, dt.F32))
            case "Sin":
                values.append(graph.add(ops.Elementwise(kind), [Operand(source.id, target)], target.shape, dt.F32))
            case "copy":
                values.append(graph.add(ops.Cast(dt.F32), [Operand(source.id, target)], target.shape, dt.F32))
            case "Sum" | "Max":
                values.append(
                    graph.add(ops.Reduce(f"{kind}Reduce"), [Operand(source.id, target)], target.shape[:-1], dt.F32)
                )
            case "gather":
                axis = draw(st.integers(0, target.rank - 1))
                formula = draw(st.sampled_from((Z, Z // 2, Z * 3, Z % 3)))
                index = graph.add(ops.Iota(formula), [], target.shape, dt.I64)
                values.append(
                    graph.add(ops.Gather(axis), [whole(index), Operand(source.id, target)], target.shape, dt.F32)
                )
    return ended(graph, values[-1], draw(st.sampled_from(values)))


def view_of(draw: st.DrawFn, node: Node) -> Layout:
    """A view of `node` with at least one axis."""
    layout = lay.contiguous(node.shape)
    for _ in range(draw(st.integers(0, 3))):
        axis = draw(st.integers(0, max(0, layout.rank - 1)))
        match draw(st.sampled_from(("flat", "turn", "slice", "back", "spread", "split"))):
            case "flat":
                layout = lay.reshape(layout, (lay.numel(layout.shape),)) or layout
            case "turn":
                layout = lay.permute(layout, draw(st.permutations(range(layout.rank))))
            case "slice" if layout.rank and layout.shape[axis] > 1:  # type: ignore[operator]
                extent = int(layout.shape[axis])  # type: ignore[arg-type]
                start = draw(st.integers(0, extent - 1))
                layout = lay.slice_axis(layout, axis, start, 1, extent - start)
            case "back" if layout.rank:
                extent = int(layout.shape[axis])  # type: ignore[arg-type]
                layout = lay.slice_axis(layout, axis, extent - 1, -1, extent)
            case "spread" if layout.rank < 4:
                layout = lay.insert_axis(layout, axis, 2)
            case "split" if layout.rank and int(layout.shape[axis]) % 2 == 0:  # type: ignore[arg-type]
                half = int(layout.shape[axis]) // 2  # type: ignore[arg-type]
                wanted = (*layout.shape[:axis], 2, half, *layout.shape[axis + 1 :])
                layout = lay.reshape(layout, wanted) or layout
    return layout if layout.rank else lay.insert_axis(layout, 0, 1)


@settings(max_examples=40)
@given(graph=any_elementwise(), seed=st.integers(0, 99))
def test_any_mix_of_views_is_inlined_right(saturator: Saturator, graph: Graph, seed: int) -> None:
    case = saturated(saturator, graph)
    rng = random.Random(seed)
    assert_computes_the_same(case, [random_genome(case.space, rng) for _ in range(6)], seed=seed)
