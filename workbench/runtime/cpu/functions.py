"""The kernel of every scalar function: one entry a function, each a few instructions at any vector width.

Booleans are i1 in registers, f16 and bf16 are f32: what a function makes of them is rounded to the dtype at once, so
that a fused kernel computes what separate ones would. Operands of one function share a dtype, but for the condition of
Select; integers of both signs share a type in LLVM, so that every function is given the dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workbench.errors import WorkbenchError
from workbench.ir import dtype as dt
from workbench.ir.dtype import DType
from workbench.runtime.cpu import transcendental
from workbench.runtime.cpu.builder import REGISTER, Builder, Value, suffix

Function = Callable[..., Value]
"""Of a builder, the dtype of the operands, and the operands."""


def _add(b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    return b.binary("fadd" if x.is_float else "or" if x.element == "i1" else "add", x, y)


def _mul(b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    return b.binary("fmul" if x.is_float else "and" if x.element == "i1" else "mul", x, y)


def _less_than(b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    return b.compare("olt" if x.is_float else "slt" if dtype.is_signed else "ult", x, y)


def _select(b: Builder, dtype: DType, condition: Value, yes: Value, no: Value) -> Value:
    return b.select(condition, yes, no)


def _mod(b: Builder, dtype: DType, x: Value, y: Value) -> Value:
    """The modulo whose sign is the divisor's; an integer modulo 0 is 0, as in NumPy."""
    if x.is_float:
        rest = b.per_lane("fmodf" if x.element == "float" else "fmod", x, y)
        crosses = b.compare("one", rest, b.like(x, 0.0))
        differs = b.binary("xor", b.compare("olt", rest, b.like(x, 0.0)), b.compare("olt", y, b.like(x, 0.0)))
        moved = b.select(b.binary("and", crosses, differs), b.binary("fadd", rest, y), rest)
        zero = b.compare("oeq", rest, b.like(x, 0.0))
        return b.select(zero, b.intrinsic("copysign", b.like(x, 0.0), y), moved)
    if x.element == "i1":
        return b.like(x, False)
    if not dtype.is_signed:
        zero = b.compare("eq", y, b.like(y, 0))
        return b.binary("urem", x, b.select(zero, b.like(y, 1), y))
    # dividing by 0 or the least integer by -1 traps; x % 1 is 0, which is right for both
    trivial = b.binary("or", b.compare("eq", y, b.like(y, 0)), b.compare("eq", y, b.like(y, -1)))
    rest = b.binary("srem", x, b.select(trivial, b.like(y, 1), y))
    crosses = b.compare("ne", rest, b.like(x, 0))
    differs = b.compare("slt", b.binary("xor", rest, y), b.like(x, 0))
    return b.select(b.binary("and", crosses, differs), b.binary("add", rest, y), rest)


def _recip(b: Builder, dtype: DType, x: Value) -> Value:
    if x.is_float:
        return b.binary("fdiv", b.like(x, 1.0), x)
    unit = b.compare("eq", x, b.like(x, 1))
    if dtype.is_signed:
        unit = b.binary("or", unit, b.compare("eq", x, b.like(x, -1)))
    return b.select(unit, x, b.like(x, 0))


def _sqrt(b: Builder, dtype: DType, x: Value) -> Value:
    return b.intrinsic("sqrt", x)


def _floor(b: Builder, dtype: DType, x: Value) -> Value:
    return b.intrinsic("floor", x) if x.is_float else x


def _round(b: Builder, dtype: DType, x: Value) -> Value:
    """To the nearest integer, ties to even: `rint` in the rounding mode that every thread begins in."""
    return b.intrinsic("rint", x) if x.is_float else x


def _by_precision(single: Callable[[Builder, Value], Value], libm: str) -> Function:
    """A polynomial for f32, the C library's function for f64."""
    return lambda b, dtype, x: single(b, x) if x.element == "float" else b.per_lane(libm, x)


