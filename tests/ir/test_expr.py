"""Index expressions against plain Python arithmetic: one canonical form, and simplification that stays equal."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from workbench.ir import expr as ex
from workbench.ir.expr import Expr, Quotient, Remainder, Z, const, var

DIMS = ("n", "m")
EXTENTS: dict[str, int | Expr] = {"z": var("n"), "#0": 12, "#1": var("m") * 3}
"""Iterators and what bounds them; named dimensions are at least 1."""

Tree = tuple[Any, ...]
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}
POSITIVE = st.one_of(
    st.integers(1, 9).map(lambda v: ("const", v)),
    st.sampled_from(DIMS).map(lambda name: ("var", name)),
    st.tuples(st.sampled_from(DIMS), st.integers(1, 4)).map(lambda p: ("*", ("var", p[0]), ("const", p[1]))),
)
LEAVES = st.one_of(
    st.integers(0, 12).map(lambda v: ("const", v)),
    st.sampled_from((*DIMS, *EXTENTS)).map(lambda name: ("var", name)),
    # an axis read backwards
    st.just(("-", ("-", ("var", "n"), ("const", 1)), ("var", "z"))),
)
NATURAL = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("+*"), inner, inner),
        st.tuples(st.sampled_from(("//", "%")), inner, POSITIVE),
    ),
    max_leaves=7,
)
"""Expressions that are never negative within EXTENTS, as trees."""
INTEGER = st.one_of(NATURAL, st.tuples(st.sampled_from("+-*"), NATURAL, NATURAL))


@st.composite
def values_within(draw: st.DrawFn) -> dict[str, int]:
    values = {name: draw(st.integers(1, 7)) for name in DIMS}
    return values | {name: draw(st.integers(0, ex.evaluate(top, values) - 1)) for name, top in EXTENTS.items()}


def python_value(tree: Tree, values: Mapping[str, int]) -> int:
    match tree:
        case ("const", value):
            return int(value)
        case ("var", name):
            return values[name]
        case (sign, left, right):
            return int(OPERATIONS[sign](python_value(left, values), python_value(right, values)))
    raise AssertionError(tree)


def expression(tree: Tree, extents: Mapping[str, int | Expr] | None = None) -> Expr:
    match tree:
        case ("const", value):
            return const(value)
        case ("var", name):
            return var(name)
        case ("//", left, right):
            return ex.floordiv(expression(left, extents), expression(right, extents), extents)
        case ("%", left, right):
            return ex.mod(expression(left, extents), expression(right, extents), extents)
        case (sign, left, right):
            result: Expr = OPERATIONS[sign](expression(left, extents), expression(right, extents))
            return result
    raise AssertionError(tree)


def numerators(a: Expr) -> list[Expr]:
    atoms = [atom for product, _ in a.terms for atom in product if isinstance(atom, Quotient | Remainder)]
    return [atom.num for atom in atoms] + [n for atom in atoms for n in numerators(atom.num)]


@settings(max_examples=120)
@given(INTEGER, values_within())
def test_the_canonical_form_is_equal_to_the_arithmetic_it_was_built_from(tree: Tree, values: dict[str, int]) -> None:
    assert ex.evaluate(expression(tree), values) == python_value(tree, values)


@settings(max_examples=120)
@given(INTEGER, values_within())
def test_simplifying_under_extents_changes_no_value_in_range(tree: Tree, values: dict[str, int]) -> None:
    assert ex.evaluate(expression(tree, EXTENTS), values) == python_value(tree, values)


@settings(max_examples=120)
@given(NATURAL, values_within())
def test_numerators_stay_non_negative(tree: Tree, values: dict[str, int]) -> None:
    """Compiled code divides unsigned integers."""
    for extents in (None, EXTENTS):
        assert all(ex.evaluate(n, values) >= 0 for n in numerators(expression(tree, extents)))


@settings(max_examples=100)
@given(INTEGER, INTEGER, values_within())
def test_equal_forms_are_one_object(left: Tree, right: Tree, values: dict[str, int]) -> None:
    a, b = expression(left), expression(right)
    assert a + b is b + a
    assert a * b is b * a
    assert expression(left) is a
    assert a - a is const(0)
    if a is b:
        assert python_value(left, values) == python_value(right, values)


@settings(max_examples=120)
@given(INTEGER, st.dictionaries(st.sampled_from(("z", "#0", "#1")), NATURAL, min_size=1), values_within())
def test_substitution_puts_values_in_place_of_variables(
    tree: Tree, replaced: dict[str, Tree], values: dict[str, int]
) -> None:
    inner = values | {name: python_value(new, values) for name, new in replaced.items()}
    assume("z" not in replaced or inner["z"] < values["n"])  # what is replaced keeps to its own range
    result = ex.substitute(expression(tree), {name: expression(new) for name, new in replaced.items()}, EXTENTS)
    assert ex.evaluate(result, values) == python_value(tree, inner)
    assert all(ex.evaluate(n, values) >= 0 for n in numerators(result))


@settings(max_examples=120)
@given(INTEGER, values_within())
def test_an_upper_bound_is_never_exceeded(tree: Tree, values: dict[str, int]) -> None:
    bound = ex.upper_bound(expression(tree), EXTENTS)
    if bound is not None:
        assert python_value(tree, values) <= ex.evaluate(bound, values)


@settings(max_examples=100)
@given(NATURAL, NATURAL, st.booleans(), values_within())
def test_what_is_shown_to_be_below_a_limit_is_below_it(
    tree: Tree, more: Tree, near: bool, values: dict[str, int]
) -> None:
    """Limits near the bound, where a wrong step would show, as well as any."""
    a, limit = expression(tree), expression(more)
    if near and (top := ex.upper_bound(a, EXTENTS)) is not None:
        limit = top + limit
    if ex.is_below(a, limit, EXTENTS):
        assert 0 <= ex.evaluate(a, values) < ex.evaluate(limit, values)


def test_a_quotient_may_be_zero_in_a_limit() -> None:
    n = var("n")
    assert not ex.is_below(const(1), n % 4 + 1, {})
    assert not ex.is_below(const(0), n // 2, {})
    assert not ex.is_below(const(0), Z, {})
    assert ex.is_below(const(0), n, {})
    assert ex.is_below(Z, n * 2, {"z": n})
    assert ex.is_below(n - 1 - Z, n, {"z": n})
    assert not ex.is_below(n - 2 - Z, n, {"z": n})


def test_a_flipped_axis_is_its_own_remainder() -> None:
    """What negative steps leave behind is still known to be in range."""
    n = var("n")
    flipped = n - 1 - Z
    assert ex.mod(flipped, n, {"z": n}) is flipped
    assert ex.floordiv(flipped, n, {"z": n}) is const(0)
    assert ex.mod(7 - Z, const(8), {"z": 8}) is 7 - Z
    assert ex.floordiv(flipped + var("#0") * n, n, {"z": n}) is var("#0")


def test_split_indices_come_back_together() -> None:
    assert (Z // 8) * 8 + Z % 8 is Z
    n = var("n")
    assert (Z // n) * n + Z % n is Z
    assert ex.floordiv(var("#0") * 8 + var("#1"), const(8), {"#1": 8}) is var("#0")
    assert ex.mod(var("#0") * 8 + var("#1"), const(8), {"#1": 8}) is var("#1")


@pytest.mark.parametrize("name", ['a"b', "a\nb", "a+b", "(z)/(2)", "größe", "", "a b", "2 "])
def test_a_name_that_reads_like_something_else_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name of a dimension"):
        var(name)


def test_a_name_made_of_digits_is_not_the_number() -> None:
    n = var("n")
    assert var("12") // n is not const(12) // n
    assert ex.evaluate(var("12") // n, {"n": 2, "12": 30}) == 15


@pytest.mark.parametrize(
    ("a", "text"),
    [
        (const(0), "(MNum 0)"),
        (const(-3), "(MNum -3)"),
        (Z, "(MIter)"),
        (Z * 64, "(MMul (MIter) (MNum 64))"),
        (Z * var("n"), '(MMul (MIter) (MVar "n"))'),
        (Z * var("a") * 4, '(MMul (MIter) (MMul (MVar "a") (MNum 4)))'),
        (Z // 2 * 8, "(MMul (MDiv (MIter) (MNum 2)) (MNum 8))"),
        (Z % 2, "(MMod (MIter) (MNum 2))"),
        (Z + 3, "(MAdd (MIter) (MNum 3))"),
    ],
)
def test_rules_can_rely_on_the_shape_of_a_term(a: Expr, text: str) -> None:
    assert ex.to_egglog(a) == text


def test_the_slope_of_an_affine_stride() -> None:
    n = var("n")
    assert ex.coefficient_of(Z * n * 4, "z") is n * 4
    assert ex.coefficient_of(const(0), "z") is const(0)
    for other in (Z + 1, Z * Z, Z // 2, Z * (Z // 2), Z % 3 + Z):
        assert ex.coefficient_of(other, "z") is None


def test_variables_and_evaluation_over_arrays() -> None:
    import numpy as np

    a = (Z // var("n")) * var("m") + Z % 3
    assert ex.variables(a) == {"z", "n", "m"}
    z = np.arange(20)
    assert (ex.evaluate(a, {"z": z, "n": 4, "m": 7}) == z // 4 * 7 + z % 3).all()
    with pytest.raises(KeyError, match="n"):
        ex.evaluate(a, {"z": 1, "m": 2})


n, m, k = var("n"), var("m"), var("k")


@pytest.mark.parametrize(
    ("a", "b", "left", "right"),
    [
        (n + m, k, n + m, k),
        (n + m, n + k, m, k),
        (n * m * 8, m * k * 4, n * 2, k),
        (n - m, const(0), n, m),
        (n, n, const(0), const(0)),
    ],
)
def test_the_sides_of_an_equation_without_what_both_have(a: Expr, b: Expr, left: Expr, right: Expr) -> None:
    assert ex.sides(a, b) == (left, right)


def test_the_name_of_a_variable_and_of_nothing_else() -> None:
    assert [ex.name_of(e) for e in (n, n + 1, n * m, const(3), 3)] == ["n", None, None, None, None]
