"""Extraction: from a genome to LLIR. Index expressions of inlined producers are composed with the consumer's layout
here, where the extents of all axes are known: as numbers, or as expressions over named dimensions that are left free.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from workbench.egraph.program import parse_literal
from workbench.egraph.snapshot import Snapshot
from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir import llir, ops
from workbench.ir.dtype import DType
from workbench.ir.expr import ITER, ZERO, Expr
from workbench.ir.llir import Body, Buffer, Kernel, Program
from workbench.search.placement import (
    PLAIN_CHOICE,
    Kept,
    Rejected,
    check_sole_reader,
    check_writes,
    in_place,
    map_kernel,
    per_element,
    plain_place,
    reduce_kernel,
)
from workbench.search.space import Genome, Space

MAX_BATCH = 65536
MAX_INDEX = 500
"""Operations of one index expression."""
ROUTINES = {"Sgemm": "sgemm", "Dgemm": "dgemm", "Cublas": "cublas-sgemm", "CublasLt": "cublaslt"}
"""What the call of a library's e-node is named."""
RECURSION_LIMIT = 200_000
"""A graph without breaks is as deep as it has nodes, and extraction follows it down."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A genome whose placements fit together; `notes` say, in a sentence each, which did not and were made plain."""

    genome: Genome
    notes: tuple[str, ...]


def extract(space: Space, genome: Genome, dims: Mapping[str, int]) -> Program:
    """The kernels that `genome` selects, over buffers in local numbers (see `bind`). Named dimensions take the values
    in `dims`; those without one are left free, and the program is for every value of them, from 1 on. Placements that
    do not fit together (at all values) are taken as plain loads, as in `fitted`. Raises Rejected."""
    return _pruned(space, genome, dims)[1]


def extract_exactly(space: Space, genome: Genome, dims: Mapping[str, int]) -> Program:
    """As `extract`, but placements that do not fit together are rejected as well. Raises Rejected."""
    return _extraction(space, genome, dims)[1]


def fitted(space: Space, genome: Genome, dims: Mapping[str, int]) -> Fitted:
    """`genome` with the placements that do not fit together with its other choices replaced by plain ones, which is
    what `extract` makes of it. One that is rejected for another reason comes back as it is."""
    try:
        return _pruned(space, genome, dims)[2]
    except Rejected:
        return Fitted(genome, ())


def _pruned(space: Space, genome: Genome, dims: Mapping[str, int]) -> tuple[_Extraction, Program, Fitted]:
    notes: list[str] = []
    while True:
        try:
            extraction, program = _extraction(space, genome, dims)
        except Rejected as rejected:
            plainer = _plainer(space, genome, rejected.eclass)
            if plainer is None:
                raise
            genome = plainer
            notes.append(rejected.detail)
        else:
            return extraction, program, Fitted(genome, tuple(notes))


def _extraction(space: Space, genome: Genome, dims: Mapping[str, int]) -> tuple[_Extraction, Program]:
    sys.setrecursionlimit(max(sys.getrecursionlimit(), RECURSION_LIMIT))
    extraction = _Extraction(space, genome, dims)
    try:
        return extraction, extraction.program()
    except ZeroDivisionError as error:
        raise Rejected("no-viable-kernel", f"a dimension that is 0 is divided by: {error}") from None


def _plainer(space: Space, genome: Genome, eclass: int | None) -> Genome | None:
    """`genome` with the placement chosen in `eclass` replaced by the choice beside it that fits everywhere."""
    gene = None if eclass is None else space.gene_of.get(eclass)
    if gene is None:
        return None
    options = space.options[space.genes[gene]]
    wanted = PLAIN_CHOICE.get(space.snapshot.op(options[genome[gene]]))
    plain = next((i for i, n in enumerate(options) if space.snapshot.op(n) == wanted), None)
    return None if plain is None else (*genome[:gene], plain, *genome[gene + 1 :])


def kernel_classes(space: Space, genome: Genome, dims: Mapping[str, int]) -> list[int]:
    """The e-class that each kernel of `extract` computes, in the order of its kernels. Raises Rejected."""
    return _pruned(space, genome, dims)[0].computed


