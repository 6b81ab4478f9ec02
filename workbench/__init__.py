"""luminal-tui: a terminal workbench for e-graph deep-learning compilers.

`compile_onnx(path)` gives an Executable; `CompileSession` gives each stage on its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.session.executable import Executable
    from workbench.session.session import CompileSession

__version__ = "0.1.0"
__all__ = ["CompileSession", "Executable", "__version__", "compile_onnx"]

_LATE = {"CompileSession": "workbench.session.session", "Executable": "workbench.session.executable"}


def __getattr__(name: str) -> Any:
    """Imported on first use, so that the command starts fast."""
    if name in _LATE:
        from importlib import import_module

        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module 'workbench' has no attribute '{name}'")


def compile_onnx(model: str, **options: Any) -> Executable:
    """Compile an ONNX file (or `demo`) and return the verified Executable.

    `options` are the fields of `workbench.session.spec.SessionSpec`: target, limit, seed, strategy, breaks, dims, ...
    Raises WorkbenchError: bad input, nothing viable, or a result that is not right."""
    from workbench.session.session import CompileSession

    with CompileSession(model, **options) as session:
        return session.run()
