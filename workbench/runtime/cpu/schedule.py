"""From a map or reduction to a loop nest: which loops, in which order, which one is the vector's, and which value is
computed at which depth.

Axes of extent 1 go, an axis that addresses take apart by `/` and `%` is split, and neighbours that every address takes
together are merged, so that the innermost loops are long and affine. An extent that depends on named dimensions may be
anything from 1 on, so what is decided by size is decided for a long axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir.dtype import DType
from workbench.ir.expr import Expr
from workbench.ir.layout import Dim
from workbench.ir.llir import GATHERED, axis
from workbench.runtime.cpu.terms import Term, gathered

MAX_SPLITS = 12
BLOCK_ROWS, BLOCK_COLUMNS = 16, 16
"""Elements of a block of a transposed copy: the rows share cache lines, the columns are what is written at once."""

SHORT_AXIS = 8
"""Splits do not make a vector axis shorter than this."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """What a processor offers: `lanes` of 4-byte values in the vectors worth writing, how many such vectors fit its
    registers as accumulators, beside what feeds them, and whether instructions convert f16."""

    lanes: int = 16
    accumulators: int = 16
    converts_f16: bool = True


@dataclass(frozen=True, slots=True)
class Form:
    """A kernel's iteration: the kept axes and, in a reduction, what happens over one more. What is written `in_place`
    must not be computed twice."""

    shape: tuple[Dim, ...]
    extent: Dim = 1
    combine: str | None = None
    order: str = "inner"
    in_place: bool = False
    wide: bool = False
    """For sizes of which indices need 64 bits in lanes too."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop over iterator `name`, which takes every `step`-th value below `extent`; the last one is at most
    `extent - step`, so that blocks of `step` elements stay inside (the last two may overlap)."""

    name: str
    extent: Dim
    reduced: bool
    step: int = 1

    @property
    def starts(self) -> Dim:
        """What bounds the values that the iterator takes."""
        return ex.as_dim(self.extent - self.step + 1)


@dataclass(slots=True)
class Nest:
    """A kernel ready to be written: `loops` from the outermost, kept ones before reduced ones. Term `roots[j]` goes to
    the address `stores[j]`. `vector` is the position of the vector's loop (None: all scalar), `width` its lanes and
    `unroll` how many vectors a round takes. The outermost `rows` loops are shared with the other passes of a row."""

    dtype: DType
    combine: str | None
    loops: list[Loop]
    terms: list[Term]
    roots: list[int]
    stores: list[Expr]
    vector: int | None = None
    width: int = 1
    unroll: int = 1
    extents: dict[str, Dim] = field(default_factory=dict)
    rows: int = 0
    in_place: bool = False
    wide: bool = False
    rest: Nest | None = None
    """Where a loop takes blocks of an extent that need not be a multiple of them: the nest for what is left, with the
    same loops but for that one, which goes step by step."""

    @property
    def kept(self) -> int:
        """Number of loops over kept axes."""
        return sum(not loop.reduced for loop in self.loops)


def schedule(form: Form, terms: list[Term], vectors: Vectors) -> Nest:
    """The loop nest that computes the last of `terms` at every position of `form`, which has no empty axis. The output
    is buffer 0.

    `terms` are rewritten in place."""
    loops = [Loop(f"#{i}", n, False) for i, n in enumerate(form.shape)]
    if form.combine is not None:
        loops.append(Loop(f"#{len(loops)}", form.extent, True))
    strides = [lay.numel(form.shape[i + 1 :]) for i in range(len(form.shape))]
    store = sum((axis(i) * s for i, s in enumerate(strides)), start=ex.ZERO)
    nest = new_nest(Nest(terms[-1].dtype, form.combine, loops, terms, [len(terms) - 1], [store]))
    nest.in_place, nest.wide = form.in_place, form.wide
    inner_vector = form.combine is None or form.order == "inner"
    _split_axes(nest, inner_vector)
    _merge_axes(nest)
    _widen_last(nest)
    _choose_vector(nest, inner_vector)
    _block_transposed(nest)
    _choose_width(nest, vectors)
    _jam_rows(nest, vectors)
    place(nest)
    if nest.rest is not None:
        place(nest.rest)
    return nest


def schedule_pass(nest: Nest, vectors: Vectors) -> Nest:
    """Settle the loops of one pass over a row: `nest` has its row loops first, then at most one along the row. The row
    loops stay as they are, but for those of one round, which go."""
    nest.rows = sum(loop.extent != 1 for loop in nest.loops[: nest.rows])
    new_nest(nest)
    _split_axes(nest, True)
    _merge_axes(nest)
    if len(nest.loops) > nest.rows:
        _choose_vector(nest, True)
        _choose_width(nest, vectors)
    place(nest)
    return nest


def schedule_scalar(nest: Nest) -> Nest:
    """Settle loops that run one element after the other, in their order."""
    new_nest(nest)
    _split_axes(nest, False)
    _merge_axes(nest)
    place(nest)
    return nest


def new_nest(nest: Nest) -> Nest:
    """`nest` with the extents of its iterators known, and without loops of one round."""
    for term in nest.terms:
        if term.op == "gather":
            nest.extents[gathered(term.args[0])] = term.extent or 1
    nest.extents |= {loop.name: loop.extent for loop in nest.loops}
    _drop_single(nest)
    return nest


def _replace(nest: Nest, values: dict[str, Expr], loops: list[Loop]) -> None:
    """Rewrite all index expressions after a change of the loops."""
    nest.loops = loops
    nest.extents |= {loop.name: loop.starts for loop in loops}
    for term in nest.terms:
        term.address = ex.substitute(term.address, values, nest.extents)
    nest.stores = [ex.substitute(store, values, nest.extents) for store in nest.stores]


def _expressions(nest: Nest) -> Iterator[Expr]:
    yield from nest.stores
    for term in nest.terms:
        if term.op in ("load", "gather", "position"):
            yield term.address


def _drop_single(nest: Nest) -> None:
    single = {loop.name: ex.ZERO for loop in nest.loops if loop.extent == 1}
    _replace(nest, dict(single), [loop for loop in nest.loops if loop.extent != 1])


def _split_axes(nest: Nest, last_is_vector: bool) -> None:
    for _ in range(MAX_SPLITS):
        found = _find_split(nest, last_is_vector)
        if found is None:
            return
        position, inner = found
        loop = nest.loops[position]
        high = Loop(f"{loop.name}h", quotient(loop.extent, inner) or 1, loop.reduced)
        low = Loop(f"{loop.name}l", inner, loop.reduced)
        loops = [*nest.loops[:position], high, low, *nest.loops[position + 1 :]]
        _replace(nest, {loop.name: ex.var(high.name) * inner + ex.var(low.name)}, loops)


def quotient(a: Dim, b: Dim) -> Dim | None:
    """`a / b` where `b` divides `a` at all values of the named dimensions, else None."""
    whole, divisor = ex.as_expr(a), ex.as_expr(b)
    return ex.as_dim(ex.floordiv(whole, divisor)) if ex.mod(whole, divisor) is ex.ZERO else None


def _find_split(nest: Nest, last_is_vector: bool) -> tuple[int, Dim] | None:
    """(loop, extent of its inner part) such that a division goes away."""
    positions = {loop.name: i for i, loop in enumerate(nest.loops)}
    last = len(nest.loops) - 1 if last_is_vector else nest.kept - 1
    for expression in _expressions(nest):
        for atom in _divisions(expression):
            for product, coefficient in atom.num.terms:
                names = [a.name for a in product if isinstance(a, ex.Var) and not ex.is_dim(a.name)]
                if len(names) != 1 or names[0] not in positions or coefficient < 0:
                    continue
                position, step = positions[names[0]], stride(atom.num, names[0])
                if step is None and len(product) == 1:
                    step = coefficient
                if position < nest.rows or not step:
                    continue
                extent, inner = nest.loops[position].extent, quotient(ex.as_dim(atom.den), step)
                if inner is None or inner in (1, extent) or not quotient(extent, inner):
                    continue
                if isinstance(inner, int) and (inner < 1 or (position == last and inner < SHORT_AXIS)):
                    continue
                return position, inner
    return None


def _divisions(expression: Expr) -> Iterator[ex.Quotient | ex.Remainder]:
    for product, _ in expression.terms:
        for atom in product:
            if not isinstance(atom, ex.Var):
                yield atom
                yield from _divisions(atom.num)


def _merge_axes(nest: Nest) -> None:
    position = len(nest.loops) - 2
    while position >= nest.rows:
        outer, inner = nest.loops[position : position + 2]
        together = (_taken_together(e, outer, inner, nest.extents) for e in _expressions(nest))
        if outer.reduced == inner.reduced and all(together):
            merged = Loop(f"{inner.name}m", lay.numel((outer.extent, inner.extent)), inner.reduced)
            values = {outer.name: ex.ZERO, inner.name: ex.var(merged.name)}
            _replace(nest, values, [*nest.loops[:position], merged, *nest.loops[position + 2 :]])
        position -= 1


def _taken_together(expression: Expr, outer: Loop, inner: Loop, extents: dict[str, Dim]) -> bool:
    """Whether `expression` depends on the two iterators only through `outer*extent + inner`."""
    if not {outer.name, inner.name} & ex.variables(expression):
        return True
    merged = ex.var(f"{inner.name}m")
    once = ex.substitute(expression, {outer.name: ex.ZERO, inner.name: merged})
    back = ex.substitute(once, {f"{inner.name}m": ex.var(outer.name) * inner.extent + ex.var(inner.name)}, extents)
    return back is expression


def _widen_last(nest: Nest) -> None:
    """Merge a very short last axis of a map into its neighbour: lanes that gather beat loops of two or three rounds."""
    while nest.combine is None and len(nest.loops) > 1 and is_short(nest.loops[-1].extent, 4):
        outer, inner = nest.loops[-2:]
        merged = Loop(f"{inner.name}w", lay.numel((outer.extent, inner.extent)), False)
        together, short = ex.var(merged.name), ex.as_expr(inner.extent)
        nest.extents[merged.name] = merged.extent
        values = {
            outer.name: ex.floordiv(together, short, nest.extents),
            inner.name: ex.mod(together, short, nest.extents),
        }
        _replace(nest, values, [*nest.loops[:-2], merged])


def is_short(extent: Dim, limit: int) -> bool:
    """Whether an axis is known to have fewer than `limit` elements."""
    return isinstance(extent, int) and extent < limit


def _choose_vector(nest: Nest, inner_vector: bool) -> None:
    if not nest.loops:
        return
    kept, total = nest.kept, len(nest.loops)
    if kept == total or kept == 0 or inner_vector:
        if kept < total:
            best = max(range(kept, total), key=lambda p: (_contiguous_lanes(nest, nest.loops[p]), p))
            nest.loops.append(nest.loops.pop(best))
        nest.vector = total - 1
    else:
        nest.vector = kept - 1


def _block_transposed(nest: Nest) -> None:
    """Where a map reads along another axis than it writes, go by blocks that stay in the first cache: the lines that
    one row of a block touches serve its next rows as well."""
    if nest.combine is not None or nest.vector is None or nest.in_place:
        return
    along = nest.loops[nest.vector]
    if not isinstance(along.extent, int):
        return
    for term in nest.terms:
        across = stride(term.address, along.name) if term.op == "load" else None
        if across is None or (isinstance(across, int) and abs(across) < BLOCK_ROWS):
            continue
        for loop in nest.loops[:-1]:
            long = isinstance(loop.extent, int) and loop.extent > BLOCK_ROWS
            if stride(term.address, loop.name) in (1, -1) and long:
                _block(nest, loop, along)
                return


def _block(nest: Nest, rows: Loop, columns: Loop) -> None:
    outer = [loop for loop in nest.loops if loop not in (rows, columns)]
    inner: list[Loop] = []
    values: dict[str, Expr] = {}
    for loop, block in ((rows, BLOCK_ROWS), (columns, BLOCK_COLUMNS)):
        if is_short(loop.extent, block + 1):
            inner.append(loop)
            continue
        outer.append(Loop(f"{loop.name}b", loop.extent, False, block))
        inner.append(Loop(f"{loop.name}i", block, False))
        values[loop.name] = ex.var(f"{loop.name}b") + ex.var(f"{loop.name}i")
    _replace(nest, values, [*outer, *inner])
    nest.vector = len(nest.loops) - 1


def _contiguous_lanes(nest: Nest, loop: Loop) -> int:
    """How well vectors along `loop` load: lanes that are neighbours in memory, over all loads."""
    lanes = 0
    for term in nest.terms:
        if term.op == "load" and stride(term.address, loop.name) == 1:
            lanes += min(loop.extent, 16) if isinstance(loop.extent, int) else 16
    return lanes


def stride(address: Expr, name: str) -> Dim | None:
    """How far a step of iterator `name` moves `address`; None when that is not the same everywhere."""
    step = ex.slope(address, name)
    return None if step is None or ex.iterators_of(step) else ex.as_dim(step)


def _choose_width(nest: Nest, vectors: Vectors) -> None:
    if nest.vector is None:
        return
    known = nest.loops[nest.vector].extent
    wide = any(t.dtype.itemsize == 8 and t.op not in ("const", "position") for t in nest.terms)
    most = max(2, vectors.lanes // 2) if wide else vectors.lanes
    extent = known if isinstance(known, int) else 4 * most
    nest.width = 1 << (min(extent, most).bit_length() - 1)
    if nest.combine is None:
        return
    weight = sum(_weight(t) for t in nest.terms)
    for unroll in (4, 2):
        if extent >= unroll * nest.width and weight * unroll <= 64:
            nest.unroll = unroll
            return


def _jam_rows(nest: Nest, vectors: Vectors) -> None:
    """Let a reduction along rows of a matrix work on several outputs of another axis at once, where they share vector
    loads: the body is repeated for each, and what does not depend on the axis stays one term."""
    if nest.combine is None or nest.vector is None or nest.loops[nest.vector].reduced:
        return
    if any(term.op == "gather" for term in nest.terms):
        return
    along = nest.loops[nest.vector].name
    loaded = [v for t in nest.terms if t.op == "load" and along in (v := ex.variables(t.address))]
    shared = [x for x in nest.loops[: nest.kept - 1] if any(x.name not in names for names in loaded)]
    weight = sum(_weight(t) for t in nest.terms)
    most = min(4, vectors.accumulators // nest.unroll, 128 // max(1, weight * nest.unroll))
    if not shared or most < 2:
        return
    loop = shared[-1]
    rows = min(most, loop.extent) if isinstance(loop.extent, int) else most
    if not isinstance(loop.extent, int):
        loops, extents, terms = list(nest.loops), dict(nest.extents), [replace(term) for term in nest.terms]
        nest.rest = replace(nest, loops=loops, extents=extents, terms=terms)
    jammed = Loop(f"{loop.name}j", loop.extent, False, rows)
    nest.loops[nest.loops.index(loop)] = jammed
    nest.extents[jammed.name] = jammed.starts
    terms, (root,), (store,) = nest.terms, nest.roots, nest.stores
    nest.terms, nest.roots, nest.stores = [], [], []
    known: dict[tuple[object, ...], int] = {}
    for row in range(rows):
        here: dict[str, Dim] = {loop.name: ex.var(jammed.name) + row}
        moved: list[int] = []
        for term in terms:
            args = tuple(moved[a] for a in term.args)
            copy = replace(term, args=args, address=ex.substitute(term.address, here, nest.extents))
            if copy.key not in known:
                known[copy.key] = len(nest.terms)
                nest.terms.append(copy)
            moved.append(known[copy.key])
        nest.roots.append(moved[root])
        nest.stores.append(ex.substitute(store, here, nest.extents))


_WEIGHTS = {"const": 0, "reduced": 0, "Exp2": 16, "Log2": 24, "Sin": 24, "Erf": 36, "Mod": 16, "gather": 6}


def _weight(term: Term) -> int:
    """A rough count of a term's instructions."""
    return _WEIGHTS.get(term.op, 1)


def place(nest: Nest) -> None:
    """Set each term's level and whether it is a vector."""
    levels = {loop.name: i for i, loop in enumerate(nest.loops)}
    for term in nest.terms:
        term.level, term.vector = nest.rows - 1 if term.op == "reduced" else -1, False
        for arg in term.args:
            term.level = max(term.level, nest.terms[arg].level)
            term.vector |= nest.terms[arg].vector
        if term.op in ("load", "gather", "position"):
            for name in ex.variables(term.address):  # named dimensions are known before all loops
                if name in levels:
                    term.level = max(term.level, levels[name])
                    term.vector |= levels[name] == nest.vector


def variable_level(nest: Nest, names: Sequence[str] | frozenset[str]) -> tuple[int, bool]:
    """(innermost loop, whether a vector) of a product over the variables `names`."""
    level, vector = -1, False
    for name in names:
        if name.startswith(GATHERED):
            term = nest.terms[int(name[len(GATHERED) :])]
            level, vector = max(level, term.level), vector or term.vector
        elif not ex.is_dim(name):
            at = next(i for i, loop in enumerate(nest.loops) if loop.name == name)
            level, vector = max(level, at), vector or at == nest.vector
    return level, vector
