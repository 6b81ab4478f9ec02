"""A program as a plan for the CPU: rendered kernels, library calls, and what each launch is and costs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod

from workbench.errors import WorkbenchError
from workbench.ir import expr as ex
from workbench.ir import llir
from workbench.ir.llir import GemmCall, GemmOperand, Immediate, MapKernel, OpaqueCall, Program, ReduceKernel
from workbench.runtime.arena import plan_arena
from workbench.runtime.bounds import reach
from workbench.runtime.cpu.builder import REGISTER
from workbench.runtime.cpu.render import identity, render_terms, source_key
from workbench.runtime.cpu.schedule import Form, Term, Vectors, gathered, linearise
from workbench.runtime.protocol import GemmLaunch, Launch, MatrixRef, NativeLaunch, OpaqueLaunch, Plan, PlanBuffer

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
            case MapKernel() | ReduceKernel():
                if prod(kernel.shape):
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


def _native(
    kernel: MapKernel | ReduceKernel, program: Program, sources: dict[str, str], vectors: Vectors
) -> NativeLaunch:
    terms = linearise(kernel.body)
    for dtype in (program.buffers[kernel.out].dtype, *(term.dtype for term in terms)):
        if dtype not in REGISTER:
            raise WorkbenchError(f"the cpu target has no kernels for {dtype}")
    name, nbytes = native_name(kernel, terms), _traffic(kernel, terms, program)
    if isinstance(kernel, ReduceKernel) and kernel.extent == 0:
        dtype = program.buffers[kernel.out].dtype
        fill = MapKernel(kernel.out, kernel.shape, Immediate(identity(kernel.combine, dtype), dtype), kernel.sources)
        return _native(fill, program, sources, vectors)
    _check_addresses(kernel, terms, program)
    numbers: dict[int, int] = {kernel.out: 0}
    for term in terms:
        if term.buffer >= 0:
            term.buffer = numbers.setdefault(term.buffer, len(numbers))
    if isinstance(kernel, ReduceKernel):
        form = Form(kernel.shape, kernel.extent, kernel.combine, kernel.order)
    else:
        form = Form(kernel.shape)
    key, text = _rendered(form, tuple(t.key for t in terms), vectors)
    sources[key] = text
    return NativeLaunch(key, tuple(numbers), name, llir.flops(kernel), nbytes)


@lru_cache(maxsize=8192)
def _rendered(form: Form, keys: tuple[tuple[object, ...], ...], vectors: Vectors) -> tuple[str, str]:
    text = render_terms(form, [Term.from_key(key) for key in keys], vectors)
    return source_key(text), text


def native_name(kernel: MapKernel | ReduceKernel, terms: list[Term]) -> str:
    """What a kernel does, as users read it: `map Mul,Add 16x64`, `sum Mul 16x64:256`."""
    used = list(dict.fromkeys(t.op for t in terms if t.op not in ("const", "load", "position")))
    more = [f"+{len(used) - NAMED_FUNCTIONS}"] if len(used) > NAMED_FUNCTIONS else []
    functions = ",".join(["Gather" if u == "gather" else u for u in used[:NAMED_FUNCTIONS]] + more)
    shape = "x".join(map(str, kernel.shape)) or "1"
    if isinstance(kernel, ReduceKernel):
        return " ".join(part for part in (kernel.combine, functions, f"{shape}:{kernel.extent}") if part)
    return f"map {functions or ('copy' if terms[-1].op == 'load' else terms[-1].op)} {shape}"


def _extents(kernel: MapKernel | ReduceKernel) -> dict[str, int]:
    shape = kernel.iteration if isinstance(kernel, ReduceKernel) else kernel.shape
    return {f"#{i}": n for i, n in enumerate(shape)}


def _traffic(kernel: MapKernel | ReduceKernel, terms: list[Term], program: Program) -> int:
    """Bytes read (each buffer once, by the part that its loads touch) and written."""
    extents = _extents(kernel)
    touched: dict[int, int] = {}
    for term in terms:
        if term.buffer >= 0:
            names = ex.variables(term.address)
            count = prod(extents.values()) if term.op == "gather" else prod(extents[n] for n in names)
            touched[term.buffer] = max(touched.get(term.buffer, 0), count * term.dtype.itemsize)
    read = sum(min(size, program.buffers[buffer].nbytes) for buffer, size in touched.items())
    return read + program.buffers[kernel.out].nbytes


def _check_addresses(kernel: MapKernel | ReduceKernel, terms: list[Term], program: Program) -> None:
    """Raise for a kernel that would read or write outside a buffer."""
    if program.buffers[kernel.out].elements < prod(kernel.shape):
        raise WorkbenchError(f"buffer {kernel.out} is too small for a kernel of shape {kernel.shape}")
    extents = _extents(kernel)
    for term in terms:
        if term.buffer < 0 or (term.op == "gather" and term.extent == 0):
            continue
        here = extents | {gathered(a): term.extent for a in term.args}
        buffer = program.buffers[term.buffer]
        outside = reach(term.address, tuple(here.items()), buffer.elements)
        if outside is not None:
            raise WorkbenchError(
                f"a kernel reads elements {outside[0]}..{outside[1]} of buffer {buffer.id}, which has {buffer.elements}"
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
