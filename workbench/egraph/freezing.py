"""Taking a snapshot of a live e-graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from workbench.egraph.containers import Container, Contents
from workbench.egraph.named import PREFIX as NAMED
from workbench.egraph.named import variables
from workbench.egraph.provenance import PROGRAM, Provenance
from workbench.egraph.snapshot import Builder, SnapshotData


def take_snapshot(
    egraph: Any,
    facts: set[str],
    provenance: Provenance | None = None,
    rules: Sequence[str] = (),
    containers: Mapping[str, Container] = MappingProxyType({}),
) -> SnapshotData:
    """All e-nodes of the e-graph; functions named in `facts` are tables, not e-nodes, and are left out. `provenance`
    says which of the `rules` made each. A value of a container sort is an e-node of what it holds."""
    builder = Builder.empty()
    classes: dict[str, dict[Any, int]] = {}
    literals: dict[tuple[str, Any], int] = {}
    class_sort = builder.class_sort
    readers = {
        "i64": egraph.value_to_i64,
        "String": egraph.value_to_string,
        "f64": egraph.value_to_f64,
        "bool": egraph.value_to_bool,
        "BigInt": lambda value: str(egraph.value_to_bigint(value)),  # a message holds no integers as large
        "BigRat": lambda value: str(egraph.value_to_bigrat(value)),
        "Rational": lambda value: str(egraph.value_to_rational(value)),
    }
    pending: list[tuple[str, Any]] = []
    """Values of container sorts that have a class and no e-node yet."""

    def class_id(sort: str, value: Any) -> int:
        table = classes.setdefault(sort, {})
        found = table.get(value)
        if found is None:
            found = table[value] = len(class_sort)
            class_sort.append(sort)
            if sort in containers:
                pending.append((sort, value))
        return found

    def literal_id(sort: str, value: Any) -> int:
        key = (sort, value)
        found = literals.get(key)
        if found is None:
            builder.literals.append(readers[sort](value))
            found = literals[key] = -len(builder.literals)
        return found

    functions = egraph.freeze().functions
    for name, sort, value in variables(egraph, functions):
        if sort not in readers:
            builder.variables[name] = class_id(sort, value)
    for name, function in functions.items():
        output_sort = function.output_sort
        if output_sort in readers or name in facts or function.is_let_binding or name.startswith(NAMED):
            continue
        rows = function.rows
        op = len(builder.ops)
        builder.ops.append(name)
        makers = {} if provenance is None else provenance.makers(egraph, functions, name)
        columns = [(s, literal_id if s in readers else class_id) for s in function.input_sorts]
        for row in rows:
            builder.node_op.append(op)
            builder.node_class.append(class_id(output_sort, row.output))
            for (sort, number), value in zip(columns, row.inputs, strict=True):
                builder.children.append(number(sort, value))
            builder.child_start.append(len(builder.children))
            builder.subsumed.append(row.subsumed)
            builder.made_by.append(makers.get(tuple(row.inputs), PROGRAM) if makers else PROGRAM)
    contents = Contents(egraph)
    ops: dict[str, int] = {}
    while pending:
        sort, value = pending.pop()
        container = containers[sort]
        if container.operator not in ops:
            ops[container.operator] = len(builder.ops)
            builder.ops.append(container.operator)
        builder.node_op.append(ops[container.operator])
        builder.node_class.append(class_id(sort, value))
        for item, held in contents.of(container, value):
            builder.children.append(literal_id(item, held) if item in readers else class_id(item, held))
        builder.child_start.append(len(builder.children))
        builder.subsumed.append(0)
        builder.made_by.append(PROGRAM)
    return builder.finish(list(rules))
