"""What the CPU of this machine is, for the devices command and for the keys of cached timings."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from workbench.runtime import arena

SHOWN_FEATURES = ("sse4.2", "avx", "avx2", "fma", "avx512f", "avx512vl", "avx512bf16", "neon", "sve")


def describe_cpu() -> dict[str, object]:
    """name, target, cores, memory (bytes free), features, vector_lanes (of f32), blas, blas_threads, llvm."""
    import llvmlite.binding as llvm
    import numpy as np
    import threadpoolctl

    from workbench.runtime.cpu.jit import host_vectors

    features = llvm.get_host_cpu_features()
    pools = [p for p in threadpoolctl.threadpool_info() if p.get("user_api") == "blas"]
    return {
        "name": cpu_name() or str(llvm.get_host_cpu_name()),
        "target": "cpu",
        "architecture": str(llvm.get_host_cpu_name()),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory": arena.free_memory(),
        "features": [f for f in SHOWN_FEATURES if features.get(f)],
        "vector_lanes": host_vectors().lanes,
        "blas": f"{pools[0]['internal_api']} {pools[0]['version']}" if pools else "none",
        "blas_threads": pools[0]["num_threads"] if pools else 1,
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
        "numpy": np.__version__,
    }


def cpu_name() -> str:
    """The processor's name as its maker writes it, without the marks; empty where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return re.sub(r"\((R|TM)\)", "", name)
