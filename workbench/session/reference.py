"""Representative inputs, and what the interpreter makes of them: the values that every candidate is held against."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from loguru import logger

from workbench.errors import InputError, printable
from workbench.ir import expr as ex
from workbench.ir import ops
from workbench.ir.dtype import BF16, BOOL, DType, convert
from workbench.ir.hlir import Graph, Node, shape_values
from workbench.ir.interpret import RunCustomOp, evaluate
from workbench.ir.layout import show

LARGEST_PLAIN_INTEGER = 1


@dataclass(frozen=True, slots=True)
class Expected:
    """Inputs by name, and the outputs that some other implementation gave for them (empty where unknown)."""

    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    origin: str


@dataclass(frozen=True, slots=True)
class Reference:
    """`values` are the interpreter's, flat, by HLIR node, for `inputs` by name: of the model's outputs, and of the
    chunks' boundaries where `has_boundaries`."""

    inputs: dict[str, np.ndarray]
    values: dict[int, np.ndarray]
    has_boundaries: bool = True

    def outputs_only(self, graph: Graph) -> Reference:
        """Without the values at the boundaries of chunks."""
        return Reference(self.inputs, {o: self.values[o] for o in graph.outputs}, has_boundaries=False)


_UNREADABLE = (OSError, ValueError, EOFError, MemoryError, NotImplementedError, zipfile.BadZipFile, zlib.error)
"""What np.load and the archive's lazy members raise for files that are damaged or something else."""


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz by name. Raises InputError when it cannot be read or holds pickled objects."""
    shown = printable(str(path))
    try:
        data = np.load(path, allow_pickle=False)
        if not isinstance(data, np.lib.npyio.NpzFile):
            raise InputError(f"{shown}: one array, not an .npz of named ones", "np.savez writes them")
        with data:
            return {name: data[name] for name in data.files}
    except FileNotFoundError:
        raise InputError(f"{shown}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{shown}: a directory, not an .npz file") from None
    except PermissionError as error:
        raise InputError(f"{shown}: cannot be read: {error.strerror}") from None
    except _UNREADABLE as error:
        reason = printable(str(error).partition("\n")[0]) or type(error).__name__
        raise InputError(f"{shown}: not an .npz file of plain arrays: {reason}") from None


def by_role(arrays: Mapping[str, np.ndarray], graph: Graph, origin: str) -> Expected:
    """Which arrays are inputs and which outputs: `in_NAME` and `out_NAME`, or plain input names. Where every input of
    the model is there under its plain name, names are taken as they stand, whatever they begin with."""
    named = _input_nodes(graph)
    outputs = {name[4:]: a for name, a in arrays.items() if name.startswith("out_") and name not in named}
    inputs = {name[3:]: a for name, a in arrays.items() if name.startswith("in_")}
    if not inputs or all(name in arrays for name in named):
        inputs = {name: a for name, a in arrays.items() if name in named or not name.startswith("out_")}
    return Expected(inputs, outputs, origin)


@dataclass(frozen=True, slots=True)
class Given:
    """The arrays of an .npz file that is to be verified against, by name. One that was not `asked_for` may be left
    out."""

    arrays: dict[str, np.ndarray]
    origin: str
    asked_for: bool

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each array by the name of the input that it may be for (see `by_role`)."""
        shapes = {name[3:]: a.shape for name, a in self.arrays.items() if name.startswith("in_")}
        return shapes | {name: a.shape for name, a in self.arrays.items() if name not in shapes}


def find_given(model: Path, asked_for: str | None) -> Given | None:
    """The file asked for, or one beside the model of the same name. Raises InputError when the file asked for cannot be
    read."""
    if asked_for is not None:
        return Given(read_arrays(Path(asked_for)), Path(asked_for).name, True)
    beside = model.with_suffix(".npz")
    if not beside.exists():
        return None
    try:
        return Given(read_arrays(beside), beside.name, False)
    except InputError as error:
        logger.warning("{} is not used: {}", beside.name, error)
        return None


def expected_of(graph: Graph, given: Given, dims: Mapping[str, Sequence[int]]) -> Expected | None:
    """Inputs and outputs to verify against; None where a file that was not asked for does not fit the model. Named
    dimensions that have no values in `dims` take those that its inputs have.

    Raises InputError when a file that was asked for does not fit the model or the values in `dims`."""
    found = by_role(given.arrays, graph, given.origin)
    try:
        adopt_dims(graph, found, dims)
    except InputError as error:
        if given.asked_for:
            raise
        logger.warning("nothing is searched or verified with {}: {}", given.origin, error)
        return None
    return found


