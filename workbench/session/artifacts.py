"""Artifacts for people and other tools: graphs as dot, programs, rule statistics, kernel sources."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from workbench.egraph.program import ChunkProgram
from workbench.errors import printable
from workbench.ir import llir
from workbench.ir.hlir import Graph, describe
from workbench.ir.llir import Program
from workbench.session.events import RuleRow
from workbench.session.executable import Compiled
from workbench.session.store import write_file

DEFAULT_DIRECTORY = "luminal_artifacts"


def write_all(
    directory: Path, graph: Graph, chunk_of: Mapping[int, int], programs: Sequence[ChunkProgram], rules: bytes,
    compiled: Compiled | None,
) -> None:
    """Everything about a finished compile, or without `compiled` about a finished saturation. `chunk_of` maps HLIR
    nodes to chunks, `rules` is rule_stats.txt.

    Raises SessionError when the directory cannot be written."""
    write_hlir_dot(directory, graph, chunk_of)
    write_programs(directory, programs)
    write_file(directory / "rule_stats.txt", rules)
    if compiled is None:
        _drop_others(directory, r"LLIR\.dot", set())
        write_sources(directory, {}, "ll")
    else:
        write_llir_dot(directory, compiled.program)
        write_sources(directory, compiled.plan.sources, "ll")


def write_hlir_dot(directory: Path, graph: Graph, chunk_of: Mapping[int, int]) -> None:
    """HLIR.dot: one cluster per chunk."""
    lines = ["digraph HLIR {", "  node [shape=box, fontname=monospace];"]
    by_chunk: dict[int, list[int]] = {}
    for node in graph:
        by_chunk.setdefault(chunk_of.get(node.id, -1), []).append(node.id)
    for chunk, members in sorted(by_chunk.items()):
        indent = "  "
        if chunk >= 0:
            lines.append(f'  subgraph cluster_{chunk} {{ label="chunk {chunk}";')
            indent = "    "
        for node_id in members:
            node = graph[node_id]
            text = describe(node) + (f"\\n{_quoted(node.label)}" if node.label else "")
            lines.append(f'{indent}n{node_id} [label="{text}"];')
        if chunk >= 0:
            lines.append("  }")
    for node in graph:
        for operand in node.operands:
            lines.append(f'  n{operand.source} -> n{node.id} [label="{operand.layout}"];')
    _write(directory / "HLIR.dot", [*lines, "}"])


def write_llir_dot(directory: Path, program: Program) -> None:
    """LLIR.dot: kernels, with the buffers between them as edges."""
    lines = ["digraph LLIR {", "  node [shape=box, fontname=monospace];"]
    writer = {kernel.out: i for i, kernel in enumerate(program.kernels)}
    for i, kernel in enumerate(program.kernels):
        lines.append(f'  k{i} [label="{_kernel_title(kernel)}"];')
        for buffer in sorted(llir.reads(kernel)):
            source = program.buffers[buffer]
            label = f"{source.elements} {source.dtype}"
            if buffer in writer:
                lines.append(f'  k{writer[buffer]} -> k{i} [label="{label}"];')
            else:
                lines.append(f'  b{buffer} [shape=ellipse, label="{source.role} {label}"];')
                lines.append(f"  b{buffer} -> k{i};")
    _write(directory / "LLIR.dot", [*lines, "}"])


def _kernel_title(kernel: llir.Kernel) -> str:
    match kernel:
        case llir.MapKernel():
            return f"map {list(kernel.shape)}" + _place(kernel.in_place)
        case llir.RowKernel():
            return f"row: {', '.join(llir.row_passes(kernel))} {list(kernel.result)}" + _place(kernel.in_place)
        case llir.ReduceKernel():
            return f"{kernel.combine} {list(kernel.shape)} over {kernel.extent} ({kernel.order})"
        case llir.ScatterKernel():
            return f"scatter {kernel.mode} {list(kernel.shape)}"
        case llir.GemmCall():
            batch = f"{kernel.batch} x " if kernel.batch != 1 else ""
            return f"{kernel.routine} {kernel.layout} {batch}{kernel.m}x{kernel.n}x{kernel.k}"
        case llir.OpaqueCall():
            return f"opaque {kernel.custom_id}"


def _place(in_place: int | None) -> str:
    return "" if in_place is None else " in place"


def write_programs(directory: Path, programs: Sequence[ChunkProgram]) -> None:
    """hlir_program.egg and hlir_root.txt for one chunk; hlir_chunk_N.egg and hlir_chunk_N_root.txt for several."""
    written: set[str] = set()
    for i, program in enumerate(programs):
        stem = "hlir" if len(programs) == 1 else f"hlir_chunk_{i}"
        name = "hlir_program.egg" if len(programs) == 1 else f"{stem}.egg"
        write_file(directory / name, program.text.encode())
        write_file(directory / f"{stem}_root.txt", f"{program.root}\n".encode())
        written |= {name, f"{stem}_root.txt"}
    _drop_others(directory, r"hlir_(program\.egg|root\.txt|chunk_\d+(\.egg|_root\.txt))", written)


def rule_report(groups: Mapping[int, Sequence[RuleRow]], seconds: float) -> str:
    """rule_stats.txt: matches by rule under Reshape, cuBLAS and Other (everything else), summed over groups, and the
    total time."""
    matches: dict[tuple[str, str], int] = {}
    spent: dict[str, float] = {}
    for rows in groups.values():
        for row in rows:
            key = (row.category if row.category in ("Reshape", "cuBLAS") else "Other", row.name)
            matches[key] = matches.get(key, 0) + row.matches
            spent[row.name] = spent.get(row.name, 0.0) + row.seconds
    lines = [f"Egglog total time: {seconds * 1e3:.3f} ms"]
    for category in ("Reshape", "cuBLAS", "Other"):
        lines += ["", f"=== {category} Rules ==="]
        for kind, name in sorted(matches):
            if kind == category:
                lines.append(f"  {printable(name)}: {matches[kind, name]} ({spent[name] * 1e3:.3f} ms)")
    return "\n".join(lines) + "\n"


def write_sources(directory: Path, sources: Mapping[str, str], extension: str) -> None:
    """Generated kernel sources, one file per distinct kernel."""
    for key, text in sources.items():
        write_file(directory / "kernels" / f"{key}.{extension}", text.encode())
    _drop_others(directory / "kernels", rf"[0-9a-f]{{16,}}\.{extension}", {f"{key}.{extension}" for key in sources})


def _drop_others(directory: Path, ours: str, written: set[str]) -> None:
    """Remove what an earlier compile left under names of `ours`: beside the new files it would be taken for theirs."""
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            if path.name not in written and re.fullmatch(ours, path.name):
                path.unlink()


def _write(path: Path, lines: Sequence[str]) -> None:
    write_file(path, ("\n".join(lines) + "\n").encode())


def _quoted(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', "'")
