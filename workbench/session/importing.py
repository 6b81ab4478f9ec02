"""Importing as the options of a session ask, and what is said where a model holds operators that are not lowered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from workbench.errors import ModelError, printable
from workbench.frontend import import_model
from workbench.frontend.importer import Imported
from workbench.frontend.opaque import OpaqueUse
from workbench.frontend.values import NotLoweredError
from workbench.session.spec import SessionSpec

NAMED = 3
"""How many opaque nodes a sentence names."""


def imported(spec: SessionSpec, path: Path, input_shapes: Mapping[str, Sequence[int]] | None = None) -> Imported:
    """The model at `path`, for the options of `spec`. Raises ModelError, which says what --allow-opaque would do."""
    try:
        return import_as(spec, path, spec.allow_opaque, input_shapes)
    except NotLoweredError as error:
        if not spec.allow_opaque:
            error.hint = "; ".join(filter(None, [_what_if(spec, path), error.hint]))
        raise


def import_as(
    spec: SessionSpec, path: Path, allow_opaque: bool, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> Imported:
    """The same with or without --allow-opaque, whatever `spec` says of it. Raises ModelError."""
    return import_model(
        path,
        dims=spec.representative,
        random_weights=spec.random_weights,
        allow_opaque=allow_opaque,
        input_shapes=input_shapes,
    )


def _what_if(spec: SessionSpec, path: Path) -> str:
    """What --allow-opaque would do."""
    try:
        uses = import_as(spec, path, True).opaque
    except ModelError as error:
        return f"--allow-opaque does not help: {error}"
    runners = " and ".join(dict.fromkeys(runner_name(use) for use in uses))
    return f"--allow-opaque: {runners} would run {named(uses)}, and the rest is compiled around that"


def named(uses: Sequence[OpaqueUse]) -> str:
    """Some nodes by name, and how many there are."""
    shown = ", ".join(f"'{printable(use.name, 80)}' ({printable(use.operator, 60)})" for use in uses[:NAMED])
    rest = f" and {len(uses) - NAMED} more" if len(uses) > NAMED else ""
    return shown + rest


def runner_name(use: OpaqueUse) -> str:
    """Who runs it, for people."""
    return "onnxruntime" if use.runner == "onnxruntime" else "onnx's reference implementation"
