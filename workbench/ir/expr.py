"""Index expressions: integer polynomials over named dimensions and iterators, with floor division and modulo.

Every expression is kept in one canonical form (a sum of products with integer coefficients, sorted), and equal
forms are the same object, so equality is identity and the e-graph needs little algebra of its own.
`z` (MIter in egglog) is the iterator of the axis that an expression belongs to. All dimensions are at least 1 and
all iterators at least 0; numerators of `/` and `%` are non-negative wherever they are evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import gcd
from typing import Any

ITER = "z"
AXIS_MARK = "#"
"""The names of iterators other than `z` begin with it."""
_NAME = re.compile(r"#?[A-Za-z0-9_.]+")


class Var:
    """A named atom: a dimension, or the iterator of an axis."""

    __slots__ = ("key", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.key = name


class Quotient:
    """The atom `num / den` (floor division)."""

    __slots__ = ("den", "key", "num")

    def __init__(self, num: Expr, den: Expr) -> None:
        self.num, self.den = num, den
        self.key = f"({num})/({den})"


class Remainder:
    """The atom `num % den`."""

    __slots__ = ("den", "key", "num")

    def __init__(self, num: Expr, den: Expr) -> None:
        self.num, self.den = num, den
        self.key = f"({num})%({den})"


Atom = Var | Quotient | Remainder
Product = tuple[Atom, ...]
_ATOMS: dict[tuple[object, ...], Atom] = {}
_EXPRS: dict[tuple[tuple[Product, int], ...], Expr] = {}


class Expr:
    """A canonical integer expression. Build with operators, `const`, `var`, `floordiv` and `mod`."""

    __slots__ = ("_egglog", "_text", "terms")
    terms: tuple[tuple[Product, int], ...]
    _text: str | None
    _egglog: str | None

    def __add__(self, other: int | Expr) -> Expr:
        return add(self, as_expr(other))

    __radd__ = __add__

    def __sub__(self, other: int | Expr) -> Expr:
        return add(self, mul(as_expr(other), MINUS_ONE))

    def __rsub__(self, other: int | Expr) -> Expr:
        return add(as_expr(other), mul(self, MINUS_ONE))

    def __neg__(self) -> Expr:
        return mul(self, MINUS_ONE)

    def __mul__(self, other: int | Expr) -> Expr:
        return mul(self, as_expr(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: int | Expr) -> Expr:
        return floordiv(self, as_expr(other))

    def __rfloordiv__(self, other: int) -> Expr:
        return floordiv(as_expr(other), self)

    def __mod__(self, other: int | Expr) -> Expr:
        return mod(self, as_expr(other))

    def __rmod__(self, other: int) -> Expr:
        return mod(as_expr(other), self)

    @property
    def constant(self) -> int | None:
        """The value, when the expression is a plain integer."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None

    def __repr__(self) -> str:
        return f"Expr({self})"

    def __str__(self) -> str:
        if self._text is None:
            self._text = "+".join(_product_text(p, c) for p, c in self.terms).replace("+-", "-") or "0"
        return self._text


def _product_text(product: Product, coefficient: int) -> str:
    names = [a.key if isinstance(a, Var) else f"({a.key})" for a in product]
    if not names:
        return str(coefficient)
    if coefficient == 1:
        return "*".join(names)
    return "-" + "*".join(names) if coefficient == -1 else "*".join([*names, str(coefficient)])


def _intern(terms: Mapping[Product, int]) -> Expr:
    items = tuple(sorted(((p, c) for p, c in terms.items() if c), key=_term_order))
    found = _EXPRS.get(items)
    if found is None:
        found = object.__new__(Expr)
        found.terms, found._text, found._egglog = items, None, None
        _EXPRS[items] = found
    return found


def _term_order(term: tuple[Product, int]) -> tuple[int, list[str]]:
    return (-len(term[0]), [a.key for a in term[0]])


def _atom(make: type[Var] | type[Quotient] | type[Remainder], *args: Any) -> Atom:
    """The one atom of this make and parts. Keyed by its parts, not its text: a dimension may be called `12`."""
    found = _ATOMS.get((make, *args))
    if found is None:
        found = _ATOMS[make, *args] = make(*args)
    return found


@lru_cache(maxsize=65536)
def const(value: int) -> Expr:
    """The integer `value` as an expression."""
    return _intern({(): int(value)})


