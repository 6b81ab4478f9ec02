"""The named dimensions of a model's inputs: their names in the graph, their representative values, and which of them
the model uses as if they were the same."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from workbench.errors import ModelError, printable
from workbench.ir import expr as ex
from workbench.ir.expr import Expr
from workbench.ir.layout import Dim

Pair = tuple[Dim, Dim]
"""Two extents that have to be equal."""


class NamedDims:
    """The named dimensions of the inputs and their representative values, which are `given`, or else those in `shapes`
    of the inputs, or else 1; those in `fixed` have no other. Those in `equal` are written as what they are equal to.

    `declare` every input before asking for the `shape` of any."""

    def __init__(
        self,
        given: Mapping[str, int],
        shapes: Mapping[str, Sequence[int]] = MappingProxyType({}),
        fixed: Collection[str] = (),
        equal: Mapping[str, Dim] = MappingProxyType({}),
    ) -> None:
        self.given = dict(given)
        self.shapes = shapes
        self.fixed = fixed
        self.equal = dict(equal)
        self.values: dict[str, int] = {}
        self.names: dict[str, str] = {}
        """What each is called, by the model's name for it."""
        self._given: dict[str, int] = {}
        """The values given, by what the graph calls the dimension."""
        for name, value in self.given.items():
            if value < 1:
                raise ModelError(f"dimension '{printable(name)}' is given as {value}; it must be at least 1")

    def declare(self, input_name: str, dims: Sequence[Any]) -> None:
        """Take up the TensorShapeProto.Dimensions of an input. Raises ModelError for a negative extent."""
        told = self.shapes.get(input_name, ())
        values = told if len(told) == len(dims) else [1] * len(dims)
        for axis, d in enumerate(dims):
            if d.HasField("dim_value") and d.dim_value < -1:
                raise ModelError(f"input '{printable(input_name)}' has the extent {d.dim_value} on axis {axis}")
            if not _is_known(d):
                self._name(_original(input_name, axis, d), max(1, values[axis]))

    def shape(self, input_name: str, dims: Sequence[Any]) -> tuple[Dim, ...]:
        """The extents that an input's TensorShapeProto.Dimensions stand for."""
        return tuple(
            int(d.dim_value) if _is_known(d) else self.extent(self.names[_original(input_name, axis, d)])
            for axis, d in enumerate(dims)
        )

    def extent(self, name: str) -> Dim:
        """What the dimension that the graph calls `name` stands for."""
        extent = self.equal.get(name, ex.var(name))
        return ex.as_dim(ex.substitute(ex.as_expr(extent), self.closed))

    @property
    def open(self) -> dict[str, int]:
        """The dimensions that stay named."""
        return {n: value for n, value in self.values.items() if n not in self.fixed and n not in self.equal}

    @property
    def closed(self) -> dict[str, int]:
        """The dimensions that are fixed."""
        return {name: value for name, value in self.values.items() if name in self.fixed}

    def united(self, pairs: Iterable[Pair]) -> dict[str, Dim] | None:
        """`equal` with more in it, so that the extents in `pairs` come out equal as far as naming one dimension by
        others can make them; None where it makes none."""
        equal = dict(self.equal)
        for a, b in pairs:
            left, right = (ex.substitute(ex.as_expr(d), equal) for d in (a, b))
            found = self._solved(left, right)
            if found is not None:
                name, extent = found
                equal = {n: ex.as_dim(ex.substitute(ex.as_expr(e), {name: extent})) for n, e in equal.items()}
                equal[name] = extent
        return equal if equal != self.equal else None

    def _solved(self, left: Expr, right: Expr) -> tuple[str, Dim] | None:
        """A dimension and what it must be for the two to be equal: the one declared later of two dimensions."""
        order = list(self.values)
        left, right = ex.sides(left, right)
        sides = [(ex.name_of(a), b) for a, b in ((left, right), (right, left))]
        found = [
            (name, ex.as_dim(other))
            for name, other in sides
            if name is not None and name in self.values and ex.variables(other) and name not in ex.variables(other)
        ]
        return max(found, key=lambda each: order.index(each[0]), default=None)

    def _name(self, original: str, value: int) -> None:
        if original in self.names:
            return
        base = re.sub(r"[^A-Za-z0-9_.]", "_", original) or "dim"
        name = f"{base}_" if base in ("z", "MIter") else base
        suffix = 1
        while name in self.values:
            suffix += 1
            name = f"{base}_{suffix}"
        self.names[original] = name
        claimed = next((key for key in (original, name) if key in self.given), None)
        self.values[name] = value if claimed is None else self.given[claimed]
        if claimed is not None:
            self._given[name] = self.given[claimed]

    def check_given(self) -> None:
        """Give dimensions the values that were given for others that they are equal to. Raises ModelError for a value
        of a dimension that the model does not have, and for values that cannot be together."""
        originals = {name: original for original, name in self.names.items()}
        claimed = {*self._given, *(originals[name] for name in self._given)}
        for name in self.given.keys() - claimed:
            has = ", ".join(self.values) or "none"
            raise ModelError(f"the model has no dimension '{printable(name)}'", f"it has: {has}")
        for name, value in self._given.items():
            other = ex.name_of(ex.as_expr(self.equal[name])) if name in self.equal else None
            if other is not None and other not in self._given:
                self.values[other] = value
        for name, value in self._given.items():
            if name not in self.equal:
                continue
            wanted = ex.evaluate(self.equal[name], self.values)
            if wanted != value:
                raise ModelError(
                    f"dimension '{printable(name)}' is given as {value}, but the model uses it as {self.equal[name]}, "
                    f"which is {wanted}",
                    "give values of those that it is made of alone",
                )


def _is_known(dim: Any) -> bool:
    return bool(dim.HasField("dim_value") and dim.dim_value >= 0)


def _original(input_name: str, axis: int, dim: Any) -> str:
    """The model's name of a dimension; some exporters write "?" for every unknown extent."""
    return dim.dim_param if any(c.isalnum() for c in dim.dim_param) else f"{input_name}_{axis}"
