"""Integer matmuls in floats: exact up to the last product that F32 can count, and left alone beyond it."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

import numpy as np
import pytest

from tests.choices import Case, computed, extracted, forced_genomes, kernels_of, saturated
from tests.small_graphs import byte_matmul
from workbench.egraph.saturate import Saturator
from workbench.ir import dtype as dt
from workbench.ir.dtype import DType

RULE = "exact integer matmul in F32"
WIDE = "exact integer matmul in F64"


def sums(case: Case, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What every choice that calls the library makes of the inputs by name."""
    given = {i: values[case.graph[i].label].reshape(-1) for i in case.graph.inputs}
    found = []
    for genome in forced_genomes(case.space, random.Random(0)):
        program = extracted(case, genome)
        if "RmRm" in kernels_of(program):
            found.append(computed(program, given)[0])
    return found


@pytest.mark.parametrize(
    ("left", "right", "k"),
    [(dt.U8, dt.I8, 514), (dt.U8, dt.U8, 258), (dt.I8, dt.I8, 1024)],
    ids=["u8 i8", "u8 u8", "i8 i8"],
)
def test_the_longest_sum_that_floats_count_exactly(saturator: Saturator, left: DType, right: DType, k: int) -> None:
    """Of the largest magnitudes there are, with 1 less in one place, so that a sum beyond 2^24 would show."""
    case = saturated(saturator, byte_matmul(3, 4, k, left, right))
    assert case.matches.get(RULE, 0) == 1
    extremes = {d: (255 if d is dt.U8 else -128) for d in (left, right)}
    x, w = np.full((3, k), extremes[left], left.numpy), np.full((k, 4), extremes[right], right.numpy)
    x[0, 5], w[7, 1] = (254 if d is dt.U8 else -127 for d in (left, right))
    found = sums(case, {"x": x, "w": w})
    assert found
    for each in found:
        np.testing.assert_array_equal(each.reshape(3, 4), x.astype(np.int64) @ w.astype(np.int64))


@pytest.mark.parametrize(("left", "right", "k"), [(dt.U8, dt.I8, 515), (dt.U8, dt.U8, 259), (dt.I8, dt.I8, 1025)])
def test_what_f32_cannot_count_f64_does(saturator: Saturator, left: DType, right: DType, k: int) -> None:
    case = saturated(saturator, byte_matmul(3, 4, k, left, right))
    assert (case.matches.get(RULE, 0), case.matches.get(WIDE, 0)) == (0, 1)
    rng = np.random.default_rng(k)
    x, w = (
        rng.integers(np.iinfo(d.numpy).min, np.iinfo(d.numpy).max, s, d.numpy, endpoint=True)
        for d, s in ((left, (3, k)), (right, (k, 4)))
    )
    x[0], w[:, 0] = np.iinfo(left.numpy).max, np.iinfo(right.numpy).max
    found = sums(case, {"x": x, "w": w})
    assert found
    for each in found:
        np.testing.assert_array_equal(each.reshape(3, 4), x.astype(np.int64) @ w.astype(np.int64))


def test_a_zero_point_makes_differences_of_bytes(saturator: Saturator) -> None:
    """They are below 256 whatever the zero point is, so that layers with other ones have the same program."""
    programs = [saturated(saturator, byte_matmul(3, 4, 200, zero=zero)).program for zero in (1, 128, 255)]
    assert {p.pattern for p in programs} == {programs[0].pattern}
    assert re.findall(r"\(set \(magnitude \$t\d+\) (\d+)\)", programs[0].text) == ["255", "128"]


def test_integers_of_which_nothing_is_known_stay_integers(saturator: Saturator) -> None:
    case = saturated(saturator, byte_matmul(3, 4, 8, left=dt.I32))
    assert case.matches.get(RULE, 0) == 0
    assert "magnitude" not in case.program.text
