"""What opening an e-class costs in the explorer, on an e-graph of some 50,000 e-nodes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

from benchmarks.measure import Bound, Row, benchmark, in_fresh_python

OPEN = """
import json, sys, time
from pathlib import Path
from statistics import median
from workbench.frontend import demo
from workbench.session import events as ev
from workbench.session.explorer import Explorer
from workbench.session.leading import keep_leading
from workbench.session.session import CompileSession

folder = Path(sys.argv[1])
demo.LAYERS = 145
model = demo.write_demo(folder / "deep.onnx")
session = CompileSession(str(model), breaks="none", session=str(folder / "s"), random_weights=True, target="cpu")
with session:
    session.import_model()
    session.split()
    session.saturate()
    group, saturated = session.groups[0], session.saturated[0]
    keep_leading(session, group, tuple(0 for _ in saturated.space.genes), 0, 1.0)
    explorer = Explorer(session.store, lambda: session.view)
    began = time.perf_counter()
    root = explorer.page(ev.Explore(limit=100))
    first = time.perf_counter() - began
    classes = range(0, root.egraph_classes, max(1, root.egraph_classes // 400))
    users_of = explorer._egraph(session.view, group).index.users
    by_users = sorted(range(root.egraph_classes), key=lambda c: -len(users_of(c)))
    asked = [ev.Explore(group=0, eclass=c) for c in classes]
    asked += [ev.Explore(group=0, eclass=c, about=about) for c in by_users[:10] for about in ("class", "users")]
    taken = []
    for question in asked:
        tries = []
        for _ in range(3):
            began = time.perf_counter()
            page = explorer.page(question)
            tries.append(time.perf_counter() - began)
        taken.append(tries)
print(json.dumps({
    "nodes": root.egraph_nodes, "first": first, "classes": len(asked),
    "slowest": max(median(tries) for tries in taken), "unseen": max(tries[0] for tries in taken),
}))
"""


@benchmark
def explorer_open() -> Iterator[Row]:
    """Opening an e-class, the slowest of some 400 all over the e-graph and of the ten that are used most: the first
    time and again. The e-graph is in memory; reading it and making its index is recorded apart."""
    with tempfile.TemporaryDirectory() as folder:
        taken = in_fresh_python(OPEN, folder)
    said = f"the slowest of {taken['classes']} pages, {taken['nodes']:,} e-nodes"
    yield Row("explorer_open", taken["unseen"] * 1e3, "ms", peer_name=said, bound=Bound("ours", 50))
    yield Row("explorer_open_again", taken["slowest"] * 1e3, "ms", peer_name=said, bound=Bound("ours", 50))
    yield Row("explorer_first_page", taken["first"] * 1e3, "ms", peer_name="read, index, space, best, page")
