"""A subgraph as the operators of control flow see it: something to call with values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench.frontend.values import Value


@dataclass(frozen=True, slots=True)
class Body:
    """`run` lowers the subgraph once more with these values as its inputs, and gives its outputs."""

    inputs: int
    outputs: int
    run: Callable[[Sequence[Value | None]], tuple[Value | None, ...]]

    def __call__(self, *values: Value | None) -> tuple[Value | None, ...]:
        """The outputs for `values`.

        Raises ModelError when there are more or fewer of them than the subgraph has inputs."""
        if len(values) != self.inputs:
            raise ValueError(f"a subgraph of {self.inputs} inputs is given {len(values)}")
        return self.run(values)
