"""LLVM IR text to a callable, once per process and kernel. No IR passes: the text is already vector code."""

from __future__ import annotations

import ctypes
import ctypes.util
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from workbench.errors import WorkbenchError
from workbench.runtime.cpu.functions import LIBM
from workbench.runtime.cpu.render import FUNCTION
from workbench.runtime.cpu.schedule import Vectors

_LOCK = threading.Lock()
_COMPILED: dict[str, Any] = {}
MOST_KEPT = 4096
"""Kernels that stay compiled, some 50 KB each; one in use stays as long as its user."""

_UNIQUE = iter(range(1 << 62))


@cache
def _compiler() -> Any:
    """The process's JIT, for the host's processor at codegen level 2."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2, jit=True
    )
    return llvm.create_lljit_compiler(machine)


@cache
def _libm() -> dict[str, int]:
    """Addresses of the C library's mathematical functions."""
    name = ctypes.util.find_library("m")
    library = ctypes.CDLL(name) if name else ctypes.CDLL(None)
    return {symbol: ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0 for symbol in LIBM}


@cache
def host_vectors() -> Vectors:
    """The vectors worth writing for this processor."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return Vectors(16, 16)
    if features.get("avx2"):
        return Vectors(16, 4)
    return Vectors(4, 8)


def compile_source(key: str, text: str, arguments: int) -> tuple[Callable[..., None], float]:
    """(function of `arguments` addresses, seconds spent compiling: 0 when it was known) for the source `key`.

    Raises WorkbenchError with LLVM's message when the text is not valid."""
    with _LOCK:
        known = _COMPILED.get(key)
        if known is not None:
            _COMPILED[key] = _COMPILED.pop(key)  # the most recently used comes last
            return known, 0.0
        began = time.perf_counter()
        import llvmlite.binding as llvm

        library = llvm.JITLibraryBuilder().add_ir(text).export_symbol(FUNCTION).add_current_process()
        for symbol, address in _libm().items():
            if f"@{symbol}(" in text:
                library.import_symbol(symbol, address)
        try:
            tracker = library.link(_compiler(), f"kernel{next(_UNIQUE)}")
        except RuntimeError as problem:
            raise WorkbenchError(f"LLVM rejected kernel {key}: {str(problem).strip()}") from problem
        function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(tracker[FUNCTION])
        function.tracker = tracker  # type: ignore[attr-defined]  # what keeps the code in memory
        _COMPILED[key] = function
        if len(_COMPILED) > MOST_KEPT:
            del _COMPILED[next(iter(_COMPILED))]
        return function, time.perf_counter() - began
