"""The ONNX frontend: a model file in, HLIR out. Importing this package does not import onnx."""

from __future__ import annotations

from workbench.frontend.coverage import Coverage, OperatorUse, coverage
from workbench.frontend.importer import Imported, import_model
from workbench.frontend.registry import supported_operators

__all__ = [
    "Coverage",
    "Imported",
    "OperatorUse",
    "coverage",
    "import_model",
    "supported_operators",
]
