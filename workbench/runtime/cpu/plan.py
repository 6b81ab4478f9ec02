"""A program as a plan for the CPU: rendered kernels, library calls, and what each launch is and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from workbench.errors import WorkbenchError, printable
from workbench.ir import expr as ex
from workbench.ir import llir
from workbench.ir.hlir import CustomOpSpec
from workbench.ir.llir import (
    GemmCall,
    GemmOperand,
    MapKernel,
    NativeKernel,
    OpaqueCall,
    Program,
    ReduceKernel,
    RowKernel,
    ScatterKernel,
)
from workbench.runtime.arena import NO_DIMS, spans
from workbench.runtime.cpu.native import NativeTemplate, native_template, shown, sized_shape
from workbench.runtime.cpu.schedule import Vectors
from workbench.runtime.protocol import GemmLaunch, Launch, MatrixRef, NativeLaunch, OpaqueLaunch, Plan, PlanBuffer

CustomOps = Mapping[int, CustomOpSpec]
MOST_SPECIAL = 256
"""Kernels of a template that are kept for values that the general code does not suit."""


def plan_program(program: Program, custom_ops: CustomOps, vectors: Vectors) -> Plan:
    """Sources, launches and arena for `program`, for a processor with `vectors`.

    Kernels that write nothing are left out. Raises WorkbenchError for a dtype, a function or an address that this
    target can't take, and for an unknown custom operator."""
    return PlanTemplate(program, custom_ops, vectors).plan(NO_DIMS)


class PlanTemplate:
    """A program whose sizes may depend on named dimensions: its kernels are rendered once, and `plan` only fills in
    numbers. See `protocol.Template`."""

    def __init__(self, program: Program, custom_ops: CustomOps, vectors: Vectors) -> None:
        """Raises WorkbenchError as `plan_program` does."""
        self.program, self.custom_ops, self.vectors = program, custom_ops, vectors
        self._spans = spans(program)
        self._dims = [llir.dims_of(kernel, program.buffers) for kernel in program.kernels]
        self._native: dict[int, NativeTemplate] = {}
        """By place in the program."""
        self._wide: dict[int, NativeTemplate] = {}
        """The same, for sizes that need wider indices."""
        self._special: dict[tuple[int, tuple[tuple[str, int], ...]], NativeTemplate] = {}
        """The same, for values that the code for all does not suit."""
        for place, kernel in enumerate(program.kernels):
            if isinstance(kernel, NativeKernel) and 0 not in llir.work(kernel):
                self._native[place] = native_template(kernel, program.buffers, vectors)
            elif isinstance(kernel, OpaqueCall) and kernel.custom_id not in custom_ops:
                raise WorkbenchError(f"custom operator {kernel.custom_id} is not known")

    def plan(self, dims: Mapping[str, int]) -> Plan:
        """The plan for values of the named dimensions. Raises WorkbenchError for values that the program is not for."""
        program = self.program
        elements = [sized_shape((b.elements,), dims)[0] for b in program.buffers]
        offsets, arena_bytes = self._spans.plan(program, dims)
        buffers = tuple(
            PlanBuffer(b.dtype.name, n, offsets.get(b.id)) for b, n in zip(program.buffers, elements, strict=True)
        )
        sources: dict[str, str] = {}
        launches: list[Launch] = []
        for place, kernel in enumerate(program.kernels):
            if not prod(sized_shape(llir.work(kernel), dims)):
                continue
            match kernel:
                case MapKernel() | ReduceKernel() | RowKernel() | ScatterKernel():
                    launches.append(self._native_launch(place, kernel, elements, dims, sources))
                case GemmCall():
                    launches.append(_gemm(kernel, dims, bool(self._dims[place])))
                case OpaqueCall():
                    launches.append(self._opaque(kernel, dims))
        for output in program.outputs:
            made = program.buffers[output].role in ("intermediate", "output")
            if made and output not in offsets and elements[output]:
                raise WorkbenchError(f"output buffer {output} is never written")
        return Plan("cpu", buffers, tuple(launches), sources, tuple(program.outputs), arena_bytes)

    def _native_launch(
        self,
        place: int,
        kernel: NativeKernel,
        elements: Sequence[int],
        dims: Mapping[str, int],
        sources: dict[str, str],
    ) -> NativeLaunch:
        template = self._native[place]
        if self._dims[place] and not template.suits(elements, dims):
            template = self._special_template(place, kernel, elements, dims)
        elif not template.is_wide_enough(dims):
            template = self._wide.get(place) or native_template(kernel, self.program.buffers, self.vectors, wide=True)
            self._wide[place] = template
        sources[template.source] = template.text
        return template.launch(self.program.buffers, dims)

    def _special_template(
        self, place: int, kernel: NativeKernel, elements: Sequence[int], dims: Mapping[str, int]
    ) -> NativeTemplate:
        key = (place, tuple((name, dims[name]) for name in sorted(self._dims[place])))
        found = self._special.get(key)
        if found is None:
            empty = {b for b in llir.reads(kernel) if not elements[b]}
            try:
                at_values = llir.at_values(kernel, dims, empty)
            except ZeroDivisionError as error:
                raise WorkbenchError(f"a kernel divides by a dimension that is 0: {error}") from None
            found = native_template(at_values, self.program.buffers, self.vectors)
            while len(self._special) >= MOST_SPECIAL:
                del self._special[next(iter(self._special))]
            self._special[key] = found
        return found

    def _opaque(self, kernel: OpaqueCall, dims: Mapping[str, int]) -> OpaqueLaunch:
        spec = self.custom_ops[kernel.custom_id]
        nbytes = sum(self.program.buffers[b].bytes_at(dims) for b in {kernel.out, *kernel.operands})
        shapes = tuple(sized_shape(shape, dims) for shape in kernel.operand_shapes)
        return OpaqueLaunch(
            kernel.out, sized_shape(kernel.shape, dims), kernel.operands, shapes, spec.model, spec.output,
            spec.runner, f"custom {printable(spec.name)} {shown(kernel.shape, dims) or '1'}", 0, nbytes,
        )  # fmt: skip


