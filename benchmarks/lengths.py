"""What it costs that one code serves every length: beside code for one length, and beside compiling for each."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

from benchmarks.measure import Bound, Row, benchmark, in_fresh_python

LENGTH = 128

RUN = """
import json, sys, time
from pathlib import Path
from statistics import median
import numpy as np
from tests.dynamic_models import VOCABULARY, write_decoder
from workbench import compile_onnx

folder, length = Path(sys.argv[1]), int(sys.argv[2])
path = write_decoder(folder / "decoder.onnx", cached=False)
options = {"limit": 60, "target": "cpu", "threads": 1, "dims": {"seq": length}}
exe = compile_onnx(str(path), session=str(folder / "s"), artifacts=str(folder / "a"), **options)


def inputs(count):
    return {"input_ids": np.random.default_rng(count).integers(0, VOCABULARY, (1, count))}


def first(count):
    began = time.perf_counter()
    exe.run(inputs(count))
    return (time.perf_counter() - began) * 1e3


def compiled_for(count):
    began = time.perf_counter()
    exe.load(exe.specialise({"seq": count}))
    exe.run(inputs(count))
    return (time.perf_counter() - began) * 1e3


first(length - 1)
by_one_code = [first(count) for count in (33, 47, 61, 75, 89)]
compiled = [compiled_for(count) for count in (34, 48, 62, 76, 90)]
special, general = exe.compiled({"seq": length}), exe._by_general_code({"seq": length})
assert general is not None and not special.general
arrays = exe._bindings(special.program, inputs(length)), exe._bindings(general.program, inputs(length))
sides = [(exe.load(side), bound, []) for side, bound in zip((special, general), arrays)]
for _ in range(300):
    for loaded, bound, times in sides:
        began = time.perf_counter()
        loaded.run(bound)
        times.append((time.perf_counter() - began) * 1e3)
special_ms, general_ms = (median(times[20:]) for _, _, times in sides)
print(json.dumps([general_ms, special_ms, median(by_one_code), median(compiled)]))
"""


@benchmark
def lengths() -> Iterator[Row]:
    """A small decoder on one thread: the general code at the length that the other is specialised for, and the first
    run at a new length beside one that is compiled for it."""
    with tempfile.TemporaryDirectory() as folder:
        general, special, first, compiled = in_fresh_python(RUN, folder, str(LENGTH))
    yield Row(f"any_length_at_{LENGTH}", general, "ms", special, "code for this length alone")
    yield Row("new_length_first_run", first, "ms", compiled, "compiled for the length", Bound("ratio", 0.25))
