"""The arena: buffers alive together never overlap, and little is wasted."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workbench.ir import dtype as dt
from workbench.ir.llir import Apply, Buffer, Kernel, Load, MapKernel, Program, axis
from workbench.runtime import get_runtime
from workbench.runtime.arena import ALIGNMENT, Lifetime, lifetimes, memory_limit, peak_live, place
from workbench.runtime.protocol import memory_fits


@st.composite
def needs(draw: st.DrawFn) -> dict[int, Lifetime]:
    found = {}
    for buffer in range(draw(st.integers(0, 30))):
        first = draw(st.integers(0, 20))
        found[buffer] = Lifetime(draw(st.integers(0, 5000)), first, first + draw(st.integers(0, 8)))
    return found


@given(needs())
def test_buffers_alive_together_do_not_overlap(wanted: dict[int, Lifetime]) -> None:
    offsets, total = place(wanted)
    assert offsets.keys() == wanted.keys()
    assert place(wanted) == (offsets, total)
    for buffer, need in wanted.items():
        assert offsets[buffer] % ALIGNMENT == 0
        assert 0 <= offsets[buffer] <= offsets[buffer] + need.nbytes <= total
        for other, theirs in wanted.items():
            together = need.first <= theirs.last and theirs.first <= need.last
            if other != buffer and together and need.nbytes and theirs.nbytes:
                low, high = sorted((buffer, other), key=lambda b: offsets[b])
                assert offsets[low] + wanted[low].nbytes <= offsets[high]
    assert total >= peak_live(wanted)


def chain(length: int, elements: int) -> Program:
    """x -> x+x -> .., each step's value used by the next step and by the one after that."""
    buffers = [Buffer(0, dt.F32, elements, "input", 0)]
    kernels: list[Kernel] = []
    for step in range(1, length + 1):
        role = "output" if step == length else "intermediate"
        buffers.append(Buffer(step, dt.F32, elements, role, step))
        operands = (Load(step - 1, axis(0), dt.F32), Load(max(0, step - 2), axis(0), dt.F32))
        kernels.append(MapKernel(step, (elements,), Apply("Add", operands, dt.F32), (step,)))
    return Program(buffers, kernels, [length])


def test_a_chain_reuses_memory() -> None:
    program = chain(50, 1000)
    assert get_runtime("cpu").estimate_memory(program) == 3 * 4032 == peak_live(lifetimes(program))


def test_transformer_like_graphs_stay_within_a_tenth_of_the_peak() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        wanted: dict[int, Lifetime] = {}
        for layer in range(24):
            hidden, wide, step = 64 * int(rng.integers(8, 64)) * 4, 256 * int(rng.integers(8, 64)) * 4, layer * 10
            for size, first, last in (
                (hidden, 0, 9), (hidden, 1, 4), (wide, 2, 3), (wide, 3, 5), (hidden, 5, 10), (wide, 6, 7), (wide, 7, 9),
            ):  # fmt: skip
                wanted[len(wanted)] = Lifetime(size, step + first, step + last)
        assert place(wanted)[1] <= 1.1 * peak_live(wanted)


def test_outputs_live_to_the_end() -> None:
    program = chain(6, 10)
    early = Program(
        [*program.buffers[:2], Buffer(2, dt.F32, 10, "output", 2), *program.buffers[3:]], program.kernels, [2, 6]
    )
    x = np.arange(10, dtype=np.float32)
    runtime = get_runtime("cpu")
    second, last = runtime.load(runtime.plan(early, {}), {}).run({0: x})
    assert np.array_equal(second, 3 * x)
    assert np.array_equal(last, 21 * x)


def test_a_plan_larger_than_the_machine_does_not_fit() -> None:
    assert memory_limit() > 1 << 20
    runtime = get_runtime("cpu")
    assert memory_fits(runtime, chain(3, 1000)) == (True, 3 * 4032)
    assert not memory_fits(runtime, chain(3, 1 << 50))[0]
