"""Index expressions as LLVM integers: scalars in i64, lanes in i32 where they are known to fit."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.ir import expr as ex
from workbench.ir.expr import Expr
from workbench.ir.layout import Dim
from workbench.runtime.cpu.builder import Builder, Value

NARROW = 1 << 31


Bounded = tuple[Expr, tuple[tuple[str, Dim], ...]]
"""An expression with the extents of its iterators."""


def bounded(expression: Expr, extents: Mapping[str, Dim]) -> Bounded:
    """`expression` with those extents that bound it."""
    return expression, tuple((name, extents[name]) for name in sorted(ex.iterators_of(expression)))


def is_narrow(lanes: Bounded, dims: Mapping[str, int] | None = None) -> bool | None:
    """Whether an expression, and everything computed on the way, fits the signed integers of 32 bits; None where that
    depends on values of named dimensions and there are no `dims`."""
    expression, extents = lanes
    if dims is None:
        if ex.dims_of(expression) or any(isinstance(extent, Expr) for _, extent in extents):
            return None
        dims = {}
    sizes = {name: ex.sized(extent, dims) for name, extent in extents}
    sizes |= {name: dims[name] + 1 for name in ex.dims_of(expression)}
    return largest(expression, sizes) < NARROW


def largest(expression: Expr, extents: Mapping[str, int]) -> int:
    """A bound on the absolute value of `expression` and of everything computed on the way."""
    total = 0
    inside = 0
    for product, coefficient in expression.terms:
        size = abs(coefficient)
        for atom in product:
            if isinstance(atom, ex.Var):
                size *= max(1, extents[atom.name] - 1)
            else:
                top, divisor = largest(atom.num, extents), largest(atom.den, extents)
                inside = max(inside, top, divisor)
                size *= max(1, top // divisor if isinstance(atom, ex.Quotient) and atom.den.constant else top)
        total += size
    return max(total, inside)


def evaluate(
    b: Builder,
    expression: Expr,
    variables: Mapping[str, Value],
    cache: dict[tuple[str, str, int], Value],
    element: str = "i64",
    width: int = 1,
) -> Value:
    """`expression` over `variables`, which all have the type asked for. Divisions are unsigned: numerators are never
    negative. No division by a named dimension traps, and those of lanes are by way of f64, which is exact for integers
    of 32 bits and has instructions for vectors. `cache` keeps products and quotients by their text."""
    total: Value | None = None
    constant = 0
    for product, coefficient in expression.terms:
        if not product:
            constant = coefficient
            continue
        key = ("*".join([a.key for a in product] + [str(coefficient)]), element, width)
        value = cache.get(key)
        if value is None:
            value = _product(b, product, coefficient, variables, cache, element, width)
            cache[key] = value
        total = value if total is None else b.binary("add", total, value)
    if total is None:
        return b.constant(element, constant, width)
    return b.binary("add", total, b.like(total, constant)) if constant else total


def _product(
    b: Builder,
    product: ex.Product,
    coefficient: int,
    variables: Mapping[str, Value],
    cache: dict[tuple[str, str, int], Value],
    element: str,
    width: int,
) -> Value:
    total: Value | None = None
    for atom in product:
        if isinstance(atom, ex.Var):
            value = variables[atom.name]
        else:
            key = (f"({atom.key})", element, width)
            known = cache.get(key)
            if known is None:
                numerator = evaluate(b, atom.num, variables, cache, element, width)
                denominator = evaluate(b, atom.den, variables, cache, element, width)
                is_quotient = isinstance(atom, ex.Quotient)
                if atom.den.constant is None:
                    denominator = b.intrinsic("umax", denominator, b.like(denominator, 1))
                if atom.den.constant is None and element == "i32" and width > 1:
                    over = (f"(({atom.num})/({atom.den}))", element, width)
                    if over not in cache:
                        cache[over] = _vector_quotient(b, numerator, denominator)
                    known = cache[over]
                    if not is_quotient:
                        known = b.binary("sub", numerator, b.binary("mul", known, denominator))
                else:
                    known = b.binary("udiv" if is_quotient else "urem", numerator, denominator)
                cache[key] = known
            value = known
        total = value if total is None else b.binary("mul", total, value)
    assert total is not None
    return total if coefficient == 1 else b.binary("mul", total, b.like(total, coefficient))


def _vector_quotient(b: Builder, numerator: Value, denominator: Value) -> Value:
    """The quotient of i32 lanes. An f64 quotient that is no integer is further from one than it is rounded."""
    over, under = (b.convert("sitofp", value, "double") for value in (numerator, denominator))
    return b.convert("fptosi", b.binary("fdiv", over, under), "i32")
