"""A loop nest as the text of one LLVM function over its buffers.

Every value is computed at the depth where its last iterator is known, so nothing invariant stays in an inner loop.
The last, incomplete vector of a row overlaps the one before it: a map computes those elements twice, a reduction, or a
map in place, masks them. No scalar loop is needed unless the whole axis is shorter than two.
Where extents depend on named dimensions, their values are arguments of the function, after the buffers. An axis may
then be shorter than a vector, so its last vector does not overlap: loads and stores leave out the lanes past the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from workbench.ir import dtype as dt
from workbench.ir import expr as ex
from workbench.ir.dtype import DType
from workbench.ir.expr import Expr
from workbench.ir.layout import Dim
from workbench.ir.llir import GATHERED
from workbench.runtime.cpu import functions, index
from workbench.runtime.cpu.builder import MEMORY, REGISTER, Builder, Value
from workbench.runtime.cpu.schedule import Form, Nest, Vectors, quotient, schedule, stride, variable_level
from workbench.runtime.cpu.terms import Term, gathered

FUNCTION = "k"
"""The name of the function in every source, so that equal kernels have equal text."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The text of a source. It is right where all of `narrow` fit 32 bits, which depends on named dimensions."""

    text: str
    narrow: tuple[index.Bounded, ...] = ()


def render_terms(form: Form, terms: list[Term], vectors: Vectors) -> Rendered:
    """The LLVM IR of a kernel with elements to write: `terms` over `form`, buffers numbered as the function's
    arguments, the output 0. `terms` are used up.

    Raises WorkbenchError for a function the target lacks."""
    sizes = dims_of(terms, (*form.shape, form.extent))
    nest = schedule(form, terms, vectors)
    writer = NestWriter(nest, Builder(vectors.converts_f16), arguments([nest]), sizes)
    return Rendered(writer.module(), tuple(writer.narrow))


def arguments(nests: Sequence[Nest]) -> list[str]:
    """The names of the function's arguments, one per buffer."""
    return [f"%p{k}" for k in range(1 + max(0, *(term.buffer for nest in nests for term in nest.terms)))]


def dims_of(terms: Iterable[Term], extents: Iterable[Dim]) -> tuple[str, ...]:
    """The named dimensions that a kernel depends on, in the order of the function's arguments for their values."""
    found = {name for extent in extents for name in ex.dims_of(extent)}
    for term in terms:
        found |= ex.dims_of(term.address) | ex.dims_of(term.extent)
    return tuple(sorted(found))


