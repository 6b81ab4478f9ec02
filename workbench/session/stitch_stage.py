"""The stitch stage: each group's best genome re-applied to all its members, the chunks as one program, loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from workbench import chunking
from workbench.errors import NotViableError
from workbench.ir.llir import Program
from workbench.search.binding import Binding, bind
from workbench.search.extract import extract
from workbench.search.placement import Rejected
from workbench.session import events as ev
from workbench.session.executable import Choice, Executable
from workbench.session.points import as_text, by_nearness

if TYPE_CHECKING:
    from workbench.session.session import CompileSession


def stitch_chunks(session: CompileSession) -> Executable:
    """The executable, specialised for every point, and loaded where its weights fit into memory. A run takes of each
    group the best of the point nearest to it. Raises NotViableError where none of the kernels found works for the
    dimensions of a later run."""
    graph = session.graph
    groups = sorted(session.groups, key=lambda g: g.index)
    place_of = {c: place for place, g in enumerate(groups) for c in g.members}
    members = [(c, Binding.of(p, c.outputs)) for c, p in zip(session.chunks, session.programs, strict=True)]
    found = [session.best[g.index] for g in groups]
    spaces = [session.saturated[g.index].space for g in groups]
    points = [[best.dims for best in bests] for bests in found]

    def chosen(dims: Mapping[str, int]) -> Choice:
        return tuple(by_nearness(own, dims)[0] for own in points)

    def extracted(place: int, point: int, dims: Mapping[str, int]) -> Program:
        """The kernels of a point's best; of the next one's where those do not work for `dims`."""
        why = ""
        for other in by_nearness(points[place], points[place][point]):
            try:
                return extract(spaces[place], found[place][other].genome, dims)
            except Rejected as rejected:
                why = why or rejected.detail
        raise NotViableError(
            f"the chosen kernels do not work for {as_text(dims) or 'all values of the dimensions'}: {why}",
            "compile with these values as --dim",
        )

    def stitched(choice: Choice, dims: Mapping[str, int]) -> Program:
        programs = [extracted(place, point, dims) for place, point in enumerate(choice)]
        bound = [bind(programs[place_of[c.index]], binding) for c, binding in members]
        return chunking.stitch(graph, [c for c, _ in members], bound)

    executable = Executable(graph, session.runtime, chosen, stitched)
    for point, dims in enumerate(session.points.all()):
        session.checkpoint()
        compiled = executable.specialise(dims)
        if session.whole.fits:
            executable.load(compiled)
        choice = chosen(dims)
        general = bool(dims) and executable.generalise(choice)
        session.emit(
            ev.Stitched(
                point=point,
                kernels=len(compiled.program.kernels),
                buffers=len(compiled.program.buffers),
                arena_bytes=compiled.plan.arena_bytes,
                general=general,
                refused=executable.refused.get(choice, ""),
            )
        )
    return executable
