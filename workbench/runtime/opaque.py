"""Custom operators: a small ONNX model, run on the host by onnxruntime or by onnx's reference implementation.

The model's inputs are the operands, in order and contiguous. Where it has several outputs, each is a custom operator of
its own here, and one run of the model serves them all.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from workbench.errors import UnavailableError, WorkbenchError, printable
from workbench.ir.hlir import CustomOpSpec

RUNNERS = ("onnxruntime", "reference")
"""What can run a custom operator, the best first."""
SILENT = 4
"""onnxruntime's log level: what goes wrong is told by exceptions."""


def available() -> tuple[str, ...]:
    """Those of RUNNERS that are installed."""
    return tuple(r for r in RUNNERS if r == "reference" or importlib.util.find_spec("onnxruntime") is not None)


class Prepared(Protocol):
    """A model that is loaded, once for all its runs."""

    def run(self, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        """All outputs for operands in their shapes."""
        ...

    def bound(self, operands: Sequence[np.ndarray], output: int, result: np.ndarray) -> Callable[[], object] | None:
        """A call that computes one output of what is in `operands` then, straight into `result`; None where that cannot
        be."""
        ...


class _OnnxRuntime:
    def __init__(self, model: bytes, threads: int | None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = SILENT
        options.inter_op_num_threads = 1
        if threads is not None:
            options.intra_op_num_threads = threads
        # its threads would wait busily while ours compute
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.inputs = [i.name for i in self.session.get_inputs()]
        self.outputs = [o.name for o in self.session.get_outputs()]
        self.quiet = onnxruntime.RunOptions()
        self.quiet.log_severity_level = SILENT
        for value in (*self.session.get_inputs(), *self.session.get_outputs()):
            if value.type == "tensor(bfloat16)":
                raise UnavailableError("its Python interface takes and gives no arrays of bf16")

    def run(self, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        found = self.session.run(None, dict(zip(self.inputs, operands, strict=True)), self.quiet)
        return [np.asarray(x) for x in found]

    def bound(self, operands: Sequence[np.ndarray], output: int, result: np.ndarray) -> Callable[[], object] | None:
        if not result.size or any(not x.size for x in operands):
            return None
        binding = self.session.io_binding()
        for name, x in zip(self.inputs, operands, strict=True):
            binding.bind_input(name, "cpu", 0, x.dtype.type, x.shape, x.ctypes.data)
        place = result.ctypes.data
        binding.bind_output(self.outputs[output], "cpu", 0, result.dtype.type, result.shape, place)
        held = (*operands, result)  # the binding knows addresses only

        def call() -> object:
            self.session.run_with_iobinding(binding, self.quiet)
            return held

        return call


class _Reference:
    def __init__(self, model: bytes) -> None:
        import onnx
        from onnx.reference import ReferenceEvaluator

        proto = onnx.ModelProto.FromString(model)
        self.evaluator: Any = ReferenceEvaluator(proto)
        self.inputs = [i.name for i in proto.graph.input]

    def run(self, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.asarray(x) for x in self.evaluator.run(None, dict(zip(self.inputs, operands, strict=True)))]

    def bound(self, operands: Sequence[np.ndarray], output: int, result: np.ndarray) -> Callable[[], object] | None:
        return None


@lru_cache(maxsize=512)
def prepared(model: bytes, runner: str, threads: int | None = None) -> Prepared:
    """`model` loaded by `runner`. Equal models are loaded once.

    Raises UnavailableError where the runner is not installed, and whatever the runner does about the model."""
    if runner not in available():
        raise UnavailableError(f"{runner} is not installed, which a custom operator of this model was opened with")
    return _OnnxRuntime(model, threads) if runner == "onnxruntime" else _Reference(model)


class Evaluation:
    """The outputs of one model for one list of operands, which several launches share."""

    def __init__(self, name: str, runner: str, model: bytes, threads: int | None) -> None:
        """`name` is what errors call it. Raises WorkbenchError where the model cannot be loaded."""
        self.name, self.runner = name, runner
        self.model: Prepared = self._told(lambda: prepared(model, runner, threads))
        self.results: list[np.ndarray] = []

    def run(self, operands: Sequence[np.ndarray]) -> None:
        """Compute the outputs anew. Raises WorkbenchError."""
        self.results = self._told(lambda: self.model.run(operands))

    def output(self, output: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An output of the last run. Raises WorkbenchError where its shape or dtype is not what it was to be."""
        result = self.results[output]
        if result.shape != shape or result.dtype != dtype:
            raise WorkbenchError(
                f"{self.name} gave {list(result.shape)} of {result.dtype}, not {list(shape)} of {dtype}"
            )
        return result

    def bound(self, operands: Sequence[np.ndarray], output: int, result: np.ndarray) -> Callable[[], object] | None:
        """As `Prepared.bound`; the call raises WorkbenchError."""
        call = self._told(lambda: self.model.bound(operands, output, result))
        return None if call is None else lambda: self._told(call)

    def _told[T](self, compute: Callable[[], T]) -> T:
        try:
            return compute()
        except WorkbenchError:
            raise
        except Exception as problem:  # both runners raise all kinds
            said = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
            raise WorkbenchError(f"{self.name} failed in {self.runner}: {printable(said, 300)}") from problem


def run_opaque(spec: CustomOpSpec, operands: Sequence[np.ndarray]) -> np.ndarray:
    """The value of a custom operator. Raises WorkbenchError where it cannot be run or fails."""
    evaluation = Evaluation(f"custom operator '{printable(spec.name)}'", spec.runner, spec.model, None)
    evaluation.run([np.asarray(x, order="C") for x in operands])
    return evaluation.results[spec.output]
