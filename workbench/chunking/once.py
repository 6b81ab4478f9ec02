"""What of a program depends on its constants alone: computed once, when it is loaded, and not in every run.

Weights in half precision that a matmul wants in f32, reordered weights, tables of positions. Equal kernels over equal
constants are one, in whichever chunks they stand. What is computed so stays in memory as long as the program: a weight
in f16 takes two bytes an element in the file and four more here, where the search chose to convert it as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workbench.chunking.stitch import renumbered
from workbench.ir import llir
from workbench.ir.llir import Buffer, Kernel, Program

Known = dict[object, int]
"""Numbers of values by what they are: a constant by its source, a kernel by what it computes of numbered values."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A program as two, over the same numbers of buffers: `once` gives, as its outputs, buffers that are constants of
    `rest`. `places` are those of the kernels that `rest` has no more. `same` maps each such buffer to the output that
    has its value; `number` gives these their number in `Known`."""

    once: Program
    rest: Program
    places: frozenset[int]
    same: dict[int, int]
    number: dict[int, int]

    @property
    def nbytes(self) -> int:
        """Bytes of the outputs of `once`."""
        return sum(self.once.buffers[b].nbytes for b in self.once.outputs)


def parts(program: Program, known: Known, limit: int) -> Parts:
    """`program` parted; all of it is `rest` where what is computed once would take more than `limit` bytes. `known`
    grows."""
    fixed = _fixed(program)
    numbers = {b.id: _number(known, ("constant", b.source)) for b in program.buffers if b.role == "constant"}
    holder: dict[int, int] = {}
    same: dict[int, int] = {}
    kernels: list[Kernel] = []
    for place in fixed:
        kernel = program.kernels[place]
        what = replace(renumbered(kernel, numbers | {kernel.out: -1}), out=-1, sources=())
        numbers[kernel.out] = _number(known, (what, program.buffers[kernel.out].dtype))
        first = holder.setdefault(numbers[kernel.out], kernel.out)
        same[kernel.out] = first
        if first == kernel.out:
            kernels.append(kernel)
    places = frozenset(fixed)
    rest = [kernel for place, kernel in enumerate(program.kernels) if place not in places]
    wanted = {b: same[b] for b in sorted(same.keys() & {b for kernel in rest for b in llir.reads(kernel)})}
    outputs = sorted(set(wanted.values()))
    found = Parts(
        Program([_as(b, "output", b.id in outputs) for b in program.buffers], _over(kernels, same), outputs),
        Program([_as(b, "constant", b.id in wanted) for b in program.buffers], rest, list(program.outputs)),
        places,
        wanted,
        {b: numbers[b] for b in outputs},
    )
    if not outputs or found.nbytes > limit:
        return Parts(Program(), program, frozenset(), {}, {})
    return found


def _fixed(program: Program) -> list[int]:
    """Places of the kernels that compute the same in every run, and in a buffer that nobody else writes to."""
    overwritten = set(llir.aliases(program.kernels).values())
    settled = {b.id for b in program.buffers if b.role == "constant"}
    found: list[int] = []
    for place, kernel in enumerate(program.kernels):
        if isinstance(kernel, llir.OpaqueCall) or program.buffers[kernel.out].role != "intermediate":
            continue
        in_place = isinstance(kernel, llir.MapKernel | llir.RowKernel) and kernel.in_place is not None
        if in_place or kernel.out in overwritten or not llir.reads(kernel) <= settled:
            continue
        if not llir.dims_of(kernel, program.buffers):
            settled.add(kernel.out)
            found.append(place)
    return found


def _number(known: Known, what: object) -> int:
    return known.setdefault(what, len(known))


def _as(buffer: Buffer, role: llir.Role, it_is: bool) -> Buffer:
    return replace(buffer, role=role) if it_is else buffer


def _over(kernels: list[Kernel], same: dict[int, int]) -> list[Kernel]:
    """`kernels` that read, of buffers of one value, the one that is computed."""
    return [renumbered(k, {b: same.get(b, b) for b in (k.out, *llir.reads(k))}) for k in kernels]
