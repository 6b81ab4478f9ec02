"""`inspect`: what a model is and what would happen to it, without compiling anything."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from workbench import chunking
from workbench.chunking import Chunk, Group
from workbench.egraph.parameters import emit_all
from workbench.egraph.program import ChunkProgram
from workbench.errors import printable
from workbench.frontend import coverage
from workbench.frontend.importer import Imported
from workbench.frontend.values import NotLoweredError
from workbench.ir import ops
from workbench.ir.hlir import Graph
from workbench.ir.layout import show
from workbench.session.importing import import_as, runner_name
from workbench.session.spec import DEMO, SessionSpec
from workbench.targets import resolved

SHOWN = 12
"""Opaque nodes that the text lists."""


def split_and_group(graph: Graph, breaks: str = "auto") -> tuple[list[Chunk], list[ChunkProgram], list[Group]]:
    """Break a graph, emit each chunk's program, group equal ones."""
    chunks = chunking.split(graph, chunking.find_breaks(graph, breaks))
    programs = emit_all(graph, [(c.nodes, c.inputs, c.outputs) for c in chunks])
    return chunks, programs, chunking.group([p.digest for p in programs])


def inspect_model(spec: SessionSpec, scratch: Path, try_opaque: bool = True) -> dict[str, Any]:
    """Operators, shapes, breaks and groups of a model. `scratch` is where the built-in demo may be written.

    A model with operators that are not lowered is looked at as it would be with --allow-opaque, unless `try_opaque` is
    false; where it cannot be imported so either, unsupported operators are listed, with why under `refused`, and the
    graph is null. Raises ModelError for a file that is no model."""
    path = Path(spec.model)
    if spec.model == DEMO:
        from workbench.frontend.demo import write_demo

        path = write_demo(scratch / "demo.onnx")
    found = coverage(path)
    result: dict[str, Any] = {
        "model": spec.model,
        "target": resolved(spec.target),
        "opsets": dict(found.opsets),
        "operators": [
            {
                "domain": u.domain,
                "name": u.name,
                "count": u.count,
                "supported": u.supported,
                "first_node": printable(u.first_node),
            }
            for u in found.operators
        ],
        "unsupported": [u.name for u in found.unsupported],
        "opaque": [],
        "opaque_allowed": spec.allow_opaque,
        "refused": None,
        "graph": None,
    }
    if found.unsupported and not (spec.allow_opaque or try_opaque):
        return result
    began = time.perf_counter()
    try:
        imported = import_as(spec, path, spec.allow_opaque or try_opaque)
    except NotLoweredError as error:
        if not found.unsupported:
            raise
        result["refused"] = str(error)
        return result
    graph = imported.graph
    imported_at = time.perf_counter()
    chunks, _, groups = split_and_group(graph, spec.breaks)
    result["opaque"] = _opaque(imported, chunks)
    result["graph"] = {
        "onnx_nodes": imported.onnx_nodes,
        "nodes": len(graph),
        "parameters": imported.parameters,
        "missing_weights": len(imported.missing_weights),
        "dims": dict(graph.dims),
        "fixed_dims": imported.fixed_dims,
        "equal_dims": {name: str(extent) for name, extent in imported.equal_dims.items()},
        "inputs": [_port(graph, i) for i in graph.inputs],
        "outputs": [_port(graph, o) for o in graph.outputs],
        "breaks": [printable(c.begins_at) for c in chunks[1:]],
        "chunks": len(chunks),
        "groups": [
            {
                "representative": g.representative,
                "members": list(g.members),
                "nodes": len(chunks[g.representative].nodes),
            }
            for g in groups
        ],
        "node_names": [printable(n.label) for n in graph if n.label and n.operands],
        "seconds": {
            "import": round(imported_at - began, 6),
            "split_and_group": round(time.perf_counter() - imported_at, 6),
        },
    }
    return result


