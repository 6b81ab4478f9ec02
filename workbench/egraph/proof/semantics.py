"""What every e-node of the built-in language means, in NumPy, as `egg/base.egg` says it.

Independent of extraction and of every runtime. A value of sort IR is a flat contiguous array; one of sort Elem is an
array over the iteration space of the kernel or primitive that asks for it. In an e-class all e-nodes mean the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from workbench.egraph.program import parse_literal
from workbench.egraph.proof.library_calls import CALLS, Matrix, Meaningless, Refused
from workbench.egraph.snapshot import Snapshot
from workbench.ir import dtype as dt
from workbench.ir import expr as ex
from workbench.ir import ops
from workbench.ir.dtype import DType
from workbench.ir.expr import ITER, Expr

MOST_ELEMENTS = 1 << 20
"""Elements of the largest iteration space that is evaluated."""

Shape = tuple[int, ...]
PRIMITIVES = frozenset(
    {"Input", "Iota", "Cast", "Gather", "Scatter", "Sum", "Max", "CustomOp", *ops.ELEMENTWISE}
)  # fmt: skip
"""What a program is written in; everything else is made by rules."""


class Unknown(Exception):
    """Nothing can be said: not a constructor of the built-in language, or more than can be evaluated."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two e-nodes of one e-class with different values, or one that means nothing (`wrong` reads outside a buffer).

    `right` is None then; `difference` says it in words."""

    eclass: int
    right: int | None
    wrong: int
    difference: str
    refused: bool = False
    """Whether `wrong` is a call that the library does not make, which is no wrong number."""


class Meaning:
    """The values of a snapshot's e-classes. `inputs` are flat arrays by position of Input, `given` values that are
    known otherwise, by the name of a global variable; `dims` the values of named dimensions.

    The value of an e-class is that of its first e-node that `made_by` says the program made, else of its primitives,
    else of what comes first; what else stands in it is compared with that."""

    def __init__(
        self,
        snapshot: Snapshot,
        inputs: Sequence[np.ndarray],
        given: Mapping[str, np.ndarray] | None = None,
        dims: Mapping[str, int] | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.inputs = inputs
        self.dims = dict(dims or {})
        self._known: dict[int, np.ndarray] = {}
        for name, value in (given or {}).items():
            self._known.setdefault(snapshot.variables[name], value.reshape(-1))
        self._buffers: dict[int, np.ndarray | Exception] = {}
        self._elements: dict[tuple[int, Shape], np.ndarray | Exception] = {}
        self._open: set[object] = set()
        self._spaces: dict[int, set[Shape]] = {}
        self.unknown: set[int] = set()
        """E-nodes about which nothing could be said, once `disagreements` has looked at all."""

    # classes

    def buffer(self, eclass: int) -> np.ndarray:
        """The flat value of an IR e-class. Raises Unknown, or Meaningless where its first e-node is."""
        known = self._known.get(eclass)
        if known is not None:
            return known
        return self._held(self._buffers, eclass, eclass, self._buffer_of)

    def element(self, eclass: int, space: Shape) -> np.ndarray:
        """The value of an Elem e-class over `space`, as an array of that shape."""
        self._spaces.setdefault(eclass, set()).add(space)
        return self._held(self._elements, (eclass, space), eclass, lambda node: self._element_of(node, space))

    def _held(
        self, table: dict[Any, np.ndarray | Exception], key: Any, eclass: int, compute: Callable[[int], np.ndarray]
    ) -> np.ndarray:
        found = table.get(key)
        if found is None:
            if key in self._open:
                raise Unknown("it refers to itself")
            self._open.add(key)
            try:
                found = table[key] = self._first(eclass, compute)
            finally:
                self._open.discard(key)
        if isinstance(found, Exception):
            raise found
        return found

    def _first(self, eclass: int, compute: Callable[[int], np.ndarray]) -> np.ndarray | Exception:
        failure: Exception = Unknown("an empty e-class")
        for node in self.in_order(eclass):
            try:
                return compute(node)
            except Meaningless as error:
                return error
            except ZeroDivisionError as error:
                return Meaningless(str(error))
            except Unknown as error:
                failure = error
        return failure

    def in_order(self, eclass: int) -> list[int]:
        """E-nodes of a class, the most trustworthy first."""
        return sorted(self.snapshot.nodes_of[eclass], key=self._trust)

    def _trust(self, node: int) -> tuple[bool, bool, bool, int]:
        op = self.snapshot.op(node)
        return self.snapshot.made_by(node) is not None, op not in PRIMITIVES, op not in ("Load", "Matmul"), node

    # checking

    def disagreements(self) -> list[Disagreement]:
        """Every e-node that differs from the first of its e-class, over every space in which it is asked for."""
        found: list[Disagreement] = []
        sorts = self.snapshot.class_sort
        for eclass in range(self.snapshot.class_count):
            if sorts[eclass] == "IR":
                known = self._known.get(eclass)
                found += self._compared(eclass, known, self._buffer_of)
        done: set[tuple[int, Shape]] = set()
        while fresh := [(c, s) for c, spaces in self._spaces.items() for s in spaces if (c, s) not in done]:
            for eclass, space in fresh:
                done.add((eclass, space))
                found += self._compared(eclass, None, lambda node, space=space: self._element_of(node, space))  # type: ignore[misc]
        return found

    def _compared(
        self, eclass: int, known: np.ndarray | None, compute: Callable[[int], np.ndarray]
    ) -> list[Disagreement]:
        right: int | None = None
        value = known
        found: list[Disagreement] = []
        for node in self.in_order(eclass):
            try:
                own = compute(node)
            except Unknown:
                self.unknown.add(node)
                continue
            except (Meaningless, ZeroDivisionError) as error:
                found.append(Disagreement(eclass, right, node, str(error), isinstance(error, Refused)))
                continue
            if value is None:
                right, value = node, own
            elif word := difference(value, own):
                found.append(Disagreement(eclass, right, node, word))
        return found

    # e-nodes of sort IR

    def _buffer_of(self, node: int) -> np.ndarray:
        children = self.snapshot.children(node)
        op = self.snapshot.op(node)
        match op:
            case "Input":
                return self.inputs[int(self.snapshot.literal(children[0]))]
            case "Iota":
                shape = self._shape(children[0])
                return self._flat(self._positions(self.snapshot.expr(children[1]), shape), self._dtype(children[2]))
            case "Cast":
                value = self.element(children[1], self._shape(children[0]))
                return self._flat(value, self._dtype(children[2]))
            case "Gather":
                shape = self._shape(children[0])
                index = self.element(children[1], shape)
                return self._gathered(index, children[2:], shape).reshape(-1)
            case "Scatter":
                return self._scattered(children)
            case "ScatterLoop":
                return self._typed(self._scattered(children), children[6])
            case "Sum" | "Max":
                return self._reduced(op, children[0], children[1], children[2]).reshape(-1)
            case "SumInner" | "SumOuter" | "MaxInner" | "MaxOuter":
                value = self._reduced(op[:3], children[0], children[1], children[2])
                return self._typed(value.reshape(-1), children[3])
            case "Map":
                return self._typed(self.element(children[1], self._shape(children[0])).reshape(-1), children[2])
            case "Matmul":
                return self._matmul(children)
            case "CustomOp" | "Opaque":
                return self._custom(children)
            case _ if op in ops.ELEMENTWISE:
                space = self._shape(children[0])
                return self._apply(op, [self.element(c, space) for c in children[1:]]).reshape(-1)
            case _ if op in CALLS:
                return self._call(op, children)
            case _:
                raise Unknown(f"{op} is not of the built-in language")

    def _typed(self, value: np.ndarray, dtype: int) -> np.ndarray:
        wanted = self._dtype(dtype)
        if value.dtype != wanted.numpy:
            raise Meaningless(f"it is said to be {wanted} and computes {dt.from_numpy(value.dtype)}")
        return value

    def _reduced(self, kind: str, shape: int, extent: int, element: int) -> np.ndarray:
        value = self.element(element, self._space(*self._shape(shape), self._number(extent)))
        if kind == "Max":
            least = -np.inf if _is_float(value) else False if value.dtype == bool else np.iinfo(value.dtype).min
            return np.max(value, axis=-1, initial=least)
        wide = np.float64 if _is_float(value) else np.int64
        return np.sum(value, axis=-1, dtype=wide).astype(value.dtype)

    def _scattered(self, children: Sequence[int]) -> np.ndarray:
        mode, shape, data, writes, index, update = children[:6]
        value = self.element(data, self._shape(shape))
        places, written = (self.element(c, self._shape(writes)) for c in (index, update))
        if places.dtype != np.int64 or written.dtype != value.dtype:
            raise Meaningless(
                f"{dt.from_numpy(written.dtype)} is written into {dt.from_numpy(value.dtype)} at positions of "
                f"{dt.from_numpy(places.dtype)}"
            )
        with np.errstate(all="ignore"):
            return ops.scatter(value, places, written, str(self.snapshot.literal(mode)))

    def _matmul(self, children: Sequence[int]) -> np.ndarray:
        batch = self._shape(children[0])
        m, n, k = (self._number(c) for c in children[1:4])
        a = self._operand(children[4], self._space(*batch, m, k), children[5], children[6:8], children[8])
        b = self._operand(children[9], self._space(*batch, k, n), children[10], children[11:13], children[13])
        return _product(a, b)

    def _operand(self, buffer: int, space: Shape, batch: int, others: Sequence[int], offset: int) -> np.ndarray:
        strides = [*self.snapshot.shape(batch), *(self.snapshot.expr(c) for c in others)]
        return self._loaded(buffer, strides, self.snapshot.expr(offset), space)

    def _call(self, op: str, children: Sequence[int]) -> np.ndarray:
        snapshot = self.snapshot
        layout, rest = str(snapshot.literal(children[0])), list(children[1:])
        said = self._dtype(rest.pop(0)) if op == "CublasLt" else dt.F64 if op == "Dgemm" else dt.F32
        batch = self._shape(rest[0])
        m, n, k = (self._number(c) for c in rest[1:4])
        for space in ((m, k), (k, n), (m, n)):
            self._space(*batch, *space)
        matrices = []
        for buffer, strides, leading, offset in (rest[4:8], rest[8:12]):
            value = self.buffer(buffer)
            if value.dtype != said.numpy:
                raise Meaningless(f"{op} of {said} is given {dt.from_numpy(value.dtype)}")
            steps = snapshot.shape(strides)
            if len(steps) != len(batch):
                raise Meaningless(f"{len(steps)} batch strides for {len(batch)} batch axes")
            start = self._number(offset)
            entries = [
                start + sum(self._value(s, i) for s, i in zip(steps, at, strict=True))
                for at in product(*(range(d) for d in batch))
            ]
            matrices.append(Matrix(value, entries, self._number(leading)))
        return CALLS[op](layout, batch, m, n, k, *matrices)

    def _custom(self, children: Sequence[int]) -> np.ndarray:
        """A custom operator as some function of its id and operands: numbers drawn from a digest of them."""
        digest = hashlib.blake2b(str(self.snapshot.literal(children[0])).encode(), digest_size=8)
        at = children[2]
        while self.snapshot.op(self.snapshot.nodes_of[at][0]) == "RCons":
            buffer, shape, at = self.snapshot.children(self.snapshot.nodes_of[at][0])
            digest.update(f"{self._shape(shape)}".encode() + self.buffer(buffer).tobytes())
        count = _count(self._shape(children[1]))
        drawn = np.random.default_rng(int.from_bytes(digest.digest())).integers(-8, 8, count)
        return self._flat(drawn, self._dtype(children[3]))

    # e-nodes of sort Elem

    def _element_of(self, node: int, space: Shape) -> np.ndarray:
        snapshot = self.snapshot
        children, op = snapshot.children(node), snapshot.op(node)
        match op:
            case "Load":
                strides, offset = snapshot.shape(children[1]), snapshot.expr(children[2])
                return self._loaded(children[0], strides, offset, space)
            case "Immediate":
                dtype = self._dtype(children[1])
                literal = parse_literal(str(snapshot.literal(children[0])), dtype)
                return np.broadcast_to(np.asarray(literal).astype(dtype.numpy), space)
            case "Inline":
                inner = self.element(children[0], self._shape(children[1])).reshape(-1)
                return self._read(inner, snapshot.shape(children[2]), snapshot.expr(children[3]), space)
            case "EIota":
                value = self._positions(snapshot.expr(children[0]), space)
                return value.astype(self._dtype(children[1]).numpy)
            case "EGather":
                return self._gathered(self.element(children[0], space), children[1:], space)
            case "ECast":
                return dt.convert(self.element(children[0], space), self._dtype(children[1]).numpy)
            case "RowSum" | "RowMax":
                value = self._reduced(op[3:], children[1], children[2], children[0]).reshape(-1)
                return self._read(value, snapshot.shape(children[3]), snapshot.expr(children[4]), space)
            case "InPlace":
                value = self.buffer(children[0])
                if value.size != _count(space):
                    raise Meaningless(f"{value.size} elements in place over a space of {_count(space)}")
                found = self._read(value.reshape(-1), snapshot.shape(children[1]), snapshot.expr(children[2]), space)
                if found.tobytes() != value.tobytes():
                    raise Meaningless("elements in place in another order than their buffer's")
                return found
            case _ if op[:1] == "E" and op[1:] in ops.ELEMENTWISE:
                return self._apply(op[1:], [self.element(c, space) for c in children])
            case _:
                raise Unknown(f"{op} is not of the built-in language")

    def _apply(self, name: str, operands: list[np.ndarray]) -> np.ndarray:
        rule = ops.ELEMENTWISE[name]
        alike = operands[1:] if name == "Select" else operands
        if any(x.dtype != alike[0].dtype for x in alike):
            raise Meaningless(f"{name} of {' and '.join(str(dt.from_numpy(x.dtype)) for x in alike)}")
        result = rule.result.numpy if rule.result else operands[-1].dtype
        with np.errstate(all="ignore"):
            return np.asarray(rule.compute(*operands)).astype(result, copy=False)

    def _gathered(self, index: np.ndarray, rest: Sequence[int], space: Shape) -> np.ndarray:
        buffer, strides, offset, axis, extent = rest
        chosen = np.clip(index.astype(np.int64), 0, max(0, self._number(extent) - 1))
        along = int(self.snapshot.literal(axis))
        return self._read(
            self.buffer(buffer), self.snapshot.shape(strides), self.snapshot.expr(offset), space, {along: chosen}
        )

    def _loaded(self, buffer: int, strides: Sequence[Expr], offset: Expr, space: Shape) -> np.ndarray:
        return self._read(self.buffer(buffer), strides, offset, space)

    def _read(
        self,
        buffer: np.ndarray,
        strides: Sequence[Expr],
        offset: Expr,
        space: Shape,
        indices: Mapping[int, np.ndarray] | None = None,
    ) -> np.ndarray:
        """Elements of a flat buffer over `space`; `indices` takes the place of an axis's own index."""
        if len(strides) != len(space):
            raise Meaningless(f"{len(strides)} strides over a space of {len(space)} axes")
        at = np.full(space, self._value(offset), np.int64)
        for axis, (extent, stride) in enumerate(zip(space, strides, strict=True)):
            index = (indices or {}).get(axis)
            if index is None:
                column = [1] * len(space)
                column[axis] = extent
                index = np.arange(extent, dtype=np.int64).reshape(column)
            at = at + self._along(stride, index)
        if at.size and (at.min() < 0 or at.max() >= buffer.size):
            raise Meaningless(f"it reads element {at.min() if at.min() < 0 else at.max()} of {buffer.size}")
        return buffer[at]

    def _along(self, e: Expr, index: np.ndarray) -> np.ndarray:
        try:
            with np.errstate(divide="raise"):
                return np.asarray(ex.evaluate(e, {**self.dims, ITER: index}))
        except KeyError as error:
            raise Meaningless(f"{e}: {error.args[0]} has no value") from None
        except (ZeroDivisionError, FloatingPointError):
            raise Meaningless(f"{e} divides by zero") from None

    def _positions(self, value: Expr, space: Shape) -> np.ndarray:
        at = np.arange(_count(space), dtype=np.int64)
        return np.broadcast_to(self._along(value, at), at.shape).reshape(space)

    # leaves

    def _shape(self, eclass: int) -> Shape:
        shape = tuple(self._value(e) for e in self.snapshot.shape(eclass))
        return self._space(*shape)

    @staticmethod
    def _space(*extents: int) -> Shape:
        if any(d < 0 for d in extents):
            raise Meaningless(f"a shape of {extents}")
        if _count(extents) > MOST_ELEMENTS:
            raise Unknown("too large to evaluate")
        return extents

    def _number(self, eclass: int) -> int:
        return self._value(self.snapshot.expr(eclass))

    def _value(self, e: Expr, index: int | None = None) -> int:
        at = self.dims if index is None else {**self.dims, ITER: index}
        try:
            return int(ex.evaluate(e, at))
        except KeyError as error:
            raise Meaningless(f"{e} where a number belongs: {error.args[0]} has no value") from None
        except ZeroDivisionError:
            raise Meaningless(f"{e} divides by zero") from None

    def _dtype(self, eclass: int) -> DType:
        return self.snapshot.dtype(eclass)

    @staticmethod
    def _flat(value: np.ndarray, dtype: DType) -> np.ndarray:
        return dt.convert(np.asarray(value), dtype.numpy).reshape(-1)


