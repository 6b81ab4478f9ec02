"""Which values the named dimensions of an imported model are searched at: what the options give, laid out as points."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.errors import ModelError, printable
from workbench.frontend import Imported
from workbench.ir import expr as ex
from workbench.ir.hlir import Graph
from workbench.session import events as ev
from workbench.session.points import Points
from workbench.session.spec import SessionSpec, values_of, values_text

Given = Mapping[str, tuple[int, ...]]
"""Values by the graph's name of the dimension."""


def given_dims(imported: Imported, spec: SessionSpec) -> Given:
    """The values that the options give the graph's named dimensions. Raises ModelError for several values of one that
    the model's structure depends on."""
    found: dict[str, tuple[int, ...]] = {}
    for name, value in spec.dims.items():
        known = imported.dim_names.get(name, name)
        equal = imported.equal_dims.get(known)
        if equal is not None:
            known = ex.name_of(equal) or known
        values = values_of(value)
        if known in imported.graph.dims:
            if found.setdefault(known, values) != values:
                raise ModelError(f"dimensions '{printable(name)}' and '{known}' are one, and are given unlike values")
        elif len(values) > 1:
            shown, several = printable(name), values_text(value)
            if equal is not None:
                raise ModelError(f"dimension '{shown}' is {equal}, and is given {several}", "give those their values")
            raise ModelError(
                f"dimension '{shown}' decides what there is to compute, so it has one value in a compile; it is given "
                f"{several}",
                "compile once for each of them",
            )
    return found


def laid_out(graph: Graph, given: Given) -> Points:
    """The points to search at; a dimension without given values is at the graph's value."""
    return Points({name: given.get(name, (value,)) for name, value in graph.dims.items()})


def point_infos(points: Points) -> list[ev.PointInfo]:
    """The points as events tell them; none where there is one."""
    found = points.all()
    if len(found) == 1:
        return []
    return [ev.PointInfo(points.named(point), points.ranges(point)) for point in found]
