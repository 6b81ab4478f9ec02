"""Mutated and made-up models, and what becomes of each: read, or refused in one line. Nothing else may happen.

`python -m tests.frontend.fuzz [--inputs N] [--seed S] [--seconds T]` tries N models in a child process whose memory is
limited and that is killed when one model takes too long, and prints how many ended how, and the most memory that one
of them took. With `--compile`, what can be read is compiled as well: it is done and right, or refused."""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

MODELS = Path(__file__).resolve().parents[1] / "models"
SEEDS = ("mlp_ts17", "mlp_dynbatch_ts17", "llama3_tiny_4l_dynamo", "vit_tiny_4l_ts17")
ROOM = 16 << 20
"""Bytes that one model may take, where ten times its size is less: the graph of a small model is larger than the model,
and code that is run for the first time is loaded."""
ADDRESSES = 128 << 20
"""Bytes of address space beyond that: allocators ask for more than is used."""
PATIENCE = 60
"""Seconds without a word from the child that count as a hang."""

EXTENTS = (-(2**63), -1, 0, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
TEXTS = ("", "x", "ghost", "\x1b[31m", "a" * 5000, "\u202e", "../../etc/passwd", "z", "MIter", "{0}", "$t1", ")(")

Mutation = Callable[[onnx.ModelProto, random.Random], None]


@cache
def seed_model(name: str) -> bytes:
    """A model of the repository, its weights left where they are."""
    return (MODELS / f"{name}.onnx").read_bytes()


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    found = [model.graph]
    for graph in found:
        found += [a.g for node in graph.node for a in node.attribute if a.type == AttributeProto.GRAPH]
    return found


def _names(graph: onnx.GraphProto) -> list[str]:
    return [n for node in graph.node for n in (*node.input, *node.output)] + [t.name for t in graph.initializer] + ["x"]


def edges(model: onnx.ModelProto, rng: random.Random) -> None:
    """Inputs and outputs renamed: cycles, dangling edges, names made twice."""
    graph = rng.choice(_graphs(model))
    for _ in range(rng.randint(1, 4)):
        if graph.node:
            node = rng.choice(graph.node)
            side = node.input if rng.random() < 0.7 else node.output
            if side:
                side[rng.randrange(len(side))] = rng.choice([*_names(graph), *TEXTS])


def extents(model: onnx.ModelProto, rng: random.Random) -> None:
    """Dims negative, zero, huge, contradictory, of inputs, outputs and initializers."""
    graph = model.graph
    for _ in range(rng.randint(1, 3)):
        if graph.initializer and rng.random() < 0.6:
            dims = rng.choice(graph.initializer).dims
            if dims and rng.random() < 0.8:
                dims[rng.randrange(len(dims))] = rng.choice(EXTENTS)
            else:
                dims.append(rng.choice(EXTENTS))
        elif graph.input:
            shape = rng.choice([*graph.input, *graph.output]).type.tensor_type.shape
            dim = rng.choice(shape.dim) if shape.dim and rng.random() < 0.8 else shape.dim.add()
            if rng.random() < 0.7:
                dim.dim_value = rng.choice(EXTENTS)
            else:
                dim.dim_param = rng.choice(TEXTS)


def types(model: onnx.ModelProto, rng: random.Random) -> None:
    """Element types that do not fit."""
    graph = model.graph
    if graph.initializer and rng.random() < 0.6:
        rng.choice(graph.initializer).data_type = rng.randint(-1, 30)
    elif graph.input:
        rng.choice(graph.input).type.tensor_type.elem_type = rng.randint(-1, 30)


def absent_data(model: onnx.ModelProto, rng: random.Random) -> None:
    """Gigantic initializers declared but absent, here or in files that are not there or not the model's."""
    tensor = rng.choice(model.graph.initializer) if model.graph.initializer else model.graph.initializer.add()
    tensor.ClearField("raw_data")
    if rng.random() < 0.7:
        tensor.dims[:] = [rng.choice(EXTENTS) for _ in range(rng.randint(0, 4))]
    if rng.random() < 0.6:
        tensor.data_location = TensorProto.EXTERNAL
        for key in ("location", "offset", "length"):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, str(rng.choice([*TEXTS, *EXTENTS]))


def attributes(model: onnx.ModelProto, rng: random.Random) -> None:
    """Attributes with other values, of other kinds, twice or not at all."""
    graph = rng.choice(_graphs(model))
    for _ in range(rng.randint(1, 3)):
        if not graph.node:
            return
        node = rng.choice(graph.node)
        if node.attribute and rng.random() < 0.5:
            attribute = rng.choice(node.attribute)
            if rng.random() < 0.3:
                node.attribute.remove(attribute)
            else:
                _fill(attribute, rng)
        elif node.attribute:
            attribute = node.attribute.add()
            attribute.name = rng.choice([a.name for a in node.attribute] + ["axis", "to", "odd"])
            _fill(attribute, rng)


def _fill(attribute: AttributeProto, rng: random.Random) -> None:
    kind = attribute.type if attribute.type and rng.random() < 0.7 else rng.randint(0, 12)
    attribute.type = kind
    attribute.f, attribute.i = rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e38]), rng.choice(EXTENTS)
    attribute.s = rng.choice(TEXTS).encode("utf-8", "surrogatepass")
    attribute.ints[:] = [rng.choice(EXTENTS[1:]) for _ in range(rng.randint(0, 5))]
    attribute.floats[:] = [rng.choice([0.0, -1.0, float("nan")]) for _ in range(rng.randint(0, 5))]