def source_key(text: str) -> str:
    """The key of a source: a hash of its text."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def identity(combine: str, dtype: DType) -> float | int | bool:
    """What a reduction starts from: 0, or the least value of `dtype`."""
    return 0 if combine == "sum" else dt.least(dtype)


class NestWriter:
    """Writes one nest into a builder: as a function of its own, or as one pass over a row (see `row_render`)."""

    def __init__(self, nest: Nest, builder: Builder, parameters: Sequence[str], dims: Sequence[str]) -> None:
        self.nest = nest
        self.b = builder
        self.parameters = parameters
        self.dims = {name: Value(f"%n{k}", "i64") for k, name in enumerate(dims)}
        self.scalars: dict[str, Value] = dict(self.dims)
        """Dimensions, iterators, and indices of gathers, by name; those of the vector's loop are in `bases`."""
        self.narrow: dict[index.Bounded, None] = {}
        """What is taken to fit 32 bits."""
        self.sizes: dict[Expr, Value] = {}
        """Extents that depend on dimensions, computed once."""
        self.values: dict[tuple[int, int], Value] = {}
        """(term, vector number) to its value; vector number -1 is a scalar."""
        self.pointers: dict[int, str] = {}
        """Term to its buffer's address plus all that is known so far of where it reads."""
        self.bases: list[Value] = []
        """The first position along the lanes of each vector that is worked on."""
        self.cache: dict[tuple[str, str, int], Value] = {}
        self.mask: Value | None = None
        """The lanes that count in the last vector."""
        self.inside_only = False
        """Whether the other lanes of that vector lie past the end, and not in the vector before."""
        self.reduced: list[Value] = []
        """What the earlier passes over the row gave."""
        self._outer: list[tuple[dict[str, Value], dict[int, str], dict[tuple[str, str, int], Value]]] = []
        self.parts = {t: self._by_level(term.address) for t, term in enumerate(nest.terms) if term.buffer >= 0}
        self.store_parts = [self._by_level(store) for store in nest.stores]
        self.rest: NestWriter | None = None
        """Writes what is left of a loop that takes blocks. It shares the loops around that one."""
        if nest.rest is not None:
            self.rest = NestWriter(nest.rest, builder, parameters, dims)
            self.rest.narrow = self.narrow
            self.shared = next(i for i, loop in enumerate(nest.loops) if loop not in nest.rest.loops)
        self.splat = {a for term in nest.terms if term.vector for a in term.args} | set(nest.roots)

    def module(self) -> str:
        """The whole source."""
        self.start()
        self.enter(-1)
        if self.rest is not None:
            self.rest.start()
            self.rest.enter(-1)
        self._from(0, [])
        return self.b.function(FUNCTION, self.parameters, [size.text for size in self.dims.values()])

    def start(self) -> None:
        """Point every load and store at its buffer, and compute the sizes that are not known yet."""
        for size in self._all_sizes():
            if not isinstance(size, int):
                self.sizes[size] = self._size(size)
        self.pointers = {t: self.parameters[self.nest.terms[t].buffer] for t in self.parts}
        self.pointers |= {_out(j): self.parameters[0] for j in range(len(self.nest.stores))}

    def open_row(self, level: int, i: Value) -> None:
        """Bind the iterator of row loop `level`, until `close_row`."""
        self._outer.append((self.scalars, self.pointers, self.cache))
        self.scalars, self.pointers, self.cache = dict(self.scalars), dict(self.pointers), dict(self.cache)
        self.scalars[self.nest.loops[level].name] = i

    def close_row(self) -> None:
        """Forget what was computed since `open_row`."""
        self.scalars, self.pointers, self.cache = self._outer.pop()

    def reduce_row(self) -> Value:
        """The loops below the row loops, and the one value that they leave."""
        return self._total(self._loop_at(self.nest.rows, self._accumulators()))

    def store_row(self) -> None:
        """The loops below the row loops, which store."""
        self._loop_at(self.nest.rows, [])

    def _by_level(self, address: Expr) -> tuple[dict[int, Expr], Expr]:
        """The scalar parts of an address by the loop they become known in, and its part along the lanes."""
        scalar: dict[int, Expr] = {}
        lanes = ex.ZERO
        for product, coefficient in address.terms:
            term = ex.const(coefficient)
            names: frozenset[str] = frozenset()
            for atom in product:
                piece = ex.var(atom.name) if isinstance(atom, ex.Var) else _atom(atom)
                term, names = ex.mul(term, piece), names | ex.variables(piece)
            level, vector = variable_level(self.nest, names)
            if vector:
                lanes = lanes + term
            else:
                scalar[level] = scalar.get(level, ex.ZERO) + term
        return scalar, lanes

    def _from(self, level: int, carried: list[Value]) -> list[Value]:
        """The loops from `level` inwards; `carried` are the accumulators of a reduction that has begun."""
        if self.nest.combine is None or level != self.nest.kept:
            return self._loop_at(level, carried)
        totals = self._loop_at(level, self._accumulators())
        self._store([self._total(totals)] if self._lanes_reduced else totals)
        return carried

    def _loop_at(self, level: int, carried: list[Value]) -> list[Value]:
        nest = self.nest
        if level == len(nest.loops):
            return self._leaf(carried)
        if level == nest.vector:
            return self._vector_loop(level, carried)
        loop = nest.loops[level]
        if loop.step > 1 and not isinstance(loop.extent, int):
            return self._block_loop(level, loop.extent, loop.step)

        def body(i: Value, inner: list[Value]) -> list[Value]:
            start = i
            if isinstance(loop.extent, int) and loop.extent % loop.step:
                start = self._clamped(i, loop.extent - loop.step)
            return self._inside(level, start, [], lambda: beside(start, inner))

        def beside(i: Value, inner: list[Value]) -> list[Value]:
            if self.rest is None or level >= self.shared:
                return self._from(level + 1, inner)
            return self.rest._inside(level, i, [], lambda: self._from(level + 1, inner))

        return self.loop(loop.extent, loop.step, carried, body)

    def _block_loop(self, level: int, extent: Expr, step: int) -> list[Value]:
        """A kept loop in blocks of `step`, and the last values one by one."""
        rest, b, end = self.rest, self.b, self._size(extent)
        assert rest is not None
        start = b.constant("i64", 0)
        main = b.binary("sub", end, b.binary("urem", end, b.constant("i64", step)))
        b.open_loop(start, main, step, [], lambda i, _: self._inside(level, i, [], lambda: self._from(level + 1, [])))
        b.open_loop(main, end, 1, [], lambda i, _: rest._inside(level, i, [], lambda: rest._from(level + 1, [])))
        return []

    def loop(
        self, extent: Dim, step: int, carried: list[Value], body: Callable[[Value, list[Value]], list[Value]]
    ) -> list[Value]:
        """`body` for every `step`-th value below `extent`."""
        if isinstance(extent, int):
            return self.b.loop(0, extent, step, carried, body)
        return self.b.open_loop(self.b.constant("i64", 0), self._size(extent), step, carried, body)

    def _all_sizes(self) -> Iterable[Dim]:
        nest = self.nest
        for loop in nest.loops:
            yield loop.extent
        for t, term in enumerate(nest.terms):
            if term.op == "gather":
                yield self._last_index(term.extent)
            if term.buffer >= 0 and nest.vector is not None:
                yield stride(self.parts[t][1], nest.loops[nest.vector].name) or 0

    def _size(self, size: Dim) -> Value:
        """A size as a number; one with dimensions in it has been computed before all loops."""
        if isinstance(size, int):
            return self.b.constant("i64", size)
        return self.sizes.get(size) or index.evaluate(self.b, size, self.dims, {})

    def _last_index(self, extent: Dim) -> Dim:
        return max(0, extent - 1) if isinstance(extent, int) else ex.as_dim(extent - 1)

    def _inside(self, level: int, i: Value | None, bases: list[Value], body: Callable[[], list[Value]]) -> list[Value]:
        """Run `body` with the loop's iterator bound; what is computed inside is forgotten afterwards."""
        saved = self.scalars, self.pointers, self.cache, self.bases
        self.scalars, self.pointers, self.cache = dict(self.scalars), dict(self.pointers), dict(self.cache)
        if i is not None:
            self.scalars[self.nest.loops[level].name] = i
        if bases:
            self.bases = bases
        self.enter(level)
        result = body()
        self.scalars, self.pointers, self.cache, self.bases = saved
        return result

    def _vector_loop(self, level: int, carried: list[Value]) -> list[Value]:
        nest, b = self.nest, self.b
        extent, width, unroll = nest.loops[level].extent, nest.width, nest.unroll
        if not isinstance(extent, int):
            return self._open_vector_loop(level, extent, carried)
        block = width * unroll
        once = nest.loops[level].reduced or nest.in_place  # no element may be taken twice
        main = extent // block * block if unroll > 1 or once or extent % width == 0 else 0

        def blocks(i: Value, inner: list[Value]) -> list[Value]:
            bases = [self._offset(i, u * width) for u in range(unroll)]
            return self._inside(level, None, bases, lambda: self._from(level + 1, inner))

        def one(i: Value, inner: list[Value]) -> list[Value]:
            base = i if once or extent % width == 0 else self._clamped(i, extent - width)
            return self._inside(level, None, [base], lambda: self._from(level + 1, inner[:1])) + inner[1:]

        if main:
            carried = b.loop(0, main, block, carried, blocks)
        stop = extent // width * width if once else extent
        if main < stop:
            carried = b.loop(main, stop, width, carried, one)
        if stop < extent:
            self.mask = b.lanes("i1", [lane >= width - (extent - stop) for lane in range(width)])
            carried = one(b.constant("i64", extent - width), carried)
            self.mask = None
        return carried

    def _open_vector_loop(self, level: int, extent: Expr, carried: list[Value]) -> list[Value]:
        """The vector's loop over an extent that is known when the kernel runs: blocks of `unroll` vectors, single
        vectors, and one of which the lanes past the end do not count."""
        nest, b = self.nest, self.b
        width, unroll, end = nest.width, nest.unroll, self._size(extent)

        def blocks(i: Value, inner: list[Value]) -> list[Value]:
            bases = [self._offset(i, u * width) for u in range(unroll)]
            return self._inside(level, None, bases, lambda: self._from(level + 1, inner))

        def one(i: Value, inner: list[Value]) -> list[Value]:
            return self._inside(level, None, [i], lambda: self._from(level + 1, inner[:1])) + inner[1:]

        def rest(i: Value, inner: list[Value]) -> list[Value]:
            left = b.splat(b.convert("trunc", b.binary("sub", end, i), "i32"), width)
            self.mask, self.inside_only = b.compare("slt", b.lanes("i32", list(range(width))), left), True
            result = one(i, inner)
            self.mask, self.inside_only = None, False
            return result

        at = b.constant("i64", 0)
        if unroll > 1:
            stop = b.binary("and", end, b.constant("i64", -width * unroll))
            carried, at = b.open_loop(at, stop, width * unroll, carried, blocks), stop
        whole = quotient(extent, width) is not None
        stop = end if whole else b.binary("and", end, b.constant("i64", -width))
        carried = b.open_loop(at, stop, width, carried, one)
        return carried if whole else b.open_loop(stop, end, width, carried, rest)

    def _offset(self, i: Value, by: int) -> Value:
        if by == 0:
            return i
        if not i.text.startswith("%"):
            return self.b.constant("i64", int(i.text) + by)
        return self.b.binary("add nuw nsw", i, self.b.like(i, by))

    def _clamped(self, i: Value, limit: int) -> Value:
        if not i.text.startswith("%"):
            return self.b.constant("i64", min(int(i.text), limit))
        return self.b.intrinsic("umin", i, self.b.like(i, limit))

    def enter(self, level: int) -> None:
        """Compute what is known once the loop at `level` has its iterator."""
        for t, (scalar, _) in self.parts.items():
            if level in scalar and self.nest.terms[t].op != "gather":
                self._advance(t, scalar[level], self.nest.terms[t].dtype)
        for j, (scalar, _) in enumerate(self.store_parts):
            if level in scalar:
                self._advance(_out(j), scalar[level], self.nest.dtype)
        for t, term in enumerate(self.nest.terms):
            if term.op == "gather" and level in self.parts[t][0]:
                self._advance(t, self.parts[t][0][level], term.dtype)
            if term.level != level:
                continue
            if term.vector:
                for u in range(len(self.bases)):
                    self.values[t, u] = self._value(t, term, u)
            else:
                self._keep_scalar(t, self._value(t, term, None))

    def _keep_scalar(self, t: int, value: Value) -> None:
        self.values[t, -1] = value
        if any(term.op == "gather" and term.args[0] == t for term in self.nest.terms):
            wide = functions.cast(self.b, value, self.nest.terms[t].dtype, dt.I64)
            extent = next(x.extent for x in self.nest.terms if x.op == "gather" and x.args[0] == t)
            self.scalars[gathered(t)] = self._clamp(wide, extent)
        if self.nest.width > 1 and t in self.splat:
            splat = self.b.splat(value, self.nest.width)
            for u in range(self.nest.unroll):
                self.values[t, u] = splat

    def _clamp(self, position: Value, extent: Dim) -> Value:
        low = self.b.intrinsic("smax", position, self.b.like(position, 0))
        return self.b.intrinsic("smin", low, self.b.splat(self._size(self._last_index(extent)), position.width))

    def _advance(self, t: int, by: Expr, dtype: DType) -> None:
        offset = index.evaluate(self.b, by, self.scalars, self.cache)
        if offset.text != "0":
            self.pointers[t] = self.b.pointer(MEMORY[dtype], self.pointers[t], offset)

    def _value(self, t: int, term: Term, u: int | None) -> Value:
        """Term `t` as a scalar (`u` None) or as vector number `u`."""
        width = 1 if u is None else self.nest.width
        match term.op:
            case "const":
                return self.b.immediate(term.dtype, term.value)
            case "reduced":
                return self.reduced[int(term.value)]
            case "load" | "gather":
                if term.op == "gather" and term.extent == 0:
                    return self.b.constant(REGISTER[term.dtype], 0, width)
                return self.b.load(term.dtype, self.pointers[t], 1) if u is None else self._lanes_at(t, term, u)
            case "position":
                if u is None:
                    place = index.evaluate(self.b, term.address, self.scalars, self.cache)
                else:
                    place = self._lanes(term.address, u)
                return functions.cast(self.b, place, dt.I32 if place.element == "i32" else dt.I64, term.dtype)
            case _:
                operands = [self.values[a, -1 if u is None else u] for a in term.args]
                dtypes = [self.nest.terms[a].dtype for a in term.args]
                return functions.apply(self.b, term.op, operands, dtypes, term.dtype)

    def _lanes_at(self, t: int, term: Term, u: int) -> Value:
        """A vector load: contiguous, reversed or gathered."""
        b, nest = self.b, self.nest
        assert nest.vector is not None
        along = self.parts[t][1]
        name = nest.loops[nest.vector].name
        element, base = MEMORY[term.dtype], self.bases[u]
        inside = self.mask if self.inside_only else None
        step = stride(along, name) if ex.iterators_of(along) == {name} else None
        if step is None:
            offsets = self._lanes(along, u)
            return b.gather(term.dtype, b.pointer(element, self.pointers[t], offsets), nest.width, inside)
        start = base if step == 1 else index.evaluate(b, ex.var(name) * step, {**self.dims, name: base}, {})
        pointer = b.pointer(element, self.pointers[t], start)
        if step == 1:
            return b.load(term.dtype, pointer, nest.width, inside)
        if isinstance(step, int):
            offsets = b.lanes("i64", [lane * step for lane in range(nest.width)])
        else:
            offsets = b.binary("mul", b.lanes("i64", list(range(nest.width))), b.splat(self._size(step), nest.width))
        return b.gather(term.dtype, b.pointer(element, pointer, offsets), nest.width, inside)

    def _lanes(self, expression: Expr, u: int) -> Value:
        """An index expression for every lane of vector `u`."""
        b, nest = self.b, self.nest
        lanes = index.bounded(expression, nest.extents)
        narrow = index.is_narrow(lanes)
        if narrow is None and not nest.wide:
            self.narrow[lanes], narrow = None, True
        element = "i32" if narrow else "i64"
        variables: dict[str, Value] = {}
        for name in ex.variables(expression):
            key = (f"lanes {name} {u}", element, nest.width)
            if key not in self.cache:
                self.cache[key] = self._variable_lanes(name, u, element)
            variables[name] = self.cache[key]
        return index.evaluate(b, expression, variables, {}, element, nest.width)

    def _variable_lanes(self, name: str, u: int, element: str) -> Value:
        b, nest = self.b, self.nest
        assert nest.vector is not None
        if name.startswith(GATHERED) and name not in self.scalars:
            chosen = int(name[len(GATHERED) :])
            extent = nest.extents[name]
            wide = functions.cast(b, self.values[chosen, u], nest.terms[chosen].dtype, dt.I64)
            clamped = self._clamp(wide, extent)
            return b.convert("trunc", clamped, "i32") if element == "i32" else clamped
        is_lane = name == nest.loops[nest.vector].name
        scalar = self.bases[u] if is_lane else self.scalars[name]
        if element == "i32":
            known = not scalar.text.startswith("%")
            scalar = b.constant("i32", int(scalar.text)) if known else b.convert("trunc", scalar, "i32")
        spread = b.splat(scalar, nest.width)
        return b.binary("add", spread, b.lanes(element, list(range(nest.width)))) if is_lane else spread

    @property
    def _lanes_reduced(self) -> bool:
        nest = self.nest
        return nest.vector is not None and nest.loops[nest.vector].reduced

    def _accumulators(self) -> list[Value]:
        assert self.nest.combine is not None
        count = self.nest.unroll if self._lanes_reduced else max(1, len(self.bases)) * len(self.nest.roots)
        start = identity(self.nest.combine, self.nest.dtype)
        return [self.b.constant(REGISTER[self.nest.dtype], start, self.nest.width)] * count

    def _results(self) -> list[Value]:
        if self.nest.vector is None:
            return [self.values[root, -1] for root in self.nest.roots]
        return [self.values[root, u] for root in self.nest.roots for u in range(len(self.bases))]

    def _leaf(self, carried: list[Value]) -> list[Value]:
        results = self._results()
        if self.nest.combine is None:
            self._store(results)
            return carried
        if self.mask is not None and self._lanes_reduced:
            blank = self.b.like(results[0], identity(self.nest.combine, self.nest.dtype))
            results = [self.b.select(self.mask, results[0], blank)]
        return [self._combined(a, r) for a, r in zip(carried, results, strict=True)]

    def _combined(self, a: Value, r: Value) -> Value:
        if self.nest.combine == "sum":
            return self.b.binary("fadd reassoc contract" if a.is_float else "or" if a.element == "i1" else "add", a, r)
        if a.is_float:
            return self.b.intrinsic("maximum", a, r, flags="nsz")
        return self.b.binary("or", a, r) if a.element == "i1" else self.b.intrinsic(self._integer_max, a, r)

    @property
    def _integer_max(self) -> str:
        return "smax" if self.nest.dtype.is_signed else "umax"

    def _total(self, carried: list[Value]) -> Value:
        """The accumulators, which are f32 for halves, as one scalar of the dtype."""
        total = self._added_up(carried)
        return self.b.rounded(self.nest.dtype, total) if self.nest.dtype.is_half else total

    def _added_up(self, carried: list[Value]) -> Value:
        b = self.b
        while len(carried) > 1:
            half = len(carried) // 2
            carried = [self._combined(carried[k], carried[k + half]) for k in range(half)]
        total = carried[0]
        if total.width == 1:
            return total
        scalar = Value("", total.element)
        vector = f"v{total.width}{ {'float': 'f32', 'double': 'f64'}.get(total.element, total.element) }"
        if self.nest.combine == "sum" and total.is_float:
            zero = b.constant(total.element, -0.0)
            return b.call(f"llvm.vector.reduce.fadd.{vector}", scalar, zero, total, flags="reassoc")
        if total.is_float:
            return b.call(f"llvm.vector.reduce.fmaximum.{vector}", scalar, total, flags="nsz")
        name = "or" if total.element == "i1" else "add" if self.nest.combine == "sum" else self._integer_max
        return b.call(f"llvm.vector.reduce.{name}.{vector}", scalar, total)

    def _store(self, values: list[Value]) -> None:
        b, nest = self.b, self.nest
        each = len(values) // len(nest.stores)
        for k, value in enumerate(values):
            j, u = divmod(k, each)
            along, pointer = self.store_parts[j][1], self.pointers[_out(j)]
            if along is not ex.ZERO:
                assert nest.vector is not None
                assert stride(along, nest.loops[nest.vector].name) == 1
                pointer = b.pointer(MEMORY[nest.dtype], pointer, self.bases[u])
            if self.inside_only and value.width > 1:
                b.store(nest.dtype, pointer, value, self.mask)
                continue
            if self.mask is not None:  # in place, the other lanes are done already
                value = b.select(self.mask, value, b.load(nest.dtype, pointer, nest.width))
            b.store(nest.dtype, pointer, value)


def _out(root: int) -> int:
    """The key of the output's pointer for one root, beside those of the loads."""
    return -1 - root


def _atom(atom: ex.Quotient | ex.Remainder) -> Expr:
    return ex.floordiv(atom.num, atom.den) if isinstance(atom, ex.Quotient) else ex.mod(atom.num, atom.den)