def adopt_dims(graph: Graph, found: Expected, given: Mapping[str, Sequence[int]]) -> None:
    """Let the named dimensions that are not `given` values take those that `found` has. Raises InputError where it has
    another one than those given, or an extent of 0, and as `check_expected`."""
    dims = check_expected(graph, found)
    for name, value in dims.items():
        if value not in given.get(name, (value,)):
            raise InputError(
                f"{found.origin} gives dimension '{name}' the value {value}, --dim {','.join(map(str, given[name]))}"
            )
        if value == 0:
            raise InputError(f"{found.origin} gives dimension '{name}' the value 0, at which nothing can be timed")
    graph.dims.update({name: value for name, value in dims.items() if name not in given})


def check_expected(graph: Graph, found: Expected) -> dict[str, int]:
    """The values of the named dimensions in `found`. Raises InputError where names, shapes or dtypes do not fit."""
    _, dims = check_inputs(graph, found.inputs)
    shapes = {name: shape_values(graph[i].shape, dims) for name, i in output_nodes(graph).items()}
    for name, array in found.outputs.items():
        if name not in shapes:
            raise InputError(f"{found.origin}: the model has no output '{printable(name)}'")
        if array.shape != shapes[name]:
            raise InputError(
                f"{found.origin}: output '{printable(name)}' has shape {list(array.shape)}, the model gives "
                f"{list(shapes[name])}"
            )
    return dims


def output_nodes(graph: Graph) -> dict[str, int]:
    """The model's outputs: HLIR node by name."""
    nodes = (graph[i] for i in graph.outputs)
    return {n.op.name: n.id for n in nodes if isinstance(n.op, ops.Output)}


def _input_nodes(graph: Graph) -> dict[str, Node]:
    nodes = (graph[i] for i in graph.inputs)
    return {n.op.name: n for n in nodes if isinstance(n.op, ops.Input)}


