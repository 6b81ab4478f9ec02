"""LLIR: the kernels that a genome selects, in order, over numbered buffers. Sizes are plain integers, or expressions
over named dimensions in a program that is to serve every value of them.

Six kernel forms: `MapKernel` (one store per element), `ReduceKernel` (a sum or maximum over one axis), `RowKernel`
(several passes over each row), `ScatterKernel` (stores at computed positions), `GemmCall` (a library matmul) and
`OpaqueCall` (a custom operator). Kernel bodies are one small expression language; addresses are index expressions over
the iteration axes `#0`, `#1`, .. (and, inside a reduction, the last axis is the reduced one), counted in elements of
the buffer that is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from workbench.ir import expr as ex
from workbench.ir.dtype import DType
from workbench.ir.expr import ITER, Expr, var
from workbench.ir.layout import Dim, numel

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
    elements: Dim
    role: Role
    source: int

    @property
    def nbytes(self) -> int:
        """Size in bytes. Raises KeyError where it depends on a named dimension; see `bytes_at`."""
        return self.bytes_at({})

    def bytes_at(self, dims: Mapping[str, int]) -> int:
        """Size in bytes for values of the named dimensions."""
        return ex.sized(self.elements, dims) * self.dtype.itemsize


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
    extent: Dim
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
    shape: tuple[Dim, ...]
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
    shape: tuple[Dim, ...]
    extent: Dim
    combine: Combine
    body: Body
    order: Literal["inner", "outer"]
    sources: tuple[int, ...]

    @property
    def iteration(self) -> tuple[Dim, ...]:
        """Shape of the iteration space, the reduced axis last."""
        return (*self.shape, self.extent)


@dataclass(frozen=True, slots=True)
class RowPass:
    """The sum or maximum of `body` over `extent` elements along the row, `#r`; it may read what earlier passes gave."""

    combine: Combine
    extent: Dim
    body: Body


@dataclass(frozen=True, slots=True)
class RowKernel:
    """For each row (the axes of `shape`, `#0`, ..): `passes` one after the other, each leaving one value, then
    out[row, #r] = body for `extent` elements `#r`; or, where `extent` is None, out[row] = body."""

    out: int
    shape: tuple[Dim, ...]
    passes: tuple[RowPass, ...]
    extent: Dim | None
    body: Body
    sources: tuple[int, ...]
    in_place: int | None = None
    """As of a `MapKernel`; every pass reads it at the positions of its own row only."""

    @property
    def result(self) -> tuple[Dim, ...]:
        """Shape of what is stored."""
        return self.shape if self.extent is None else (*self.shape, self.extent)


@dataclass(frozen=True, slots=True)
class ScatterKernel:
    """For each position of `shape`, in row-major order: out[index] is combined with `update` by `mode` (a key of
    `ops.SCATTER_MODES`). `index` is clamped to the `elements` of the output. `out` lies in the memory of buffer
    `in_place`, which holds what is written over and which `index` and `update` do not read."""

    out: int
    in_place: int
    elements: Dim
    shape: tuple[Dim, ...]
    mode: str
    index: Body
    update: Body
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """Where the matrices of a batch begin, while their number or place depends on a named dimension: at `start` plus
    the stride expressions `steps` (in `z`) of each index of `shape`."""

    start: Dim
    shape: tuple[Dim, ...]
    steps: tuple[Expr, ...]

    def at(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """The offsets for values of the named dimensions, row-major over `shape`."""
        start = ex.sized(self.start, dims)
        axes = [
            [int(ex.evaluate(step, {**dims, ITER: i})) for i in range(ex.sized(d, dims))]
            for step, d in zip(self.steps, self.shape, strict=True)
        ]
        return tuple(start + sum(along) for along in itertools.product(*axes))


@dataclass(frozen=True, slots=True)
class GemmOperand:
    """A matrix per batch entry: element (r, c) of batch entry b at `batch_offsets[b] + r*row_stride + c*col_stride`.

    One of the two strides is 1 (or its extent is)."""

    buffer: int
    row_stride: Dim
    col_stride: Dim
    batch_offsets: tuple[int, ...] | BatchOffsets

    def offsets_at(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """`batch_offsets` for values of the named dimensions."""
        return self.batch_offsets.at(dims) if isinstance(self.batch_offsets, BatchOffsets) else self.batch_offsets


@dataclass(frozen=True, slots=True)
class GemmCall:
    """out[b, i, j] = sum over p of a[b](i, p) * b[b](p, j); out is contiguous. `routine` names the library call and
    `layout` the operand layouts matched (RmRm, RmCm, CmRm, CmCm)."""

    out: int
    m: Dim
    n: Dim
    k: Dim
    a: GemmOperand
    b: GemmOperand
    dtype: DType
    routine: str
    layout: str
    sources: tuple[int, ...]

    @property
    def batch(self) -> Dim:
        """Number of independent matmuls."""
        offsets = self.a.batch_offsets
        return numel(offsets.shape) if isinstance(offsets, BatchOffsets) else len(offsets)


@dataclass(frozen=True, slots=True)
class OpaqueCall:
    """A custom operator: contiguous operands of the given shapes in, one contiguous result out."""

    out: int
    shape: tuple[Dim, ...]
    operands: tuple[int, ...]
    operand_shapes: tuple[tuple[Dim, ...], ...]
    custom_id: int
    sources: tuple[int, ...]


NativeKernel = MapKernel | ReduceKernel | RowKernel | ScatterKernel
"""Kernels that are generated, not called."""
Kernel = NativeKernel | GemmCall | OpaqueCall


@dataclass(slots=True)
class Program:
    """Kernels in execution order over `buffers` (indexed by Buffer.id). `outputs` are buffers the caller reads."""

    buffers: list[Buffer] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


def loads(body: Body) -> Iterator[int]:
    """Buffers that `body` reads, one for each load in it."""
    return (item.buffer for item in _distinct(body) if isinstance(item, Load | GatherLoad))


def _distinct(body: Body) -> Iterator[Body]:
    """The parts of a body, each that is shared once."""
    stack, seen = [body], {id(body)}
    while stack:
        item = stack.pop()
        yield item
        inner = item.operands if isinstance(item, Apply) else (item.index,) if isinstance(item, GatherLoad) else ()
        for each in inner:
            if id(each) not in seen:
                seen.add(id(each))
                stack.append(each)


def reads(kernel: Kernel) -> set[int]:
    """Buffers that `kernel` reads."""
    match kernel:
        case MapKernel() | ReduceKernel():
            return set(loads(kernel.body))
        case RowKernel():
            return set(loads(kernel.body)).union(*(loads(each.body) for each in kernel.passes))
        case ScatterKernel():
            return {kernel.in_place, *loads(kernel.index), *loads(kernel.update)}
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
        if isinstance(kernel, MapKernel | RowKernel | ScatterKernel) and kernel.in_place is not None
    }


def work(kernel: Kernel) -> tuple[Dim, ...]:
    """Sizes of which one is 0 where a kernel has nothing to compute, and no launch; () of what always runs."""
    match kernel:
        case MapKernel() | ReduceKernel():
            return kernel.shape
        case RowKernel():
            return kernel.result
        case ScatterKernel():
            return (kernel.elements, *kernel.shape)
        case GemmCall():
            return (kernel.batch, kernel.m, kernel.n)
        case OpaqueCall():
            return ()


def flops(kernel: Kernel) -> Dim:
    """Arithmetic operations of one run: two per multiply-add, one per function application."""
    match kernel:
        case GemmCall():
            return numel((2, kernel.batch, kernel.m, kernel.n, kernel.k))
        case MapKernel():
            return numel((*kernel.shape, _applications(kernel.body)))
        case ReduceKernel():
            return numel((*kernel.iteration, _applications(kernel.body) + 1))
        case RowKernel():
            passes = sum((each.extent * (_applications(each.body) + 1) for each in kernel.passes), start=ex.ZERO)
            stored = 1 if kernel.extent is None else kernel.extent
            return numel((*kernel.shape, passes + stored * _applications(kernel.body)))
        case ScatterKernel():
            combined = 0 if kernel.mode == "none" else 1
            return numel((*kernel.shape, combined + _applications(kernel.index) + _applications(kernel.update)))
        case OpaqueCall():
            return 0


def _applications(body: Body) -> int:
    match body:
        case Apply(_, operands):
            return 1 + sum(_applications(o) for o in operands)
        case GatherLoad(_, _, index):
            return _applications(index)
        case _:
            return 0


def dims_of(kernel: Kernel, buffers: Sequence[Buffer]) -> frozenset[str]:
    """The named dimensions that a kernel, or the size of a buffer that it touches, depends on."""
    sizes: list[Dim] = [buffers[b].elements for b in (kernel.out, *reads(kernel))]
    bodies: list[Body] = []
    match kernel:
        case MapKernel() | ReduceKernel() | RowKernel():
            bodies.append(kernel.body)
            sizes += kernel.shape
            if isinstance(kernel, ReduceKernel):
                sizes.append(kernel.extent)
            if isinstance(kernel, RowKernel):
                bodies += [each.body for each in kernel.passes]
                sizes += [each.extent for each in kernel.passes]
                sizes += [] if kernel.extent is None else [kernel.extent]
        case ScatterKernel():
            bodies += [kernel.index, kernel.update]
            sizes += kernel.shape
        case GemmCall():
            sizes += [kernel.m, kernel.n, kernel.k]
            for operand in (kernel.a, kernel.b):
                sizes += [operand.row_stride, operand.col_stride]
                if isinstance(operand.batch_offsets, BatchOffsets):
                    sizes += [operand.batch_offsets.start, *operand.batch_offsets.shape, *operand.batch_offsets.steps]
        case OpaqueCall():
            sizes += [*kernel.shape, *itertools.chain(*kernel.operand_shapes)]
    expressions = itertools.chain(sizes, *(_expressions(body) for body in bodies))
    return frozenset().union(*map(ex.dims_of, expressions))


def _expressions(body: Body) -> Iterator[Dim]:
    """The index expressions and sizes in a body."""
    for item in _distinct(body):
        match item:
            case Load(_, address):
                yield address
            case GatherLoad(_, address, _, extent):
                yield address
                yield extent
            case Position(value):
                yield value
            case _:
                pass


def substituted(
    body: Body, values: Mapping[str, int | Expr], extents: Mapping[str, Dim], done: dict[int, Body]
) -> Body:
    """`body` with iterators or named dimensions replaced in every expression; shared parts stay shared. `done` has what
    was replaced so far, by identity."""
    found = done.get(id(body))
    if found is None:
        match body:
            case Load():
                found = replace(body, address=ex.substitute(body.address, values, extents))
            case GatherLoad():
                index = substituted(body.index, values, extents, done)
                address = ex.substitute(body.address, values, {**extents, GATHERED: body.extent})
                extent = ex.as_dim(ex.substitute(ex.as_expr(body.extent), values))
                found = replace(body, address=address, index=index, extent=extent)
            case Position():
                found = replace(body, value=ex.substitute(body.value, values, extents))
            case Apply():
                found = replace(body, operands=tuple([substituted(o, values, extents, done) for o in body.operands]))
            case _:
                found = body
        done[id(body)] = found
    return found


def at_values(kernel: NativeKernel, dims: Mapping[str, int], empty: Collection[int]) -> NativeKernel:
    """`kernel` for values of the named dimensions: every size a plain integer, expressions as simple as those allow.
    What is read of the buffers `empty`, or gathered from an axis without elements, is 0, and so is the body of a
    reduction over nothing. Raises ZeroDivisionError for an expression that divides by 0 elsewhere."""
    shape = tuple(ex.bound(d, dims) for d in kernel.shape)
    rows = {f"#{i}": d for i, d in enumerate(shape)}

    def body_at(body: Body, **along: Dim) -> Body:
        if 0 in along.values():
            return Immediate(0, body.dtype)
        return substituted(_filled(body, dims, empty, {}), dims, {**rows, **along}, {})

    match kernel:
        case MapKernel():
            return replace(kernel, shape=shape, body=body_at(kernel.body))
        case ReduceKernel():
            extent = ex.bound(kernel.extent, dims)
            return replace(
                kernel, shape=shape, extent=extent, body=body_at(kernel.body, **{f"#{len(shape)}": extent})
            )
        case ScatterKernel():
            index, update = body_at(kernel.index), body_at(kernel.update)
            return replace(kernel, shape=shape, elements=ex.bound(kernel.elements, dims), index=index, update=update)
        case RowKernel():
            passes = []
            for each in kernel.passes:
                extent = ex.bound(each.extent, dims)
                passes.append(replace(each, extent=extent, body=body_at(each.body, **{ALONG: extent})))
            stored = None if kernel.extent is None else ex.bound(kernel.extent, dims)
            body = body_at(kernel.body, **({} if stored is None else {ALONG: stored}))
            return replace(kernel, shape=shape, passes=tuple(passes), extent=stored, body=body)


def _filled(body: Body, dims: Mapping[str, int], empty: Collection[int], done: dict[int, Body]) -> Body:
    """`body` with 0 for what is read where there is nothing; shared parts stay shared."""
    found = done.get(id(body))
    if found is None:
        match body:
            case Load(buffer) if buffer in empty:
                found = Immediate(0, body.dtype)
            case GatherLoad(buffer, _, _, extent) if buffer in empty or not ex.bound(extent, dims):
                found = Immediate(0, body.dtype)
            case GatherLoad():
                found = replace(body, index=_filled(body.index, dims, empty, done))
            case Apply():
                found = replace(body, operands=tuple([_filled(o, dims, empty, done) for o in body.operands]))
            case _:
                found = body
        done[id(body)] = found
    return found
