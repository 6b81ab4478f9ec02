"""What depends on constants alone is computed once: which kernels that are, and that the rest computes the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from workbench.chunking import Known, parts
from workbench.ir import dtype as dt
from workbench.ir import expr as ex
from workbench.ir import llir
from workbench.ir.llir import Apply, Body, Buffer, Kernel, Load, MapKernel, OpaqueCall, Program, axis
from workbench.runtime import get_runtime

MUCH = 1 << 30
HALVES = np.arange(8).astype(np.float16)


def cast(out: int, of: int) -> MapKernel:
    return MapKernel(out, (8,), Apply("Cast", (Load(of, axis(0), dt.F16),), dt.F32), (out,))


def add(out: int, *of: int, in_place: int | None = None) -> MapKernel:
    body: Body = Load(of[0], axis(0), dt.F32)
    for each in of[1:]:
        body = Apply("Add", (body, Load(each, axis(0), dt.F32)), dt.F32)
    return MapKernel(out, (8,), body, (out,), in_place)


def program(kernels: Sequence[Kernel], output: int) -> Program:
    """Buffers: 0 an input, 1 and 2 constants of halves (one HLIR node), then one per kernel."""
    buffers = [
        Buffer(0, dt.F32, 8, "input", 0), Buffer(1, dt.F16, 8, "constant", 1), Buffer(2, dt.F16, 8, "constant", 1)
    ]  # fmt: skip
    for kernel in kernels:
        role: llir.Role = "output" if kernel.out == output else "intermediate"
        buffers.append(Buffer(kernel.out, dt.F32, 8, role, kernel.out))
    return Program(buffers, list(kernels), [output])


def results(whole: Program, given: np.ndarray) -> list[np.ndarray]:
    """Of the whole program, and of its parts."""
    runtime = get_runtime("cpu")
    constants = {1: HALVES, 2: HALVES}
    found = parts(whole, {}, MUCH)
    once = runtime.load(runtime.plan(found.once, {}), constants).run({})
    made = dict(zip(found.once.outputs, once, strict=True))
    bound = {b.id: constants[b.id] for b in found.rest.buffers if b.id in constants}
    bound |= {buffer: made[other] for buffer, other in found.same.items()}
    return [
        runtime.load(runtime.plan(whole, {}), constants).run({0: given})[0],
        runtime.load(runtime.plan(found.rest, {}), bound).run({0: given})[0],
    ]


def test_a_weight_is_converted_once() -> None:
    whole = program([cast(3, 1), add(4, 3, 3), add(5, 0, 4)], 5)
    found = parts(whole, {}, MUCH)
    assert [kernel.out for kernel in found.once.kernels] == [3, 4]
    assert (found.once.outputs, [kernel.out for kernel in found.rest.kernels]) == ([4], [5])
    assert (found.places, found.nbytes) == ({0, 1}, 32)
    assert found.rest.buffers[4].role == "constant"
    a, b = results(whole, np.full(8, 0.5, np.float32))
    np.testing.assert_array_equal(a, np.arange(8) * 2 + 0.5)
    np.testing.assert_array_equal(a, b)


def test_equal_kernels_over_one_constant_are_one() -> None:
    whole = program([cast(3, 1), cast(4, 2), add(5, 0, 3, 4)], 5)
    found = parts(whole, {}, MUCH)
    assert [kernel.out for kernel in found.once.kernels] == [3]
    assert found.same == {3: 3, 4: 3}
    a, b = results(whole, np.ones(8, np.float32))
    np.testing.assert_array_equal(a, b)


def test_what_another_program_computes_too_has_the_same_number() -> None:
    known: Known = {}
    first = parts(program([cast(3, 1), add(4, 0, 3)], 4), known, MUCH)
    second = parts(program([add(3, 0, 0), cast(4, 2), add(5, 3, 4)], 5), known, MUCH)
    assert list(first.number.values()) == list(second.number.values())


def test_what_takes_too_much_memory_stays() -> None:
    whole = program([cast(3, 1), add(4, 0, 3)], 4)
    assert parts(whole, {}, 31).rest is whole
    assert parts(whole, {}, 32).rest.kernels == [whole.kernels[1]]


@pytest.mark.parametrize(
    ("kernels", "why"),
    [
        ([add(3, 0), add(4, 3)], "it depends on an input"),
        ([cast(3, 1), add(4, 3, in_place=3), add(5, 0, 4)], "its result is overwritten"),
        ([OpaqueCall(3, (8,), (1,), ((8,),), 0, (3,)), add(4, 0, 3)], "nothing is known of a custom operator"),
        ([cast(3, 1)], "it is an output"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_kernels_run_every_time(kernels: list[Kernel], why: str) -> None:
    whole = program(kernels, kernels[-1].out)
    assert parts(whole, {}, MUCH).rest is whole, why


def test_what_depends_on_a_named_dimension_runs_every_time() -> None:
    n = ex.var("n")
    table = MapKernel(3, (n,), llir.Position(axis(0), dt.F32), (3,))
    user = MapKernel(4, (n,), Apply("Add", (Load(0, axis(0), dt.F32), Load(3, axis(0), dt.F32)), dt.F32), (4,))
    whole = program([table, user], 4)
    whole.buffers = [Buffer(b.id, b.dtype, n, b.role, b.source) for b in whole.buffers]
    assert parts(whole, {}, MUCH).rest is whole
