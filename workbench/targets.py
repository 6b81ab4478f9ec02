"""The targets that programs are compiled for."""

from __future__ import annotations

TARGETS = ("cpu", "cuda")
CHOICES = ("auto", *TARGETS)
"""What `--target` takes."""


def resolved(choice: str) -> str:
    """The target that a choice stands for: `auto` is the one that this version has kernels for."""
    return "cpu" if choice == "auto" else choice
