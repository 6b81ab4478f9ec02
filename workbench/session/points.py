"""Points: the values of the named dimensions that kernels are searched at, and which of them a run belongs to.

`--dim seq=1,16,128` gives a dimension several values; the points are all combinations of the dimensions' values, and
the first value of each makes the *representative*, which stands for the model wherever one number is shown. A run
belongs to the nearest point: the one whose values are the fewest times larger or smaller, multiplied over the
dimensions. Between two values that is parted at their geometric mean, which itself belongs to the lesser.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from workbench.errors import printable

Dims = Mapping[str, int]
"""Values of named dimensions."""

MOST_POINTS = 16
"""Each point is a search of its own."""


@dataclass(frozen=True, slots=True)
class Points:
    """`values` are those of each named dimension of the graph, the representative's first."""

    values: Mapping[str, tuple[int, ...]]

    @property
    def ranged(self) -> frozenset[str]:
        """The dimensions with more than one value."""
        return frozenset(name for name, values in self.values.items() if len(values) > 1)

    def all(self) -> tuple[dict[str, int], ...]:
        """Every combination, the representative first."""
        return tuple(dict(zip(self.values, chosen, strict=True)) for chosen in itertools.product(*self.values.values()))

    def of(self, names: Iterable[str]) -> Points:
        """Those that differ in the dimensions `names`: the others have their representative value."""
        kept = frozenset(names)
        return Points({name: values if name in kept else values[:1] for name, values in self.values.items()})

    def place_of(self, point: Dims) -> int:
        """The place in `all()` of the point that differs from `point` in no dimension with several values."""
        return self.all().index(
            {name: point[name] if len(values) > 1 else values[0] for name, values in self.values.items()}
        )

    def named(self, point: Dims) -> dict[str, int]:
        """What tells `point` from the others: its values of the dimensions that have several."""
        return {name: value for name, value in point.items() if name in self.ranged}

    def ranges(self, point: Dims) -> dict[str, tuple[int, int | None]]:
        """By dimension with several values, the least and the largest value of the runs that belong to `point`; None
        where there is no largest."""
        found: dict[str, tuple[int, int | None]] = {}
        for name, value in self.named(point).items():
            ordered = sorted(self.values[name])
            place = ordered.index(value)
            least = math.isqrt(ordered[place - 1] * value) + 1 if place else 0
            most = math.isqrt(value * ordered[place + 1]) if place + 1 < len(ordered) else None
            found[name] = least, most
        return found


def by_nearness(points: Sequence[Dims], dims: Dims) -> list[int]:
    """Places in `points`, the one that a run at `dims` belongs to first. An extent of 0 counts as 1; of two that are
    as near, the one of lesser values comes first."""

    def distance(place: int) -> tuple[Fraction, list[int]]:
        times = Fraction(1)
        for name, value in points[place].items():
            low, high = sorted((max(value, 1), max(dims[name], 1)))
            times *= Fraction(high, low)
        return times, [points[place][name] for name in sorted(points[place])]

    return sorted(range(len(points)), key=distance)


def as_text(dims: Dims) -> str:
    """`seq=16 batch=1`."""
    return " ".join(f"{printable(name, 40)}={value}" for name, value in dims.items())


def point_text(dims: Dims, ranges: Mapping[str, Sequence[int | None]]) -> str:
    """`seq=16 (5 to 45)`: the values of a point, and by dimension those of the runs that belong to it."""
    return " ".join(f"{printable(name, 40)}={value}{_range_text(ranges.get(name))}" for name, value in dims.items())


def _range_text(ends: Sequence[int | None] | None) -> str:
    if ends is None:
        return ""
    least, most = ends
    if most is None:
        return f" ({least} and more)"
    return f" (up to {most})" if not least else f" ({least} to {most})"
