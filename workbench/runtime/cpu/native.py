"""Generated kernels: from LLIR to code and to what a launch of it needs, for one or for all values of the named
dimensions that it depends on.

Code for all values is written for sizes from 1 on. Whether those are (`NativeTemplate.suits`) is looked at for the
values at hand; where they are not, the kernel is written again for those values (`llir.at_values`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from math import prod

from workbench.errors import WorkbenchError
from workbench.ir import expr as ex
from workbench.ir import llir
from workbench.ir.expr import Expr
from workbench.ir.layout import Dim
from workbench.ir.llir import (
    ALONG,
    Body,
    Buffer,
    Immediate,
    MapKernel,
    NativeKernel,
    ReduceKernel,
    RowKernel,
    RowPass,
    ScatterKernel,
)
from workbench.runtime.bounds import reach
from workbench.runtime.cpu import index
from workbench.runtime.cpu.builder import REGISTER
from workbench.runtime.cpu.render import Rendered, dims_of, identity, render_terms, source_key
from workbench.runtime.cpu.row_render import Keys, RowForm, render_row
from workbench.runtime.cpu.scatter_render import ScatterForm, render_scatter
from workbench.runtime.cpu.schedule import Form, Vectors
from workbench.runtime.cpu.terms import Term, gathered, linearise, linearise_all
from workbench.runtime.protocol import NativeLaunch

LONG = 16
"""Characters of a size beyond which a kernel's name has its value."""
NAMED_FUNCTIONS = 4
"""How many functions a launch's name lists."""


@dataclass(frozen=True, slots=True)
class Part:
    """A body with the extents of the iterators that it is computed over."""

    terms: list[Term]
    extents: dict[str, Dim]


@dataclass(frozen=True, slots=True)
class NativeTemplate:
    """Code for a kernel, and what its launches are made from. `buffers` are the function's first arguments, the values
    of the dimensions `sizes` the others."""

    kernel: NativeKernel
    parts: list[Part]
    source: str
    text: str
    buffers: tuple[int, ...]
    sizes: tuple[str, ...]
    flops: Dim
    divisors: frozenset[Expr]
    """Divisors that depend on dimensions."""
    narrow: tuple[index.Bounded, ...]
    """What has to fit 32 bits."""

    def suits(self, elements: Sequence[int], dims: Mapping[str, int]) -> bool:
        """Whether the code is right for these values: nothing that it goes over, reads from or divides by is 0.
        `elements` are those of each buffer."""
        gathers = (term.extent for part in self.parts for term in part.terms if term.op == "gather")
        sizes = chain(self.divisors, gathers, *(part.extents.values() for part in self.parts))
        return all(elements[b] for b in self.buffers) and all(ex.sized(size, dims) >= 1 for size in sizes)

    def is_wide_enough(self, dims: Mapping[str, int]) -> bool:
        """Whether the indices that the code computes with 32 bits fit them."""
        return all(index.is_narrow(lanes, dims) for lanes in self.narrow)

    def launch(self, buffers: Sequence[Buffer], dims: Mapping[str, int]) -> NativeLaunch:
        """The launch for values of the named dimensions. Raises WorkbenchError where it would leave its buffers."""
        extents = [{name: ex.sized(n, dims) for name, n in part.extents.items()} for part in self.parts]
        self._check_addresses(buffers, dims, extents)
        flops, nbytes = ex.sized(self.flops, dims), self._traffic(buffers, dims, extents)
        return NativeLaunch(
            self.source,
            self.buffers,
            native_name(self.kernel, self.parts[-1].terms, dims),
            flops,
            nbytes,
            tuple(dims[name] for name in self.sizes),
        )

    def _traffic(
        self, buffers: Sequence[Buffer], dims: Mapping[str, int], extents: Sequence[Mapping[str, int]]
    ) -> int:
        """Bytes read (each buffer once, by the part that its loads touch) and written."""
        touched: dict[int, int] = {}
        for part, here in zip(self.parts, extents, strict=True):
            for term in part.terms:
                if term.buffer >= 0:
                    names = here.keys() if term.op == "gather" else ex.variables(term.address) & here.keys()
                    count = prod(here[n] for n in names)
                    touched[term.buffer] = max(touched.get(term.buffer, 0), count * term.dtype.itemsize)
        read = sum(min(size, buffers[buffer].bytes_at(dims)) for buffer, size in touched.items())
        if isinstance(self.kernel, ScatterKernel):  # writes single elements; where they are combined it reads them too
            times = 1 if self.kernel.mode == "none" else 2
            return read + times * prod(extents[0].values()) * buffers[self.kernel.out].dtype.itemsize
        return read + buffers[self.kernel.out].bytes_at(dims)

    def _check_addresses(
        self, buffers: Sequence[Buffer], dims: Mapping[str, int], extents: Sequence[Mapping[str, int]]
    ) -> None:
        """Raise for a kernel that would read or write outside a buffer, or in place of one that it does not fit."""
        kernel, out = self.kernel, buffers[self.kernel.out]
        shape, elements = sized_shape(result_shape(kernel), dims), ex.sized(out.elements, dims)
        if elements < prod(shape):
            raise WorkbenchError(f"buffer {kernel.out} is too small for a kernel of shape {shape}")
        place = _place_of(kernel)
        if place is not None:
            other = buffers[place]
            if other.role != "intermediate" or (ex.sized(other.elements, dims), other.dtype) != (elements, out.dtype):
                raise WorkbenchError(f"buffer {kernel.out} does not fit in place of buffer {place}")
        for part, along in zip(self.parts, extents, strict=True):
            if not prod(along.values()):
                continue
            for term in part.terms:
                extent = ex.sized(term.extent, dims)
                if term.buffer < 0 or (term.op == "gather" and extent == 0):
                    continue
                here = {**along, **{gathered(a): extent for a in term.args}}
                buffer = buffers[term.buffer]
                given = tuple((name, dims[name]) for name in sorted(ex.dims_of(term.address)))
                outside = reach(term.address, tuple(here.items()), ex.sized(buffer.elements, dims), given)
                if outside is not None:
                    raise WorkbenchError(
                        f"a kernel reads elements {outside[0]}..{outside[1]} of buffer {buffer.id}, "
                        f"which has {ex.sized(buffer.elements, dims)}"
                    )


