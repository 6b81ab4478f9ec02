"""LLIR: the kernels that a genome selects, in order, over numbered buffers. Every size is a plain integer here.

Five kernel forms: `MapKernel` (one store per element), `ReduceKernel` (a sum or maximum over one axis), `RowKernel`
(several passes over each row), `GemmCall` (a library matmul) and `OpaqueCall` (a custom operator). Kernel bodies are
one small expression language; addresses are index expressions over the iteration axes `#0`, `#1`, .. (and, inside a
reduction, the last axis is the reduced one), counted in elements of the buffer that is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from workbench.ir.dtype import DType
from workbench.ir.expr import Expr, var

Role = Literal["input", "constant", "boundary", "intermediate", "output"]
Combine = Literal["sum", "max"]


def axis(position: int) -> Expr:
    """The iterator of iteration axis `position`."""
    return var(f"#{position}")


GATHERED = "#g"
"""The variable that stands for the gathered index in the address of a `GatherLoad`."""

ALONG = "#r"
"""The iterator along the row that a pass of a `RowKernel` goes over."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One array in memory. `source` is the HLIR node whose value it holds; `elements` may be 0."""

    id: int
    dtype: DType
    elements: int
    role: Role
    source: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.elements * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant of `dtype`."""

    value: float | int | bool
    dtype: DType


@dataclass(frozen=True, slots=True)
class Load:
    """The element of `buffer` at `address`."""

    buffer: int
    address: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class GatherLoad:
    """The element of `buffer` at `address`, in which `#g` stands for `index` clamped to [0, extent - 1]."""

    buffer: int
    address: Expr
    index: Body
    extent: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Position:
    """An index expression as a value (Iota)."""

    value: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Apply:
    """An ELEMENTWISE function of `operands`, or `Cast` to `dtype` of one. All operands of a function have one dtype,
    but for the boolean condition of Select."""

    name: str
    operands: tuple[Body, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Reduced:
    """In a `RowKernel`: what pass number `index` made of the row at hand."""

    index: int
    dtype: DType


Body = Immediate | Load | GatherLoad | Position | Apply | Reduced


@dataclass(frozen=True, slots=True)
class MapKernel:
    """out[row-major position of the axes] = body. `shape` may be () for one element."""

    out: int
    shape: tuple[int, ...]
    body: Body
    sources: tuple[int, ...]
    """HLIR nodes that this kernel computes, its own first."""
    in_place: int | None = None
    """A buffer that this kernel alone reads, each element only for the element that takes its place: `out` lies in the
    same memory."""


@dataclass(frozen=True, slots=True)
class ReduceKernel:
    """out[position] = sum or max of body over the extra last axis of `extent` elements.

    `order` says which axis the vector runs along: `inner` the reduced one, `outer` the last kept one."""

    out: int
    shape: tuple[int, ...]
    extent: int
    combine: Combine
    body: Body
    order: Literal["inner", "outer"]
    sources: tuple[int, ...]

    @property
    def iteration(self) -> tuple[int, ...]:
        """Shape of the iteration space, the reduced axis last."""
        return (*self.shape, self.extent)


@dataclass(frozen=True, slots=True)
class RowPass:
    """The sum or maximum of `body` over `extent` elements along the row, `#r`; it may read what earlier passes gave."""

    combine: Combine
    extent: int
    body: Body


@dataclass(frozen=True, slots=True)
class RowKernel:
    """For each row (the axes of `shape`, `#0`, ..): `passes` one after the other, each leaving one value, then
    out[row, #r] = body for `extent` elements `#r`; or, where `extent` is None, out[row] = body."""

    out: int
    shape: tuple[int, ...]
    passes: tuple[RowPass, ...]
    extent: int | None
    body: Body
    sources: tuple[int, ...]
    in_place: int | None = None
    """As of a `MapKernel`; every pass reads it at the positions of its own row only."""

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of what is stored."""
        return self.shape if self.extent is None else (*self.shape, self.extent)


@dataclass(frozen=True, slots=True)
class GemmOperand:
    """A matrix per batch entry: element (r, c) of batch entry b at `batch_offsets[b] + r*row_stride + c*col_stride`.

    One of the two strides is 1 (or its extent is)."""

    buffer: int
    row_stride: int
    col_stride: int
    batch_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GemmCall:
    """out[b, i, j] = sum over p of a[b](i, p) * b[b](p, j); out is contiguous. `routine` names the library call and
    `layout` the operand layouts matched (RmRm, RmCm, CmRm, CmCm)."""

    out: int
    m: int
    n: int
    k: int
    a: GemmOperand
    b: GemmOperand
    dtype: DType
    routine: str
    layout: str
    sources: tuple[int, ...]

    @property
    def batch(self) -> int:
        """Number of independent matmuls."""
        return len(self.a.batch_offsets)


@dataclass(frozen=True, slots=True)
class OpaqueCall:
    """A custom operator: contiguous operands of the given shapes in, one contiguous result out."""

    out: int
    shape: tuple[int, ...]
    operands: tuple[int, ...]
    operand_shapes: tuple[tuple[int, ...], ...]
    custom_id: int
    sources: tuple[int, ...]


Kernel = MapKernel | ReduceKernel | RowKernel | GemmCall | OpaqueCall


@dataclass(slots=True)
class Program:
    """Kernels in execution order over `buffers` (indexed by Buffer.id). `outputs` are buffers the caller reads."""

    buffers: list[Buffer] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


def loads(body: Body) -> Iterator[int]:
    """Buffers that `body` reads, with repetition."""
    match body:
        case Load(buffer):
            yield buffer
        case GatherLoad(buffer, _, index):
            yield buffer
            yield from loads(index)
        case Apply(_, operands):
            for operand in operands:
                yield from loads(operand)
        case _:
            return


def reads(kernel: Kernel) -> set[int]:
    """Buffers that `kernel` reads."""
    match kernel:
        case MapKernel() | ReduceKernel():
            return set(loads(kernel.body))
        case RowKernel():
            return set(loads(kernel.body)).union(*(loads(each.body) for each in kernel.passes))
        case GemmCall():
            return {kernel.a.buffer, kernel.b.buffer}
        case OpaqueCall():
            return set(kernel.operands)


def row_passes(kernel: RowKernel) -> list[str]:
    """What a row kernel does to each row, as users read it: `max`, `sum`, `map`. Storing a last sum is no pass."""
    stored = [] if kernel.extent is None else ["map"]
    return [*(each.combine for each in kernel.passes), *stored]


def aliases(kernels: Iterable[Kernel]) -> dict[int, int]:
    """By each buffer that takes the place of another, that other one."""
    return {
        kernel.out: kernel.in_place
        for kernel in kernels
        if isinstance(kernel, MapKernel | RowKernel) and kernel.in_place is not None
    }


def flops(kernel: Kernel) -> int:
    """Arithmetic operations of one run: two per multiply-add, one per function application."""
    match kernel:
        case GemmCall():
            return 2 * kernel.batch * kernel.m * kernel.n * kernel.k
        case MapKernel():
            return _count(kernel.shape) * _applications(kernel.body)
        case ReduceKernel():
            return _count(kernel.iteration) * (_applications(kernel.body) + 1)
        case RowKernel():
            passes = sum(each.extent * (_applications(each.body) + 1) for each in kernel.passes)
            stored = 1 if kernel.extent is None else kernel.extent
            return _count(kernel.shape) * (passes + stored * _applications(kernel.body))
        case OpaqueCall():
            return 0


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for d in shape:
        total *= d
    return total


def _applications(body: Body) -> int:
    match body:
        case Apply(_, operands):
            return 1 + sum(_applications(o) for o in operands)
        case GatherLoad(_, _, index):
            return _applications(index)
        case _:
            return 0
