"""Values during import: an array known now, or a view (a node's buffer read through a layout).

A known array of dtype object holds ints and index expressions: shape arithmetic over named dimensions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.errors import ModelError
from workbench.ir import dtype as dt
from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir.dtype import DType
from workbench.ir.expr import Expr
from workbench.ir.layout import Dim, Layout, Shape


@dataclass(frozen=True, slots=True)
class View:
    """What `source` computes, read through `layout`."""

    source: int
    layout: Layout
    dtype: DType

    @property
    def shape(self) -> Shape:
        """Extents as the operator sees them."""
        return self.layout.shape


Value = np.ndarray | View


class NotLoweredError(ModelError):
    """An operator whose attributes or operands ask for what the importer does not lower."""


class NotKnownError(NotLoweredError):
    """An operand that must be known at import, and is not: `value` is computed from `inputs` of the model, or it
    depends on named `dims`. With these given, the import may succeed."""

    def __init__(self, message: str, value: Value | None = None, dims: Collection[str] = ()) -> None:
        super().__init__(message)
        self.value = value
        self.dims = frozenset(dims)
        self.inputs: tuple[str, ...] = ()


class UnequalDimsError(ModelError):
    """Extents that have to be equal and cannot be shown to be, in `pairs`. Where the inputs give one dimension two
    names, the import may succeed under one of them."""

    def __init__(self, message: str, pairs: Iterable[tuple[Dim, Dim]]) -> None:
        super().__init__(message)
        self.pairs = [(a, b) for a, b in pairs if a != b]


def shape_of(x: Value) -> Shape:
    """The extents of `x`."""
    return x.layout.shape if isinstance(x, View) else x.shape


def check_extents(shape: Shape) -> None:
    """Raise ValueError for a negative extent."""
    for d in shape:
        if d.__class__ is int and d < 0:
            raise ValueError(f"a result of shape {lay.show(shape)}")


def rank_of(x: Value) -> int:
    """The number of axes of `x`."""
    return len(shape_of(x))


def dtype_of(x: Value) -> np.dtype:
    """The element type of `x`; shape arithmetic counts as int64."""
    if isinstance(x, View):
        return x.dtype.numpy
    return np.dtype(np.int64) if x.dtype == object else x.dtype


SUPPORTED = "element types are " + ", ".join(d.name for d in dt.DTYPES)
"""What is said where a model holds others."""


def graph_dtype(dtype: np.dtype | type) -> DType | None:
    """The DType of a NumPy dtype, or None where a model with it is not imported."""
    return dt.from_numpy(dtype)


def is_float(x: Value) -> bool:
    """Whether `x` holds floats."""
    return dt.is_float(dtype_of(x))


def half_of(x: Value | None) -> DType | None:
    """The dtype of `x` where that is f16 or bf16."""
    found = None if x is None else dt.from_numpy(dtype_of(x))
    return found if found is not None and found.is_half else None


def is_symbolic(x: Value) -> bool:
    """Whether `x` is shape arithmetic with a named dimension in it."""
    return isinstance(x, np.ndarray) and x.dtype == object


def plain(values: Any) -> np.ndarray:
    """`values` as an array, with dtype object only where an element is an expression that is no plain integer."""
    array: np.ndarray = np.asarray(values)
    if array.dtype != object:
        return array
    elements = [ex.as_dim(e) for e in array.reshape(-1)]
    if not any(isinstance(e, Expr) for e in elements):
        return np.asarray(elements, np.int64).reshape(array.shape)
    result: np.ndarray = np.empty(len(elements), object)
    result[:] = elements
    return result.reshape(array.shape)


def dims_array(dims: Sequence[Dim]) -> np.ndarray:
    """`dims` as a known 1-D array."""
    result = np.empty(len(dims), object)
    result[:] = list(dims)
    return plain(result)


def as_dims(x: Value | None, what: str) -> list[Dim]:
    """The elements of a known integer tensor, in order.

    Raises NotLoweredError when `x` is only known at run time."""
    if not isinstance(x, np.ndarray):
        raise NotKnownError(f"{what} must be known when the model is opened, and is computed from its inputs", x)
    if x.dtype == object:
        return [ex.as_dim(e) for e in x.reshape(-1)]
    return [int(e) for e in x.reshape(-1)]


def as_ints(x: Value | None, what: str) -> list[int]:
    """As `as_dims`, and none may depend on a named dimension."""
    dims = as_dims(x, what)
    for d in dims:
        if isinstance(d, Expr):
            raise NotKnownError(f"{what} depends on the dimension {d}", dims=ex.variables(d))
    return [int(d) for d in dims if not isinstance(d, Expr)]


def fixed(d: Dim, what: str) -> int:
    """The extent `d`, which must not depend on a named dimension.

    Raises NotKnownError when it does."""
    if isinstance(d, Expr):
        raise NotKnownError(f"{what} depends on the dimension {d}", dims=ex.variables(d))
    return d


def known_array(x: Value, what: str) -> np.ndarray:
    """The elements of a known tensor.

    Raises NotKnownError when it is computed from the model's inputs, or depends on a named dimension."""
    if isinstance(x, np.ndarray) and x.dtype != object:
        return x
    return np.asarray(as_ints(x, what), np.int64).reshape([fixed(d, what) for d in shape_of(x)])


def normalize_axis(axis: int, rank: int) -> int:
    """`axis` counted from the front.

    Raises ValueError when there is no such axis."""
    if not -rank <= axis < max(rank, 1):
        raise ValueError(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank if rank else 0


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape that `shapes` broadcast to by NumPy's rule.

    Raises UnequalDimsError when two extents differ and neither is 1."""
    first = shapes[0]
    for other in shapes[1:]:
        if other != first:
            break
    else:
        return first
    rank = max(len(s) for s in shapes)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for position, d in enumerate(shape, rank - len(shape)):
            held = result[position]
            if d is held or d == 1 or d == held:
                continue
            if held != 1:
                message = "cannot broadcast " + " with ".join(lay.show(s) for s in shapes)
                raise UnequalDimsError(message, [(held, d)])
            result[position] = d
    return tuple(result)
