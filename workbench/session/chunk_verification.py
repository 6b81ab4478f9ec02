"""Verification chunk by chunk, where the whole model does not fit into memory: each group's best, run on values that
its search did not see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from loguru import logger

from workbench.runtime.compare import Tolerance
from workbench.runtime.protocol import Profile, ProfileOptions, Rejection
from workbench.search.extract import extract
from workbench.session import events as ev
from workbench.session.chunk_values import made_up_values
from workbench.session.search_stage import on_device
from workbench.session.verification import LARGEST

if TYPE_CHECKING:
    from workbench.chunking import Group
    from workbench.session.session import CompileSession

KERNEL_RUNS = 5
_OTHER_VALUES = 1 << 32
"""What is added to the session's seed: searches use those below."""


def verify_chunks(session: CompileSession, dims: Mapping[str, int]) -> Iterator[ev.Verified | ev.Measured]:
    """Each group's best for `dims` on its representative, against the interpreter; then the latency of the model, as
    the sum over its chunks. Raises Stopped when cancelled."""
    found: dict[int, Profile] = {}
    wrong: list[str] = []
    allowed: list[Tolerance] = []
    for g in session.groups:
        session.checkpoint()
        answer, tolerances = _evaluated(session, g, dims)
        allowed += tolerances
        if isinstance(answer, Profile):
            found[g.index] = answer
        else:
            wrong.append(f"group {g.index}: {answer.reason} ({answer.detail})")
            logger.error("{}", wrong[-1])
    compared = f"interpreter, one chunk of each group ({session.whole.text})"
    yield ev.Verified(
        ok=not wrong,
        max_abs_err=LARGEST if wrong else max(p.max_abs_err for p in found.values()),
        max_rel_err=LARGEST if wrong else max(p.max_rel_err for p in found.values()),
        reference=compared if not wrong else f"{compared}: {wrong[0]}",
        tolerance=str(max(allowed, key=lambda t: (t.atol_scale, t.undecided))),
    )
    yield _summed(session, found)


def _evaluated(
    session: CompileSession, group: Group, dims: Mapping[str, int]
) -> tuple[Profile | Rejection, list[Tolerance]]:
    chunk = session.chunks[group.representative]
    values = made_up_values(session.graph, chunk, dims, session.spec.seed + _OTHER_VALUES, session.checkpoint)
    best = session.best[group.index][session.points_of(group).place_of(dims)]
    with on_device(session, group, dims, values) as evaluator:
        plan = evaluator.plan(extract(session.saturated[group.index].space, best.genome, dims))
        return evaluator.evaluate(plan, ProfileOptions(), KERNEL_RUNS), evaluator.tolerances


def _summed(session: CompileSession, found: Mapping[int, Profile]) -> ev.Measured:
    rows: dict[str, tuple[int, float, int, int]] = {}
    measured = [(found[g.index], len(g.members)) for g in session.groups if g.index in found]
    for profile, times in measured:
        for name, calls, ms, flops, size in profile.kernels:
            before = rows.get(name, (0, 0.0, 0, 0))
            here = (calls * times, ms * times, flops * times, size * times)
            rows[name] = (before[0] + here[0], before[1] + here[1], before[2] + here[2], before[3] + here[3])
    return ev.Measured(
        median=sum(p.median_ms * n for p, n in measured),
        p20=sum(p.p20_ms * n for p, n in measured),
        p80=sum(p.p80_ms * n for p, n in measured),
        runs=min((p.runs for p, _ in measured), default=0),
        kernels=[
            ev.KernelRow(name, calls, ms, flops / max(ms, 1e-9) / 1e6, size / max(ms, 1e-9) / 1e6)
            for name, (calls, ms, flops, size) in rows.items()
        ],
        summed=True,
    )
