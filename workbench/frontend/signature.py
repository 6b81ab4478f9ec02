"""What ONNX says of the element types of an operator's inputs, and whether a node keeps to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from workbench.errors import ModelError
from workbench.frontend.definitions import schema
from workbench.frontend.registry import MAX_OPSET
from workbench.frontend.values import Value, dtype_of, is_symbolic


@dataclass(frozen=True, slots=True)
class Parameter:
    """A formal input: the element types of tensors that it takes (None: it takes others than tensors), and the name
    that it shares with the parameters that must be of the same type (None: with none)."""

    types: frozenset[str] | None
    variable: str | None


@lru_cache(maxsize=1024)
def _parameters(domain: str, name: str, opset: int) -> tuple[Parameter, ...]:
    """The formal inputs; the last one holds for any number of inputs where the operator takes that."""
    # some exporters use an operator before the version that brought it
    found = schema(domain, name, opset) or schema(domain, name, MAX_OPSET)
    if found is None:
        return ()
    variables = {c.type_param_str for c in found.type_constraints}
    made: list[Parameter] = []
    for formal in found.inputs:
        tensors = [t.removeprefix("tensor(")[:-1] for t in formal.types if t.startswith("tensor(")]
        others = len(formal.types) - len(tensors)
        if "float16" in tensors and "bfloat16" not in tensors:
            tensors.append("bfloat16")  # exporters write it under opsets whose operators knew f16 alone
        variable = formal.type_str if formal.type_str in variables and formal.is_homogeneous else None
        made.append(Parameter(frozenset(tensors) if others == 0 else None, variable))
    return tuple(made)


@lru_cache(maxsize=64)
def _element(dtype: np.dtype) -> str:
    """What ONNX calls an element type."""
    from onnx import TensorProto, helper

    return str(TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(dtype))).lower()


def check_types(domain: str, name: str, opset: int, inputs: Sequence[Value | None]) -> None:
    """Raise ModelError where an input is of a type that ONNX does not let the operator have there. What ONNX does not
    know passes, and so does shape arithmetic, which is of no one type."""
    parameters = _parameters(domain, name, opset)
    if not parameters:
        return
    types: dict[str, str] = {}
    for place, given in enumerate(inputs):
        if given is None or is_symbolic(given):
            continue
        parameter = parameters[min(place, len(parameters) - 1)]
        if parameter.types is None:
            continue
        element = _element(dtype_of(given))
        if element not in parameter.types:
            raise ModelError(f"input {place} is {element}; it may be {', '.join(sorted(parameter.types))}")
        if parameter.variable is None:
            continue
        if types.setdefault(parameter.variable, element) != element:
            raise ModelError(f"input {place} is {element}, one before it {types[parameter.variable]}")
