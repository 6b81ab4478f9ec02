"""Operators that ONNX itself defines by others: their bodies, for those that have no row in the table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from workbench.frontend.registry import find
from workbench.frontend.values import Value, View, dtype_of, shape_of
from workbench.ir.expr import Expr


@lru_cache(maxsize=1024)
def schema(domain: str, name: str, opset: int) -> Any | None:
    """The OpSchema of an operator in `opset`, or None when ONNX has no such operator."""
    from onnx import defs

    try:
        return defs.get_schema(name, opset, domain)
    except Exception:  # SchemaError, which is of another module in each version of onnx
        return None


@lru_cache(maxsize=1024)
def has_definition(domain: str, name: str, opset: int) -> bool:
    """Whether ONNX defines the operator by others that are supported. A definition that depends on types and
    attributes counts: what it is made of shows when it is used."""
    found = schema(domain, name, opset)
    if found is None:
        return False
    if found.has_context_dependent_function:
        return True
    if not found.has_function:
        return False
    body = _parsed(found.get_function_with_opset_version(_version(found.function_opset_versions, opset)))
    versions = {o.domain: o.version for o in body.opset_import}
    return all(is_supported(n.domain, n.op_type, versions.get(n.domain, opset)) for n in body.node)


def is_supported(domain: str, name: str, opset: int) -> bool:
    """Whether the importer knows what the operator means: by its table, or by ONNX's definition."""
    return find(domain, name, opset) is not None or has_definition(domain, name, opset)


def definition(node: Any, opset: int, inputs: Sequence[Value | None]) -> tuple[Any, dict[str, Any]] | None:
    """The FunctionProto that says what `node` (an OnnxNode) computes, and the attributes its body may refer to, those
    that `node` leaves out at their defaults. None when ONNX has no such definition for it."""
    found = schema(node.domain, node.op_type, opset)
    if found is None:
        return None
    if found.has_function:
        data = found.get_function_with_opset_version(_version(found.function_opset_versions, opset))
    elif found.has_context_dependent_function:
        version = _version(found.context_dependent_function_opset_versions, opset)
        types = [_type_of(x) for x in inputs]
        data = found.get_context_dependent_function_with_opset_version(version, node.proto.SerializeToString(), types)
    else:
        return None
    if not data:
        return None
    attributes = {
        name: a.default_value for name, a in found.attributes.items() if a.default_value.type and not a.required
    }
    return _parsed(data), attributes | {a.name: a for a in node.attribute}


def _version(versions: Sequence[int], opset: int) -> int:
    """The newest of `versions` that `opset` includes, else the oldest."""
    return max((v for v in versions if v <= opset), default=min(versions))


def _parsed(data: bytes) -> Any:
    from onnx import FunctionProto

    return FunctionProto.FromString(data)


def _type_of(x: Value | None) -> bytes:
    from onnx import TypeProto, helper

    if x is None:
        return bytes(TypeProto().SerializeToString())
    element = helper.np_dtype_to_tensor_dtype(x.dtype.numpy if isinstance(x, View) else dtype_of(x))
    shape = [str(d) if isinstance(d, Expr) else d for d in shape_of(x)]
    return bytes(helper.make_tensor_type_proto(element, shape).SerializeToString())
