"""Binding: the kernels of a group's representative for one of its members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from workbench.egraph.program import ChunkProgram
from workbench.ir import llir
from workbench.ir.llir import Kernel, Program


@dataclass(frozen=True, slots=True)
class Binding:
    """How local numbers become HLIR ids in one member of a group: boundary inputs and nodes by local number, outputs
    by position, custom operators by local id."""

    inputs: tuple[int, ...]
    nodes: tuple[int, ...]
    outputs: tuple[int, ...]
    custom_ids: tuple[int, ...]

    @classmethod
    def of(cls, program: ChunkProgram, outputs: Sequence[int]) -> Binding:
        """The binding of the chunk that `program` was emitted for."""
        return cls(program.inputs, tuple(program.variables), tuple(outputs), program.custom_ids)


def bind(program: Program, binding: Binding) -> Program:
    """`program` for one member: buffers and kernels name that member's HLIR nodes."""
    buffers = [
        replace(b, source=binding.inputs[b.source] if b.role == "boundary" else _node(binding, b.source))
        for b in program.buffers
    ]
    kernels: list[Kernel] = []
    for kernel in program.kernels:
        sources = tuple(_node(binding, s) for s in kernel.sources)
        if isinstance(kernel, llir.OpaqueCall):
            kernels.append(replace(kernel, sources=sources, custom_id=binding.custom_ids[kernel.custom_id]))
        else:
            kernels.append(replace(kernel, sources=sources))
    return Program(buffers, kernels, list(program.outputs))


def _node(binding: Binding, local: int) -> int:
    return binding.nodes[local] if local >= 0 else -1
