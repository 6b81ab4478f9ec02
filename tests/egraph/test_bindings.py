"""egglog's compiled module is imported alone, and the whole package still can be."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEFORE = "import egglog; from workbench.egraph.bindings import bindings"
AFTER = "from workbench.egraph.bindings import bindings; import sys; assert 'black' not in sys.modules; import egglog"
USE = """
assert egglog.EGraph().extract(egglog.i64(1)) is not None
from egglog import bindings as its
assert its is bindings
"""


@pytest.mark.parametrize("imports", [BEFORE, AFTER])
def test_the_whole_package_works_beside_it(imports: str) -> None:
    result = subprocess.run([sys.executable, "-c", imports + USE], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
