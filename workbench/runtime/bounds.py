"""Whether a kernel stays inside its buffers: the range of every address, exact where it can be had."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod

import numpy as np

from workbench.ir import expr as ex
from workbench.ir.expr import Expr
from workbench.runtime.arena import NO_DIMS

MOST_PLACES = 1 << 22
"""Addresses that cannot be bounded by their form are evaluated over at most so many places."""


def interval(address: Expr, extents: Mapping[str, int], dims: Mapping[str, int] = NO_DIMS) -> tuple[int, int]:
    """(least, largest) that `address` may be while each iterator runs below its extent; never too narrow, and exact for
    affine addresses. `dims` are the values of named dimensions. Raises KeyError for a variable without an extent."""
    low = high = 0
    for product, coefficient in address.terms:
        least, most = 1, 1
        for atom in product:
            atom_least, atom_most = _atom_interval(atom, extents, dims)
            least, most = least * atom_least, most * atom_most
        ends = (coefficient * least, coefficient * most)
        low, high = low + min(ends), high + max(ends)
    return low, high


def _atom_interval(atom: ex.Atom, extents: Mapping[str, int], dims: Mapping[str, int]) -> tuple[int, int]:
    if isinstance(atom, ex.Var):
        value = dims.get(atom.name)
        return (0, extents[atom.name] - 1) if value is None else (value, value)
    least, most = interval(atom.num, extents, dims)
    divisor, largest_divisor = interval(atom.den, extents, dims)
    divisor = max(1, divisor)
    least = max(0, least)
    if isinstance(atom, ex.Quotient):
        return least // max(1, largest_divisor), most // divisor
    return (least, most) if most < divisor else (0, largest_divisor - 1)


@lru_cache(maxsize=65536)
def reach(
    address: Expr, extents: tuple[tuple[str, int], ...], elements: int, dims: tuple[tuple[str, int], ...] = ()
) -> tuple[int, int] | None:
    """The range of `address` if it leaves [0, elements), else None. `extents` name the iterators, all at least 1;
    `dims` are the values of named dimensions.

    An address that its form does not bound, over more than MOST_PLACES places, is given the benefit of the doubt."""
    values = dict(dims)
    low, high = interval(address, dict(extents), values)
    if low >= 0 and high < elements:
        return None
    if values:  # with numbers for the dimensions it may be simpler
        return reach(ex.substitute(address, values, dict(extents)), extents, elements)
    used = [(name, n) for name, n in extents if name in ex.variables(address)]
    if prod(n for _, n in used) > MOST_PLACES:
        return None
    grid = np.indices([n for _, n in used], np.int64, sparse=True)
    at = np.asarray(ex.evaluate(address, {name: grid[i] for i, (name, _) in enumerate(used)}))
    low, high = int(at.min()), int(at.max())
    return None if low >= 0 and high < elements else (low, high)
