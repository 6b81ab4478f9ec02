"""The session's side of a device worker: starts it, limits it, replaces it. Calls block; any thread may call."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import msgspec
import numpy as np

from workbench import frames
from workbench.errors import WorkbenchError
from workbench.ir.dtype import from_numpy
from workbench.ir.weights import MadeUp, place_in_file
from workbench.runtime.compare import Tolerance
from workbench.runtime.protocol import Plan, Profile, ProfileOptions, Rejection
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

_BY_PLACE = 1 << 16
"""Bytes from which on an array is described rather than sent, where it can be."""

_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that the worker may take for each phase of a candidate, and for starting or taking arrays."""

    compile_seconds: float = 60.0
    first_run_seconds: float = 30.0
    run_seconds: float = 60.0
    other_seconds: float = 120.0

    def of(self, phase: str) -> float:
        """The limit of a phase that the worker named."""
        named = {"compile": self.compile_seconds, "first-run": self.first_run_seconds, "profile": self.run_seconds}
        return named.get(phase, self.other_seconds)


_STEP = {"start": "compile", "compile": "compile", "first-run": "run", "profile": "run"}


class _LostWorkerError(Exception):
    """The worker is gone: `reason` is hang or crash, as in REASONS."""

    def __init__(self, reason: str, phase: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.phase, self.detail = reason, phase, detail


@dataclass(frozen=True, slots=True)
class _Binding:
    arrays: Mapping[str, np.ndarray | MadeUp]
    expected: Sequence[np.ndarray]
    tolerances: tuple[Tolerance, ...]


class DeviceWorker:
    """A process for `target` that is started when first needed and again after it was lost; bound arrays come back."""

    def __init__(self, target: str = "cpu", threads: int | None = None, limits: Limits | None = None) -> None:
        self.target = target
        self.threads = threads
        self.limits = limits or Limits()
        self.restarts = 0
        """How often the worker was lost and replaced."""
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: Any = None
        self._bound: dict[str, _Binding] = {}
        self._sent: set[str] = set()
        self._lock = threading.RLock()
        self._closed = False
        self._decoder = msgspec.msgpack.Decoder(Answer)

    def bind(
        self,
        key: str,
        arrays: Mapping[str, np.ndarray | MadeUp],
        expected: Sequence[np.ndarray] = (),
        tolerances: Sequence[Tolerance] = (),
    ) -> None:
        """Keep named arrays and the expected outputs (in the plans' order) under `key`; they are sent when needed.
        Large arrays that lie in a file are mapped by the worker, and those that are made up made there.

        `tolerances` say what each may be off by; without, their dtypes do. Raises WorkbenchError for an unknown
        dtype."""
        for name, array in [*arrays.items(), *((f"output {i}", a) for i, a in enumerate(expected))]:
            header_of(name, array)
        with self._lock:
            self._bound[key] = _Binding(dict(arrays), tuple(expected), tuple(tolerances))
            self._sent.discard(key)

    def release(self, key: str) -> None:
        """Forget what is bound under `key`, here and in the worker; unknown keys are fine."""
        with self._lock:
            self._bound.pop(key, None)
            if key in self._sent:
                self._sent.discard(key)
                with contextlib.suppress(_LostWorkerError):
                    self._send(Release(key))

    def evaluate(
        self,
        key: str,
        plan: Plan,
        bindings: Mapping[int, str],
        options: ProfileOptions | None = None,
        kernel_runs: int = 0,
        once: Plan | None = None,
    ) -> Profile | Rejection:
        """Compile, run, verify and time `plan` with the arrays of `key` (`bindings`: plan buffer to array name), and
        with the outputs of `once`, which is over the same buffers and run before.

        A hang, crash or wrong result is a Rejection; WorkbenchError means that the request itself is wrong."""
        request = Evaluate(key, plan, dict(bindings), options or ProfileOptions(), kernel_runs, once)
        with self._lock:
            if key not in self._bound:
                raise WorkbenchError(f"no arrays are bound under {key!r}")
            try:
                answer = self._asked(request)
            except _LostWorkerError as lost:
                return Rejection(_STEP.get(lost.phase, "run"), lost.reason, lost.detail)
            assert isinstance(answer, Done)
            result = answer.profile or answer.rejection
            assert result is not None
            return result

    def ping(self) -> Pong:
        """Start the worker if need be and ask for its pid and memory. Raises WorkbenchError when it does not answer."""
        with self._lock:
            try:
                answer = self._asked(Ping())
            except _LostWorkerError as lost:
                raise WorkbenchError(f"the device worker does not answer: {lost.detail}") from lost
            assert isinstance(answer, Pong)
            return answer

    def close(self) -> None:
        """End the worker at once; a call that runs in another thread returns a Rejection."""
        self._closed = True
        self._kill()

    def __enter__(self) -> DeviceWorker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _asked(self, request: Evaluate | Ping) -> Answer:
        """The answer to `request`. A worker found dead before it took the request up is replaced once: that was not
        the candidate's doing."""
        for attempt in (1, 2):
            try:
                self._start()
                if isinstance(request, Evaluate):
                    self._send_arrays(request.key)
                self._send(request)
                return self._answer("start")
            except _LostWorkerError as lost:
                if attempt == 2 or lost.phase != "start" or lost.reason != "crash" or self._closed:
                    raise
        raise AssertionError("unreachable")

    def _send_arrays(self, key: str) -> None:
        if key in self._sent:
            return
        bound = self._bound[key]
        arrays = tuple(header_of(name, array) for name, array in bound.arrays.items())
        expected = tuple(header_of(f"output {i}", a) for i, a in enumerate(bound.expected))
        given = [(h, a) for h, a in zip((*arrays, *expected), (*bound.arrays.values(), *bound.expected), strict=True)]
        self._send(Bind(key, arrays, expected, bound.tolerances), [part for h, a in given for part in _sent_part(h, a)])
        answer = self._answer("start")
        assert isinstance(answer, Bound)
        self._sent.add(key)

    def _start(self) -> None:
        if self._closed:
            raise WorkbenchError("the device worker is closed")
        if self._process is not None and self._process.poll() is None:
            return
        if self._process is not None:
            self._kill()
        environment = dict(os.environ)
        root = str(Path(__file__).resolve().parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
        if self.threads is not None:
            environment |= dict.fromkeys(_THREAD_VARIABLES, str(self.threads))
        command = [
            sys.executable,
            "-P",  # no modules from the directory that the command was called in
            "-m",
            "workbench.runtime.worker",
            self.target,
            str(self.threads or 0),
            str(os.getpid()),
        ]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )

    def _send(self, request: Request, arrays: Sequence[np.ndarray] = ()) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        raw = (memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8)) for array in arrays)
        try:
            frames.send(process.stdin, request, raw)  # type: ignore[arg-type]
        except frames.Closed:
            self._lost("crash", "start")

    def _answer(self, phase: str) -> Answer:
        """The next answer that ends a request; phases on the way move the deadline."""
        while True:
            deadline = time.monotonic() + self.limits.of(phase)
            message = self._receive(phase, deadline)
            if isinstance(message, Phase):
                phase = message.name
                continue
            if isinstance(message, Failed):
                raise WorkbenchError(message.message)
            return message

    def _receive(self, phase: str, deadline: float) -> Answer:
        process = self._process
        if process is None or process.stdout is None:
            self._lost("crash", phase)
        try:
            return self._decoder.decode(frames.receive(process.stdout, deadline))  # type: ignore[arg-type]
        except frames.TimedOut:
            self._lost("hang", phase)
        except (frames.Closed, OSError, ValueError):
            self._lost("crash", phase)

    def _lost(self, reason: str, phase: str) -> NoReturn:
        """Clean up after a worker that hangs or is gone, and raise."""
        process = self._process
        code = None
        if process is not None and reason == "crash":
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=5)
        detail = f"no end of {phase} after {self.limits.of(phase):g} s" if reason == "hang" else self._cause(code)
        self._kill()
        self.restarts += 1
        raise _LostWorkerError(reason, phase, detail)

    def _cause(self, code: int | None) -> str:
        if self._closed:
            return "the worker was closed"
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                name = signal.Signals(-code).name
                return f"{name} (out of memory?)" if name == "SIGKILL" else name
        last = self._last_words()
        return f"exit status {code}" + (f": {last}" if last else "")

    def _last_words(self) -> str:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            return lines[-1][:300] if lines else ""
        return ""

    def _kill(self) -> None:
        process, self._process = self._process, None
        self._sent.clear()
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()
        if self._errors is not None:
            self._errors.close()


def header_of(name: str, array: np.ndarray | MadeUp) -> ArrayHeader:
    """What announces `array` on the pipe. Raises WorkbenchError for a dtype the workbench lacks."""
    if isinstance(array, MadeUp):
        return ArrayHeader(name, array.dtype.name, array.shape, Random(array.seed))
    dtype = from_numpy(array.dtype)
    if dtype is None:
        raise WorkbenchError(f"array {name!r} has dtype {array.dtype}, which no plan can read")
    source: InFile | Uniform | None = None
    if array.nbytes >= _BY_PLACE:
        place = place_in_file(array)
        if place is not None:
            source = InFile(str(place.path), place.offset, *place.version)
        elif not any(array.strides):
            source = Uniform()
    return ArrayHeader(name, dtype.name, array.shape, source)


def _sent_part(header: ArrayHeader, array: np.ndarray | MadeUp) -> list[np.ndarray]:
    """What of `array` goes through the pipe behind its header."""
    if isinstance(array, MadeUp) or isinstance(header.source, InFile):
        return []
    return [array.flat[:1] if isinstance(header.source, Uniform) else array]
