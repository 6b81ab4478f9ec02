"""A program as a plan for the CPU: rendered kernels, library calls, and what each launch is and costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from workbench.errors import WorkbenchError
from workbench.ir import expr as ex
from workbench.ir import llir
from workbench.ir.llir import (
    ALONG,
    Body,
    GemmCall,
    GemmOperand,
    Immediate,
    MapKernel,
    OpaqueCall,
    Program,
    ReduceKernel,
    RowKernel,
    RowPass,
)
from workbench.runtime.arena import plan_arena
from workbench.runtime.bounds import reach
from workbench.runtime.cpu.builder import REGISTER
from workbench.runtime.cpu.render import identity, render_terms, source_key
from workbench.runtime.cpu.row_render import Keys, RowForm, render_row
from workbench.runtime.cpu.schedule import Form, Vectors
from workbench.runtime.cpu.terms import Term, gathered, linearise
from workbench.runtime.protocol import GemmLaunch, Launch, MatrixRef, NativeLaunch, OpaqueLaunch, Plan, PlanBuffer

NativeKernel = MapKernel | ReduceKernel | RowKernel
CustomOps = Mapping[int, tuple[str, bytes, tuple[tuple[str, int], ...]]]
NAMED_FUNCTIONS = 4
"""How many functions a launch's name lists."""


def plan_program(program: Program, custom_ops: CustomOps, vectors: Vectors) -> Plan:
    """Sources, launches and arena for `program`, for a processor with `vectors`.

    Kernels that write nothing are left out. Raises WorkbenchError for a dtype, a function or an address that this
    target can't take, and for an unknown custom operator."""
    offsets, arena_bytes = plan_arena(program)
    buffers = tuple(PlanBuffer(b.dtype.name, b.elements, offsets.get(b.id)) for b in program.buffers)
    sources: dict[str, str] = {}
    launches: list[Launch] = []
    for kernel in program.kernels:
        match kernel:
            case MapKernel() | ReduceKernel() | RowKernel():
                if prod(result_shape(kernel)):
                    launches.append(_native(kernel, program, sources, vectors))
            case GemmCall():
                if kernel.batch * kernel.m * kernel.n:
                    launches.append(_gemm(kernel, program))
            case OpaqueCall():
                launches.append(_opaque(kernel, program, custom_ops))
    for b in program.buffers:
        if b.role in ("intermediate", "output") and b.id not in offsets and b.elements and b.id in program.outputs:
            raise WorkbenchError(f"output buffer {b.id} is never written")
    return Plan("cpu", buffers, tuple(launches), sources, tuple(program.outputs), arena_bytes)


@dataclass(frozen=True, slots=True)
class _Part:
    """A body with the extents of the iterators that it is computed over."""

    terms: list[Term]
    extents: dict[str, int]


def _parts(kernel: NativeKernel) -> list[_Part]:
    """The bodies of a kernel, in the order of their computation; that of the output last."""

    def part(body: Body, **extents: int) -> _Part:
        return _Part(linearise(body), {f"#{i}": n for i, n in enumerate(kernel.shape)} | extents)

    match kernel:
        case MapKernel():
            return [part(kernel.body)]
        case ReduceKernel():
            return [part(kernel.body, **{f"#{len(kernel.shape)}": kernel.extent})]
        case RowKernel():
            stored = {} if kernel.extent is None else {ALONG: kernel.extent}
            passes = [part(_of_row(p), **{ALONG: p.extent}) for p in kernel.passes]
            return [*passes, part(kernel.body, **stored)]


def _of_row(each: RowPass) -> Body:
    """What a pass is over. One over nothing reads nothing: the function has no argument for what it would load."""
    return each.body if each.extent else Immediate(identity(each.combine, each.body.dtype), each.body.dtype)


def result_shape(kernel: NativeKernel) -> tuple[int, ...]:
    """The shape of what a kernel stores."""
    return kernel.result if isinstance(kernel, RowKernel) else kernel.shape


