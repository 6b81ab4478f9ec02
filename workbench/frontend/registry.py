"""The table of operators: (domain, name, since-version) to the function that lowers it.

An operator is a function of the builder, then its ONNX inputs (None where an optional one is absent), then its
attributes as keyword-only parameters. `outputs` is passed, as a keyword, to those that ask for the number of outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.frontend.values import Value

Lower = Callable[..., Any]
"""Takes a builder and values; returns a value or a tuple of them."""

MIN_OPSET = 7
MAX_OPSET = 28
"""Versions of the standard operator set whose meaning the table was checked against."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One row of the table. `attributes` are by name, each with its AttributeProto.AttributeType. `fold` is its NumPy
    meaning where that is a single elementwise function. Inputs from `rest_from` on are any number, none absent."""

    domain: str
    name: str
    since: int
    lower: Lower
    attributes: Mapping[str, int]
    required: frozenset[str]
    fewest_inputs: int
    most_inputs: int
    counts_outputs: bool
    rest_from: int | None
    fold: Callable[..., Any] | None


_KINDS = {
    "float": 1,
    "int": 2,
    "str": 3,
    "np.ndarray": 4,
    "Body": 5,
    "list[float]": 6,
    "list[int]": 7,
    "list[str]": 8,
}
"""How a parameter's type is written, and the AttributeProto.AttributeType that gives it."""
_TABLE: dict[tuple[str, str], list[Operator]] = {}
_UNBOUNDED = 1 << 30


def operator[F: Lower](
    *names: str, since: int = 1, domain: str = "", fold: Callable[..., Any] | None = None
) -> Callable[[F], F]:
    """Register the decorated function as the meaning of `names` from opset version `since` on."""

    def register(lower: F) -> F:
        parameters = list(inspect.signature(lower).parameters.values())[1:]
        keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        inputs = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        rest = next((p for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        for name in names:
            row = Operator(
                domain,
                name,
                since,
                lower,
                {p.name: _KINDS[str(p.annotation).split(" | ")[0]] for p in keywords if p.name != "outputs"},
                frozenset(p.name for p in keywords if p.default is p.empty and p.name != "outputs"),
                sum(p.default is p.empty for p in inputs),
                _UNBOUNDED if rest is not None else len(inputs),
                any(p.name == "outputs" for p in keywords),
                len(inputs) if rest is not None and "None" not in str(rest.annotation) else None,
                fold,
            )
            versions = _TABLE.setdefault((domain, name), [])
            versions.append(row)
            versions.sort(key=lambda r: -r.since)
        return lower

    return register


def standard(domain: str) -> str:
    """The domain's key in the table: the standard one is ''."""
    return "" if domain == "ai.onnx" else domain


def find(domain: str, name: str, opset: int) -> Operator | None:
    """The row that says what `name` means in `opset`, or None when there is none."""
    for row in _TABLE.get((standard(domain), name), ()):
        if row.since <= opset:
            return row
    return None


def supported_operators() -> list[tuple[str, str, tuple[int, ...]]]:
    """Every supported operator as (domain, name, since-versions), sorted."""
    return sorted((domain, name, tuple(r.since for r in reversed(rows))) for (domain, name), rows in _TABLE.items())


def foldable(inputs: Sequence[Value | None]) -> list[np.ndarray] | None:
    """The inputs as arrays when a NumPy function applies to all of them, else None."""
    arrays = [x for x in inputs if isinstance(x, np.ndarray) and x.dtype != object]
    return arrays if len(arrays) == len(inputs) else None
