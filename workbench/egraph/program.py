"""A chunk as egglog text. Node ids are chunk-local and labels live in comments and Input terms only, so that chunks of
the same structure have the same normalised text (the `digest`)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from workbench.errors import printable
from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir import ops
from workbench.ir.dtype import BY_TERM, I32, DType
from workbench.ir.expr import Expr
from workbench.ir.hlir import Graph, Node, Operand
from workbench.ir.layout import Dim, Shape
from workbench.ir.ranges import magnitude

ROOT = "$root"
EMITTED = frozenset(
    {
        "MNum", "MVar", "MIter", "MAdd", "MMul", "MDiv", "MMod", "ENil", "ECons", "RNil", "RCons",
        *BY_TERM, *ops.ELEMENTWISE,
        "Input", "Load", "Immediate", "Iota", "Cast", "Gather", "Scatter", "Sum", "Max", "CustomOp",
        "row_major", "whole", "shape", "magnitude",
    }
)  # fmt: skip
"""The constructors and facts that programs are written in."""


@dataclass(frozen=True, slots=True)
class ChunkProgram:
    """`text` defines one `$tN` per node; `root` is the global that lists the outputs. `variables` maps HLIR node id to
    its global, `lines` to its 1-based line. `custom_ids` are the HLIR custom-op ids in local order."""

    text: str
    root: str
    digest: str
    variables: Mapping[int, str]
    lines: Mapping[int, int]
    inputs: tuple[int, ...]
    """HLIR ids of the boundary inputs, as Input terms number them. Scalar constants are written in place; one that is
    several parameters is here as often."""
    custom_ids: tuple[int, ...]
    scalars: tuple[int, ...]
    """HLIR ids of the scalar constants, one for each use of one."""
    pattern: str
    """The digest of the program without the values of its scalars."""
    dims: frozenset[str] = frozenset()
    """The named dimensions in it."""


def emit(
    graph: Graph,
    nodes: Sequence[int],
    inputs: Sequence[int],
    outputs: Sequence[int],
    parameters: Mapping[int, int] | None = None,
) -> ChunkProgram:
    """The program of one chunk: `nodes` in topological order over boundary `inputs`, yielding `outputs`. Scalar
    constants are written in place, but for the uses of them that `parameters` numbers: each number is an input."""
    writer = _Writer(graph, parameters or {})
    needed = _inputs_needed(graph, nodes, inputs)
    for position, node_id in enumerate(needed):
        writer.input(position, graph[node_id])
    writer.first_parameter = len(needed)
    for node_id in nodes:
        writer.node(graph[node_id])
    terms = writer.buffers([(node_id, graph[node_id].shape) for node_id in outputs])
    writer.line(f"(let {ROOT} {terms})")
    normal = "\n".join(writer.normal)
    return ChunkProgram(
        text="\n".join(writer.text) + "\n",
        root=ROOT,
        digest=_digest(normal),
        variables=writer.variables,
        lines=writer.lines,
        inputs=(*needed, *writer.parameter_of.values()),
        custom_ids=tuple(writer.custom_ids),
        scalars=tuple(writer.scalars),
        pattern=_digest(_VALUE.sub("", normal)),
        dims=frozenset(writer.dims - {ex.ITER}),
    )


_VALUE = re.compile(r'(?<=\(Immediate )"[^"]*"')


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _inputs_needed(graph: Graph, nodes: Sequence[int], inputs: Sequence[int]) -> list[int]:
    """Boundary inputs without the scalar constants, but for those a primitive reads as a buffer."""
    as_buffer: set[int] = set()
    for node_id in nodes:
        node = graph[node_id]
        match node.op:
            case ops.CustomOp():
                as_buffer.update(o.source for o in node.operands)
            case ops.Gather():
                as_buffer.add(node.operands[1].source)
            case _:
                pass
    return [i for i in inputs if i in as_buffer or graph.scalar(i) is None]


@dataclass(slots=True)
class _Writer:
    graph: Graph
    parameters: Mapping[int, int]
    first_parameter: int = 0
    parameter_of: dict[int, int] = field(default_factory=dict)
    """The scalar constant that is each parameter, by number."""
    text: list[str] = field(default_factory=list)
    normal: list[str] = field(default_factory=list)
    variables: dict[int, str] = field(default_factory=dict)
    lines: dict[int, int] = field(default_factory=dict)
    custom_ids: list[int] = field(default_factory=list)
    scalars: list[int] = field(default_factory=list)
    """The scalar constant at each use of one."""
    dims: set[str] = field(default_factory=set)
    """Variables of the expressions written so far."""
    _lists: dict[tuple[object, ...], str] = field(default_factory=dict)
    _shapes: dict[Shape, str] = field(default_factory=dict)
    _row_major: set[Shape] = field(default_factory=set)
    _whole: set[tuple[int, str]] = field(default_factory=set)
    _given: set[int] = field(default_factory=set)
    """The boundary inputs: what computes them is not of this chunk."""
    _measured: set[int] = field(default_factory=set)
    """Those of which the magnitude is stated."""

    def line(self, code: str, comment: str = "", normal: str | None = None) -> None:
        self.text.append(f"{code} ; {comment}" if comment else code)
        self.normal.append(code if normal is None else normal)

    def _comment(self, node: Node) -> str:
        place = f"{lay.show(node.shape)} {node.dtype}"
        return f"{place} {printable(node.label)}" if node.label else place

    def input(self, position: int, node: Node) -> None:
        shape = self._shape(node.shape)
        variable = self._define(node)
        self._given.add(node.id)
        label = node.op.name if isinstance(node.op, ops.Input) else node.label
        head, tail = f"(let {variable} (Input {position} ", f" ({node.dtype.term}) {shape}))"
        self.line(head + _string(label) + tail, self._comment(node), head + '""' + tail)
        self.lines[node.id] = len(self.text)

    def node(self, node: Node) -> None:
        term = self._term(node)
        code = f"(let {self._define(node)} {term})"
        normal = None
        if isinstance(node.op, ops.CustomOp):  # different operators are different chunks, whatever their attributes
            normal = f"{code} ; {self.graph.custom_ops[node.op.id].operator}"
        self.line(code, self._comment(node), normal)
        self.lines[node.id] = len(self.text)

    def _define(self, node: Node) -> str:
        variable = self.variables[node.id] = f"$t{len(self.variables)}"
        return variable

    def _term(self, node: Node) -> str:
        shape = self._shape(node.shape)
        dtype = f"({node.dtype.term})"
        match node.op:
            case ops.Iota(value):
                return f"(Iota {shape} {self._expression(value)} {dtype})"
            case ops.Cast() | ops.Output() | ops.GraphBreak():
                return f"(Cast {shape} {self._element(node.operands[0], copied=isinstance(node.op, ops.Cast))} {dtype})"
            case ops.Elementwise(name):
                return f"({name} {shape} {' '.join(self._element(o) for o in node.operands)})"
            case ops.Gather(axis):
                index, data = node.operands
                extent = self._expression(data.layout.shape[axis])
                return (
                    f"(Gather {shape} {self._element(index)} {self.variables[data.source]} "
                    f"{self._list(data.layout.strides)} {self._expression(data.layout.offset)} {axis} {extent})"
                )
            case ops.Reduce(name):
                if node.id in self.graph.contractions:
                    self._state_row_major(self.graph[node.operands[0].source].shape)
                    if node.dtype is I32:
                        self._state_magnitudes(node)
                extent = self._expression(node.operands[0].layout.shape[-1])
                kind = {"SumReduce": "Sum", "MaxReduce": "Max"}[name]
                return f"({kind} {shape} {extent} {self._element(node.operands[0])})"
            case ops.CustomOp(custom_id):
                self.custom_ids.append(custom_id)
                operands = self.buffers([(o.source, o.layout.shape) for o in node.operands])
                return f"(CustomOp {len(self.custom_ids) - 1} {shape} {operands} {dtype})"
            case ops.Scatter(mode):
                into, at, update = node.operands
                terms = " ".join([self._element(into), self._shape(at.layout.shape), *map(self._element, (at, update))])
                self._state_whole(into)
                return f'(Scatter "{mode}" {shape} {terms})'
            case ops.Input() | ops.Constant():
                raise AssertionError(f"{node.name} is not computed in a chunk")

    def buffers(self, items: Sequence[tuple[int, Shape]]) -> str:
        """An IRList term of nodes with the shapes they are read in."""
        term = "(RNil)"
        for node_id, shape in reversed(items):
            term = f"(RCons {self.variables[node_id]} {self._shape(shape)} {term})"
        return term

    def _element(self, operand: Operand, *, copied: bool = False) -> str:
        value = self.graph.scalar(operand.source)
        if value is not None:
            self.scalars.append(operand.source)
            number = self.parameters.get(len(self.scalars) - 1)
            if number is not None:
                return f"(Load {self._parameter(number, operand.source)} {self._list(operand.layout.strides)} (MNum 0))"
            return f'(Immediate "{_literal(value)}" ({self.graph[operand.source].dtype.term}))'
        if copied or isinstance(self.graph[operand.source].op, ops.Reduce):
            self._state_whole(operand, of_inputs=copied)
        strides = self._list(operand.layout.strides)
        return f"(Load {self.variables[operand.source]} {strides} {self._expression(operand.layout.offset)})"

    def _parameter(self, number: int, scalar: int) -> str:
        """The variable of a parameter, which is an input without axes."""
        if number not in self.parameter_of:
            assert number == len(self.parameter_of), "parameters are numbered by their first use"
            self.parameter_of[number] = scalar
            node = self.graph[scalar]
            place = f'"" ({node.dtype.term}) {self._shape(())}'
            self.line(f"(let $p{number} (Input {self.first_parameter + number} {place}))", self._comment(node))
            self.lines.setdefault(scalar, len(self.text))
        return f"$p{number}"

    def _state_row_major(self, shape: Shape) -> None:
        if shape not in self._row_major:
            self._row_major.add(shape)
            key = self._shape(shape)
            self.line(f"(set (row_major {key}) {self._list(lay.contiguous(shape).strides)})")

    def _state_magnitudes(self, contraction: Node) -> None:
        """What an exact product in floats asks for: how large the operands' integers are, and how to read the operands
        and the result whole."""
        factors = [self.graph[o.source] for o in self.graph[contraction.operands[0].source].operands]
        sizes = [magnitude(self.graph, factor.id) for factor in factors]
        if None in sizes or any(factor.id not in self.variables for factor in factors):
            return
        self._state_row_major(contraction.shape)
        for factor, size in zip(factors, sizes, strict=True):
            if factor.id not in self._measured:
                self._measured.add(factor.id)
                self._state_row_major(factor.shape)
                variable = self.variables[factor.id]
                self.line(f"(set (shape {variable}) {self._shape(factor.shape)})")
                self.line(f"(set (magnitude {variable}) {size})")

    def _state_whole(self, operand: Operand, *, of_inputs: bool = False) -> None:
        """What placements behind a reduction and before a scatter, and rules about conversions (`of_inputs` too), ask
        for: that a value of this chunk is read front to back, under whatever shape."""
        source, layout = self.graph[operand.source], operand.layout
        strides = self._list(layout.strides)
        given = (source.id in self._given and not of_inputs) or self.graph.scalar(source.id) is not None
        if given or (operand.source, strides) in self._whole:
            return
        if layout.is_contiguous and ex.as_expr(lay.numel(layout.shape)) is ex.as_expr(lay.numel(source.shape)):
            self._whole.add((operand.source, strides))
            self.line(f"(whole {self.variables[operand.source]} {strides})")

    def _expression(self, e: Dim) -> str:
        self.dims |= ex.variables(e)
        return ex.to_egglog(e)

    def _shape(self, shape: Shape) -> str:
        variable = self._shapes.get(shape)
        if variable is None:
            variable = self._shapes[shape] = self._list(tuple(ex.as_expr(d) for d in shape))
        return variable

    def _list(self, items: tuple[Expr, ...]) -> str:
        variable = self._lists.get(items)
        if variable is None:
            variable = self._lists[items] = f"$l{len(self._lists)}"
            text = "(ENil)"
            for item in reversed(items):
                text = f"(ECons {self._expression(item)} {text})"
            self.line(f"(let {variable} {text})")
        return variable


def _literal(value: float | int | bool) -> str:
    """A scalar as text that `parse_literal` reads back exactly."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def parse_literal(text: str, dtype: DType) -> float | int | bool:
    """The scalar of an Immediate."""
    if text in ("true", "false"):
        return text == "true"
    return float(text) if dtype.is_float else int(text)


def _string(text: str) -> str:
    """`text` as an egglog string literal on one line."""
    shown = printable(text).replace("\\", "/").replace('"', "'")
    return f'"{shown}"'


