"""The stitch stage: each group's best genome re-applied to all its members, the chunks as one program, loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from workbench import chunking
from workbench.errors import NotViableError
from workbench.frontend import load_constant
from workbench.ir.llir import Program
from workbench.search.binding import Binding, bind
from workbench.search.extract import extract
from workbench.search.placement import Rejected
from workbench.session import events as ev
from workbench.session.executable import Executable

if TYPE_CHECKING:
    from workbench.session.session import CompileSession


def stitch_chunks(session: CompileSession) -> Executable:
    """The executable, compiled for the representative dimensions. Raises NotViableError where kernels do not work for
    the dimensions of a later run."""
    graph = session.graph
    group_of = {c: g.index for g in session.groups for c in g.members}
    chosen = {i: (s.space, session.best[i].genome) for i, s in session.saturated.items()}
    members = [(c, Binding.of(p, c.outputs)) for c, p in zip(session.chunks, session.programs, strict=True)]

    def stitched(dims: Mapping[str, int]) -> Program:
        try:
            extracted = {i: extract(space, genome, dims) for i, (space, genome) in chosen.items()}
        except Rejected as rejected:
            given = ", ".join(f"{n}={v}" for n, v in dims.items()) or "all values of the dimensions"
            raise NotViableError(
                f"the chosen kernels do not work for {given}: {rejected.detail}", "compile with these values as --dim"
            ) from None
        bound = [bind(extracted[group_of[c.index]], binding) for c, binding in members]
        return chunking.stitch(graph, [c for c, _ in members], bound)

    executable = Executable(graph, session.runtime, stitched, lambda i: load_constant(graph, i))
    compiled = executable.specialise(graph.dims)
    session.emit(
        ev.Stitched(
            kernels=len(compiled.program.kernels),
            buffers=len(compiled.program.buffers),
            arena_bytes=compiled.plan.arena_bytes,
        )
    )
    return executable
