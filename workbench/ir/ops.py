"""The primitives of HLIR: what each computes (NumPy), how many operands it has, and the dtype it yields."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from workbench.ir import dtype as dt
from workbench.ir.dtype import DType
from workbench.ir.expr import Expr


@dataclass(frozen=True, slots=True)
class Input:
    """A value given at run time. `name` is the model's name for it, verbatim."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor known at import; its data is `graph.constants[node.id]`. Scalars are part of a program's identity."""


@dataclass(frozen=True, slots=True)
class Output:
    """Marks its one operand (read contiguously) as the model's output `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class Iota:
    """Integers computed from position: element at row-major position z is `value(z)`."""

    value: Expr


@dataclass(frozen=True, slots=True)
class Cast:
    """Conversion to `dtype` (see `dtype.convert`). To its operand's own dtype it is a copy."""

    dtype: DType


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A scalar function of operands that all have the node's shape. `name` is a key of ELEMENTWISE."""

    name: str


@dataclass(frozen=True, slots=True)
class Gather:
    """Operands (index, data). The index has the node's shape; data has it too, but for `axis`, where its own extent
    stands. out[.., i, ..] = data[.., index[.., i, ..], ..]; indices are clamped to the axis, so none reads outside."""

    axis: int


@dataclass(frozen=True, slots=True)
class Scatter:
    """Operands (data, index, update). A copy of data in which element index[j] (i64, row-major position, clamped) is
    combined with update[j], in row-major order of j, as SCATTER_MODES says for `mode`: where it is `none`, the last
    write to a position holds."""

    mode: str = "none"


@dataclass(frozen=True, slots=True)
class Reduce:
    """`SumReduce` or `MaxReduce` over the last axis of the operand's layout (node shape plus one axis).

    Sums accumulate at least in f32; the maximum of no elements is -inf (or the dtype's least)."""

    name: str


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """Identity that cuts the graph: what flows through it crosses from one chunk to another."""


@dataclass(frozen=True, slots=True)
class CustomOp:
    """An operator the workbench does not lower; `graph.custom_ops[id]` says what runs it. Operands are contiguous."""

    id: int


Op = Input | Constant | Output | Iota | Cast | Elementwise | Gather | Scatter | Reduce | GraphBreak | CustomOp


@dataclass(frozen=True, slots=True)
class ElementwiseRule:
    """`compute` is the NumPy meaning; `result` the dtype it yields, where None is that of the last operand."""

    arity: int
    compute: Callable[..., np.ndarray]
    result: DType | None = None


def _recip(x: np.ndarray) -> np.ndarray:
    """1 / x; of integers rounded toward zero, where 1 / 0 is 0 (NumPy's answer depends on the type)."""
    if dt.is_float(x.dtype):
        return np.asarray(np.reciprocal(x, dtype=x.dtype))
    return np.where(np.abs(x) == 1, x, np.zeros((), x.dtype))


def _erf(x: np.ndarray) -> np.ndarray:
    """The error function, which NumPy lacks: libm's, element by element in f64."""
    flat = np.asarray(x, np.float64).reshape(-1)
    return np.fromiter((math.erf(v) for v in flat), np.float64, flat.size).reshape(x.shape).astype(x.dtype)


def _round(x: np.ndarray) -> np.ndarray:
    """The nearest integer, the even one of two that are as near."""
    return x if x.dtype.kind in "biu" else np.rint(x)


def _select(condition: np.ndarray, yes: np.ndarray, no: np.ndarray) -> np.ndarray:
    return np.where(condition, yes, no)


ELEMENTWISE: dict[str, ElementwiseRule] = {
    "Add": ElementwiseRule(2, np.add),
    "Mul": ElementwiseRule(2, np.multiply),
    "Mod": ElementwiseRule(2, np.mod),
    "LessThan": ElementwiseRule(2, np.less, dt.BOOL),
    "Select": ElementwiseRule(3, _select),
    "Exp2": ElementwiseRule(1, np.exp2),
    "Log2": ElementwiseRule(1, np.log2),
    "Sin": ElementwiseRule(1, np.sin),
    "Sqrt": ElementwiseRule(1, np.sqrt),
    "Recip": ElementwiseRule(1, _recip),
    "Erf": ElementwiseRule(1, _erf),
    "Floor": ElementwiseRule(1, np.floor),
    "Round": ElementwiseRule(1, _round),
}


SCATTER_MODES: dict[str, np.ufunc | None] = {
    "none": None,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}
"""How an element that is written combines with what is there; None: it takes its place."""


def scatter(data: np.ndarray, index: np.ndarray, update: np.ndarray, mode: str) -> np.ndarray:
    """What `Scatter` computes, flat, in the dtype of `data`."""
    out = np.array(data, order="C").reshape(-1)
    if not out.size:
        return out
    places = np.clip(index.reshape(-1), 0, out.size - 1)
    combine = SCATTER_MODES[mode]
    if combine is None:
        out[places] = update.reshape(-1)
    else:
        combine.at(out, places, update.reshape(-1))
    return out


def op_name(op: Op) -> str:
    """The primitive's name as users read it."""
    match op:
        case Elementwise(name) | Reduce(name):
            return name
        case _:
            return type(op).__name__