class _Extraction:
    def __init__(self, space: Space, genome: Genome, dims: Mapping[str, int]) -> None:
        self.space, self.genome, self.dims = space, genome, dims
        self.snapshot: Snapshot = space.snapshot
        self.buffers: list[Buffer] = []
        self.kernels: list[Kernel] = []
        self.computed: list[int] = []
        """The e-class of each kernel."""
        self.buffer_of: dict[int, int] = {}
        self.open: set[int] = set()
        self.local_of = {c: int(v[2:]) for v, c in self.snapshot.variables.items() if v.startswith("$t")}
        self.memo: dict[tuple[int, tuple[Expr, ...], tuple[lay.Dim, ...], lay.Dim | None], Body] = {}
        self.extents: dict[str, lay.Dim] = {}
        self.inlined: list[int] = []
        self.kept: list[Kept] = []
        """The reductions that the kernel at hand keeps per row, in the order of its passes."""
        self.given_up: dict[int, int] = {}
        """By buffer that the kernel at hand is to overwrite, the e-class of that choice."""
        self.overwritten: dict[int, int] = {}
        """The same, of all kernels so far."""

    def program(self) -> Program:
        outputs: list[int] = []
        at = self.space.root
        while True:
            node = self.space.node(self.genome, at)
            if self.snapshot.op(node) == "RNil":
                break
            head, _, at = self.snapshot.children(node)
            outputs.append(self.buffer(head))
        for buffer_id in outputs:
            buffer = self.buffers[buffer_id]
            if buffer.role == "boundary":
                raise Rejected("no-viable-kernel", "an output is one of the inputs and nothing copies it")
            self.buffers[buffer_id] = replace(buffer, role="output")
        program = Program(self.buffers, self.kernels, outputs)
        check_sole_reader(program, self.overwritten)
        return program

    def buffer(self, eclass: int) -> int:
        """The buffer that holds an IR e-class, its kernel appended first."""
        found = self.buffer_of.get(eclass)
        if found is not None:
            return found
        if eclass in self.open:
            raise Rejected("cycle", "the chosen e-nodes refer to each other in a circle")
        self.open.add(eclass)
        node = self.space.node(self.genome, eclass)
        children = self.snapshot.children(node)
        match self.snapshot.op(node):
            case "Input":
                shape = self.shape(children[3])
                position = int(self.snapshot.literal(children[0]))
                made = self._new(self.snapshot.dtype(children[2]), lay.numel(shape), "boundary", position)
            case "Map":
                made = self._map(eclass, children)
            case "SumInner" | "SumOuter" | "MaxInner" | "MaxOuter" as op:
                made = self._reduce(eclass, op, children)
            case "ScatterLoop":
                made = self._scatter(eclass, children)
            case "Sgemm" | "Dgemm" | "Cublas" as op:
                made = self._gemm(eclass, ROUTINES[op], children)
            case "CublasLt" as op:
                layout, _, *rest = children  # the dtype is that of the operands too
                made = self._gemm(eclass, ROUTINES[op], [layout, *rest])
            case "Opaque":
                made = self._opaque(eclass, children)
            case other:
                raise AssertionError(f"{other} is not a kernel")
        self.computed += [eclass] * (len(self.kernels) - len(self.computed))
        self.open.discard(eclass)
        self.buffer_of[eclass] = made
        return made

    def _new(self, dtype: DType, elements: lay.Dim, role: llir.Role, source: int) -> int:
        self.buffers.append(Buffer(len(self.buffers), dtype, elements, role, source))
        return len(self.buffers) - 1

    def _result(self, eclass: int, dtype: DType, shape: Sequence[lay.Dim]) -> int:
        return self._new(dtype, lay.numel(tuple(shape)), "intermediate", self.local_of.get(eclass, -1))

    def _sources(self, eclass: int) -> tuple[int, ...]:
        own = self.local_of.get(eclass, -1)
        others = dict.fromkeys(self.local_of.get(c, -1) for c in self.inlined)
        return (own, *(c for c in others if c not in (own, -1)))

    def shape(self, eclass: int) -> tuple[lay.Dim, ...]:
        """An EList as extents."""
        return tuple(self.value(e) for e in self.snapshot.shape(eclass))

    def value(self, e: Expr) -> lay.Dim:
        """A size with named dimensions replaced by their values."""
        return ex.bound(e, self.dims)

    def bound(self, e: Expr) -> Expr:
        """An index expression with named dimensions replaced by their values."""
        return ex.substitute(e, self.dims) if ex.variables(e) & self.dims.keys() else e

    def _axes(self, shape: Sequence[lay.Dim]) -> tuple[Expr, ...]:
        self.memo, self.inlined, self.kept, self.given_up = {}, [], [], {}
        self.extents = {f"#{i}": d for i, d in enumerate(shape)}
        return tuple(ZERO if d == 1 else llir.axis(i) for i, d in enumerate(shape))

    def _map(self, eclass: int, children: Sequence[int]) -> int:
        shape, dtype = self.shape(children[0]), self.snapshot.dtype(children[2])
        body = self._kernel_body(children[1], shape)
        out = self._result(eclass, dtype, shape)
        kernel = map_kernel(out, shape, body, self.kept, self._sources(eclass))
        self.kernels.append(in_place(kernel, self.given_up, self.buffers, dtype))
        self.overwritten |= self.given_up
        return out

    def _reduce(self, eclass: int, op: str, children: Sequence[int]) -> int:
        shape = self.shape(children[0])
        extent = self.value(self.snapshot.expr(children[1]))
        body = self._kernel_body(children[2], (*shape, extent))
        for element in self.given_up.values():
            raise Rejected("placement", "a reduction does not store where it reads", element)
        out = self._result(eclass, self.snapshot.dtype(children[3]), shape)
        kernel = llir.ReduceKernel(
            out,
            shape,
            extent,
            "sum" if op.startswith("Sum") else "max",
            body,
            "inner" if op.endswith("Inner") else "outer",
            self._sources(eclass),
        )
        self.kernels.append(reduce_kernel(kernel, self.kept, eclass))
        return out

    def _scatter(self, eclass: int, children: Sequence[int]) -> int:
        """The writes, in place of what a kernel before them stored: the data's own, or a copy."""
        mode = str(self.snapshot.literal(children[0]))
        data, index, update = children[2], children[4], children[5]
        shape, writes, dtype = self.shape(children[1]), self.shape(children[3]), self.snapshot.dtype(children[6])
        for element in (data, index, update):
            self._prepare_loads(element, set(), set())
        body = self._kernel_body(data, shape)
        copy = map_kernel(-1, shape, body, self.kept, (-1, *self._sources(eclass)[1:]))
        copy = in_place(copy, self.given_up, self.buffers, dtype)
        given_up = self.given_up
        axes = self._axes(writes)
        at, value = (self.body(element, axes, writes) for element in (index, update))
        check_writes([at, value], self.kept, self.given_up)
        base = plain_place(copy)
        if base is None:
            base = self._new(dtype, lay.numel(shape), "intermediate", -1)
            self.kernels.append(replace(copy, out=base))
        if base in llir.loads(at) or base in llir.loads(value):
            raise Rejected("placement", "a write reads what is overwritten in place", given_up[base])
        out = self._result(eclass, dtype, shape)
        sources = self._sources(eclass)
        self.kernels.append(llir.ScatterKernel(out, base, lay.numel(shape), writes, mode, at, value, sources))
        self.overwritten |= given_up
        return out

    def _kernel_body(self, element: int, shape: tuple[lay.Dim, ...]) -> Body:
        """The body over iteration `shape`; the buffers it loads are made first, since their kernels use this state."""
        self._prepare_loads(element, set(), set())
        return self.body(element, self._axes(shape), shape)

    def _prepare_loads(self, element: int, done: set[int], path: set[int]) -> None:
        """Make the buffers that an element needs; `path` leads to it, so that a choice that needs itself is seen."""
        if element in done:
            return
        if element in path:
            raise Rejected("cycle", "the chosen e-nodes refer to each other in a circle")
        path.add(element)
        node = self.space.node(self.genome, element)
        for child in self.snapshot.children(node):
            if child < 0:
                continue
            match self.snapshot.class_sort[child]:
                case "IR":
                    self.buffer(child)
                case "Elem":
                    self._prepare_loads(child, done, path)
                case _:
                    pass
        path.discard(element)
        done.add(element)

    def body(self, element: int, index: tuple[Expr, ...], space: Sequence[lay.Dim]) -> Body:
        """The element expression at `index` of an iteration space of shape `space`."""
        # a position in the space depends on its shape, and what can be simplified on the extents
        key = (element, index, tuple(space), self.extents.get(llir.ALONG))
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = self._body(element, index, space)
        return found

    def _body(self, element: int, index: tuple[Expr, ...], space: Sequence[lay.Dim]) -> Body:
        snapshot = self.snapshot
        node = self.space.node(self.genome, element)
        op, children = snapshot.op(node), snapshot.children(node)
        match op:
            case "Immediate":
                dtype = snapshot.dtype(children[1])
                return llir.Immediate(parse_literal(str(snapshot.literal(children[0])), dtype), dtype)
            case "Load":
                buffer = self.buffers[self.buffer(children[0])]
                return llir.Load(buffer.id, self._address(children[1], children[2], index), buffer.dtype)
            case "Inline":
                shape = self.shape(children[1])
                flat = self._address(children[2], children[3], index)
                inner = lay.unflatten(flat, shape, self.extents)
                self.inlined.append(self._producer(element))
                return self.body(children[0], tuple(inner), shape)
            case "RowSum" | "RowMax":
                return self._keep(element, op, children, index)
            case "InPlace":
                buffer = self.buffers[self.buffer(children[0])]
                self.given_up[buffer.id] = element
                return llir.Load(buffer.id, self._address(children[1], children[2], index), buffer.dtype)
            case "EIota":
                position = ZERO
                for at, step in zip(index, _row_major_steps(space), strict=True):
                    position = ex.add(position, ex.mul(at, ex.as_expr(step)))
                value = ex.substitute(self.bound(snapshot.expr(children[0])), {ITER: position}, self.extents)
                return llir.Position(value, snapshot.dtype(children[1]))
            case "EGather":
                picked = self.body(children[0], index, space)
                buffer = self.buffers[self.buffer(children[1])]
                axis = int(snapshot.literal(children[4]))
                gathered = (*index[:axis], ex.var(llir.GATHERED), *index[axis + 1 :])
                extent = self.value(snapshot.expr(children[5]))
                address = self._address(children[2], children[3], gathered)
                return llir.GatherLoad(buffer.id, address, picked, extent, buffer.dtype)
            case "ECast":
                dtype = snapshot.dtype(children[1])
                return llir.Apply("Cast", (self.body(children[0], index, space),), dtype)
            case _:
                # a list, since Python's own limit on calls from C cuts a generator's recursion short
                operands = tuple([self.body(c, index, space) for c in children])
                result = ops.ELEMENTWISE[op[1:]].result
                return llir.Apply(op[1:], operands, result or operands[-1].dtype)

    def _keep(self, element: int, op: str, children: Sequence[int], index: tuple[Expr, ...]) -> Body:
        """A reduction as a pass of the kernel at hand, over what it is of at the position that its load addresses."""
        shape, extent = self.shape(children[1]), self.value(self.snapshot.expr(children[2]))
        position = self._address(children[3], children[4], index)
        combine: llir.Combine = "sum" if op == "RowSum" else "max"
        if llir.ALONG in ex.variables(position):
            raise per_element(f"the {combine} over {extent} elements", element)
        outer = self.extents.get(llir.ALONG)
        self.extents[llir.ALONG] = extent
        place = lay.unflatten(position, shape, self.extents)
        along = ZERO if extent == 1 else ex.var(llir.ALONG)
        body = self.body(children[0], (*place, along), (*shape, extent))
        if outer is None:
            del self.extents[llir.ALONG]
        else:
            self.extents[llir.ALONG] = outer
        self.inlined.append(self._producer(element))
        kept = Kept(element, combine, extent, body, position, lay.numel(shape))
        for at, other in enumerate(self.kept):  # loads through other strides may be of the same position
            if (other.combine, other.extent) == (combine, extent) and other.position is position and other.body is body:
                return llir.Reduced(at, body.dtype)
        self.kept.append(kept)
        return llir.Reduced(len(self.kept) - 1, body.dtype)

    def _producer(self, element: int) -> int:
        """The IR e-class whose load an Inline stands in for."""
        for node in self.snapshot.nodes_of[element]:
            if self.snapshot.op(node) == "Load":
                return self.snapshot.children(node)[0]
        return -1

    def _address(self, strides: int, offset: int, index: Sequence[Expr]) -> Expr:
        total = self.bound(self.snapshot.expr(offset))
        for stride, at in zip(self.snapshot.shape(strides), index, strict=True):
            total = ex.add(total, ex.substitute(self.bound(stride), {ITER: at}, self.extents))
        if ex.size(total) > MAX_INDEX:  # divisions that nothing is known of can double at each inlined value
            raise Rejected("kernel-size", f"an index of over {MAX_INDEX} operations: too much is inlined")
        return total

    def _gemm(self, eclass: int, routine: str, children: Sequence[int]) -> int:
        layout = str(self.snapshot.literal(children[0]))
        batch = self.shape(children[1])
        m, n, k = (self.value(self.snapshot.expr(c)) for c in children[2:5])
        count = lay.numel(batch)
        if isinstance(count, int) and count > MAX_BATCH:
            raise Rejected("library-refuses", f"a batch of over {MAX_BATCH} matmuls", eclass)
        a = self._matrix(eclass, children[5:9], batch, layout[:2] == "Rm", m, k)
        b = self._matrix(eclass, children[9:13], batch, layout[2:] == "Rm", k, n)
        dtype = self.buffers[a.buffer].dtype
        out = self._result(eclass, dtype, (*batch, m, n))
        self.inlined = []
        self.kernels.append(llir.GemmCall(out, m, n, k, a, b, dtype, routine, layout, self._sources(eclass)))
        return out

    def _matrix(
        self,
        eclass: int,
        children: Sequence[int],
        batch: tuple[lay.Dim, ...],
        row_major: bool,
        rows: lay.Dim,
        columns: lay.Dim,
    ) -> llir.GemmOperand:
        buffer = self.buffer(children[0])
        strides = self.snapshot.shape(children[1])
        leading = self.value(self.snapshot.expr(children[2]))
        least = columns if row_major else rows
        if isinstance(leading, int) and isinstance(least, int) and leading < least:
            raise Rejected("library-refuses", f"a leading dimension of {leading} is shorter than a row", eclass)
        start = self.value(self.snapshot.expr(children[3]))
        offsets = llir.BatchOffsets(start, batch, tuple(self.bound(s) for s in strides))
        free = any(map(ex.dims_of, (start, *batch, *offsets.steps)))
        return llir.GemmOperand(
            buffer, leading if row_major else 1, 1 if row_major else leading, offsets if free else offsets.at({})
        )

    def _opaque(self, eclass: int, children: Sequence[int]) -> int:
        custom_id = int(self.snapshot.literal(children[0]))
        shape = self.shape(children[1])
        operands: list[int] = []
        shapes: list[tuple[lay.Dim, ...]] = []
        at = children[2]
        while True:
            node = self.space.node(self.genome, at)
            if self.snapshot.op(node) == "RNil":
                break
            head, read_as, at = self.snapshot.children(node)
            operands.append(self.buffer(head))
            shapes.append(self.shape(read_as))
        out = self._result(eclass, self.snapshot.dtype(children[3]), shape)
        self.inlined = []
        sources = self._sources(eclass)
        self.kernels.append(llir.OpaqueCall(out, shape, tuple(operands), tuple(shapes), custom_id, sources))
        return out


def _row_major_steps(shape: Sequence[lay.Dim]) -> list[lay.Dim]:
    return [lay.numel(shape[i + 1 :]) for i in range(len(shape))]