def operators(model: onnx.ModelProto, rng: random.Random) -> None:
    """Nodes that become other operators."""
    graph = rng.choice(_graphs(model))
    for _ in range(rng.randint(1, 3)):
        if graph.node:
            rng.choice(graph.node).op_type = rng.choice(all_operators()).name


def nesting(model: onnx.ModelProto, rng: random.Random) -> None:
    """The first node inside so many Ifs, Loops or Scans."""
    if not model.graph.node:
        return
    inner = model.graph.node[0]
    outputs = list(inner.output)
    for level in range(rng.choice([1, 2, 5, 15, 28])):
        kind = rng.choice(["If", "If", "Loop", "Scan"])
        given = [helper.make_tensor_value_info(f"{n}{level}", 1, None) for n in ("i", "c")] if kind == "Loop" else []
        body = helper.make_graph([inner], "g", given, [onnx.ValueInfoProto(name=n) for n in outputs])
        if kind == "If":
            condition = [rng.choice(_names(model.graph))]
            plain = [helper.make_node("Identity", ["x"], [name]) for name in outputs]
            other = helper.make_graph(plain, "g", [], [onnx.ValueInfoProto(name=n) for n in outputs])
            inner = helper.make_node("If", condition, outputs, then_branch=body, else_branch=other)
        elif kind == "Loop":
            inner = helper.make_node("Loop", [rng.choice([*_names(model.graph), ""]), ""], outputs, body=body)
        else:
            inner = helper.make_node("Scan", ["x"], outputs, body=body, num_scan_inputs=rng.choice([0, 1, 2]))
    model.graph.node[0].CopyFrom(inner)


def functions(model: onnx.ModelProto, rng: random.Random) -> None:
    """Functions that call each other: in a circle, or each the next one twice."""
    count = rng.choice([1, 2, 8, 40])
    for number in range(count):
        callee = f"f{(number + 1) % count if rng.random() < 0.5 else number + 1}"
        nodes = [helper.make_node(callee, [a], [b], domain="local") for a, b in ("ab", "bc")]
        if number == count - 1 and rng.random() < 0.7:
            nodes = [helper.make_node("Relu", ["a"], ["c"])]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        model.functions.append(helper.make_function("local", f"f{number}", ["a"], ["c"], nodes, opsets))
    model.opset_import.append(helper.make_opsetid("local", 1))
    if model.graph.node:
        node = rng.choice(model.graph.node)
        node.op_type, node.domain = "f0", "local"
        del node.attribute[:]


