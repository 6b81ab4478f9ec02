"""Large models, from the file to groups ready to search: other exports, targets, names and depths, and memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.importing import PEER_NAME
from benchmarks.measure import LARGE_MODELS, ROOT, Bound, BrokenError, Row, benchmark, existing, in_fresh_python

REPEATS = 3
PROCESSES = 3
MOST_GROUPS = 4
LLAMA_8B = "llama3_8b_32l_graph"

READY = f"""
import json, resource, sys, time
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from workbench.chunking import find_breaks, group, split
from workbench.egraph.program import emit
from workbench.egraph.rules import read_library
from workbench.egraph.saturate import Saturator
from workbench.frontend import import_model

def ready(path, target="cpu"):
    with Saturator(read_library(target=target)) as saturator:
        saturator.prepare()  # as a session does
        graph = import_model(path).graph
        chunks = split(graph, find_breaks(graph, "auto"))
        programs = [emit(graph, chunk.nodes, chunk.inputs, chunk.outputs) for chunk in chunks]
        groups = group([program.digest for program in programs])
        saturated = [saturator.saturate(programs[g.representative].text) for g in groups]
    assert all(result.stopped == "" for result in saturated)
    return [(g.digest, g.members) for g in groups]
"""

TWO = f"""{READY}
paths, targets, turns = sys.argv[1:3], sys.argv[3:5], int(sys.argv[5])
seconds, groups = ([], []), [None, None]
for turn in range({REPEATS}):
    for side in (0, 1) if (turn + turns) % 2 else (1, 0):
        started = time.perf_counter()
        groups[side] = ready(Path(paths[side]), targets[side])
        seconds[side].append(time.perf_counter() - started)
print(json.dumps({{"seconds": seconds, "groups": groups}}))
"""

AGAINST_ONNX = f"""{READY}
import onnx, onnx.shape_inference

path, turns = Path(sys.argv[1]), int(sys.argv[2])
seconds = ([], [])
def peer(path):
    return onnx.shape_inference.infer_shapes(onnx.load(path, load_external_data=False), strict_mode=True)
for turn in range({REPEATS}):
    for side, measure in ((0, ready), (1, peer)) if (turn + turns) % 2 else ((1, peer), (0, ready)):
        started = time.perf_counter()
        kept = measure(path)
        seconds[side].append(time.perf_counter() - started)
        del kept
print(json.dumps(seconds))
"""

PEAK = f"""{READY}
ready(Path(sys.argv[1]))
own, child = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps((own + child) * (1 if sys.platform == "darwin" else 1024) / 1e6))
"""

DEEPER = f"""{READY}
from workbench.frontend import demo

demo.LAYERS = int(sys.argv[1])
demo.write_demo(Path(sys.argv[2]))
print("null")
"""


@benchmark
def ready_llama() -> Iterator[Row]:
    """The 8B graph against itself: un-optimised, for CUDA, under random names. The 1B graph against ONNX."""
    path = existing(LARGE_MODELS / f"{LLAMA_8B}.onnx")
    raw = existing(LARGE_MODELS / "llama3_8b_32l_noopt_graph.onnx")
    yield _against("ready_llama8b_noopt", raw, path, "the optimised export", Bound("ratio", 2))
    yield _against("ready_llama8b_cuda", path, path, "for the CPU", None, "cuda")
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "renamed.onnx"
        _write_renamed(path, other)
        yield _against("ready_llama8b_renamed", other, path, "with its names", Bound("ratio", 1.5))
    smaller = existing(LARGE_MODELS / "llama32_1b_16l_graph.onnx")
    runs = [in_fresh_python(AGAINST_ONNX, smaller, turn) for turn in range(PROCESSES)]
    ours, peer = (median(median(run[side]) for run in runs) for side in (0, 1))
    yield Row("ready_llama1b", ours, "s", peer, PEER_NAME)


@benchmark
def ready_peak() -> Iterator[Row]:
    """The most memory of the process that imports and of the one that saturates, added up: not at the same time."""
    path = existing(LARGE_MODELS / f"{LLAMA_8B}.onnx")
    peak = median(in_fresh_python(PEAK, path) for _ in range(PROCESSES))
    yield Row("ready_llama8b_peak", peak, "MB", bound=Bound("ours", 600))


@benchmark
def ready_by_depth() -> Iterator[Row]:
    """The demo's architecture with 32 layers against 8, from the file on."""
    with tempfile.TemporaryDirectory() as folder:
        deep, shallow = (Path(folder) / f"{layers}.onnx" for layers in (32, 8))
        for path in (deep, shallow):
            in_fresh_python(DEEPER, path.stem, path)
        runs = [in_fresh_python(TWO, deep, shallow, "cpu", "cpu", turn) for turn in range(PROCESSES)]
    ours, peer = (median(median(run["seconds"][side]) for run in runs) for side in (0, 1))
    yield Row("ready_by_depth", ours, "s", peer, "8 layers", Bound("ratio", 1.5))


def _against(name: str, ours: Path, peer: Path, peer_name: str, bound: Bound | None, target: str = "cpu") -> Row:
    """Both in turn. Raises BrokenError where they do not fall into the same groups, or into too many."""
    runs = [in_fresh_python(TWO, ours, peer, target, "cpu", turn) for turn in range(PROCESSES)]
    for run in runs:
        mine, theirs = run["groups"]
        if mine != theirs:
            raise BrokenError(f"{ours.name} and {peer.name} do not have the same groups")
        if len(mine) > MOST_GROUPS:
            raise BrokenError(f"{ours.name} falls into {len(mine)} groups")
    taken, other = (median(median(run["seconds"][side]) for run in runs) for side in (0, 1))
    return Row(name, taken, "s", other, peer_name, bound)


def _write_renamed(path: Path, destination: Path) -> None:
    import onnx

    from tests.renamed_model import renamed

    destination.write_bytes(renamed(onnx.load(path, load_external_data=False)).SerializeToString())