def _gemm(kernel: GemmCall, dims: Mapping[str, int], checked: bool) -> GemmLaunch:
    """The call for values of the named dimensions; with `checked` its strides have not been looked at yet."""
    m, n, k = sized_shape((kernel.m, kernel.n, kernel.k), dims)
    batch = [] if kernel.batch == 1 else [kernel.batch]
    name = f"{kernel.routine} {kernel.layout} {shown([*batch, kernel.m, kernel.n, kernel.k], dims)}"
    a, b = _matrix(kernel.a, dims), _matrix(kernel.b, dims)
    for operand, columns, rows in ((a, k, m), (b, n, k)) if checked else ():
        if rows > 1 and columns > 1 and not (
            (operand.col_stride == 1 and operand.row_stride >= columns)
            or (operand.row_stride == 1 and operand.col_stride >= rows)
        ):
            raise WorkbenchError(f"{name}: no library takes a matrix whose rows overlap")
    nbytes = (len(set(a.batch_offsets)) * m * k + len(set(b.batch_offsets)) * k * n) * kernel.dtype.itemsize
    nbytes += len(a.batch_offsets) * m * n * kernel.dtype.itemsize
    flops = 2 * len(a.batch_offsets) * m * n * k
    return GemmLaunch(kernel.out, m, n, k, a, b, kernel.dtype.name, kernel.routine, name, flops, nbytes)


def _matrix(operand: GemmOperand, dims: Mapping[str, int]) -> MatrixRef:
    row_stride, col_stride = ex.sized(operand.row_stride, dims), ex.sized(operand.col_stride, dims)
    return MatrixRef(operand.buffer, row_stride, col_stride, operand.offsets_at(dims))


def launch_buffers(launch: Launch) -> tuple[int, ...]:
    """Buffers that a launch reads or writes."""
    match launch:
        case NativeLaunch():
            return launch.buffers
        case GemmLaunch():
            return (launch.out, launch.a.buffer, launch.b.buffer)
        case OpaqueLaunch():
            return (launch.out, *launch.operands)
