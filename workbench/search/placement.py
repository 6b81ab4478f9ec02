"""Where a kernel's values live: reductions kept per row, results that give up their place; what does not fit together
is rejected here, with the e-class whose choice it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir import llir
from workbench.ir.dtype import DType
from workbench.ir.expr import ZERO, Expr
from workbench.ir.layout import Dim
from workbench.ir.llir import Body, Buffer, Combine, MapKernel, Reduced, ReduceKernel, RowKernel, RowPass

MAX_BODY = 400
"""Nodes of a kernel's bodies, counted with repetition; chains of inlining beyond it only recompute."""

PLAIN_CHOICE = {
    "RowSum": "Load",
    "RowMax": "Load",
    "InPlace": "Load",
    "SumOuter": "SumInner",
    "MaxOuter": "MaxInner",
    "Sgemm": "SumInner",
    "Dgemm": "SumInner",
    "Cublas": "SumInner",
    "CublasLt": "SumInner",
}
"""By a choice that may not fit together with others, or that a library refuses, the one beside it that always does."""


class Rejected(Exception):
    """A genome that cannot become a program; `reason` is one of the protocol's, `detail` a sentence. `eclass` is the
    e-class whose choice does not fit, where another choice (see PLAIN_CHOICE) would."""

    def __init__(self, reason: str, detail: str, eclass: int | None = None) -> None:
        super().__init__(detail)
        self.reason, self.detail, self.eclass = reason, detail, eclass


@dataclass(frozen=True, slots=True)
class Kept:
    """A reduction that its consumer keeps per row: where it stands, what it is over (`body` over `#r`), the position in
    its result that it is wanted for, and how many elements that result has."""

    element: int
    combine: Combine
    extent: Dim
    body: Body
    position: Expr
    elements: Dim

    @property
    def said(self) -> str:
        """The reduction in a sentence."""
        return f"the {'sum' if self.combine == 'sum' else 'maximum'} over {self.extent} elements"


def map_kernel(
    out: int, shape: tuple[Dim, ...], body: Body, kept: Sequence[Kept], sources: tuple[int, ...]
) -> MapKernel | RowKernel:
    """The kernel that stores `body` over `shape`: a row kernel where reductions are kept. The rows are the outermost
    axes, down to the last on which one of the reductions depends; what lies inside them is stored along the row.

    Raises Rejected."""
    _check_size([body, *(k.body for k in kept)])
    if not kept:
        return MapKernel(out, shape, body, sources)
    inner = 1 + max((_axis_of(name) for k in kept for name in ex.iterators_of(k.position)), default=-1)
    rows, along = shape[:inner], shape[inner:]
    _check_rows(rows, kept)
    passes = tuple(RowPass(k.combine, k.extent, k.body) for k in kept)
    extent = lay.numel(along)
    if extent == 1:
        return RowKernel(out, rows, passes, None, body, sources)
    extents = {f"#{i}": n for i, n in enumerate(shape)} | {llir.ALONG: extent}
    place = lay.unflatten(ex.var(llir.ALONG), along, extents)
    values = {f"#{inner + i}": at for i, at in enumerate(place)}
    return RowKernel(out, rows, passes, extent, llir.substituted(body, values, extents, {}), sources)


def reduce_kernel(kernel: ReduceKernel, kept: Sequence[Kept], eclass: int) -> ReduceKernel | RowKernel:
    """`kernel`, of e-class `eclass`, with the reductions that its body keeps as passes before its own.

    Raises Rejected."""
    _check_size([kernel.body, *(k.body for k in kept)])
    if not kept:
        return kernel
    last = len(kernel.shape)
    for k in kept:
        if f"#{last}" in ex.variables(k.position):
            raise _again(k, f"each of the {kernel.extent} elements that a {kernel.combine} is over")
    _check_rows(kernel.shape, kept)
    if kernel.order == "outer":
        raise Rejected("placement", f"{kept[0].said} is kept per row of a reduction that goes across rows", eclass)
    extents = {f"#{i}": n for i, n in enumerate(kernel.shape)} | {llir.ALONG: kernel.extent}
    body = llir.substituted(kernel.body, {f"#{last}": ex.var(llir.ALONG)}, extents, {})
    passes = [RowPass(k.combine, k.extent, k.body) for k in kept]
    own = Reduced(len(passes), body.dtype)
    passes.append(RowPass(kernel.combine, kernel.extent, body))
    return RowKernel(kernel.out, kernel.shape, tuple(passes), None, own, kernel.sources)


def _axis_of(name: str) -> int:
    return int(name.removeprefix("#"))


def _again(kept: Kept, where: str) -> Rejected:
    return Rejected("placement", f"{kept.said} would be computed again for {where}", kept.element)


def per_element(kept: str, element: int) -> Rejected:
    """For a reduction kept by a pass over the row that it moves along."""
    return Rejected("placement", f"{kept} would be computed again for every element of a row's pass", element)


