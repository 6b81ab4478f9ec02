"""The device worker: real hangs, real crashes, wrong results, and what comes after them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from workbench.errors import WorkbenchError
from workbench.ir import dtype as dt
from workbench.ir.llir import Apply, Buffer, Immediate, Load, MapKernel, Program, axis
from workbench.ir.weights import MadeUp, map_file
from workbench.runtime import get_runtime
from workbench.runtime.device import DeviceWorker, Limits
from workbench.runtime.protocol import NativeLaunch, Plan, PlanBuffer, Profile, ProfileOptions, Rejection

N = 100
X = np.arange(N, dtype=np.float32)
LARGE = np.arange(1 << 15, dtype=np.float32)
SAME = np.broadcast_to(np.float32(3), LARGE.shape)
QUICK = ProfileOptions(warmup=1, trials=3, seconds=0.05)
LIMITS = Limits(compile_seconds=20, first_run_seconds=1.0, run_seconds=20)

FOREVER = """define void @k(ptr %p0, ptr %p1) {
entry:
  br label %again
again:
  store volatile float 0.0, ptr %p0
  br label %again
}
"""
TO_NULL = """define void @k(ptr %p0, ptr %p1) {
  store volatile float 0.0, ptr null
  ret void
}
"""


def doubling(n: int = N) -> Plan:
    body = Apply("Mul", (Load(0, axis(0), dt.F32), Immediate(2.0, dt.F32)), dt.F32)
    buffers = [Buffer(0, dt.F32, n, "input", 0), Buffer(1, dt.F32, n, "output", 1)]
    return get_runtime("cpu").plan(Program(buffers, [MapKernel(1, (n,), body, (1,))], [1]), {})


def handwritten(text: str) -> Plan:
    buffers = (PlanBuffer("f32", N, None), PlanBuffer("f32", N, 0))
    launch = NativeLaunch(f"handwritten {hash(text)}", (1, 0), "handwritten", 0, 0)
    return Plan("cpu", buffers, (launch,), {launch.source: text}, (1,), 448)


@pytest.fixture(scope="module")
def worker() -> Iterator[DeviceWorker]:
    with DeviceWorker(threads=1, limits=LIMITS) as device:
        device.bind("g", {"x": X}, [2 * X])
        yield device


def test_a_right_candidate_is_timed(worker: DeviceWorker) -> None:
    profile = worker.evaluate("g", doubling(), {0: "x"}, QUICK, kernel_runs=2)
    assert isinstance(profile, Profile)
    assert profile.runs == 3
    assert 0 < profile.p20_ms <= profile.median_ms <= profile.p80_ms < 100
    assert profile.max_abs_err == 0
    assert [(row[0], row[1]) for row in profile.kernels] == [("map Mul 100", 1)]


def test_a_wrong_result_is_rejected_with_its_error(worker: DeviceWorker) -> None:
    worker.bind("other", {"x": X}, [3 * X])
    result = worker.evaluate("other", doubling(), {0: "x"}, QUICK)
    assert isinstance(result, Rejection)
    assert (result.step, result.reason) == ("verify", "wrong")
    assert "99" in result.detail


def test_a_hang_is_killed_and_the_next_candidate_runs(worker: DeviceWorker) -> None:
    began = time.monotonic()
    result = worker.evaluate("g", handwritten(FOREVER), {0: "x"}, QUICK)
    assert isinstance(result, Rejection)
    assert (result.step, result.reason) == ("run", "hang")
    assert time.monotonic() - began < 10
    assert isinstance(worker.evaluate("g", doubling(), {0: "x"}, QUICK), Profile)


def test_a_crash_names_its_signal_and_the_next_candidate_runs(worker: DeviceWorker) -> None:
    result = worker.evaluate("g", handwritten(TO_NULL), {0: "x"}, QUICK)
    assert isinstance(result, Rejection)
    assert (result.step, result.reason) == ("run", "crash")
    assert "SIGSEGV" in result.detail
    assert isinstance(worker.evaluate("g", doubling(), {0: "x"}, QUICK), Profile)


def test_source_that_is_no_llvm_ir_is_a_compile_rejection(worker: DeviceWorker) -> None:
    result = worker.evaluate("g", handwritten("define nonsense"), {0: "x"}, QUICK)
    assert isinstance(result, Rejection)
    assert (result.step, result.reason) == ("compile", "compile")


def test_an_arena_that_cannot_fit_is_a_memory_rejection(worker: DeviceWorker) -> None:
    plan = doubling()
    huge = Plan(plan.target, plan.buffers, plan.launches, plan.sources, plan.outputs, 1 << 50)
    result = worker.evaluate("g", huge, {0: "x"}, QUICK)
    assert isinstance(result, Rejection)
    assert (result.step, result.reason) == ("compile", "memory")


def test_arrays_that_do_not_fit_are_refused_before_the_run(worker: DeviceWorker) -> None:
    worker.bind("short", {"x": X[:50]}, [2 * X])
    result = worker.evaluate("short", doubling(), {0: "x"}, QUICK)
    assert isinstance(result, Rejection)
    assert "100 elements" in result.detail


def test_requests_that_make_no_sense_are_errors_and_harm_nothing(worker: DeviceWorker) -> None:
    with pytest.raises(WorkbenchError, match="nowhere"):
        worker.evaluate("nowhere", doubling(), {}, QUICK)
    with pytest.raises(WorkbenchError, match="'y'"):
        worker.evaluate("g", doubling(), {0: "y"}, QUICK)
    assert isinstance(worker.evaluate("g", doubling(), {0: "x"}, QUICK), Profile)


def test_timing_gives_up_on_a_slow_candidate(worker: DeviceWorker) -> None:
    result = worker.evaluate("g", doubling(), {0: "x"}, ProfileOptions(0, 50, 5.0, give_up_ms=0.0))
    assert isinstance(result, Profile)
    assert result.runs == 3


def test_a_worker_killed_from_outside_is_replaced(worker: DeviceWorker) -> None:
    first = worker.ping()
    assert first.rss > 1 << 20
    os.kill(first.pid, signal.SIGKILL)
    assert worker.ping().pid != first.pid
    assert isinstance(worker.evaluate("g", doubling(), {0: "x"}, QUICK), Profile)


def test_the_worker_ends_with_its_parent_also_inside_a_kernel() -> None:
    script = f"""