FUNCTIONS: dict[str, Function] = {
    "Add": _add,
    "Mul": _mul,
    "Mod": _mod,
    "LessThan": _less_than,
    "Select": _select,
    "Exp2": _by_precision(transcendental.exp2, "exp2"),
    "Log2": _by_precision(transcendental.log2, "log2"),
    "Sin": _by_precision(transcendental.sin, "sin"),
    "Sqrt": _sqrt,
    "Recip": _recip,
    "Erf": _by_precision(transcendental.erf, "erf"),
    "Floor": _floor,
    "Round": _round,
}

_EXACT = {"LessThan", "Select", "Floor", "Round"}
"""Of halves, these give halves without rounding."""
_FLOATS_ONLY = {"Exp2", "Log2", "Sin", "Sqrt", "Erf"}

LIBM = {"exp2": 1, "log2": 1, "sin": 1, "erf": 1, "fmod": 2, "fmodf": 2}
"""C functions that kernels may call, and how many arguments they take."""


def apply(b: Builder, name: str, operands: list[Value], dtypes: Sequence[DType], result: DType) -> Value:
    """`name` (a key of ELEMENTWISE, or Cast) of `operands`, which are of `dtypes`, as `result`.

    Raises WorkbenchError for a function this target lacks, or lacks for that dtype."""
    if name == "Cast":
        return cast(b, operands[0], dtypes[0], result)
    function = FUNCTIONS.get(name)
    if function is None or (name in _FLOATS_ONLY and not operands[0].is_float):
        raise WorkbenchError(f"the cpu target has no kernel for {name} of {dtypes[0]}")
    value = function(b, dtypes[-1], *operands)
    return b.rounded(result, value) if result.is_half and name not in _EXACT else value


def cast(b: Builder, x: Value, source: DType, target: DType) -> Value:
    """`x`, which is of `source`, as `target` (see `dtype.convert`)."""
    if source is target:
        return x
    element = REGISTER[target]
    if target is dt.BOOL:
        return b.compare("une" if x.is_float else "ne", x, b.like(x, 0))
    if target.is_half:
        if source is dt.F64:
            return b.rounded(target, _rounded_to_odd(b, x))
        wide = x if x.element == element else _number(b, x, source, element)
        return b.rounded(target, wide)
    if not x.is_float:
        return _number(b, x, source, element)
    if target.is_float:
        return x if x.element == element else b.convert("fpext" if element == "double" else "fptrunc", x, element)
    wide = Value("", element, x.width)
    return b.call(f"llvm.fpto{'s' if target.is_signed else 'u'}i.sat.{suffix(wide)}.{suffix(x)}", wide, x)


def _number(b: Builder, x: Value, source: DType, element: str) -> Value:
    """The integer or boolean `x` as another integer or a float."""
    if element in ("float", "double"):
        return b.convert("sitofp" if source.is_signed else "uitofp", x, element)
    bits, wanted = int(x.element[1:]), int(element[1:])
    if bits == wanted:
        return x
    return b.convert("trunc" if wanted < bits else "sext" if source.is_signed else "zext", x, element)


def _rounded_to_odd(b: Builder, x: Value) -> Value:
    """An f64 as the f32 beside it whose last bit is 1, where none is equal: rounding that again, to fewer digits, gives
    what rounding once would (S. Boldo, G. Melquiond, Emulation of FMA and correctly rounded sums, 2008)."""
    near = b.convert("fptrunc", x, "float")
    back = b.convert("fpext", near, "double")
    bits = b.convert("bitcast", near, "i32")
    even = b.compare("eq", b.binary("and", bits, b.like(bits, 1)), b.like(bits, 0))
    moves = b.binary("and", b.compare("one", back, x), even)
    beyond = b.compare("ogt", b.intrinsic("fabs", back), b.intrinsic("fabs", x))
    step = b.select(beyond, b.like(bits, -1), b.like(bits, 1))
    odd = b.binary("add", bits, b.select(moves, step, b.like(bits, 0)))
    return b.convert("bitcast", odd, "float")