def _native(kernel: NativeKernel, program: Program, sources: dict[str, str], vectors: Vectors) -> NativeLaunch:
    parts = _parts(kernel)
    for dtype in (program.buffers[kernel.out].dtype, *(term.dtype for part in parts for term in part.terms)):
        if dtype not in REGISTER:
            raise WorkbenchError(f"the cpu target has no kernels for {dtype}")
    name, nbytes = native_name(kernel, parts[-1].terms), _traffic(kernel, parts, program)
    if isinstance(kernel, ReduceKernel) and kernel.extent == 0:
        dtype = program.buffers[kernel.out].dtype
        fill = MapKernel(kernel.out, kernel.shape, Immediate(identity(kernel.combine, dtype), dtype), kernel.sources)
        return _native(fill, program, sources, vectors)
    _check_addresses(kernel, parts, program)
    numbers: dict[int, int] = {kernel.out: 0}
    in_place = None if isinstance(kernel, ReduceKernel) else kernel.in_place
    if in_place is not None:
        numbers[in_place] = 0
    for part in parts:
        for term in part.terms:
            if term.buffer >= 0:
                # the output takes the number 0 once, and what lies in the same memory goes by it
                term.buffer = numbers.setdefault(term.buffer, len(numbers) - (in_place is not None))
    keys = tuple(tuple(t.key for t in part.terms) for part in parts)
    match kernel:
        case MapKernel():
            source, text = _rendered(Form(kernel.shape, in_place=in_place is not None), keys[0], vectors)
        case ReduceKernel():
            source, text = _rendered(Form(kernel.shape, kernel.extent, kernel.combine, kernel.order), keys[0], vectors)
        case RowKernel():
            passes = tuple((p.combine, p.extent) for p in kernel.passes)
            form = RowForm(kernel.shape, passes, kernel.extent, in_place is not None)
            source, text = _rendered_row(form, keys, vectors)
    sources[source] = text
    given = tuple(buffer for buffer in numbers if buffer != in_place)
    return NativeLaunch(source, given, name, llir.flops(kernel), nbytes)


@lru_cache(maxsize=8192)
def _rendered(form: Form, keys: tuple[tuple[object, ...], ...], vectors: Vectors) -> tuple[str, str]:
    text = render_terms(form, [Term.from_key(key) for key in keys], vectors)
    return source_key(text), text


@lru_cache(maxsize=8192)
def _rendered_row(form: RowForm, bodies: tuple[Keys, ...], vectors: Vectors) -> tuple[str, str]:
    text = render_row(form, bodies, vectors)
    return source_key(text), text


def native_name(kernel: NativeKernel, terms: list[Term]) -> str:
    """What a kernel does, as users read it: `map Mul,Add 16x64`, `sum Mul 16x64:256`, `row: max, sum, map 16x64`."""
    if isinstance(kernel, RowKernel):
        return f"row: {', '.join(llir.row_passes(kernel))} {'x'.join(map(str, kernel.result)) or '1'}{_place(kernel)}"
    used = list(dict.fromkeys(t.op for t in terms if t.op not in ("const", "load", "position")))
    more = [f"+{len(used) - NAMED_FUNCTIONS}"] if len(used) > NAMED_FUNCTIONS else []
    functions = ",".join(["Gather" if u == "gather" else u for u in used[:NAMED_FUNCTIONS]] + more)
    shape = "x".join(map(str, kernel.shape)) or "1"
    if isinstance(kernel, ReduceKernel):
        return " ".join(part for part in (kernel.combine, functions, f"{shape}:{kernel.extent}") if part)
    return f"map {functions or ('copy' if terms[-1].op == 'load' else terms[-1].op)} {shape}{_place(kernel)}"


def _place(kernel: MapKernel | RowKernel) -> str:
    return "" if kernel.in_place is None else " in place"


