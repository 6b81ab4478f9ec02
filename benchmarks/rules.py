"""The rule workbench: how soon a large model is ready to search, whether depth matters, what an X-ray costs."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from benchmarks.importing import PEER_NAME
from benchmarks.measure import LARGE_MODELS, Bound, Row, benchmark, existing, in_fresh_python

REPEATS = 5
PROCESSES = 3
DEPTHS = (8, 16, 32)

READY = """
import json, sys, time
from pathlib import Path
from statistics import median
from workbench.chunking import find_breaks, group, split
from workbench.egraph.program import emit
from workbench.egraph.rules import read_library
from workbench.egraph.saturate import Saturator
from workbench.frontend import import_model

def programs_of(path):
    graph = import_model(path).graph
    chunks = split(graph, find_breaks(graph, "auto"))
    programs = [emit(graph, chunk.nodes, chunk.inputs, chunk.outputs) for chunk in chunks]
    return [programs[g.representative] for g in group([p.digest for p in programs])]
"""

AGAINST_ONNX = f"""{READY}
import onnx, onnx.shape_inference

def ours(path):
    with Saturator(read_library()) as saturator:
        saturator.prepare()  # as a session does
        return [saturator.saturate(program.text) for program in programs_of(path)]

def peer(path):
    return onnx.shape_inference.infer_shapes(onnx.load(path, load_external_data=False), strict_mode=True)

path = Path(sys.argv[1])
seconds = {{"ours": [], "peer": []}}
for turn in range({REPEATS}):
    for measure in (ours, peer) if turn % 2 == int(sys.argv[2]) else (peer, ours):
        started = time.perf_counter()
        kept = measure(path)
        seconds[measure.__name__].append(time.perf_counter() - started)
        del kept
print(json.dumps(seconds))
"""

BY_DEPTH = f"""{READY}
from workbench.frontend import demo

folder = Path(sys.argv[1])
programs = {{}}
for layers in {DEPTHS}:
    demo.LAYERS = layers
    programs[layers] = programs_of(demo.write_demo(folder / f"{{layers}}.onnx"))
seconds = {{layers: [] for layers in programs}}
with Saturator(read_library()) as saturator:
    saturator.rules
    for turn in range({REPEATS} * 4):
        for layers in sorted(programs, reverse=turn % 2 == 1):
            started = time.perf_counter()
            for program in programs[layers]:
                saturator.saturate(program.text)
            seconds[layers].append(time.perf_counter() - started)
print(json.dumps({{layers: median(taken) for layers, taken in seconds.items()}}))
"""

XRAY = """
import io, json, re, sys, time
from pathlib import Path
from statistics import median
from workbench import frames
from workbench.chunking import split
from workbench.egraph import child
from workbench.egraph.bindings import bindings
from workbench.egraph.messages import Saturate, XrayRequest
from workbench.egraph.program import emit
from workbench.egraph.rules import read_library
from workbench.frontend import import_model

RULE = "recognize matmul: one batch axis"
graph = import_model(Path(sys.argv[1])).graph
(chunk,) = split(graph, [])
text = emit(graph, chunk.nodes, chunk.inputs, chunk.outputs).text
copies = []
for number in range(5):  # the whole model, without breaks, five times over
    renamed = re.sub(r"\\$(\\w+)", rf"$\\1_{number}", text)
    copies.append(re.sub(r"\\(Input (\\d+)", lambda found: f"(Input {int(found[1]) + 100_000 * number}", renamed))
program = "\\n".join(copies)

library = child.Library([(file.name, file.text) for file in read_library()])
out = io.BytesIO()
frames.send = lambda stream, message: None
saturated = child.saturate(library, Saturate(program, 10_000_000, 600.0), out)
rule = library.parsed[RULE].command.rule
seconds = {"ours": [], "peer": []}
for turn in range(7):
    def ours():
        result = child.answer_xray(library, XrayRequest(program, RULE, None, 10_000_000, 600.0, 60.0), out)
        assert len(result.premises) == 7 and all(p.matches for p in result.premises), result
    def peer():
        ruleset = f"alone-{turn}"
        library.egraph.run_program(*library.egraph.parse_program(f"(ruleset {ruleset})", "alone"))
        alone = bindings.Rule(rule.span, rule.head, rule.body, ruleset, ruleset, include_subsumed=True)
        library.egraph.run_program(bindings.RuleCommand(alone))
        library.egraph.run_program(*library.egraph.parse_program(f"(run-schedule (run {ruleset}))", "alone"))
    for measure in (ours, peer) if turn % 2 else (peer, ours):
        started = time.perf_counter()
        measure()
        seconds[measure.__name__].append(time.perf_counter() - started)
nodes = len(saturated.snapshot.node_op) // 4
print(json.dumps({"nodes": nodes, **{side: median(taken) for side, taken in seconds.items()}}))
"""


@benchmark
def ready_to_search() -> Iterator[Row]:
    """Llama-3-8B's graph (32 layers, grouped): import, split, emit, group, and every group saturated, the saturation
    process started anew each time."""
    path = existing(LARGE_MODELS / "llama3_8b_32l_graph.onnx")
    runs = [in_fresh_python(AGAINST_ONNX, path, turn % 2) for turn in range(PROCESSES)]
    ours, peer = (median(median(run[side]) for run in runs) for side in ("ours", "peer"))
    yield Row("ready_to_search_llama8b", ours, "s", peer, PEER_NAME, Bound("ratio", 40))


@benchmark
def saturation_by_depth() -> Iterator[Row]:
    """All groups of the demo's architecture at 8, 16 and 32 layers: the slowest over the fastest."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        taken = in_fresh_python(BY_DEPTH, folder)
    slowest, fastest = max(taken.values()), min(taken.values())
    yield Row("saturation_by_depth", slowest, "s", fastest, "the fastest of 8, 16, 32 layers", Bound("ratio", 1.2))


@benchmark
def xray() -> Iterator[Row]:
    """The X-ray of a rule of seven premises on some 50,000 e-nodes, against one run of that rule alone on them."""
    path = existing(LARGE_MODELS / "llama3_8b_32l_graph.onnx")
    taken = in_fresh_python(XRAY, path)
    peer_name = f"one (run) of the rule, {taken['nodes']:,} e-nodes"
    yield Row("xray_seven_premises", taken["ours"], "s", taken["peer"], peer_name, Bound("ratio", 2))
    yield Row("xray_seven_premises_seconds", taken["ours"], "s", bound=Bound("ours", 2))