import os, threading, time, numpy as np
from workbench.runtime.device import DeviceWorker
from workbench.runtime.protocol import NativeLaunch, Plan, PlanBuffer
text = {FOREVER!r}
plan = Plan("cpu", (PlanBuffer("f32", 4, None), PlanBuffer("f32", 4, 0)),
            (NativeLaunch("a", (1, 0), "a", 0, 0),), {{"a": text}}, (1,), 64)
device = DeviceWorker()
device.bind("g", {{"x": np.zeros(4, np.float32)}})
print(device.ping().pid, flush=True)
threading.Thread(target=device.evaluate, args=("g", plan, {{0: "x"}}), daemon=True).start()
time.sleep(1.0)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    pid = int(done.stdout.split()[0])
    deadline = time.monotonic() + 5
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_weights_are_mapped_made_or_spread_by_the_worker(worker: DeviceWorker, tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_bytes(b"-" + LARGE.tobytes())
    mapped = map_file(path)
    assert mapped is not None
    lying = mapped[1:].view(np.float32)
    made = MadeUp(7, (LARGE.size,), dt.F32)
    given = {"in a file": (lying, LARGE), "made up": (made, made.make()), "one number": (SAME, SAME)}
    for name, (array, meant) in given.items():
        worker.bind(name, {"x": array}, [2 * meant])
        assert isinstance(worker.evaluate(name, doubling(LARGE.size), {0: "x"}, QUICK), Profile), name
        worker.release(name)
        with pytest.raises(WorkbenchError, match="no arrays are bound"):
            worker.evaluate(name, doubling(LARGE.size), {0: "x"}, QUICK)


def test_a_weight_file_that_changed_is_told_and_harms_nothing(worker: DeviceWorker, tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_bytes(LARGE.tobytes())
    mapped = map_file(path)
    assert mapped is not None
    worker.bind("changed", {"x": mapped.view(np.float32)}, [2 * LARGE])
    path.write_bytes(LARGE.tobytes()[:-4])
    with pytest.raises(WorkbenchError, match="w, which holds weights, changed"):
        worker.evaluate("changed", doubling(LARGE.size), {0: "x"}, QUICK)
    assert isinstance(worker.evaluate("g", doubling(), {0: "x"}, QUICK), Profile)