def _traffic(kernel: NativeKernel, parts: list[_Part], program: Program) -> int:
    """Bytes read (each buffer once, by the part that its loads touch) and written."""
    touched: dict[int, int] = {}
    for part in parts:
        extents = part.extents
        for term in part.terms:
            if term.buffer >= 0:
                names = ex.variables(term.address)
                count = prod(extents.values()) if term.op == "gather" else prod(extents[n] for n in names)
                touched[term.buffer] = max(touched.get(term.buffer, 0), count * term.dtype.itemsize)
    read = sum(min(size, program.buffers[buffer].nbytes) for buffer, size in touched.items())
    return read + program.buffers[kernel.out].nbytes


def _check_addresses(kernel: NativeKernel, parts: list[_Part], program: Program) -> None:
    """Raise for a kernel that would read or write outside a buffer, or in place of one that it does not fit."""
    shape, out = result_shape(kernel), program.buffers[kernel.out]
    if out.elements < prod(shape):
        raise WorkbenchError(f"buffer {kernel.out} is too small for a kernel of shape {shape}")
    if not isinstance(kernel, ReduceKernel) and kernel.in_place is not None:
        other = program.buffers[kernel.in_place]
        if other.role != "intermediate" or (other.elements, other.dtype) != (out.elements, out.dtype):
            raise WorkbenchError(f"buffer {kernel.out} does not fit in place of buffer {kernel.in_place}")
    for part in parts:
        if not prod(part.extents.values()):
            continue
        for term in part.terms:
            if term.buffer < 0 or (term.op == "gather" and term.extent == 0):
                continue
            here = part.extents | {gathered(a): term.extent for a in term.args}
            buffer = program.buffers[term.buffer]
            outside = reach(term.address, tuple(here.items()), buffer.elements)
            if outside is not None:
                raise WorkbenchError(
                    f"a kernel reads elements {outside[0]}..{outside[1]} of buffer {buffer.id}, "
                    f"which has {buffer.elements}"
                )


def _gemm(kernel: GemmCall, program: Program) -> GemmLaunch:
    batch = f"{kernel.batch}x" if kernel.batch > 1 else ""
    name = f"{kernel.routine} {kernel.layout} {batch}{kernel.m}x{kernel.n}x{kernel.k}"
    size = kernel.dtype.itemsize
    left = len(set(kernel.a.batch_offsets)) * kernel.m * kernel.k
    right = len(set(kernel.b.batch_offsets)) * kernel.k * kernel.n
    nbytes = (left + right + kernel.batch * kernel.m * kernel.n) * size
    return GemmLaunch(
        kernel.out, kernel.m, kernel.n, kernel.k, _matrix(kernel.a), _matrix(kernel.b), kernel.dtype.name,
        kernel.routine, name, llir.flops(kernel), nbytes,
    )  # fmt: skip


def _matrix(operand: GemmOperand) -> MatrixRef:
    return MatrixRef(operand.buffer, operand.row_stride, operand.col_stride, operand.batch_offsets)


def _opaque(kernel: OpaqueCall, program: Program, custom_ops: CustomOps) -> OpaqueLaunch:
    if kernel.custom_id not in custom_ops:
        raise WorkbenchError(f"custom operator {kernel.custom_id} is not known")
    name, proto, opsets = custom_ops[kernel.custom_id]
    nbytes = sum(program.buffers[b].nbytes for b in {kernel.out, *kernel.operands})
    shape = "x".join(map(str, kernel.shape)) or "1"
    return OpaqueLaunch(
        kernel.out, kernel.shape, kernel.operands, kernel.operand_shapes, proto, opsets,
        f"custom {name} {shape}", 0, nbytes,
    )  # fmt: skip


def launch_buffers(launch: Launch) -> tuple[int, ...]:
    """Buffers that a launch reads or writes."""
    match launch:
        case NativeLaunch():
            return launch.buffers
        case GemmLaunch():
            return (launch.out, launch.a.buffer, launch.b.buffer)
        case OpaqueLaunch():
            return (launch.out, *launch.operands)