@lru_cache(maxsize=65536)
def var(name: str) -> Expr:
    """The named dimension or iterator `name`. Raises ValueError for a name that could read as something else."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a dimension: letters, digits, _ and . are allowed")
    return _intern({(_atom(Var, name),): 1})


MINUS_ONE = const(-1)
ZERO = const(0)
ONE = const(1)
Z = var(ITER)


def as_expr(value: int | Expr) -> Expr:
    """`value` as an expression; integers are wrapped."""
    return value if isinstance(value, Expr) else const(int(value))


def as_dim(value: int | Expr) -> int | Expr:
    """`value` as a plain int where it is one."""
    if isinstance(value, Expr):
        known = value.constant
        return value if known is None else known
    return int(value)


@lru_cache(maxsize=65536)
def add(a: Expr, b: Expr) -> Expr:
    """`a + b`; `(x/c)*c + x%c` folds back to `x`."""
    terms = dict(a.terms)
    for product, coefficient in b.terms:
        terms[product] = terms.get(product, 0) + coefficient
    _recombine(terms)
    return _intern(terms)


def _recombine(terms: dict[Product, int]) -> None:
    for product in [p for p in terms if p and any(isinstance(a, Remainder) for a in p)]:
        coefficient = terms.get(product, 0)
        for atom in product:
            if not isinstance(atom, Remainder) or not coefficient:
                continue
            rest = list(product)
            rest.remove(atom)
            quotient = _ATOMS.get((Quotient, atom.num, atom.den))
            if quotient is None:
                continue
            partners = {
                tuple(sorted([*rest, quotient, *p], key=lambda a: a.key)): coefficient * c for p, c in atom.den.terms
            }
            if all(terms.get(p) == c for p, c in partners.items()):
                for p in partners:
                    del terms[p]
                terms[product] = 0
                scale = _intern({tuple(rest): coefficient})
                for p, c in mul(scale, atom.num).terms:
                    terms[p] = terms.get(p, 0) + c
                break


@lru_cache(maxsize=65536)
def mul(a: Expr, b: Expr) -> Expr:
    """`a * b`, multiplied out."""
    if b is ONE:
        return a
    if a is ONE:
        return b
    terms: dict[Product, int] = {}
    for pa, ca in a.terms:
        for pb, cb in b.terms:
            product = tuple(sorted((*pa, *pb), key=lambda atom: atom.key))
            terms[product] = terms.get(product, 0) + ca * cb
    return _intern(terms)


def _split_by(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """`(q, r)` with `a == q*b + r`, where q takes every term that is syntactically a multiple of b.

    Nothing is taken where r would have a negative term: numerators stay non-negative, as generated code needs."""
    quotient, rest = _split_terms(a, b)
    return (ZERO, a) if any(c < 0 for _, c in rest.terms) else (quotient, rest)


def _split_terms(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    if len(b.terms) != 1:
        return _split_by_sum(a, b)
    (b_product, b_coefficient) = b.terms[0]
    quotient: dict[Product, int] = {}
    rest: dict[Product, int] = {}
    for product, coefficient in a.terms:
        remaining = list(product)
        try:
            for atom in b_product:
                remaining.remove(atom)
        except ValueError:
            rest[product] = coefficient
            continue
        whole, left = divmod(coefficient, b_coefficient)
        if whole:
            quotient[tuple(remaining)] = whole
        if left:
            rest[product] = left
    return _intern(quotient), _intern(rest)


def _split_by_sum(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """As `_split_terms` for a sum b: q takes what multiplies all of its terms. Sums with negative terms divide only
    themselves."""
    if a is b:
        return ONE, ZERO
    if any(c < 0 for _, c in b.terms):
        return ZERO, a
    lead, _ = b.terms[0]
    quotient: dict[Product, int] = {}
    rest = dict(a.terms)
    for product, _ in a.terms:
        remaining = list(product)
        try:
            for atom in lead:
                remaining.remove(atom)
        except ValueError:
            continue
        multiple = mul(_intern({tuple(remaining): 1}), b).terms
        whole = min(rest.get(p, 0) // c for p, c in multiple)
        if whole > 0:
            quotient[tuple(remaining)] = whole
            for p, c in multiple:
                rest[p] -= whole * c
    return _intern(quotient), _intern(rest)


def upper_bound(a: Expr, extents: Mapping[str, int | Expr]) -> Expr | None:
    """The largest value `a` takes when each iterator in `extents` runs below its extent, or None when unknown."""
    total = ZERO
    for product, coefficient in a.terms:
        if coefficient < 0:  # atoms are never negative, so the term is at most 0
            total = total if product else add(total, const(coefficient))
            continue
        bound = _product_bound(product, extents)
        if bound is None:
            return None
        total = add(total, mul(bound, const(coefficient)))
    return total


def lower_bound(a: Expr, extents: Mapping[str, int | Expr]) -> Expr | None:
    """A value that `a` never goes below when each iterator in `extents` runs below its extent, or None when unknown."""
    total = ZERO
    for product, coefficient in a.terms:
        if coefficient > 0:
            exact = all(_is_dimension(atom, extents) for atom in product)
            total = add(total, _intern({product: coefficient})) if exact else total
            continue
        bound = _product_bound(product, extents)
        if bound is None:
            return None
        total = add(total, mul(bound, const(coefficient)))
    return total


def _product_bound(product: Product, extents: Mapping[str, int | Expr]) -> Expr | None:
    bound = ONE
    for atom in product:
        top = _atom_bound(atom, extents)
        if top is None:
            return None
        bound = mul(bound, top)
    return bound


def _atom_bound(atom: Atom, extents: Mapping[str, int | Expr]) -> Expr | None:
    if isinstance(atom, Var):
        extent = extents.get(atom.name)
        return _intern({(atom,): 1}) if extent is None else add(as_expr(extent), MINUS_ONE)
    top = upper_bound(atom.num if isinstance(atom, Quotient) else atom.den, extents)
    if top is None:
        return None
    if isinstance(atom, Remainder):
        return add(top, MINUS_ONE)
    return top if extents.keys() & _variables(atom.den) else floordiv(top, atom.den)


def _is_dimension(atom: Atom, extents: Mapping[str, int | Expr]) -> bool:
    """Whether `atom` is a named dimension: at least 1, where an iterator, a quotient or a remainder may be 0."""
    return (
        isinstance(atom, Var)
        and atom.name != ITER
        and not atom.name.startswith(AXIS_MARK)
        and atom.name not in extents
    )


def _never_negative(a: Expr, extents: Mapping[str, int | Expr]) -> bool:
    """Whether `a >= 0` can be shown; positive multiples of dimensions can pay for a negative constant."""
    floor = 0
    for product, coefficient in a.terms:
        if product and coefficient < 0:
            return False
        if all(_is_dimension(atom, extents) for atom in product):
            floor += coefficient
    return floor >= 0


def is_below(a: Expr, limit: Expr, extents: Mapping[str, int | Expr]) -> bool:
    """Whether `0 <= a < limit` can be shown from the iterators' extents."""
    top = upper_bound(a, extents)
    if top is None or not _never_negative(add(add(limit, mul(top, MINUS_ONE)), MINUS_ONE), extents):
        return False
    if all(c >= 0 for _, c in a.terms):
        return True
    bottom = lower_bound(a, extents)
    return bottom is not None and _never_negative(bottom, extents)


