"""Text of LLVM IR, instruction by instruction: values with a type and a width, loops with carried values.

A value of width 1 is a scalar, else a vector. Floating-point multiplies and adds carry `contract`, nothing more, so
that infinities and NaN behave; sums that may be reordered say so at their own call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.ir import dtype as dt
from workbench.ir.dtype import DType
from workbench.runtime.cpu import half

REGISTER = {
    dt.F32: "float", dt.F64: "double", dt.F16: "float", dt.BF16: "float",
    dt.I64: "i64", dt.I32: "i32", dt.I16: "i16", dt.I8: "i8",
    dt.U64: "i64", dt.U32: "i32", dt.U16: "i16", dt.U8: "i8", dt.BOOL: "i1",
}  # fmt: skip
"""The LLVM type that holds one element in a register. In memory a bool is an i8 of 0 or 1, a half its bits."""

MEMORY = {**REGISTER, dt.BOOL: "i8", dt.F16: "i16", dt.BF16: "i16"}
_SUFFIX = {"float": "f32", "double": "f64"}
_FLAGS = {"fadd": "fadd contract", "fsub": "fsub contract", "fmul": "fmul contract"}


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA value or literal: its text, element type and width."""

    text: str
    element: str
    width: int = 1

    @property
    def type(self) -> str:
        """The full LLVM type."""
        return self.element if self.width == 1 else f"<{self.width} x {self.element}>"

    @property
    def typed(self) -> str:
        """`type text`, as operands are written."""
        return f"{self.type} {self.text}"

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point."""
        return self.element in _SUFFIX


def literal(element: str, value: float | int | bool) -> str:
    """`value` as an LLVM literal of scalar type `element` (f32 is rounded first, integers wrap)."""
    if element == "float":
        return f"0x{struct.unpack('<Q', struct.pack('<d', _round_f32(float(value))))[0]:016X}"
    if element == "double":
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"
    if element == "i1":
        return "true" if value else "false"
    bits = int(element[1:])
    wrapped = int(value) & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


def _round_f32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


class Builder:
    """Collects the body of one function, for a processor that converts f16 by itself, or does not (`converts_f16`)."""

    def __init__(self, converts_f16: bool = True) -> None:
        self.converts_f16 = converts_f16
        self._halves: dict[tuple[DType, str], Value] = {}
        """The bits of values that are known to be halves, so that storing one does not round it again."""
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        self._names = 0
        self._block = "entry"

    def emit(self, instruction: str, element: str, width: int = 1) -> Value:
        """`instruction` under a fresh name."""
        self._names += 1
        name = f"%v{self._names}"
        self.lines.append(f"  {name} = {instruction}")
        return Value(name, element, width)

    def constant(self, element: str, value: float | int | bool, width: int = 1) -> Value:
        """A literal, splat when a vector."""
        text = literal(element, value)
        return Value(text if width == 1 else f"splat ({element} {text})", element, width)

    def immediate(self, dtype: DType, value: float | int | bool, width: int = 1) -> Value:
        """A number of `dtype`."""
        if dtype.is_half:
            value = float(np.asarray(value, np.float64).astype(dtype.numpy))
        return self.constant(REGISTER[dtype], value, width)

    def like(self, a: Value, value: float | int | bool) -> Value:
        """A literal of the type of `a`."""
        return self.constant(a.element, value, a.width)

    def lanes(self, element: str, values: Sequence[int | bool]) -> Value:
        """A vector literal."""
        items = ", ".join(f"{element} {literal(element, v)}" for v in values)
        return Value(f"<{items}>", element, len(values))

    def binary(self, op: str, a: Value, b: Value) -> Value:
        """`op a, b`."""
        return self.emit(f"{_FLAGS.get(op, op)} {a.typed}, {b.text}", a.element, a.width)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """`a*b + c`, fused where the machine can."""
        return self.binary("fadd", self.binary("fmul", a, b), c)

    def horner(self, x: Value, coefficients: Sequence[float]) -> Value:
        """The polynomial in `x` with `coefficients` from the constant term up."""
        total = self.like(x, coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = self.fma(total, x, self.like(x, c))
        return total

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        """`fcmp` or `icmp`, by the operands' type."""
        return self.emit(f"{'fcmp' if a.is_float else 'icmp'} {predicate} {a.typed}, {b.text}", "i1", a.width)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """`condition ? a : b`, lane by lane."""
        return self.emit(f"select {condition.typed}, {a.typed}, {b.typed}", a.element, a.width)

    def convert(self, op: str, a: Value, element: str) -> Value:
        """A conversion instruction, such as `sitofp`."""
        target = Value("", element, a.width)
        return self.emit(f"{op} {a.typed} to {target.type}", element, a.width)

    def intrinsic(self, name: str, *operands: Value, flags: str = "") -> Value:
        """`@llvm.name` overloaded on the type of its operands."""
        a = operands[0]
        return self.call(f"llvm.{name}.{suffix(a)}", Value("", a.element, a.width), *operands, flags=flags)

    def call(self, function: str, result: Value, *operands: Value, flags: str = "") -> Value:
        """A call of `function`, which is declared."""
        types = ", ".join(o.type for o in operands)
        self.declarations.add(f"declare {result.type} @{function}({types})")
        args = ", ".join(o.typed for o in operands)
        text = f"call {flags} {result.type} @{function}({args})".replace("  ", " ")
        return self.emit(text, result.element, result.width)

    def per_lane(self, function: str, *operands: Value) -> Value:
        """A scalar C function applied to every lane."""
        a = operands[0]
        if a.width == 1:
            return self.call(function, a, *operands)
        result = Value("poison", a.element, a.width)
        for lane in range(a.width):
            scalar = self.call(function, Value("", a.element), *(self.extract(o, lane) for o in operands))
            result = self.insert(result, scalar, lane)
        return result

    def extract(self, a: Value, lane: int) -> Value:
        """One lane of a vector."""
        return self.emit(f"extractelement {a.typed}, i32 {lane}", a.element)

    def insert(self, a: Value, scalar: Value, lane: int) -> Value:
        """`a` with one lane replaced."""
        return self.emit(f"insertelement {a.typed}, {scalar.typed}, i32 {lane}", a.element, a.width)

    def splat(self, a: Value, width: int) -> Value:
        """A scalar in every lane."""
        if width == a.width:
            return a
        if not a.text.startswith("%"):
            return Value(f"splat ({a.element} {a.text})", a.element, width)
        first = self.insert(Value("poison", a.element, width), a, 0)
        shuffle = f"shufflevector {first.typed}, {first.typed}, <{width} x i32> zeroinitializer"
        return self.emit(shuffle, a.element, width)

    def pointer(self, element: str, base: str, index: Value) -> str:
        """The address of `base[index]` in elements of memory type `element` (a vector of addresses for a vector)."""
        return self.emit(f"getelementptr {element}, ptr {base}, {index.typed}", "ptr", index.width).text

    def load(self, dtype: DType, address: str, width: int, mask: Value | None = None) -> Value:
        """`width` consecutive elements; with `mask` only those of its lanes, the others 0."""
        memory = Value("", MEMORY[dtype], width)
        if mask is not None:
            name = f"llvm.masked.load.{suffix(memory)}.p0"
            self.declarations.add(f"declare {memory.type} @{name}(ptr, <{width} x i1>, {memory.type})")
            arguments = f"ptr align {dtype.itemsize} {address}, {mask.typed}, {memory.type} zeroinitializer"
            raw = self.emit(f"call {memory.type} @{name}({arguments})", memory.element, width)
            return self.from_memory(dtype, raw)
        raw = self.emit(f"load {memory.type}, ptr {address}, align {dtype.itemsize}", memory.element, width)
        return self.from_memory(dtype, raw)

    def gather(self, dtype: DType, addresses: str, width: int, mask: Value | None = None) -> Value:
        """The elements at a vector of addresses; with `mask` only those of its lanes, the others 0."""
        memory = Value("", MEMORY[dtype], width)
        name = f"llvm.masked.gather.{suffix(memory)}.v{width}p0"
        self.declarations.add(f"declare {memory.type} @{name}(<{width} x ptr>, <{width} x i1>, {memory.type})")
        lanes = mask or self.constant("i1", True, width)
        rest = "poison" if mask is None else "zeroinitializer"
        arguments = f"<{width} x ptr> align {dtype.itemsize} {addresses}, {lanes.typed}, {memory.type} {rest}"
        raw = self.emit(f"call {memory.type} @{name}({arguments})", memory.element, width)
        return self.from_memory(dtype, raw)

    def from_memory(self, dtype: DType, raw: Value) -> Value:
        """A loaded value as it is held in registers."""
        if dtype.is_half:
            value = half.widened(self, dtype, raw)
            self._halves[dtype, value.text] = raw
            return value
        return self.compare("ne", raw, self.like(raw, 0)) if dtype is dt.BOOL else raw

    def rounded(self, dtype: DType, value: Value) -> Value:
        """An f32 value rounded to the half `dtype`, and held as f32 again."""
        if (dtype, value.text) in self._halves:
            return value
        return self.from_memory(dtype, half.narrowed(self, dtype, value))

    def store(self, dtype: DType, address: str, value: Value, mask: Value | None = None) -> None:
        """Consecutive elements to memory; with `mask` only those of its lanes."""
        if dtype is dt.BOOL:
            value = self.convert("zext", value, "i8")
        elif dtype.is_half:
            known = self._halves.get((dtype, value.text))
            value = half.narrowed(self, dtype, value) if known is None else known
        if mask is not None:
            name = f"llvm.masked.store.{suffix(value)}.p0"
            self.declarations.add(f"declare void @{name}({value.type}, ptr, <{value.width} x i1>)")
            arguments = f"{value.typed}, ptr align {dtype.itemsize} {address}, {mask.typed}"
            self.lines.append(f"  call void @{name}({arguments})")
            return
        self.lines.append(f"  store {value.typed}, ptr {address}, align {dtype.itemsize}")

    def loop(
        self,
        start: int,
        stop: int,
        step: int,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], list[Value]],
    ) -> list[Value]:
        """`body(i, carried) -> carried` for i in range(start, stop, step), which must not be empty.

        Returns the carried values after the last round. One round is emitted without a loop."""
        if start + step >= stop:
            return body(self.constant("i64", start), list(carried))
        return self._rounds(str(start), str(stop), step, carried, body)

    def open_loop(
        self,
        start: Value,
        stop: Value,
        step: int,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], list[Value]],
    ) -> list[Value]:
        """As `loop`, with bounds (i64) that are known when the kernel runs; the range may be empty."""
        self._names += 1
        tag = self._names
        before, inside, after = self._block, f"some{tag}", f"none{tag}"
        begins = self.compare("slt", start, stop)
        self.lines += [f"  br i1 {begins.text}, label %{inside}, label %{after}", f"{inside}:"]
        self._block = inside
        results = self._rounds(start.text, stop.text, step, carried, body)
        last = self._block
        self.lines += [f"  br label %{after}", f"{after}:"]
        self._block = after
        return [
            self.emit(f"phi {r.type} [{c.text}, %{before}], [{r.text}, %{last}]", r.element, r.width)
            for c, r in zip(carried, results, strict=True)
        ]

    def _rounds(
        self,
        start: str,
        stop: str,
        step: int,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], list[Value]],
    ) -> list[Value]:
        """A loop of at least one round."""
        self._names += 1
        tag = self._names
        head, done = f"loop{tag}", f"done{tag}"
        before = self._block
        self.lines += [f"  br label %{head}", f"{head}:"]
        at = len(self.lines)
        index = Value(f"%i{tag}", "i64")
        phis = [Value(f"%c{tag}_{k}", v.element, v.width) for k, v in enumerate(carried)]
        self.lines += [""] * (1 + len(phis))
        self._block = head
        results = body(index, phis)
        latch = self._block
        bumped, again = f"%b{tag}", f"%t{tag}"
        self.lines[at] = f"  {index.text} = phi i64 [{start}, %{before}], [{bumped}, %{latch}]"
        for k, (phi, first, last) in enumerate(zip(phis, carried, results, strict=True)):
            self.lines[at + 1 + k] = f"  {phi.text} = phi {phi.type} [{first.text}, %{before}], [{last.text}, %{latch}]"
        self.lines += [
            f"  {bumped} = add nuw nsw i64 {index.text}, {step}",
            f"  {again} = icmp slt i64 {bumped}, {stop}",
            f"  br i1 {again}, label %{head}, label %{done}",
            f"{done}:",
        ]
        self._block = done
        return results

    def function(self, name: str, parameters: Sequence[str], sizes: Sequence[str] = ()) -> str:
        """The finished module: declarations and one function of pointers, and of `sizes` after them."""
        arguments = ", ".join([*(f"ptr noalias {p}" for p in parameters), *(f"i64 {s}" for s in sizes)])
        head = f"define void @{name}({arguments}) nounwind {{"
        return "\n".join([*sorted(self.declarations), head, "entry:", *self.lines, "  ret void", "}", ""])


def suffix(a: Value) -> str:
    """How the type of `a` is written in an intrinsic's name."""
    scalar = _SUFFIX.get(a.element, a.element)
    return scalar if a.width == 1 else f"v{a.width}{scalar}"
