"""Whether the whole model can be run here: what its weights take in memory, and what there is."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.ir import layout as lay
from workbench.ir import ops
from workbench.ir.hlir import Graph


@dataclass(frozen=True, slots=True)
class WholeModel:
    """Bytes that the weights of a whole model take, and that may be taken here."""

    needed: int
    allowed: int

    @property
    def fits(self) -> bool:
        """Whether the whole model can be run."""
        return self.needed <= self.allowed

    @property
    def text(self) -> str:
        """Both, for people."""
        return f"the whole model takes {gigabytes(self.needed)} of memory, {gigabytes(self.allowed)} can be had"


def weight_bytes(graph: Graph) -> int:
    """Bytes of all constants, once they are in memory."""
    sizes = (int(str(lay.numel(n.shape))) * n.dtype.itemsize for n in graph if isinstance(n.op, ops.Constant))
    return sum(sizes)


def gigabytes(count: int) -> str:
    """An amount of memory as people read it."""
    return f"{count / 1e9:.1f} GB" if count >= 5e7 else f"{count / 1e6:.1f} MB"