def check_inputs(graph: Graph, inputs: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The model's inputs, checked, and the values that they give the named dimensions.

    Raises InputError for a missing or unknown name, a wrong rank, shape or dtype."""
    nodes = _input_nodes(graph)
    missing = [n for n in nodes if n not in inputs]
    unknown = [n for n in inputs if n not in nodes]
    if missing or unknown:
        said = [f"missing {', '.join(map(printable, missing))}"] if missing else []
        said += [f"unknown {', '.join(map(printable, unknown))}"] if unknown else []
        wanted = ", ".join(f"{printable(n)} {show(node.shape)} {node.dtype}" for n, node in nodes.items())
        raise InputError(f"inputs: {'; '.join(said)}", f"the model takes {wanted}")
    dims = dict(graph.dims)
    given: dict[str, int] = {}
    checked: dict[str, np.ndarray] = {}
    for name, node in nodes.items():
        try:
            array = np.asarray(inputs[name])
        except ValueError:
            raise InputError(f"input '{printable(name)}' is no array: its rows differ in length") from None
        array = _in_half(array, node.dtype)
        if array.dtype != node.dtype.numpy:
            raise InputError(f"input '{printable(name)}' is {array.dtype}, the model takes {node.dtype.numpy}")
        if array.ndim != len(node.shape):
            raise _wrong_shape(name, array, node)
        for extent, wanted_dim in zip(array.shape, node.shape, strict=True):
            symbol = ex.name_of(wanted_dim)
            if symbol is None:
                continue
            if given.setdefault(symbol, extent) != extent:
                raise InputError(
                    f"input '{printable(name)}' gives dimension '{symbol}' the value {extent}, another input "
                    f"{given[symbol]}"
                )
        checked[name] = array
    dims.update(given)
    for assumed, least in graph.assumed:
        found = int(ex.evaluate(assumed, dims))
        if found < least:
            values = ", ".join(f"{name}={dims[name]}" for name in sorted(ex.dims_of(assumed)))
            raise InputError(f"the model is for {assumed} of at least {least}, and that is {found} for {values}")
    for name, node in nodes.items():
        wanted_shape = shape_values(node.shape, dims)
        if checked[name].shape != wanted_shape:
            raise _wrong_shape(name, checked[name], node, wanted_shape)
    return checked, dims


def _in_half(array: np.ndarray, dtype: DType) -> np.ndarray:
    """An array for an input in half precision: f32 is rounded, and bf16 that went through an .npz, which keeps its bits
    and not its name, is taken for what it is."""
    if dtype.is_half and array.dtype == np.float32:
        return convert(array, dtype.numpy)
    return array.view(dtype.numpy) if dtype is BF16 and array.dtype == np.dtype("V2") else array


def _wrong_shape(name: str, array: np.ndarray, node: Node, values: Sequence[int] = ()) -> InputError:
    named = bool(values) and any(isinstance(d, ex.Expr) for d in node.shape)
    here = f", {list(values)} beside the other inputs" if named else ""
    return InputError(
        f"input '{printable(name)}' has shape {list(array.shape)}, the model takes {show(node.shape)}{here}"
    )


def representative_inputs(graph: Graph, seed: int, dims: Mapping[str, int] | None = None) -> dict[str, np.ndarray]:
    """Inputs to profile and verify with, from `seed`: floats are normal, integers that index something are in its
    range, bytes anywhere in theirs, other integers are 1, booleans true. Named dimensions have the values in `dims`, or
    those of the graph."""
    dims = graph.dims if dims is None else dims
    rng = np.random.default_rng(seed)
    inputs: dict[str, np.ndarray] = {}
    for node_id in graph.inputs:
        node = graph[node_id]
        assert isinstance(node.op, ops.Input)
        inputs[node.op.name] = representative_array(graph, node_id, dims, rng)
    return inputs


def representative_array(
    graph: Graph, node_id: int, dims: Mapping[str, int], rng: np.random.Generator
) -> np.ndarray:
    """A value for a node, as `representative_inputs` has them."""
    node = graph[node_id]
    shape = shape_values(node.shape, dims)
    if node.dtype.is_float:
        return rng.standard_normal(shape).astype(node.dtype.numpy)
    if (extent := _indexed_extent(graph, node_id, dims)) is not None:
        return rng.integers(0, extent, shape).astype(node.dtype.numpy)
    if node.dtype.itemsize == 1 and node.dtype is not BOOL:
        limits = np.iinfo(node.dtype.numpy)
        return rng.integers(limits.min, limits.max, shape, node.dtype.numpy, endpoint=True)
    return np.full(shape, LARGEST_PLAIN_INTEGER, node.dtype.numpy)


def _indexed_extent(graph: Graph, node_id: int, dims: Mapping[str, int]) -> int | None:
    """The smallest extent that a gather indexes with (something computed from) this node."""
    derived = {node_id}
    extents: list[int] = []
    for node in graph:
        if isinstance(node.op, ops.Gather) and node.operands[0].source in derived:
            extents.append(int(ex.evaluate(node.operands[1].layout.shape[node.op.axis], dims)))
        elif any(o.source in derived for o in node.operands) and not node.dtype.is_float:
            derived.add(node.id)
    return min(extents, default=None)


def interpret(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    boundaries: Collection[int],
    checkpoint: Callable[[], None],
    nudge: float = 0.0,
) -> Reference:
    """What the interpreter makes of `inputs`: the values of the nodes in `boundaries` and of the outputs. `checkpoint`
    is called now and then. `nudge` is as in `evaluate`. Raises InputError, ModelError for weights that cannot be read,
    and what `checkpoint` does."""
    given, dims = check_inputs(graph, inputs)
    live = graph.live_from_outputs()
    values: dict[int, np.ndarray] = {}
    for node in graph:
        if isinstance(node.op, ops.Input):
            values[node.id] = np.ascontiguousarray(given[node.op.name]).reshape(-1)

    def progress(done: int, total: int) -> None:
        if done % 64 == 0:
            checkpoint()

    keep = {*boundaries, *graph.outputs}
    evaluate(graph, [n.id for n in graph if n.id in live], values, dims, custom_runner(graph), keep, progress, nudge)
    return Reference(given, values)


def custom_runner(graph: Graph) -> RunCustomOp:
    """What runs the custom operators of `graph` in the interpreter."""

    def run_custom(node: Node, operands: list[np.ndarray]) -> np.ndarray:
        from workbench.runtime.opaque import run_opaque

        assert isinstance(node.op, ops.CustomOp)
        return run_opaque(graph.custom_ops[node.op.id], operands)

    return run_custom
