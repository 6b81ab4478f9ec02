"""A row kernel as the text of one LLVM function: loops over the rows, and inside them one loop nest per pass.

Every pass is vectorised along the row; what it leaves is a scalar that later passes have in all lanes. Values that
several passes need are computed in each: what they load is in the first cache by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir.expr import Expr
from workbench.ir.layout import Dim
from workbench.ir.llir import ALONG, axis
from workbench.runtime.cpu.builder import REGISTER, Builder, Value
from workbench.runtime.cpu.render import FUNCTION, NestWriter, Rendered, arguments, dims_of, identity
from workbench.runtime.cpu.schedule import Loop, Nest, Vectors, schedule_pass
from workbench.runtime.cpu.terms import Term

Keys = tuple[tuple[Any, ...], ...]
"""A body by the keys of its terms."""


@dataclass(frozen=True, slots=True)
class RowForm:
    """A row kernel's iteration: the extents of the row axes; (combine, extent) of each pass; how many elements are
    stored along the row, or None for one per row; whether in place of what is read."""

    shape: tuple[Dim, ...]
    passes: tuple[tuple[str, Dim], ...]
    extent: Dim | None
    in_place: bool
    wide: bool = False
    """As of a `Form`."""

    @property
    def extents(self) -> tuple[Dim, ...]:
        """All extents."""
        return (*self.shape, *(extent for _, extent in self.passes), *(() if self.extent is None else (self.extent,)))


def render_row(form: RowForm, bodies: Sequence[Keys], vectors: Vectors) -> Rendered:
    """The LLVM IR of a row kernel that writes something: `bodies` are those of its passes, then what is stored;
    buffers are numbered as the function's arguments, the output 0.

    Raises WorkbenchError for a function the target lacks."""
    sizes = dims_of([Term.from_key(key) for keys in bodies for key in keys], form.extents)
    nests = [_pass_nest(form, at, keys, vectors) for at, keys in enumerate(bodies)]
    b = Builder(vectors.converts_f16)
    parameters = arguments([n for n in nests if n is not None])
    writers = [None if nest is None else NestWriter(nest, b, parameters, sizes) for nest in nests]
    present = [w for w in writers if w is not None]
    rows = [extent for extent in form.shape if extent != 1]

    def row() -> None:
        reduced: list[Value] = []
        for writer, (combine, _), keys in zip(writers, form.passes, bodies, strict=False):
            dtype = keys[-1][2]
            if writer is None:
                reduced.append(b.constant(REGISTER[dtype], identity(combine, dtype)))
            else:
                _begin(writer, reduced)
                reduced.append(writer.reduce_row())
        last = writers[-1]
        assert last is not None
        _begin(last, reduced)
        last.store_row()

    def from_level(level: int) -> None:
        if level == len(rows):
            row()
            return

        def body(i: Value, carried: list[Value]) -> list[Value]:
            for writer in present:
                writer.open_row(level, i)
                if level < len(rows) - 1:
                    writer.enter(level)
            from_level(level + 1)
            for writer in present:
                writer.close_row()
            return carried

        present[-1].loop(rows[level], 1, [], body)

    for writer in present:
        writer.start()
        if rows:
            writer.enter(-1)
    from_level(0)
    text = b.function(FUNCTION, parameters, [size.text for size in present[-1].dims.values()])
    return Rendered(text, tuple({lanes: None for writer in present for lanes in writer.narrow}))


def _begin(writer: NestWriter, reduced: list[Value]) -> None:
    """What one row's pass computes before its loops; only now are the earlier passes' results there."""
    writer.reduced = list(reduced)
    writer.enter(writer.nest.rows - 1)


def _pass_nest(form: RowForm, position: int, keys: Keys, vectors: Vectors) -> Nest | None:
    """The loops of one pass; None where it goes over nothing."""
    terms = [Term.from_key(key) for key in keys]
    rows = [Loop(f"#{i}", n, False) for i, n in enumerate(form.shape)]
    combine: str | None = None
    store = ex.ZERO
    if position < len(form.passes):
        combine, extent = form.passes[position]
        if extent == 0:
            return None
        loops = [*rows, Loop(ALONG, extent, True)]
    elif form.extent is None:
        loops, store = rows, _row_major(form.shape)
    else:
        loops = [*rows, Loop(ALONG, form.extent, False)]
        store = _row_major(form.shape) * form.extent + ex.var(ALONG)
    nest = Nest(terms[-1].dtype, combine, loops, terms, [len(terms) - 1], [store], rows=len(rows))
    nest.in_place, nest.wide = form.in_place and combine is None, form.wide
    return schedule_pass(nest, vectors)


def _row_major(shape: tuple[Dim, ...]) -> Expr:
    return sum((axis(i) * lay.numel(shape[i + 1 :]) for i in range(len(shape))), start=ex.ZERO)