def _check_rows(rows: tuple[Dim, ...], kept: Sequence[Kept]) -> None:
    count = lay.numel(rows)
    for k in kept:
        if not ex.at_most(count, k.elements):
            raise _again(k, f"{_counted(count)} rows, of which {_counted(k.elements)} differ")


def _counted(count: Dim) -> str:
    return f"{count:,}" if isinstance(count, int) else str(count)


def _check_size(bodies: Sequence[Body]) -> None:
    size = 0
    for body in bodies:
        size += _size(body, MAX_BODY - size)
        if size > MAX_BODY:
            raise Rejected("kernel-size", f"a kernel body of {size} operations or more: too much is inlined")


def _size(body: Body, cap: int) -> int:
    """Nodes of a body counted with repetition, stopping once over `cap`."""
    total, stack = 0, [body]
    while stack and total <= cap:
        item = stack.pop()
        total += 1
        match item:
            case llir.Apply(_, operands):
                stack.extend(operands)
            case llir.GatherLoad(_, _, index):
                stack.append(index)
            case _:
                pass
    return total


def in_place(
    kernel: MapKernel | RowKernel, given_up: Mapping[int, int], buffers: Sequence[Buffer], dtype: DType
) -> MapKernel | RowKernel:
    """`kernel`, which stores elements of `dtype`, in place of the one buffer that it was chosen to overwrite.
    `given_up` has the e-class of that choice by buffer.

    Raises Rejected where the kernel does not read it element for element."""
    if not given_up:
        return kernel
    (buffer, element), *others = given_up.items()
    if others:
        detail = "two library calls' results cannot both give their place to one kernel"
        raise Rejected("placement", detail, others[0][1])
    mine = buffers[buffer]
    if mine.role != "intermediate":
        raise Rejected("placement", "only the result of a kernel can be overwritten in place", element)
    result = lay.numel(kernel.shape if isinstance(kernel, MapKernel) else kernel.result)
    if (result, dtype) != (mine.elements, mine.dtype):
        raise Rejected(
            "placement",
            f"{_counted(mine.elements)} elements of {mine.dtype} are no place for {_counted(result)} of {dtype}",
            element,
        )
    position = _position(kernel)
    bodies = [kernel.body]
    if isinstance(kernel, RowKernel):
        bodies += [p.body for p in kernel.passes]
        if any(p.extent != kernel.extent and buffer in llir.loads(p.body) for p in kernel.passes):
            raise Rejected("placement", "a pass over more than the row reads what is overwritten in place", element)
    if any(address is not position for body in bodies for address in _addresses(body, buffer)):
        raise Rejected("placement", "a kernel in place of a result reads it in another order too", element)
    return replace(kernel, in_place=buffer)


def plain_place(copy: MapKernel | RowKernel) -> int | None:
    """The buffer that `copy` leaves as it is, where all it does is to store that in place of itself."""
    plain = isinstance(copy, MapKernel) and isinstance(copy.body, llir.Load)
    return copy.in_place if plain else None


def check_writes(bodies: Sequence[Body], kept: Sequence[Kept], given_up: Mapping[int, int]) -> None:
    """Raise Rejected where the writes of a scatter are too large, keep reductions, or store where they read."""
    _check_size(bodies)
    for k in kept:
        raise Rejected("placement", f"{k.said} is kept by a kernel without rows, a scatter", k.element)
    for element in given_up.values():
        raise Rejected("placement", "a scatter does not store where its writes read", element)


def _position(kernel: MapKernel | RowKernel) -> Expr:
    """The row-major position of the element that is stored."""
    shape = kernel.shape if isinstance(kernel, MapKernel) else kernel.result
    names = [f"#{i}" for i in range(len(shape))]
    if isinstance(kernel, RowKernel) and kernel.extent is not None:
        names[-1] = llir.ALONG
    total, step = ZERO, ex.ONE
    for name, n in zip(reversed(names), reversed(shape), strict=True):
        if n != 1:
            total = ex.add(total, ex.mul(ex.var(name), step))
        step = ex.mul(step, ex.as_expr(n))
    return total


def _addresses(body: Body, buffer: int) -> Iterator[Expr | None]:
    """The addresses at which `body` loads from `buffer`; None for those that a gather computes."""
    match body:
        case llir.Load(read, address):
            if read == buffer:
                yield address
        case llir.GatherLoad(read, _, index):
            if read == buffer:
                yield None
            yield from _addresses(index, buffer)
        case llir.Apply(_, operands):
            for operand in operands:
                yield from _addresses(operand, buffer)
        case _:
            return


def check_sole_reader(program: llir.Program, given_up: Mapping[int, int]) -> None:
    """Raise Rejected when what was overwritten in place is read by another kernel, or is an output. `given_up` has the
    e-class of the choice by buffer."""
    for buffer, element in given_up.items():
        readers = sum(buffer in llir.reads(kernel) for kernel in program.kernels)
        if readers > 1 or buffer in program.outputs:
            other = "is an output" if readers == 1 else f"has {readers} readers"
            raise Rejected("placement", f"what would be overwritten in place {other}", element)
