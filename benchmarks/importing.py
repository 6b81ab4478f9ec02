"""How long it takes to know a large model: import, split, emit and group against onnx's own shape inference."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from benchmarks.measure import LARGE_MODELS, Bound, Row, benchmark, existing, in_fresh_python

REPEATS = 5
PROCESSES = 3
PEER_NAME = "onnx.shape_inference, strict"

OURS = """
import json, sys
from pathlib import Path
from workbench.chunking import find_breaks, group, split
from workbench.egraph.program import emit
from workbench.frontend import import_model

def ours(path):
    graph = import_model(path).graph
    chunks = split(graph, find_breaks(graph, "auto"))
    programs = [emit(graph, chunk.nodes, chunk.inputs, chunk.outputs) for chunk in chunks]
    return chunks, programs, group([program.digest for program in programs])

path = Path(sys.argv[1])
"""

BOTH = f"""{OURS}
import time
import onnx, onnx.shape_inference

def peer(path):
    return onnx.shape_inference.infer_shapes(onnx.load(path, load_external_data=False), strict_mode=True)

seconds = {{"ours": [], "peer": []}}
for turn in range({REPEATS}):
    for measure in (ours, peer) if turn % 2 == int(sys.argv[2]) else (peer, ours):
        started = time.perf_counter()
        kept = measure(path)
        seconds[measure.__name__].append(time.perf_counter() - started)
        del kept
print(json.dumps(seconds))
"""

ALONE = """
import json, sys, time
from pathlib import Path
from workbench.frontend import import_model

seconds = []
for _ in range(3):
    started = time.process_time()
    imported = import_model(Path(sys.argv[1]))
    seconds.append((time.process_time() - started) / imported.onnx_nodes * 1000)
print(json.dumps(seconds))
"""

PEAK = f"""{OURS}
import resource

kept = ours(path)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps(peak * (1 if sys.platform == "darwin" else 1024) / 1e6))
"""


@benchmark
def inspect_llama8b() -> Iterator[Row]:
    """Llama-3-8B's graph (32 layers, no weights): wall time, and the peak memory of a process that does only this."""
    path = existing(LARGE_MODELS / "llama3_8b_32l_graph.onnx")
    runs = [in_fresh_python(BOTH, path, turn % 2) for turn in range(PROCESSES)]
    ours, peer = (median(median(run[side]) for run in runs) for side in ("ours", "peer"))
    yield Row("inspect_llama8b", ours, "s", peer, PEER_NAME, Bound("ratio", 15))

    # What a user waits for: the first call, in which onnx sets up its operator schemas and ours fills its caches.
    ours, peer = (median(run[side][0] for run in runs) for side in ("ours", "peer"))
    yield Row("inspect_llama8b_first", ours, "s", peer, PEER_NAME)

    # A process starts with the peak of the one that forked it, and that one has not imported a numeric library.
    peak = median(in_fresh_python(PEAK, path) for _ in range(3))
    yield Row("inspect_llama8b_peak", peak, "MB", bound=Bound("ours", 500))


@benchmark
def import_alone() -> Iterator[Row]:
    """Reading and lowering, processor time per 1,000 ONNX nodes, of both exports of the 8B graph: 0.2 s are 5,000 a
    second. An import runs on one core, so nothing is hidden."""
    for kind in ("graph", "noopt_graph"):
        path = existing(LARGE_MODELS / f"llama3_8b_32l_{kind}.onnx")
        took = median(median(in_fresh_python(ALONE, path)) for _ in range(PROCESSES))
        yield Row(f"import_1000_nodes_{kind}", took, "s", bound=Bound("ours", 0.2))