def at_most(a: int | Expr, b: int | Expr) -> bool:
    """Whether `a <= b` can be shown for all values of the named dimensions, from 1 on."""
    return _never_negative(add(as_expr(b), mul(as_expr(a), MINUS_ONE)), {})


def _divide(a: Expr, b: Expr, extents: Mapping[str, int | Expr]) -> tuple[Expr, Expr]:
    """As `_split_by`, but r is never negative: what is subtracted, as in an axis read backwards, stays whole."""
    below = {p: c for p, c in a.terms if c < 0}
    if not below:
        return _split_by(a, b)
    quotient, rest = _split_by(_intern({p: c for p, c in a.terms if c > 0}), b)
    rest = add(rest, _intern(below))
    for q, r in ((quotient, rest), (add(quotient, MINUS_ONE), add(rest, b))):
        bottom = lower_bound(r, extents)
        if bottom is not None and _never_negative(bottom, extents):
            return q, r
    quotient, rest = _split_by(a, b)
    return (quotient, rest) if all(c > 0 for _, c in rest.terms) else (ZERO, a)


def floordiv(a: Expr, b: Expr, extents: Mapping[str, int | Expr] | None = None) -> Expr:
    """`a / b` rounded down; `extents` bounds the iterators so that more can be removed. Raises ZeroDivisionError."""
    if b is ONE:
        return a
    if b is ZERO:
        raise ZeroDivisionError(f"({a}) / 0")
    ca, cb = a.constant, b.constant
    if ca is not None and cb:
        return const(ca // cb)
    quotient, rest = _divide(a, b, extents or {})
    if rest is ZERO or is_below(rest, b, extents or {}):
        return quotient
    if quotient is not ZERO:
        return add(quotient, floordiv(rest, b, extents))
    shared = _shared_factor(rest, b, extents or {})
    if shared is not None:
        return floordiv(_split_by(rest, shared)[0], _split_by(b, shared)[0], extents)
    if len(rest.terms) == 1 and len(rest.terms[0][0]) == 1 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0][0]
        if isinstance(atom, Quotient):
            return floordiv(atom.num, mul(atom.den, b), extents)
        if isinstance(atom, Remainder):
            outer, left = _split_by(atom.den, b)
            if left is ZERO:
                return mod(floordiv(atom.num, b, extents), outer, extents)
    return _intern({(_atom(Quotient, rest, b),): 1})


