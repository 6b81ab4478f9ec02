"""The kernel of every scalar function: one entry a function, each a few instructions at any vector width.

Booleans are i1 in registers. Operands of one function share an element type, but for the condition of Select.
"""

from __future__ import annotations

from collections.abc import Callable

from workbench.errors import WorkbenchError
from workbench.ir import dtype as dt
from workbench.ir.dtype import DType
from workbench.runtime.cpu import transcendental
from workbench.runtime.cpu.builder import REGISTER, Builder, Value, suffix

Function = Callable[..., Value]


def _add(b: Builder, x: Value, y: Value) -> Value:
    return b.binary("fadd" if x.is_float else "or" if x.element == "i1" else "add", x, y)


def _mul(b: Builder, x: Value, y: Value) -> Value:
    return b.binary("fmul" if x.is_float else "and" if x.element == "i1" else "mul", x, y)


def _less_than(b: Builder, x: Value, y: Value) -> Value:
    return b.compare("olt" if x.is_float else "ult" if x.element == "i1" else "slt", x, y)


def _select(b: Builder, condition: Value, yes: Value, no: Value) -> Value:
    return b.select(condition, yes, no)


def _mod(b: Builder, x: Value, y: Value) -> Value:
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
    # dividing by 0 or the least integer by -1 traps; x % 1 is 0, which is right for both
    trivial = b.binary("or", b.compare("eq", y, b.like(y, 0)), b.compare("eq", y, b.like(y, -1)))
    rest = b.binary("srem", x, b.select(trivial, b.like(y, 1), y))
    crosses = b.compare("ne", rest, b.like(x, 0))
    differs = b.compare("slt", b.binary("xor", rest, y), b.like(x, 0))
    return b.select(b.binary("and", crosses, differs), b.binary("add", rest, y), rest)


def _recip(b: Builder, x: Value) -> Value:
    if x.is_float:
        return b.binary("fdiv", b.like(x, 1.0), x)
    least = b.like(x, 1 << (int(x.element[1:]) - 1))  # what NumPy gives for 1/0
    zero = b.compare("eq", x, b.like(x, 0))
    return b.binary("sdiv", b.select(zero, least, b.like(x, 1)), b.select(zero, b.like(x, 1), x))


def _sqrt(b: Builder, x: Value) -> Value:
    return b.intrinsic("sqrt", x)


def _floor(b: Builder, x: Value) -> Value:
    return b.intrinsic("floor", x) if x.is_float else x


def _round(b: Builder, x: Value) -> Value:
    """To the nearest integer, ties to even: `rint` in the rounding mode that every thread begins in."""
    return b.intrinsic("rint", x) if x.is_float else x


def _by_precision(single: Function, libm: str) -> Function:
    """A polynomial for f32, the C library's function for f64."""
    return lambda b, x: single(b, x) if x.element == "float" else b.per_lane(libm, x)


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

_FLOATS_ONLY = {"Exp2", "Log2", "Sin", "Sqrt", "Erf"}

LIBM = {"exp2": 1, "log2": 1, "sin": 1, "erf": 1, "fmod": 2, "fmodf": 2}
"""C functions that kernels may call, and how many arguments they take."""


def apply(b: Builder, name: str, operands: list[Value], dtype: DType) -> Value:
    """`name` (a key of ELEMENTWISE, or Cast to `dtype`) of `operands`.

    Raises WorkbenchError for a function this target lacks, or lacks for that dtype."""
    if name == "Cast":
        return cast(b, operands[0], dtype)
    function = FUNCTIONS.get(name)
    if function is None or (name in _FLOATS_ONLY and not operands[0].is_float):
        raise WorkbenchError(f"the cpu target has no kernel for {name} of {operands[0].element}")
    return function(b, *operands)


def cast(b: Builder, x: Value, dtype: DType) -> Value:
    """`x` as `dtype`: floats truncate toward zero and saturate (NaN is 0), integers wrap, anything but 0 is true."""
    target = REGISTER[dtype]
    if x.element == target:
        return x
    if dtype is dt.BOOL:
        return b.compare("une" if x.is_float else "ne", x, b.like(x, 0))
    if x.is_float:
        if dtype.is_float:
            return b.convert("fpext" if target == "double" else "fptrunc", x, target)
        wide = Value("", target, x.width)
        return b.call(f"llvm.fptosi.sat.{suffix(wide)}.{suffix(x)}", wide, x)
    if dtype.is_float:
        return b.convert("uitofp" if x.element == "i1" else "sitofp", x, target)
    if x.element == "i1":
        return b.convert("zext", x, target)
    return b.convert("sext" if target == "i64" else "trunc", x, target)