def native_template(
    kernel: NativeKernel, buffers: Sequence[Buffer], vectors: Vectors, wide: bool = False
) -> NativeTemplate:
    """The code for `kernel`, which writes something, for a processor with `vectors`; with `wide` it is for sizes of
    which indices need 64 bits everywhere.

    Raises WorkbenchError for a dtype or a function that this target lacks."""
    parts = _parts(kernel)
    for dtype in (buffers[kernel.out].dtype, *(term.dtype for part in parts for term in part.terms)):
        if dtype not in REGISTER:
            raise WorkbenchError(f"the cpu target has no kernels for {dtype}")
    flops = llir.flops(kernel)
    if isinstance(kernel, ReduceKernel) and kernel.extent == 0:
        dtype = buffers[kernel.out].dtype
        fill = MapKernel(kernel.out, kernel.shape, Immediate(identity(kernel.combine, dtype), dtype), kernel.sources)
        return native_template(fill, buffers, vectors)
    in_place = _place_of(kernel)
    numbers = _argument_numbers(kernel, parts)
    keys = tuple(
        tuple(replace(t, buffer=numbers[t.buffer]).key if t.buffer >= 0 else t.key for t in part.terms)
        for part in parts
    )
    extents: tuple[Dim, ...]
    match kernel:
        case ScatterKernel():
            roots = tuple(linearise_all([kernel.index, kernel.update])[1])
            scatter = ScatterForm(kernel.shape, kernel.mode, buffers[kernel.out].dtype, kernel.elements, roots)
            extents, rendered = scatter.extents, _rendered_scatter(scatter, keys[0], vectors)
        case MapKernel():
            form = Form(kernel.shape, in_place=in_place is not None, wide=wide)
            extents, rendered = kernel.shape, _rendered(form, keys[0], vectors)
        case ReduceKernel():
            form = Form(kernel.shape, kernel.extent, kernel.combine, kernel.order, wide=wide)
            extents, rendered = kernel.iteration, _rendered(form, keys[0], vectors)
        case RowKernel():
            passes = tuple((p.combine, p.extent) for p in kernel.passes)
            row_form = RowForm(kernel.shape, passes, kernel.extent, in_place is not None, wide)
            extents, rendered = row_form.extents, _rendered_row(row_form, keys, vectors)
    terms = [term for part in parts for term in part.terms]
    given = tuple(buffer for buffer in numbers if buffer != in_place)
    divisors = frozenset(d for term in terms for d in ex.divisors(term.address) if not ex.iterators_of(d))
    return NativeTemplate(
        kernel, parts, source_key(rendered.text), rendered.text, given, dims_of(terms, extents), flops,
        frozenset(d for d in divisors if d.constant is None), rendered.narrow,
    )  # fmt: skip


def _argument_numbers(kernel: NativeKernel, parts: Sequence[Part]) -> dict[int, int]:
    """The number of each buffer among the function's arguments. The output takes the number 0 once, and what lies in
    the same memory goes by it."""
    in_place = _place_of(kernel)
    numbers = {kernel.out: 0}
    if in_place is not None:
        numbers[in_place] = 0
    for part in parts:
        for term in part.terms:
            if term.buffer >= 0:
                numbers.setdefault(term.buffer, len(numbers) - (in_place is not None))
    return numbers