def fields(model: onnx.ModelProto, rng: random.Random) -> None:
    """Any fields of any messages, set to odd values or cleared."""
    messages = [m for m in _messages(model) if m.ByteSize() < 1 << 16 or m is model]
    for _ in range(rng.randint(1, 4)):
        message = rng.choice(messages)
        field = rng.choice(message.DESCRIPTOR.fields)
        try:
            _set(message, field, rng)
        except (ValueError, TypeError, AttributeError):
            message.ClearField(field.name)


def _messages(model: Any) -> list[Any]:
    found = [model]
    for message in found:
        if len(found) > 4000:
            break
        for field, value in message.ListFields():
            if field.message_type is not None:
                found += list(value) if hasattr(value, "add") else [value]
    return found


def _set(message: Any, field: Any, rng: random.Random) -> None:
    if field.message_type is not None or rng.random() < 0.2:
        message.ClearField(field.name)
        return
    value: Any
    if field.cpp_type == field.CPPTYPE_STRING:
        value = rng.choice(TEXTS)
        value = value if field.type == field.TYPE_STRING else value.encode()
    elif field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        value = rng.choice([0.0, -1.0, float("nan"), float("inf")])
    else:
        value = rng.choice([*EXTENTS, 5, 16, 21])
    current = getattr(message, field.name)
    if hasattr(current, "append"):
        current.append(value)
    else:
        setattr(message, field.name, value)


MUTATIONS: tuple[Mutation, ...] = (
    edges, extents, types, absent_data, attributes, operators, nesting, functions, fields,
)  # fmt: skip


@cache
def all_operators() -> list[Any]:
    """The newest schema of every standard operator, by name."""
    newest = {s.name: s for s in sorted(onnx.defs.get_all_schemas(), key=lambda s: s.since_version) if not s.domain}
    return [newest[name] for name in sorted(newest)]


