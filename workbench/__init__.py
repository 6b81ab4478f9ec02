"""luminal-tui: a terminal workbench for e-graph deep-learning compilers."""

__version__ = "0.1.0"