def difference(right: np.ndarray, wrong: np.ndarray) -> str:
    """How two flat values differ, in words; '' where they do not. Floats differ beyond what another order of summation
    explains, at the scale of the whole."""
    if right.dtype != wrong.dtype:
        return f"it is {dt.from_numpy(wrong.dtype)} and not {dt.from_numpy(right.dtype)}"
    if right.size != wrong.size:
        return f"it has {wrong.size} elements and not {right.size}"
    a, b = right.reshape(-1), wrong.reshape(-1)
    if not _is_float(a):
        unequal = np.flatnonzero(a != b)
    else:
        held = dt.from_numpy(a.dtype)
        assert held is not None
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        finite = np.abs(wide_a[np.isfinite(wide_a)])
        scale = max(1.0, float(finite.max()) if finite.size else 0.0)
        with np.errstate(invalid="ignore"):
            close = (np.abs(wide_a - wide_b) <= TOLERANCE[held.name] * scale) | (wide_a == wide_b)
        unequal = np.flatnonzero(~(close | (np.isnan(wide_a) & np.isnan(wide_b))))
    if not unequal.size:
        return ""
    at = int(unequal[0])
    return f"element {at} is {b[at]} and not {a[at]} ({unequal.size} of {a.size} differ)"


TOLERANCE = {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 8e-2}
"""Of the largest magnitude in a value, by dtype."""


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    wide = np.float64 if _is_float(a) else np.int64
    return np.asarray(np.matmul(a.astype(wide), b.astype(wide))).astype(a.dtype).reshape(-1)


def _is_float(array: np.ndarray) -> bool:
    held = dt.from_numpy(array.dtype)
    return held is not None and held.is_float


def _count(space: Shape) -> int:
    count = 1
    for d in space:
        count *= d
    return count
