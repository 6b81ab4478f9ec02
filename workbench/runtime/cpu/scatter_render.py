"""A scatter as the text of one LLVM function: one write after the other, in their order, each inside the output.

Nothing is vectorised: two lanes could write the same element, and then their order counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workbench.ir import dtype as dt
from workbench.ir.dtype import DType
from workbench.ir.layout import Dim
from workbench.runtime.cpu import functions
from workbench.runtime.cpu.builder import MEMORY, Builder, Value
from workbench.runtime.cpu.render import NestWriter, arguments, dims_of
from workbench.runtime.cpu.schedule import Loop, Nest, Vectors, schedule_scalar
from workbench.runtime.cpu.terms import Term


@dataclass(frozen=True, slots=True)
class ScatterForm:
    """A scatter's iteration: the shape of its writes, how they combine with what is there (a key of SCATTER_MODES), and
    the output's dtype and number of elements. `roots` are the terms of the position and of what is written."""

    shape: tuple[Dim, ...]
    mode: str
    dtype: DType
    elements: Dim
    roots: tuple[int, ...]

    @property
    def extents(self) -> tuple[Dim, ...]:
        """Every size that the code depends on."""
        return (*self.shape, self.elements)


def render_scatter(form: ScatterForm, terms: list[Term], vectors: Vectors) -> str:
    """The LLVM IR of a scatter with something to write; buffers are numbered as the function's arguments, the output,
    which is changed, 0. `terms` are used up."""
    loops = [Loop(f"#{i}", n, False) for i, n in enumerate(form.shape)]
    sizes = dims_of(terms, form.extents)
    nest = schedule_scalar(Nest(form.dtype, None, loops, terms, list(form.roots), []))
    return _ScatterWriter(form, nest, Builder(vectors.converts_f16), sizes).module()


class _ScatterWriter(NestWriter):
    def __init__(self, form: ScatterForm, nest: Nest, builder: Builder, dims: Sequence[str]) -> None:
        super().__init__(nest, builder, arguments([nest]), dims)
        self.form = form

    def _all_sizes(self) -> Iterable[Dim]:
        yield from super()._all_sizes()
        yield self._last_index(self.form.elements)

    def _leaf(self, carried: list[Value]) -> list[Value]:
        b, form = self.b, self.form
        position, value = self._results()
        inside = self._clamp(functions.cast(b, position, self.nest.terms[form.roots[0]].dtype, dt.I64), form.elements)
        address = b.pointer(MEMORY[form.dtype], self.parameters[0], inside)
        if form.mode != "none":
            value = _combined(b, form.mode, form.dtype, b.load(form.dtype, address, 1), value)
        b.store(form.dtype, address, value)
        return carried


def _combined(b: Builder, mode: str, dtype: DType, there: Value, written: Value) -> Value:
    if mode in ("add", "mul"):
        return functions.FUNCTIONS[mode.capitalize()](b, dtype, there, written)
    if there.element == "i1":
        return b.binary("or" if mode == "max" else "and", there, written)
    # NaN wins over numbers, as in NumPy
    name = f"{mode}imum" if there.is_float else f"s{mode}" if dtype.is_signed else f"u{mode}"
    return b.intrinsic(name, there, written)
