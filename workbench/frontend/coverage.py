"""Which operators a model uses, and which of them are supported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.frontend.definitions import is_supported
from workbench.frontend.model_file import node_name, open_model
from workbench.frontend.registry import standard


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """One operator of a model. `first_node` names the first node that uses it; `domain` is '' for the standard one."""

    domain: str
    name: str
    opset: int
    count: int
    supported: bool
    first_node: str


@dataclass(frozen=True, slots=True)
class Coverage:
    """The operators that the outputs of a model need, commonest first."""

    path: Path
    opsets: Mapping[str, int]
    operators: tuple[OperatorUse, ...]

    @property
    def unsupported(self) -> tuple[OperatorUse, ...]:
        """Those the importer cannot lower."""
        return tuple(use for use in self.operators if not use.supported)


def operator_uses(nodes: Iterable[Any], opsets: Mapping[str, int]) -> tuple[OperatorUse, ...]:
    """The operators of `nodes`, commonest first."""
    counts: dict[tuple[str, str], int] = {}
    first: dict[tuple[str, str], Any] = {}
    for node in nodes:
        key = (standard(node.domain), node.op_type)
        counts[key] = counts.get(key, 0) + 1
        first.setdefault(key, node)
    uses = []
    for (domain, name), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        opset = opsets.get(domain, 1)
        supported = is_supported(domain, name, opset)
        uses.append(OperatorUse(domain, name, opset, count, supported, node_name(first[domain, name])))
    return tuple(uses)


def coverage(path: Path | str) -> Coverage:
    """Operator coverage of the model at `path`. Unsupported operators are reported, not raised.

    Raises ModelError when the file is no readable model."""
    from workbench.frontend import operators as registered

    assert registered
    model = open_model(path)
    return Coverage(model.path, model.opsets, operator_uses(model.nodes, model.opsets))