def made_up(rng: random.Random) -> onnx.ModelProto:
    """A few nodes of any operators over each other's values, constants of odd shapes and odd numbers among them."""
    shapes = [[], [0], [1], [3], [2, 3], [1, 2, 4, 4], [2, "n"], [1, 1, 1, 1, 1, 1]]
    given = [
        helper.make_tensor_value_info(f"x{i}", rng.choice([1, 1, 1, 6, 7, 9, 11]), rng.choice(shapes)) for i in range(3)
    ]
    numbers = [-(2**40), -2, -1, 0, 1, 2, 3, 5, 64, 2**20, 2**40, 2**62]
    constants = []
    for i in range(5):
        count = rng.randint(0, 4)
        array = np.array([rng.choice(numbers) for _ in range(count)], np.int64)
        if rng.random() < 0.3:
            alone = np.float32(rng.choice([0.5, 1e30, np.nan]))
            array = rng.choice([array.astype(np.float32), array.astype(bool), alone])
        constants.append(numpy_helper.from_array(np.asarray(array), f"k{i}"))
    names = [v.name for v in given] + [t.name for t in constants]
    nodes = []
    for number in range(rng.randint(1, 5)):
        schema = rng.choice(all_operators())
        reads = rng.randint(schema.min_input, max(schema.min_input, min(schema.max_input, 6)))
        makes = rng.randint(max(1, schema.min_output), max(1, schema.min_output, min(schema.max_output, 3)))
        node = helper.make_node(
            schema.name,
            [rng.choice([*names, *names, *names, ""]) for _ in range(reads)],
            [f"y{number}_{i}" for i in range(makes)],
        )
        for attribute in schema.attributes.values():
            if attribute.required or rng.random() < 0.3:
                made = node.attribute.add()
                made.name, made.type = attribute.name, int(attribute.type.value)
                _fill(made, rng)
                if rng.random() < 0.9:
                    made.type = int(attribute.type.value)
                    made.i = rng.choice([0, 1, 2, 1, -1, made.i])
                    made.ints[:] = [rng.choice([0, 1, 1, 2, 3, -1]) for _ in range(rng.randint(0, 4))]
                    made.s = rng.choice(_words(attribute)).encode()
        names += node.output
        nodes.append(node)
    outputs = [onnx.ValueInfoProto(name=name) for name in nodes[-1].output]
    graph = helper.make_graph(nodes, "g", given, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", rng.randint(7, 28))], ir_version=10)


def _words(attribute: Any) -> list[str]:
    default = attribute.default_value
    return [default.s.decode() if default.type == AttributeProto.STRING else "x", "linear", "max", "add", "ij,jk->ik"]


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Bits flipped, or a piece cut out or repeated."""
    data = bytearray(content)
    if rng.random() < 0.7:
        for _ in range(rng.randint(1, 8)):
            # the structure is at the front and between the weights: half of the hits go there
            where = rng.randrange(min(len(data), 4096)) if rng.random() < 0.5 else rng.randrange(len(data))
            data[where] ^= 1 << rng.randrange(8)
    else:
        start = rng.randrange(len(data))
        piece = data[start : start + rng.randint(1, 64)]
        data[start : start + len(piece)] = piece * rng.choice([0, 2, 3])
    return bytes(data)


def fuzzed(seed: int) -> tuple[str, bytes]:
    """The kind and the content of model number `seed`."""
    rng = random.Random(seed)
    kind = rng.choice(["bits", "made up", "made up", *(m.__name__ for m in MUTATIONS)])
    if kind == "bits":
        return kind, damaged(seed_model(rng.choice(SEEDS)), rng)
    if kind == "made up":
        return kind, made_up(rng).SerializeToString()
    model = onnx.ModelProto.FromString(seed_model(rng.choice(SEEDS))) if rng.random() < 0.6 else made_up(rng)
    next(m for m in MUTATIONS if m.__name__ == kind)(model, rng)
    try:
        return kind, model.SerializeToString()
    except ValueError:  # a text that protobuf does not write
        return "made up", made_up(rng).SerializeToString()


def outcome(path: Path) -> str:
    """What becomes of the model at `path`: 'read', 'refused', or what must not happen."""
    from workbench.errors import WorkbenchError
    from workbench.session.inspection import inspect_model
    from workbench.session.spec import SessionSpec

    try:
        opaque = path.stat().st_size % 16 == 0
        inspect_model(SessionSpec(model=str(path), allow_opaque=opaque), path.parent, try_opaque=opaque)
    except WorkbenchError as error:
        text = str(error)
        if not text.isprintable() or len(text) > 4000:
            return f"an error that is not one printable line: {text[:80]!r}"
        return "out of memory" if "allocate" in text or "MemoryError" in text else "refused"
    except BaseException as error:
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f"{place.tb_frame.f_code.co_filename.rpartition('/')[2]}:{place.tb_lineno}" if place else ""
        return f"{type(error).__name__} at {where}: {str(error)[:160]}"
    return "read"


def compiled(path: Path) -> str:
    """As `outcome`, of compiling the model at `path` by the command: 'read' is done and right."""
    command = "import sys; from workbench.cli import main; sys.exit(main())"
    arguments = ["compile", str(path), "--limit", "2", "--random-weights"]
    try:
        done = subprocess.run(
            [sys.executable, "-c", command, *arguments],
            capture_output=True, cwd=path.parent, text=True, timeout=PATIENCE,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "XDG_STATE_HOME": str(path.parent)},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "compiling hangs"
    said = done.stderr.strip().rpartition("\n")[2]
    if done.returncode not in (0, 2) or "Traceback" in done.stderr or "internal error" in said:
        return f"compiling ended with {done.returncode}: {said[:160]}"
    return "refused" if done.returncode else "read"


def child(first: int, count: int, compiling: bool) -> None:
    """Try models `first` to `first + count`, telling each before and after."""
    import workbench.session.inspection

    assert workbench.session.inspection
    for name in SEEDS:
        seed_model(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(seed_model(SEEDS[0]))
        outcome(path)  # whatever is imported late is there now
        for seed in range(first, first + count):
            kind, content = fuzzed(seed)
            path.write_bytes(content)
            room = max(ROOM, 10 * len(content))
            limit = _memory("VmSize") + room + ADDRESSES
            Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
            before = _memory("VmHWM")
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            print(json.dumps([seed, kind]), flush=True)
            result = outcome(path)
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            took = _memory("VmHWM") - before
            if took > room:
                result = f"{took >> 20} MB of memory for {len(content) >> 10} KB"
            if compiling and result == "read":
                result = compiled(path)
            print(json.dumps([seed, kind, result, took]), flush=True)


def _memory(entry: str) -> int:
    """An entry of the process' status, in bytes: VmSize, or VmHWM, the most resident memory."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{entry}:")[2].split(maxsplit=1)[0]) << 10


Result = tuple[int, str, str, int]
"""The number of a model, its kind, what became of it, and the bytes of memory that it took at most."""


def results(first: int, count: int, compiling: bool = False) -> Iterator[Result]:
    """What became of each model; a child that hangs or dies is replaced by one that goes on behind it."""
    end = first + count
    while first < end:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.frontend.fuzz", "--child", str(first), str(end - first)]
            + ["--compile"] * compiling,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            text=True,
        )
        try:
            yield from (done := _Told(process))
        finally:
            process.kill()
        if done.pending is None:
            if process.returncode:
                raise RuntimeError(f"no model could be made: {done.ended}")
            return
        yield (*done.pending, done.ended, 0)
        first = done.pending[0] + 1