def _opaque(imported: Imported, chunks: list[Chunk]) -> list[dict[str, Any]]:
    """The nodes that are run as they are, each with the chunk that it stands in."""
    graph = imported.graph
    chunk_of = {
        graph.custom_ops[node.op.id].name: chunk.index
        for chunk in chunks
        for node in (graph[i] for i in chunk.nodes)
        if isinstance(node.op, ops.CustomOp)
    }
    return [
        {
            "node": printable(use.name),
            "operator": printable(use.operator),
            "why": use.why,
            "runner": runner_name(use),
            "onnx_nodes": use.nodes,
            "chunk": chunk_of.get(use.name),
        }
        for use in imported.opaque
    ]


def _port(graph: Graph, node_id: int) -> dict[str, str]:
    node = graph[node_id]
    assert isinstance(node.op, ops.Input | ops.Output)
    return {"name": printable(node.op.name), "shape": show(node.shape), "dtype": node.dtype.name}


def as_text(result: dict[str, Any]) -> str:
    """The inspection for a person."""
    opsets = ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in result["opsets"].items())
    title = f"{result['model']}  target {result['target']}  opset {opsets}"
    lines = [title, "", "  operator                     count"]
    for use in result["operators"]:
        name = f"{use['domain']}::{use['name']}" if use["domain"] else use["name"]
        note = "" if use["supported"] else f"  not supported, first at '{use['first_node']}'"
        lines.append(f"  {printable(name):26} {use['count']:7}{note}")
    graph = result["graph"]
    if graph is None:
        lines += ["", f"  not imported: {result['refused'] or 'see the operators above'}"]
        return "\n".join(lines)
    lines += [
        "",
        f"  {graph['onnx_nodes']} ONNX nodes, {graph['nodes']} primitives, {graph['parameters']:,} parameters"
        + (f", {graph['missing_weights']} weights missing (--random-weights profiles without them)"
           if graph["missing_weights"] else ""),
    ]  # fmt: skip
    for kind in ("inputs", "outputs"):
        for port in graph[kind]:
            lines.append(f"  {kind[:-1]:6} {port['name']} {port['shape']} {port['dtype']}")
    if graph["dims"]:
        dims = ", ".join(f"{n}={v}" for n, v in graph["dims"].items())
        lines.append(f"  named dimensions, with the values to profile at: {dims}")
    if graph["fixed_dims"]:
        dims = ", ".join(f"{n}={v}" for n, v in graph["fixed_dims"].items())
        lines.append(f"  dimensions that decide what there is to compute, fixed at (--dim changes it): {dims}")
    if graph["equal_dims"]:
        dims = ", ".join(f"{n} is {e}" for n, e in graph["equal_dims"].items())
        lines.append(f"  dimensions that the model uses as equal to others: {dims}")
    lines += _opaque_text(result)
    lines += ["", f"  {graph['chunks']} chunks in {len(graph['groups'])} groups"]
    for i, g in enumerate(graph["groups"]):
        members = ", ".join(map(str, g["members"][:12])) + (", …" if len(g["members"]) > 12 else "")
        lines.append(f"  group {i}: {len(g['members'])} x {g['nodes']} nodes  (chunks {members})")
    if graph["breaks"]:
        shown = graph["breaks"][:6]
        lines.append(f"  breaks behind: {', '.join(shown)}" + (", …" if len(graph["breaks"]) > 6 else ""))
    return "\n".join(lines)


def _opaque_text(result: dict[str, Any]) -> list[str]:
    """What is run as it is, by who and why, and what that asks for."""
    found = result["opaque"]
    if not found:
        return []
    count = "one node" if len(found) == 1 else f"{len(found)} nodes"
    on_condition = "" if result["opaque_allowed"] else "with --allow-opaque (compile refuses without): "
    lines = ["", f"  {on_condition}{count} not lowered but run as in the file, between breaks; the rest is compiled"]
    for use in found[:SHOWN]:
        more = f" together with {use['onnx_nodes'] - 1} before it" if use["onnx_nodes"] > 1 else ""
        what = f"'{use['node']}' ({use['operator']}){more}"
        lines.append(f"  chunk {use['chunk']}: {what} by {use['runner']}: {use['why']}")
    if len(found) > SHOWN:
        lines.append(f"  and {len(found) - SHOWN} more")
    return lines
