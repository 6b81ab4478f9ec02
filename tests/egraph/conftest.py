"""One saturation child a target for all tests of the e-graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from workbench.egraph.rules import read_library
from workbench.egraph.saturate import Saturator


@pytest.fixture(scope="session")
def saturator() -> Iterator[Saturator]:
    """The library as it ships, for the cpu."""
    with Saturator(read_library()) as it:
        yield it


@pytest.fixture(scope="session")
def cuda() -> Iterator[Saturator]:
    """The same for cuda."""
    with Saturator(read_library(target="cuda")) as it:
        yield it