def mod(a: Expr, b: Expr, extents: Mapping[str, int | Expr] | None = None) -> Expr:
    """`a % b`; `extents` bounds the iterators so that more can be removed. Raises ZeroDivisionError."""
    if b is ONE:
        return ZERO
    if b is ZERO:
        raise ZeroDivisionError(f"({a}) % 0")
    ca, cb = a.constant, b.constant
    if ca is not None and cb:
        return const(ca % cb)
    _, rest = _divide(a, b, extents or {})
    if rest is ZERO or is_below(rest, b, extents or {}):
        return rest
    if len(rest.terms) == 1 and len(rest.terms[0][0]) == 1 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0][0]
        if isinstance(atom, Remainder) and _split_by(atom.den, b)[1] is ZERO:
            return mod(atom.num, b, extents)
    shared = _shared_factor(rest, b, extents or {})
    if shared is not None:
        whole, left = _split_by(rest, shared)
        return add(mul(shared, mod(whole, _split_by(b, shared)[0], extents)), left)
    return _intern({(_atom(Remainder, rest, b),): 1})


def _shared_factor(a: Expr, b: Expr, extents: Mapping[str, int | Expr]) -> Expr | None:
    """The largest integer over 1 that divides b, and a but for a part that stays below it: `(4*x+y)/8` is `x/2` and
    `(4*x+y)%8` is `4*(x%2)+y`, where y is below 4."""
    divides = gcd(*(c for _, c in b.terms))
    for factor in sorted({gcd(divides, c) for _, c in a.terms}, reverse=True):
        shared = const(factor)
        if factor > 1 and ((left := _split_by(a, shared)[1]) is ZERO or is_below(left, shared, extents)):
            return shared
    return None


def substitute(
    a: Expr, values: Mapping[str, int | Expr], extents: Mapping[str, int | Expr] | None = None
) -> Expr:
    """`a` with the variables in `values` replaced, re-simplified under `extents` of the new iterators."""
    total = ZERO
    for product, coefficient in a.terms:
        term = const(coefficient)
        for atom in product:
            if isinstance(atom, Var):
                replacement = values.get(atom.name)
                term = mul(term, _intern({(atom,): 1}) if replacement is None else as_expr(replacement))
            else:
                num, den = substitute(atom.num, values, extents), substitute(atom.den, values, extents)
                divide = floordiv if isinstance(atom, Quotient) else mod
                term = mul(term, divide(num, den, extents))
        total = add(total, term)
    return total


