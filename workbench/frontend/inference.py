"""What opaque operators yield and who can run them, asked of a process of its own (see `runtime.trial`)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from workbench import frames
from workbench.frontend.values import NotLoweredError
from workbench.trials import Trial

PATIENCE = 120.0
"""Seconds for one answer."""


class Trials:
    """The process, started when first asked and again after it was lost. Equal models are asked about once."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._known: dict[bytes, Trial] = {}
        self._decoder = msgspec.msgpack.Decoder(Trial)

    def of(self, model: bytes) -> Trial:
        """What a serialized model yields. Raises NotLoweredError where the process does not survive it."""
        found = self._known.get(model)
        if found is None:
            found = self._known[model] = self._asked(model)
        return found

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()

    def __enter__(self) -> Trials:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _asked(self, model: bytes) -> Trial:
        process = self._started()
        try:
            frames.send(process.stdin, model)  # type: ignore[arg-type]
            return self._decoder.decode(frames.receive(process.stdout, time.monotonic() + PATIENCE))  # type: ignore[arg-type]
        except frames.TimedOut:
            self.close()
            raise NotLoweredError(f"what it yields was not known after {PATIENCE:.0f} s") from None
        except (frames.Closed, msgspec.DecodeError):
            self.close()
            raise NotLoweredError("onnx's shape inference or onnxruntime crashed on it") from None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            environment: dict[str, Any] = dict(os.environ)
            root = str(Path(__file__).resolve().parents[2])
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
            self._process = subprocess.Popen(
                # -P: no modules from the directory that the command was called in
                [sys.executable, "-P", "-m", "workbench.runtime.trial"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                bufsize=0,
            )
        return self._process
