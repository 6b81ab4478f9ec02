"""egglog's compiled module, without the rest of the package: that takes half a second to import and is not used."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any


def _compiled() -> Any:
    """`egglog.bindings`, with no `egglog` left behind, so that a later `import egglog` gets the whole package."""
    if "egglog" in sys.modules:
        return importlib.import_module("egglog.bindings")
    spec = importlib.util.find_spec("egglog")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("the package egglog is not installed", name="egglog")
    package = ModuleType("egglog")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["egglog"] = package
    try:
        return importlib.import_module("egglog.bindings")
    finally:
        del sys.modules["egglog"]


bindings: Any = _compiled()
"""Commands are looked at by kind; the stubs' unions only stand in the way."""