class _Told:
    """What one child tells, one model at a time; `pending` is the one it did not finish and `ended` says why."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pending: tuple[int, str] | None = None
        self.ended = ""

    def __iter__(self) -> Iterator[Result]:
        import select

        assert self.process.stdout is not None
        while True:
            ready, _, _ = select.select([self.process.stdout], [], [], 2 * PATIENCE)
            if not ready:
                self.process.kill()
                self.process.wait()
                self.ended = "hang"
                return
            line = self.process.stdout.readline()
            if not line:
                self.ended = f"the process ended with {self.process.wait()}"
                return
            seed, kind, *result = json.loads(line)
            if result:
                self.pending = None
                yield seed, kind, *result
            else:
                self.pending = (seed, kind)


def main(arguments: list[str]) -> int:
    """Print the figures. Returns 1 when something happened that must not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more models after so long")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(*options.child, options.compile)
        return 0
    counts: Counter[tuple[str, str]] = Counter()
    bad: dict[str, list[int]] = {}
    most: dict[str, int] = {}
    began = time.monotonic()
    for seed, kind, result, took in results(options.seed, options.inputs, options.compile):
        if time.monotonic() - began > options.seconds:
            break
        fine = result in ("read", "refused")
        counts[kind, result if fine else "BAD"] += 1
        most[kind] = max(most.get(kind, 0), took)
        if not fine:
            bad.setdefault(result, []).append(seed)
    print(f"{'kind':14}{'tried':>8}{'read':>8}{'refused':>9}{'bad':>6}{'most memory':>15}")
    for kind in sorted({kind for kind, _ in counts}):
        read, refused, wrong = (counts[kind, result] for result in ("read", "refused", "BAD"))
        print(f"{kind:14}{read + refused + wrong:8}{read:8}{refused:9}{wrong:6}{most[kind] / 2**20:12.1f} MB")
    print(f"{'all':14}{sum(counts.values()):8}")
    for result, seeds in sorted(bad.items(), key=lambda item: -len(item[1])):
        print(f"{len(seeds):5} x {result}   (model {', '.join(map(str, seeds[:4]))})")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