def evaluate(a: int | Expr, values: Mapping[str, Any]) -> Any:
    """The value of `a` with every variable bound to an int or an integer array (arrays broadcast).

    Raises KeyError naming the first variable that has no value."""
    if not isinstance(a, Expr):
        return a
    total: Any = 0
    for product, coefficient in a.terms:
        term: Any = coefficient
        for atom in product:
            if isinstance(atom, Var):
                term = term * values[atom.name]
            elif isinstance(atom, Quotient):
                term = term * (evaluate(atom.num, values) // evaluate(atom.den, values))
            else:
                term = term * (evaluate(atom.num, values) % evaluate(atom.den, values))
        total = total + term
    return total


def variables(a: int | Expr) -> frozenset[str]:
    """Names of all variables in `a`."""
    if not isinstance(a, Expr):
        return frozenset()
    return _variables(a)


@lru_cache(maxsize=65536)
def _variables(a: Expr) -> frozenset[str]:
    names: set[str] = set()
    for product, _ in a.terms:
        for atom in product:
            names |= {atom.name} if isinstance(atom, Var) else _variables(atom.num) | _variables(atom.den)
    return frozenset(names)


def divisors(a: int | Expr) -> Iterator[Expr]:
    """Everything that evaluating `a` divides by."""
    if isinstance(a, Expr):
        for product, _ in a.terms:
            for atom in product:
                if not isinstance(atom, Var):
                    yield atom.den
                    yield from divisors(atom.num)
                    yield from divisors(atom.den)


def name_of(a: int | Expr) -> str | None:
    """The name of the variable that `a` is; None where it is more than that."""
    names = variables(a)
    name = next(iter(names)) if len(names) == 1 else None
    return name if name is not None and a is var(name) else None


def sides(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Two expressions that are equal where `a` and `b` are, without what both have: terms, and factors of products."""
    rest = add(a, mul(b, MINUS_ONE)).terms
    left = _intern({product: c for product, c in rest if c > 0})
    right = _intern({product: -c for product, c in rest if c < 0})
    if len(left.terms) != 1 or len(right.terms) != 1:
        return left, right
    (first, c), (second, d) = left.terms[0], right.terms[0]
    kept, shared = list(second), []
    for atom in first:
        if atom in kept:
            kept.remove(atom)
            shared.append(atom)
    over = list(first)
    for atom in shared:
        over.remove(atom)
    common = gcd(c, d)
    return _intern({tuple(over): c // common}), _intern({tuple(kept): d // common})


def coefficient_of(a: Expr, name: str) -> Expr | None:
    """`c` when `a == name*c` with c free of `name` (the stride of an affine axis), else None."""
    total: dict[Product, int] = {}
    for product, coefficient in a.terms:
        rest = [atom for atom in product if not (isinstance(atom, Var) and atom.name == name)]
        if len(rest) != len(product) - 1:
            return None
        if any(name in _variables(_intern({(atom,): 1})) for atom in rest):
            return None
        total[tuple(rest)] = total.get(tuple(rest), 0) + coefficient
    return _intern(total)


@lru_cache(maxsize=65536)
def size(a: Expr) -> int:
    """How many atoms there are in `a`, those inside of others counted with repetition."""
    total = 0
    for product, _ in a.terms:
        for atom in product:
            total += 1 if isinstance(atom, Var) else 1 + size(atom.num) + size(atom.den)
    return total


def slope(a: Expr, name: str) -> Expr | None:
    """`c` when `a == name*c + rest` with c and rest free of `name`: how far one step of it moves; else None."""
    total: dict[Product, int] = {}
    for product, coefficient in a.terms:
        rest = tuple(atom for atom in product if not (isinstance(atom, Var) and atom.name == name))
        if any(name in _variables(atom.num) | _variables(atom.den) for atom in rest if not isinstance(atom, Var)):
            return None
        if len(rest) < len(product) - 1:
            return None
        if len(rest) < len(product):
            total[rest] = total.get(rest, 0) + coefficient
    return _intern(total)


def is_dim(name: str) -> bool:
    """Whether a variable of this name is a named dimension, not an iterator."""
    return name != ITER and not name.startswith(AXIS_MARK)


def dims_of(a: int | Expr) -> frozenset[str]:
    """The named dimensions in `a`."""
    return frozenset(filter(is_dim, variables(a)))


def iterators_of(a: int | Expr) -> frozenset[str]:
    """The iterators in `a`."""
    return variables(a) - dims_of(a)


def sized(a: int | Expr, dims: Mapping[str, int]) -> int:
    """The value of a size: an expression over named dimensions alone. Raises KeyError for one without a value."""
    return a if isinstance(a, int) else int(evaluate(a, dims))


def bound(a: int | Expr, dims: Mapping[str, int]) -> int | Expr:
    """A size with the named dimensions in `dims` replaced by their values; others stay."""
    if not isinstance(a, Expr):
        return a
    return sized(a, dims) if variables(a) <= dims.keys() else as_dim(substitute(a, dims))


def to_egglog(a: int | Expr) -> str:
    """`a` as an egglog term of sort Expression."""
    a = as_expr(a)
    if a._egglog is None:
        parts = [_product_egglog(p, c) for p, c in a.terms] or ["(MNum 0)"]
        text = parts[0]
        for part in parts[1:]:
            text = f"(MAdd {text} {part})"
        a._egglog = text
    return a._egglog


def _product_egglog(product: Product, coefficient: int) -> str:
    parts = [_atom_egglog(atom) for atom in product]
    # the iterator leads, so that an affine stride always reads (MMul (MIter) c)
    parts.sort(key=lambda text: text != "(MIter)")
    if coefficient != 1 or not parts:
        parts.append(f"(MNum {coefficient})")
    text = parts[-1]
    for part in reversed(parts[:-1]):
        text = f"(MMul {part} {text})"
    return text


def _atom_egglog(atom: Atom) -> str:
    if isinstance(atom, Var):
        if atom.name == ITER:
            return "(MIter)"
        return f'(MVar "{atom.name}")'
    name = "MDiv" if isinstance(atom, Quotient) else "MMod"
    return f"({name} {to_egglog(atom.num)} {to_egglog(atom.den)})"
