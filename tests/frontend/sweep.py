"""Every model of ../shared/models: imported, split, and interpreted against the outputs stored beside it.

`python -m tests.frontend.sweep [NAME ..]` prints one line per model."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from workbench import chunking
from workbench.egraph.program import emit
from workbench.errors import WorkbenchError
from workbench.frontend import Imported, import_model
from workbench.ir.interpret import interpret

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "models"

Arrays = dict[str, np.ndarray]


def stored(path: Path) -> tuple[Arrays, Arrays]:
    """Inputs and expected outputs of the model at `path`."""
    with np.load(path.with_suffix(".npz")) as arrays:
        inputs, outputs = (
            {key.removeprefix(side): arrays[key] for key in arrays.files if key.startswith(side)}
            for side in ("in_", "out_")
        )
    return inputs, outputs


def dims_of(path: Path, inputs: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The values that `inputs` give the model's named and unknown dimensions."""
    dims: dict[str, int] = {}
    for given in onnx.load(path, load_external_data=False).graph.input:
        for axis, dim in enumerate(given.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") or dim.dim_value < 0:
                named = any(c.isalnum() for c in dim.dim_param)
                dims[dim.dim_param if named else f"{given.name}_{axis}"] = inputs[given.name].shape[axis]
    return dims


def computed(path: Path) -> tuple[Imported, Arrays, Arrays]:
    """The imported model, what the interpreter finds for the stored inputs, and what is expected."""
    inputs, expected = stored(path)
    imported = import_model(path, dims=dims_of(path, inputs))
    return imported, interpret(imported.graph, inputs), expected


def line(path: Path) -> str:
    """What became of one model."""
    began = time.perf_counter()
    error, ran = "no outputs to compare with", 0.0
    if path.with_suffix(".npz").exists():
        imported, found, expected = computed(path)
        ran = time.perf_counter() - began
        worst = max(
            float(np.abs(found[name].astype(np.float64) - want).max() / max(np.abs(want).max(), 1e-30))
            for name, want in expected.items()
        )
        error = f"error {worst:.1e} of the largest"
    began = time.perf_counter()
    imported = import_model(path)
    took = time.perf_counter() - began
    graph = imported.graph
    chunks = chunking.split(graph, chunking.find_breaks(graph, "auto"))
    groups = chunking.group([emit(graph, c.nodes, c.inputs, c.outputs).digest for c in chunks])
    fixed = "".join(f", {name} fixed" for name in imported.fixed_dims)
    return (
        f"{path.stem:32}{imported.onnx_nodes:6}{len(graph):7}{len(chunks):7}{len(groups):7}"
        f"{took:8.2f} s{ran:8.1f} s  {error}{fixed}"
    )


def main(names: Sequence[str]) -> int:
    """Print the table. Returns 1 when a model is refused."""
    refused = 0
    print(f"{'model':32}{'nodes':>6}{'prims':>7}{'chunks':>7}{'groups':>7}{'import':>10}{'run':>10}")
    for path in sorted(FOLDER.glob("*.onnx")):
        if names and path.stem not in names:
            continue
        try:
            print(line(path), flush=True)
        except WorkbenchError as error:
            refused = 1
            print(f"{path.stem:32}{error}", flush=True)
    return refused


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
