"""The killable device process: compiles, runs, verifies and times candidates, so that a hang or a crash ends only it.

Run as `python -m workbench.runtime.worker TARGET THREADS PARENT_PID`; speaks `runtime.wire` over stdin and stdout.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import statistics
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from workbench import frames
from workbench.errors import WorkbenchError
from workbench.ir.dtype import BY_NAME
from workbench.ir.weights import MadeUp, Place, in_memory_form, map_place
from workbench.runtime import get_runtime
from workbench.runtime.compare import Tolerance, compare, default_tolerance
from workbench.runtime.protocol import Loaded, Plan, Profile, ProfileOptions, Rejection, Runtime
from workbench.runtime.wire import (
    Answer,
    ArrayHeader,
    Bind,
    Bound,
    Done,
    Evaluate,
    Failed,
    InFile,
    Phase,
    Ping,
    Pong,
    Random,
    Release,
    Request,
    Uniform,
)

SHORTEST_SAMPLE = 2e-4
"""Seconds: shorter runs are timed several at a time."""

PARENT_POLL_MS = 1000


@dataclass(frozen=True, slots=True)
class BoundArrays:
    """What a `Bind` left here."""

    arrays: Mapping[str, np.ndarray]
    expected: tuple[np.ndarray, ...]
    tolerances: tuple[Tolerance, ...]


def _whole(header: ArrayHeader, received: np.ndarray) -> np.ndarray:
    dtype = BY_NAME[header.dtype]
    match header.source:
        case None:
            return received
        case Uniform():
            return np.full(header.shape, received[0], dtype.numpy)
        case Random(seed):
            return MadeUp(seed, header.shape, dtype).make()
        case InFile():
            place = Place(Path(header.source.path), (header.source.size, header.source.changed), header.source.offset)
            mapped = map_place(place, math.prod(header.shape) * dtype.itemsize)
            return in_memory_form(mapped.view(dtype.numpy), dtype)


class Worker:
    """Serves requests until its parent closes the pipe."""

    def __init__(self, runtime: Runtime, requests: BinaryIO, answers: BinaryIO) -> None:
        self.runtime = runtime
        self._requests = requests
        self._answers = answers
        self._bound: dict[str, BoundArrays] = {}
        self._decoder = msgspec.msgpack.Decoder(Request)

    def serve(self) -> None:
        """Answer requests in order; returns at a `Shutdown`. Raises frames.Closed at the end of input."""
        while True:
            match self._decoder.decode(frames.receive(self._requests)):
                case Bind() as request:
                    self._answer(self._bind(request))
                case Release(key):
                    self._bound.pop(key, None)
                case Evaluate() as request:
                    self._answer(self._evaluate(request))
                case Ping():
                    self._answer(Pong(os.getpid(), resident_bytes()))
                case _:
                    return

    def _answer(self, message: Answer) -> None:
        frames.send(self._answers, message)

    def _bind(self, request: Bind) -> Bound | Failed:
        self._bound.pop(request.key, None)
        headers = (*request.arrays, *request.expected)
        received = [self._received(h) for h in headers]
        try:
            whole = [_whole(h, sent) for h, sent in zip(headers, received, strict=True)]
        except WorkbenchError as problem:
            return Failed(str(problem))
        except MemoryError:
            return Failed("there is not the memory for the weights of this chunk")
        count = len(request.arrays)
        named = {h.name: array for h, array in zip(request.arrays, whole, strict=False)}
        self._bound[request.key] = BoundArrays(named, tuple(whole[count:]), request.tolerances)
        return Bound()

    def _received(self, header: ArrayHeader) -> np.ndarray:
        """What of an array comes through the pipe."""
        shape = {type(None): header.shape, Uniform: (1,)}.get(type(header.source), (0,))
        array = np.empty(shape, BY_NAME[header.dtype].numpy)
        view = memoryview(array.reshape(-1).view(np.uint8))
        done = 0
        while done < len(view):
            count = self._requests.readinto(view[done:])  # type: ignore[attr-defined]
            if not count:
                raise frames.Closed("the parent closed the pipe")
            done += count
        return array

    def _evaluate(self, request: Evaluate) -> Done | Failed:
        bound = self._bound.get(request.key)
        if bound is None:
            return Failed(f"no arrays are bound under {request.key!r}")
        missing = sorted(set(request.bindings.values()) - set(bound.arrays))
        if missing:
            return Failed(f"array {missing[0]!r} is not bound under {request.key!r}")
        if bound.expected and len(bound.expected) != len(request.plan.outputs):
            return Failed(f"{len(bound.expected)} expected outputs for a plan with {len(request.plan.outputs)}")
        bindings = {buffer: bound.arrays[name] for buffer, name in request.bindings.items()}
        result = self._judge(request, bound, bindings)
        return Done(profile=result) if isinstance(result, Profile) else Done(rejection=result)

    def _judge(self, request: Evaluate, bound: BoundArrays, bindings: dict[int, np.ndarray]) -> Profile | Rejection:
        plan, options = request.plan, request.options
        self._answer(Phase("compile"))
        limit = self.runtime.memory_limit()
        if plan.arena_bytes > limit:
            return Rejection("compile", "memory", f"needs {plan.arena_bytes} bytes; {limit} are free")
        try:
            if request.once is not None:
                prepared = self.runtime.load(request.once, bindings).run({})
                bindings = bindings | dict(zip(request.once.outputs, prepared, strict=True))
            loaded = self.runtime.load(plan, bindings)
        except WorkbenchError as problem:
            return Rejection("compile", "compile", str(problem))
        except MemoryError:
            return Rejection("compile", "memory", f"no {plan.arena_bytes} bytes for the arena")
        self._answer(Phase("first-run"))
        began = time.perf_counter()
        try:
            outputs = loaded.run({})
        except WorkbenchError as problem:
            return Rejection("run", "crash", str(problem))
        except MemoryError:
            return Rejection("run", "memory", "out of memory in the first run")
        first = time.perf_counter() - began
        wrong, max_abs, max_rel = check_outputs(plan, outputs, bound)
        if wrong is not None:
            return wrong
        self._answer(Phase("profile"))
        samples = time_runs(loaded, options, first)
        kernels = loaded.profile_kernels({}, request.kernel_runs) if request.kernel_runs else []
        p20, median, p80 = (float(v) for v in np.percentile(samples, (20, 50, 80)))
        spent = time.perf_counter() - began
        return Profile(median, p20, p80, len(samples), loaded.compile_seconds, spent, max_abs, max_rel, tuple(kernels))


def check_outputs(plan: Plan, outputs: list[np.ndarray], bound: BoundArrays) -> tuple[Rejection | None, float, float]:
    """(what is wrong with the first wrong output, largest absolute error, largest relative error)."""
    max_abs = max_rel = 0.0
    for position, (got, expected) in enumerate(zip(outputs, bound.expected, strict=False)):
        dtype = BY_NAME[plan.buffers[plan.outputs[position]].dtype]
        allowed = bound.tolerances[position] if bound.tolerances else default_tolerance(dtype)
        ok, worst, relative = compare(got, expected, allowed.rtol, allowed.atol_scale, allowed.undecided)
        if not ok:
            detail = f"output {position} is off by {worst:.3g}, {relative:.3g} of its largest value"
            detail += f" (allowed: {allowed})"
            return Rejection("verify", "wrong", detail), worst, relative
        max_abs, max_rel = max(max_abs, worst), max(max_rel, relative)
    return None, max_abs, max_rel


def time_runs(loaded: Loaded, options: ProfileOptions, first_seconds: float) -> list[float]:
    """Milliseconds of each counted run of `loaded`, which has everything bound. `ProfileOptions` says when it ends."""
    clock = time.perf_counter
    samples: list[float] = []
    with loaded.limited():
        last = first_seconds
        for _ in range(options.warmup):
            began = clock()
            loaded.execute()
            last = clock() - began
        repeat = max(1, int(SHORTEST_SAMPLE / max(last, 1e-7)))
        end = clock() + options.seconds
        for _ in range(max(1, options.trials)):
            began = clock()
            for _ in range(repeat):
                loaded.execute()
            now = clock()
            samples.append((now - began) / repeat * 1e3)
            limit = options.give_up_ms
            if now > end or (limit is not None and len(samples) >= 3 and statistics.median(samples) > limit):
                break
    return samples


def resident_bytes() -> int:
    """Memory that this process holds, where the system tells."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    return 0


def _end_with(parent: int) -> None:
    """End this process when its parent does, also in the middle of a kernel.

    Not PR_SET_PDEATHSIG: that signals when the parent's *thread* which started this process ends."""
    watch = select.poll()
    watch.register(0, 0)
    while True:
        if watch.poll(PARENT_POLL_MS) or os.getppid() != parent:
            os._exit(0)


def main(arguments: list[str]) -> None:
    """Take over stdout for the protocol (whatever prints goes to stderr) and serve."""
    target, threads, parent = arguments[0], int(arguments[1]), int(arguments[2])
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "rb")
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(frames.Closed):
        Worker(get_runtime(target, threads or None), requests, answers).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
