"""A made-up session on a llama-like model, event by event, and a client that plays it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from workbench.errors import SessionError
from workbench.session import events as ev
from workbench.session.eclass import EClassPage

GROUPS = ((0, [0]), (1, [1, 3, 5]), (2, [2, 4, 6]), (3, [7, 8]))
NODES = {0: 34, 1: 96, 2: 71, 3: 52}
LIMIT = 60
OPS = ("Mul", "Add", "SumReduce", "Recip", "Sqrt", "Exp2", "MaxReduce", "Cast", "Gather", "Constant", "Input")
RULES = (
    ("flatten-batch-left", "Reshape", "flatten", "egg/flatten/batch.egg"),
    ("flatten-batch-right", "Reshape", "flatten", "egg/flatten/batch.egg"),
    ("flatten-heads", "Reshape", "flatten", "egg/flatten/heads.egg"),
    ("merge-unit-axis", "Reshape", "flatten", "egg/flatten/units.egg"),
    ("merge-contiguous", "Reshape", "flatten", "egg/flatten/merge.egg"),
    ("cublas-sgemm-nn", "cuBLAS", "blas", "egg/blas/sgemm.egg"),
    ("cublas-sgemm-nt", "cuBLAS", "blas", "egg/blas/sgemm.egg"),
    ("cublas-sgemm-tn", "cuBLAS", "blas", "egg/blas/sgemm.egg"),
    ("cublaslt-row-row", "cuBLAS", "blas", "egg/blas/lt.egg"),
    ("cublaslt-row-col", "cuBLAS", "blas", "egg/blas/lt.egg"),
    ("cublaslt-bias-gelu", "cuBLAS", "blas", "egg/blas/lt.egg"),
    ("lower-map", "Lower", "lower", "egg/lower.egg"),
    ("lower-gather", "Lower", "lower", "egg/lower.egg"),
    ("lower-reduce", "Lower", "lower", "egg/lower.egg"),
    ("lower-matmul", "Lower", "lower", "egg/lower.egg"),
    ("place-inline-map", "Fuse", "fuse", "egg/fuse.egg"),
    ("place-inline-gather", "Fuse", "fuse", "egg/fuse.egg"),
    ("place-row-softmax", "Fuse", "fuse", "egg/fuse.egg"),
    ("place-row-rmsnorm", "Fuse", "fuse", "egg/fuse.egg"),
    ("place-row-layernorm", "Fuse", "fuse", "egg/fuse.egg"),
    ("expr-add-zero", "Other", "expr", "egg/expression.egg"),
    ("expr-mul-one", "Other", "expr", "egg/expression.egg"),
    ("expr-div-of-mul", "Other", "expr", "egg/expression.egg"),
    ("dtype-of-binary", "Other", "dtype", "egg/dtype.egg"),
    ("dtype-of-cast", "Other", "dtype", "egg/dtype.egg"),
)
NEVER = {"cublas-sgemm-tn", "cublaslt-bias-gelu", "place-row-layernorm", "merge-unit-axis", "expr-div-of-mul"}
REASONS = ("does not fit memory", "numerically wrong", "kernel failed to compile", "no kernel for a choice")


def node_rows(chunk: int) -> list[ev.NodeRow]:
    """The nodes of a chunk of the made-up model."""
    group = next(index for index, members in GROUPS if chunk in members)
    rng = random.Random(group)
    rows = []
    for place in range(NODES[group]):
        node = chunk * 200 + place
        name = rng.choice(OPS)
        shape = rng.choice(("[1, 16, 2048]", "[1, 16, 8192]", "[32, 16, 16]", "[1, s, 2048]", "[16]"))
        operands = [(max(0, node - step), "[z*2048, z]") for step in range(1, 1 + (name in ("Mul", "Add")) + 1)]
        rows.append(
            ev.NodeRow(
                id=node,
                name=name,
                shape=shape,
                dtype="f32" if place % 7 else "i32",
                label=f"/model/layers.{chunk}/{name.lower()}_{place}",
                operands=[] if name in ("Input", "Constant") else operands,
                line=4 + place,
                is_break=place == NODES[group] - 1,
            )
        )
    return rows


def program(chunk: int) -> str:
    """The egglog text of a chunk; the line of a node is the one that its row says."""
    lines = [f"; chunk {chunk} of llama", '(include "base.egg")', "(ruleset lower)"]
    for row in node_rows(chunk):
        if row.operands:
            sources = " ".join(f"n{source} (MMul (MIter) (MNum 2048))" for source, _ in row.operands)
            lines.append(f'(let n{row.id} ({row.name} (ECons (MNum 16) (MVar "s")) {sources} (F32)))')
        else:
            lines.append(f'(let n{row.id} ({row.name} {row.id} "{row.label}" (F32)))')
    lines.append("(run-schedule (saturate expr dtype) (repeat 8 flatten lower blas fuse))")
    return "\n".join(lines) + "\n"


def rule_rows(group: int) -> list[ev.RuleRow]:
    """Statistics of every rule in one group."""
    rng = random.Random(100 + group)
    rows = []
    for line, (name, category, ruleset, file) in enumerate(RULES, 1):
        steps = [0] * 8 if name in NEVER else [rng.randrange(1, 60) * (8 - step) for step in range(8)]
        seconds = 0.00006 * line if name in NEVER else rng.random() ** 3 * 0.09 + 0.00004
        fired = None if name in NEVER else (2, 9 + line)
        made = sum(steps) // 3
        rows.append(
            ev.RuleRow(
                name, category, ruleset, file, 7 * line, sum(steps), seconds, steps,
                fired and fired[0], fired and fired[1], made, made // 2,
            )
        )
    return rows


def imported() -> list[ev.AnyEvent]:
    """From the opening to the groups."""
    chunks = [
        ev.ChunkInfo(chunk, NODES[group], [], [], f"/model/layers.{chunk - 1}/add" if chunk else "")
        for chunk in range(9)
        for group, members in GROUPS
        if chunk in members
    ]
    return [
        ev.SessionOpened(
            model="/models/llama-3.2-1b.onnx",
            target="cuda",
            strategy="evolve",
            seed=7,
            limit=LIMIT,
            breaks="auto",
            pid=4242,
            device="H200",
        ),
        ev.StageStarted(stage="import", at=0.1),
        ev.LogLine(level="INFO", module="frontend", message="imported 812 ONNX nodes", at=0.6),
        ev.GraphImported(
            nodes=641,
            onnx_nodes=812,
            inputs=[("input_ids", "[1, s]", "i64")],
            outputs=[("logits", "[1, s, 128256]", "f32")],
            parameters=1_235_814_400,
            dims={"s": 16},
            at=0.7,
        ),
        ev.StageFinished(stage="import", seconds=0.6, at=0.7),
        ev.StageStarted(stage="split", at=0.7),
        ev.ChunksSplit(chunks=chunks, breaks=[200 * chunk + 33 for chunk in range(8)], mode="auto", at=0.8),
        ev.GroupsFormed(
            groups=[ev.GroupInfo(i, members[0], list(members), NODES[i], f"d{i}") for i, members in GROUPS],
            at=0.9,
        ),
        ev.StageFinished(stage="split", seconds=0.2, at=0.9),
    ]


def saturated() -> list[ev.AnyEvent]:
    """The saturation of all groups."""
    out: list[ev.AnyEvent] = [ev.StageStarted(stage="saturate", at=1.0)]
    for group, _ in GROUPS:
        rules = rule_rows(group)
        for step in range(8):
            out.append(
                ev.SaturationStep(
                    group=group,
                    step=step,
                    ruleset="lower",
                    seconds=0.01,
                    matches=sum(rule.steps[step] for rule in rules),
                    nodes=400 * (step + 1) + 37 * group,
                    added=400,
                    sizes={"Map": 90 * (step + 1), "Load": 200} if not step else {"Map": 90 * (step + 1)},
                    at=1.0 + group * 0.5 + step * 0.05,
                )
            )
        out.append(
            ev.GroupSaturated(
                group=group,
                classes=1400 + 90 * group,
                nodes=3200 + 911 * group,
                seconds=0.4,
                overhead_seconds=0.02,
                rules=rules,
                stopped="node limit" if group == 3 else "",
                at=1.5 + group * 0.5,
            )
        )
        out.append(ev.StageProgress(stage="saturate", done=group + 1, total=len(GROUPS), at=1.5 + group * 0.5))
    out.append(ev.StageFinished(stage="saturate", seconds=2.2, at=3.2))
    return out


def searched(groups: int = len(GROUPS), last: int = LIMIT) -> list[ev.AnyEvent]:
    """The search of the first `groups` groups, of the last of them only `last` candidates."""
    out: list[ev.AnyEvent] = [ev.StageStarted(stage="search", at=3.3)]
    at = 3.3
    for group, members in GROUPS[:groups]:
        rng = random.Random(17 + group)
        choices = 40 + 6 * group
        out.append(
            ev.SearchStarted(group=group, limit=LIMIT, choices=choices, space_log10=12.3, members=len(members), at=at)
        )
        first = best = 0.0
        rejected: dict[str, int] = {}
        until = last if group == GROUPS[groups - 1][0] else LIMIT
        for index in range(until):
            at += 0.08
            reason = rng.choice(REASONS) if index and rng.random() < 0.28 else ""
            ms = None if reason else (2.4 + group) * (0.45 + 0.55 * 0.94**index) * rng.uniform(1.0, 1.5)
            if reason:
                rejected[reason] = rejected.get(reason, 0) + 1
            out.append(
                ev.CandidateEvaluated(
                    group=group,
                    index=index,
                    genome=f"g{index:04x}",
                    parent="",
                    generation=index // 12,
                    step="verify" if reason else "profile",
                    reason=reason,
                    ms=ms,
                    at=at,
                )
            )
            if ms is not None and (not best or ms < best):
                first, best = first or ms, ms
                out.append(ev.BestImproved(group=group, index=index, ms=ms, first_ms=first, at=at))
        if until == LIMIT:
            out.append(
                ev.SearchFinished(
                    group=group,
                    candidates=LIMIT,
                    profiled=LIMIT - sum(rejected.values()),
                    rejected=rejected,
                    first_ms=first,
                    best_ms=best,
                    seconds=4.8,
                    at=at,
                )
            )
    if groups == len(GROUPS) and last == LIMIT:
        out.append(ev.StageFinished(stage="search", seconds=at - 3.3, at=at))
    return out


def finished() -> list[ev.AnyEvent]:
    """From the stitching to the end."""
    kernels = [
        ev.KernelRow("cublaslt_row_col_2048x8192", 7, 3.912, 18203.4, 1210.5),
        ev.KernelRow("row_softmax_16x16", 6, 0.611, 41.2, 802.1),
        ev.KernelRow("row_rmsnorm_2048", 13, 0.402, 22.8, 911.7),
        ev.KernelRow("map_silu_mul_8192", 6, 0.208, 12.0, 1630.0),
    ]
    return [
        ev.StageStarted(stage="stitch", at=23.0),
        ev.Stitched(kernels=32, buffers=41, arena_bytes=18_350_080, at=23.1),
        ev.StageStarted(stage="verify", at=23.2),
        ev.Verified(ok=True, max_abs_err=2.4e-6, max_rel_err=1.1e-6, reference="interpreter", at=24.0),
        ev.Measured(median=5.133, p20=5.101, p80=5.240, runs=100, kernels=kernels, at=24.5),
        ev.SessionFinished(ok=True, seconds=24.6, report="report.json", at=24.6),
    ]


def whole() -> list[ev.AnyEvent]:
    """A session from beginning to end."""
    return [*imported(), *saturated(), *searched(), *finished()]


def under_way() -> list[ev.AnyEvent]:
    """A session in the middle of the search of its second group."""
    return [*imported(), *saturated(), *searched(2, 41)]


@dataclass
class FakeClient:
    """Plays events; more can be put while it runs. `live`: the stream stays open after them."""

    past: list[ev.AnyEvent]
    directory: Path = Path("/nonexistent/llama-7f3a")
    read_only: bool = False
    live: bool = True
    rows: dict[int, list[ev.NodeRow]] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    sent: list[ev.AnyCommand] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    closed: bool = False
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.more: asyncio.Queue[ev.AnyEvent | None] = asyncio.Queue()

    async def events(self) -> AsyncIterator[ev.AnyEvent]:
        for event in self.past:
            yield event
        while self.live:
            event = await self.more.get()
            if event is None:
                return
            yield event

    async def send(self, command: ev.AnyCommand) -> None:
        if self.error is not None:
            raise self.error
        self.sent.append(command)

    async def explore(self, question: ev.Explore) -> EClassPage:
        raise SessionError("a made-up session has no e-graph")

    def program(self, chunk: int) -> str:
        return self.texts[chunk] if chunk in self.texts else program(chunk)

    def node_rows(self, chunk: int) -> list[ev.NodeRow]:
        self.asked.append(chunk)
        return self.rows[chunk] if chunk in self.rows else node_rows(chunk)

    def rule_path(self, file: str, rule: str = "") -> Path | None:
        return self.paths.get(file)

    async def close(self) -> None:
        self.closed = True
