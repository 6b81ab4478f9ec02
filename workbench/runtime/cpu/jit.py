"""LLVM IR text to a callable, once per process and kernel. No IR passes: the text is already vector code."""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
import threading
import time
from collections.abc import Callable, Mapping
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
_linked = 0


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
    converts_f16 = bool(features.get("f16c")) or platform.machine().lower() in ("aarch64", "arm64")
    if features.get("avx512f"):
        return Vectors(16, 16, converts_f16)
    if features.get("avx2"):
        return Vectors(16, 4, converts_f16)
    return Vectors(4, 8, converts_f16)


def kernels_compiled() -> int:
    """How many kernels this process has compiled so far."""
    return _linked


def compile_sources(sources: Mapping[str, tuple[str, int]]) -> tuple[dict[str, Callable[..., None]], float]:
    """Functions for `sources` (key to text and number of arguments, each an address or a size of 64 bits), and the
    seconds that compiling the new ones took.

    New ones share a module: setting one up costs as much as a small kernel. Raises WorkbenchError with LLVM's message
    for a text that is not valid."""
    with _LOCK:
        began = time.perf_counter()
        new = {key: source for key, source in sources.items() if key not in _COMPILED}
        if len(new) > 1:
            try:
                _link(new)
            except WorkbenchError:
                for key, source in new.items():  # finds which one it was
                    _link({key: source})
        elif new:
            _link(new)
        seconds = time.perf_counter() - began if new else 0.0
        found = {}
        for key in sources:
            found[key] = _COMPILED[key] = _COMPILED.pop(key)  # the most recently used come last
        while len(_COMPILED) > MOST_KEPT:
            del _COMPILED[next(iter(_COMPILED))]
        return found, seconds


def _link(sources: Mapping[str, tuple[str, int]]) -> None:
    import llvmlite.binding as llvm

    names = {key: f"{FUNCTION}{position}" for position, key in enumerate(sources)}
    declared: dict[str, None] = {}
    bodies: list[str] = []
    for key, (text, _) in sources.items():
        for line in text.replace(f"@{FUNCTION}(", f"@{names[key]}(").splitlines():
            if line.startswith("declare "):
                declared[line] = None
            else:
                bodies.append(line)
    module = "\n".join([*declared, *bodies, ""])
    library = llvm.JITLibraryBuilder().add_ir(module).add_current_process()
    for name in names.values():
        library.export_symbol(name)
    for symbol, address in _libm().items():
        if f"@{symbol}(" in module:
            library.import_symbol(symbol, address)
    try:
        tracker = library.link(_compiler(), f"kernels{next(_UNIQUE)}")
    except RuntimeError as problem:
        what = f"kernel {next(iter(sources))}" if len(sources) == 1 else f"{len(sources)} kernels"
        raise WorkbenchError(f"LLVM rejected {what}: {str(problem).strip()}") from problem
    global _linked
    _linked += len(sources)
    for key, (_, arguments) in sources.items():
        function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(tracker[names[key]])
        function.tracker = tracker  # type: ignore[attr-defined]  # what keeps the code in memory
        _COMPILED[key] = function
