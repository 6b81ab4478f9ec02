"""Stitching: the kernels of all chunks as one program, values that cross a break in one buffer each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from workbench.chunking.split import Chunk, output_value
from workbench.ir import llir, ops
from workbench.ir.hlir import Graph
from workbench.ir.llir import Body, Buffer, Kernel, Program


def stitch(graph: Graph, chunks: Sequence[Chunk], programs: Sequence[Program]) -> Program:
    """One program from the chunks' (already bound to their members), in order. Its inputs and constants keep their
    HLIR ids as `source`; its outputs are in the order of the model's."""
    whole = Program()
    holder: dict[int, int] = {}
    """HLIR node -> buffer, for everything that chunks share."""
    for chunk, program in zip(chunks, programs, strict=True):
        renamed = [_place(graph, whole, holder, buffer) for buffer in program.buffers]
        whole.kernels += [renumbered(kernel, renamed) for kernel in program.kernels]
        for node_id, buffer_id in zip(chunk.outputs, program.outputs, strict=True):
            holder[node_id] = renamed[buffer_id]
    whole.outputs = [holder[output_value(graph, o)] for o in graph.outputs]
    for buffer_id in whole.outputs:
        whole.buffers[buffer_id] = replace(whole.buffers[buffer_id], role="output")
    return whole


def _place(graph: Graph, whole: Program, holder: dict[int, int], buffer: Buffer) -> int:
    if buffer.role == "boundary" and buffer.source in holder:
        return holder[buffer.source]
    role: llir.Role = "intermediate"
    if buffer.role == "boundary":
        role = "input" if isinstance(graph[buffer.source].op, ops.Input) else "constant"
    whole.buffers.append(replace(buffer, id=len(whole.buffers), role=role))
    if buffer.role == "boundary":
        holder[buffer.source] = whole.buffers[-1].id
    return whole.buffers[-1].id


def renumbered(kernel: Kernel, renamed: Sequence[int] | Mapping[int, int]) -> Kernel:
    """`kernel` over other buffers: `renamed` has the new number of each that it touches."""
    match kernel:
        case llir.ReduceKernel():
            return replace(kernel, out=renamed[kernel.out], body=_renumber_body(kernel.body, renamed, {}))
        case llir.MapKernel():
            body, place = _renumber_body(kernel.body, renamed, {}), _renumber_place(kernel.in_place, renamed)
            return replace(kernel, out=renamed[kernel.out], body=body, in_place=place)
        case llir.RowKernel():
            done: dict[int, Body] = {}
            passes = tuple(replace(p, body=_renumber_body(p.body, renamed, done)) for p in kernel.passes)
            body, place = _renumber_body(kernel.body, renamed, done), _renumber_place(kernel.in_place, renamed)
            return replace(kernel, out=renamed[kernel.out], passes=passes, body=body, in_place=place)
        case llir.ScatterKernel():
            index, update = (_renumber_body(body, renamed, {}) for body in (kernel.index, kernel.update))
            into = renamed[kernel.in_place]
            return replace(kernel, out=renamed[kernel.out], in_place=into, index=index, update=update)
        case llir.GemmCall():
            a = replace(kernel.a, buffer=renamed[kernel.a.buffer])
            b = replace(kernel.b, buffer=renamed[kernel.b.buffer])
            return replace(kernel, out=renamed[kernel.out], a=a, b=b)
        case llir.OpaqueCall():
            return replace(kernel, out=renamed[kernel.out], operands=tuple(renamed[o] for o in kernel.operands))


def _renumber_place(buffer: int | None, renamed: Sequence[int] | Mapping[int, int]) -> int | None:
    return None if buffer is None else renamed[buffer]


def _renumber_body(body: Body, renamed: Sequence[int] | Mapping[int, int], done: dict[int, Body]) -> Body:
    """Shared parts of a body stay shared."""
    found = done.get(id(body))
    if found is None:
        match body:
            case llir.Load():
                found = replace(body, buffer=renamed[body.buffer])
            case llir.GatherLoad():
                index = _renumber_body(body.index, renamed, done)
                found = replace(body, buffer=renamed[body.buffer], index=index)
            case llir.Apply():
                found = replace(body, operands=tuple(_renumber_body(o, renamed, done) for o in body.operands))
            case _:
                found = body
        done[id(body)] = found
    return found