def _place_of(kernel: NativeKernel) -> int | None:
    return None if isinstance(kernel, ReduceKernel) else kernel.in_place


def _parts(kernel: NativeKernel) -> list[Part]:
    """The bodies of a kernel, in the order of their computation; that of the output last."""

    def part(body: Body, **extents: Dim) -> Part:
        return Part(linearise(body), {f"#{i}": n for i, n in enumerate(kernel.shape)} | extents)

    match kernel:
        case ScatterKernel():
            terms, _ = linearise_all([kernel.index, kernel.update])
            return [Part(terms, {f"#{i}": n for i, n in enumerate(kernel.shape)})]
        case MapKernel():
            return [part(kernel.body)]
        case ReduceKernel():
            return [part(kernel.body, **{f"#{len(kernel.shape)}": kernel.extent})]
        case RowKernel():
            stored = {} if kernel.extent is None else {ALONG: kernel.extent}
            passes = [part(_of_row(p), **{ALONG: p.extent}) for p in kernel.passes]
            return [*passes, part(kernel.body, **stored)]


def _of_row(each: RowPass) -> Body:
    """What a pass is over. One over nothing reads nothing: the function has no argument for what it would load."""
    if each.extent == 0:
        return Immediate(identity(each.combine, each.body.dtype), each.body.dtype)
    return each.body


@lru_cache(maxsize=8192)
def _rendered(form: Form, keys: tuple[tuple[object, ...], ...], vectors: Vectors) -> Rendered:
    return render_terms(form, [Term.from_key(key) for key in keys], vectors)


@lru_cache(maxsize=8192)
def _rendered_row(form: RowForm, bodies: tuple[Keys, ...], vectors: Vectors) -> Rendered:
    return render_row(form, bodies, vectors)


@lru_cache(maxsize=8192)
def _rendered_scatter(form: ScatterForm, keys: Keys, vectors: Vectors) -> Rendered:
    return Rendered(render_scatter(form, [Term.from_key(key) for key in keys], vectors))


def result_shape(kernel: NativeKernel) -> tuple[Dim, ...]:
    """The shape of what a kernel stores, or changes."""
    match kernel:
        case RowKernel():
            return kernel.result
        case ScatterKernel():
            return (kernel.elements,)
        case _:
            return kernel.shape


def sized_shape(shape: Sequence[Dim], dims: Mapping[str, int]) -> tuple[int, ...]:
    """`shape` for values of the named dimensions. Raises WorkbenchError for a negative extent."""
    found = tuple(ex.sized(d, dims) for d in shape)
    if min(found, default=0) < 0:
        given = ", ".join(f"{n}={dims[n]}" for n in sorted(set().union(*map(ex.dims_of, shape))))
        raise WorkbenchError(f"an extent of the shape [{', '.join(map(str, shape))}] is negative for {given}")
    return found


def shown(extents: Sequence[Dim], dims: Mapping[str, int]) -> str:
    """Extents as the names of kernels have them: `16x64`, `seqx64`, `(2*seq)x64`; long ones by their value."""
    return "x".join(
        str(d if isinstance(d, int) else d if ex.name_of(d) else f"({d})" if len(str(d)) <= LONG else ex.sized(d, dims))
        for d in extents
    )


def native_name(kernel: NativeKernel, terms: Sequence[Term], dims: Mapping[str, int]) -> str:
    """What a kernel does, as users read it: `map Mul,Add 16x64`, `sum Mul 16x64:256`, `row: max, sum, map 16x64`,
    `scatter add 4x8 into 64`."""
    if isinstance(kernel, RowKernel):
        return f"row: {', '.join(llir.row_passes(kernel))} {shown(kernel.result, dims) or '1'}{_place(kernel)}"
    if isinstance(kernel, ScatterKernel):
        return f"scatter {kernel.mode} {shown(kernel.shape, dims) or '1'} into {shown([kernel.elements], dims)}"
    used = list(dict.fromkeys(t.op for t in terms if t.op not in ("const", "load", "position")))
    more = [f"+{len(used) - NAMED_FUNCTIONS}"] if len(used) > NAMED_FUNCTIONS else []
    functions = ",".join(["Gather" if u == "gather" else u for u in used[:NAMED_FUNCTIONS]] + more)
    shape = shown(kernel.shape, dims) or "1"
    if isinstance(kernel, ReduceKernel):
        over = f"{shape}:{shown([kernel.extent], dims)}"
        return " ".join(part for part in (kernel.combine, functions, over) if part)
    return f"map {functions or ('copy' if terms[-1].op == 'load' else terms[-1].op)} {shape}{_place(kernel)}"


def _place(kernel: MapKernel | RowKernel) -> str:
    return "" if kernel.in_place is None else " in place"
