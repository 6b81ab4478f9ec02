"""How fast the compiled model is on one thread, against onnxruntime."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.measure import (
    TEST_MODELS,
    BrokenError,
    Row,
    SkippedError,
    benchmark,
    command,
    existing,
    in_fresh_python,
    output_of,
)

MODELS = (
    "llama3_tiny_4l_ts17",
    "llama3_tiny_4l_dynamo",
    "gpt2_tiny_2l_ts17",
    "minilm_6l_ts17",
    "vit_tiny_4l_ts17",
    "whisper_encoder_tiny_2l_ts17",
)

ONNXRUNTIME = """
import json, statistics, sys, time
import numpy, onnxruntime

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
with numpy.load(sys.argv[2]) as arrays:
    feed = {name.removeprefix("in_"): arrays[name] for name in arrays.files if name.startswith("in_")}
milliseconds = []
for _ in range(220):
    started = time.perf_counter()
    session.run(None, feed)
    milliseconds.append((time.perf_counter() - started) * 1e3)
print(json.dumps(statistics.median(milliseconds[20:])))
"""


@benchmark
def latency_vs_onnxruntime() -> Iterator[Row | SkippedError | BrokenError]:
    """Each transformer among the test models. No bound: what the search finds depends on the machine."""
    program = command()
    for name in MODELS:
        try:
            yield latency(program, name)
        except (SkippedError, BrokenError) as problem:
            yield problem


def latency(program: str, name: str) -> Row:
    """One model. Thread pools would fight in one process, so each side has its own; the peer runs before and after."""
    path = existing(TEST_MODELS / f"{name}.onnx")
    before = onnxruntime_ms(path)
    ours = compiled_ms(program, path)
    peer = median([before, onnxruntime_ms(path)])
    return Row(f"latency_{name}", ours, "ms", peer, "onnxruntime, 1 thread")


def compiled_ms(program: str, path: Path) -> float:
    """Median latency that a compile reports. Raises BrokenError where its result is not verified."""
    with tempfile.TemporaryDirectory() as folder:
        session = str(Path(folder) / "session")
        options = ["--limit", "60", "--target", "cpu", "--threads", "1", "--session", session, "--json"]
        report = json.loads(output_of([program, "compile", str(path), *options], timeout=1200, threads=1))
    if not report["verify"]["ok"]:
        raise BrokenError(f"{path.name} compiled, but to wrong numbers")
    return float(report["latency_ms"]["median"])


def onnxruntime_ms(path: Path) -> float:
    """Median latency of onnxruntime with its optimisations on, in a process of its own."""
    return float(in_fresh_python(ONNXRUNTIME, path, path.with_suffix(".npz"), threads=1))
