"""Every file of operators, imported for the rows they add to the table."""

from workbench.frontend import (
    attention,
    comparison,
    constants,
    contraction,
    convolution,
    elementwise,
    indexing,
    movement,
    normalization,
    reduction,
    resizing,
)

__all__ = [
    "attention",
    "comparison",
    "constants",
    "contraction",
    "convolution",
    "elementwise",
    "indexing",
    "movement",
    "normalization",
    "reduction",
    "resizing",
]
