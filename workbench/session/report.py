"""The report of a session: the JSON contract of `compile --json`, and the same as text for people."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from workbench.session import events as ev
from workbench.session import growth
from workbench.session.points import point_text
from workbench.session.spec import SessionSpec
from workbench.session.view import PointView, SearchView, SessionView


def build_report(view: SessionView, spec: SessionSpec, session: Path, artifacts: Path) -> dict[str, Any]:
    """The object that `compile --json` prints: that of `run_report`, and what only the running process knows."""
    opened = view.opened
    return {
        **run_report(view),
        "model": spec.model,
        "target": opened.target if opened else spec.target,
        "strategy": spec.strategy,
        "breaks": spec.breaks,
        "peak_rss_mb": round(peak_rss_mb(), 1),
        "session": str(session),
        "artifacts": str(artifacts),
    }


def run_report(view: SessionView) -> dict[str, Any]:
    """What the present run of a session has reached; keys that a stage did not reach are null. In the timeline,
    `earlier` is time in stages that were done again since: by a rerun, or by going on after the process was stopped."""
    opened = view.opened
    timeline = dict(view.timeline)
    if view.earlier:
        timeline["earlier"] = view.earlier
    attributed = sum(timeline.values())
    total = view.now
    report: dict[str, Any] = {
        "model": opened.model if opened else None,
        "target": opened.target if opened else None,
        "seed": view.seed,
        "strategy": opened.strategy if opened else None,
        "breaks": opened.breaks if opened else None,
        "nodes": view.graph.nodes if view.graph else None,
        "chunks": len(view.chunks),
        "dims": view.graph.dims if view.graph else {},
        "groups": [_group(view, g.index) for g in view.groups],
        "timeline": [{"stage": s, "seconds": round(t, 6)} for s, t in timeline.items()],
        "unattributed_seconds": round(max(0.0, total - attributed), 6),
        "total_seconds": round(total, 6),
        **_result(view.verified, view.measured),
    }
    stitched = [point.stitched for point in view.points.values() if point.stitched is not None]
    if stitched and report["dims"]:
        refused = next((each.refused for each in stitched if each.refused), "")
        report["other_dims"] = {"general": all(each.general for each in stitched), "refused": refused}
    if view.graph and view.graph.points:
        report["points"] = [
            {**_point(info.dims, info.ranges), **_result(found.verified, found.measured)}
            for info, found in ((i, view.points.get(place, PointView())) for place, i in enumerate(view.graph.points))
        ]
    return report


def _result(verified: ev.Verified | None, measured: ev.Measured | None) -> dict[str, Any]:
    """The verdict, the latency and the kernels of the whole program; null and empty where they are not known."""
    result: dict[str, Any] = {"verify": None, "latency_ms": None, "kernels": []}
    if verified is not None:
        keys = ("ok", "max_abs_err", "max_rel_err", "tolerance", "reference")
        result["verify"] = {key: getattr(verified, key) for key in keys}
    if measured is not None:
        result["latency_ms"] = {key: getattr(measured, key) for key in ("median", "p20", "p80", "runs", "summed")}
        result["kernels"] = [msgspec.to_builtins(k) for k in measured.kernels]
    return result


def _point(dims: Mapping[str, int], ranges: Mapping[str, tuple[int, int | None]]) -> dict[str, Any]:
    """A point as it is printed: its values, and by dimension the least and the largest value of its runs."""
    return {"dims": dict(dims), "ranges": {name: list(ends) for name, ends in ranges.items()}}


def _group(view: SessionView, index: int) -> dict[str, Any]:
    info = view.groups[index]
    saturation = view.saturation.get(index)
    result = saturation.result if saturation else None
    searches = view.searches.get(index, [])
    group: dict[str, Any] = {
        "representative": info.representative,
        "members": info.members,
        "nodes": info.nodes,
        "digest": info.digest,
        "egraph": None,
        "rules": [],
        "rulesets": [],
        "functions": [],
        "search": None,
    }
    if result:
        group["egraph"] = {
            "classes": result.classes,
            "nodes": result.nodes,
            "seconds": result.seconds,
            "overhead_seconds": result.overhead_seconds,
            "stopped": result.stopped,
            "culprit": msgspec.to_builtins(result.culprit),
            "rules_digest": result.rules_digest,
        }
        spent = sum(r.seconds for r in result.rules) or 1.0
        group["rules"] = [
            {
                "name": r.name,
                "category": r.category,
                "ruleset": r.ruleset,
                "file": r.file,
                "line": r.line,
                "matches": r.matches,
                "seconds": r.seconds,
                "share": r.seconds / spent,
                "enodes": r.enodes,
                "unions": r.unions,
                "first_step": r.first_step,
                "last_step": r.last_step,
                "steps": r.steps,
            }
            for r in result.rules
        ]
        assert saturation is not None
        group["rulesets"] = [asdict(r) for r in growth.ruleset_rows(saturation.steps, result.rules)]
        group["functions"] = [
            {"name": f.name, "rows": f.rows, "first_step": f.first_step, "sizes": growth.changes(f)}
            for f in growth.function_rows(saturation.steps)
        ]
    if searches:
        group["search"] = _search(view, searches[0])
    if len(searches) > 1:
        group["points"] = [{**_point(s.dims, s.ranges), "search": _search(view, s)} for s in searches]
    return group


def _search(view: SessionView, search: SearchView) -> dict[str, Any]:
    return {
        "strategy": view.opened.strategy if view.opened else "",
        "candidates": search.done,
        "profiled": search.done - sum(search.rejected.values()),
        "rejected": search.rejected,
        "first_ms": search.first_ms,
        "best_ms": search.best_ms,
        "choices": search.choices,
        "space_log10": search.space_log10,
        "seconds": search.seconds,
    }


def peak_rss_mb() -> float:
    """The largest resident size so far of this process and of its ended children, in MB."""
    scale = 1e6 if sys.platform == "darwin" else 1e3
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return max(own, children) / scale


def as_text(report: dict[str, Any]) -> str:
    """The report for a person, a screen at most."""
    lines = [
        f"{report['model']}  target {report['target']}  seed {report['seed']}",
        f"  {report['nodes']} primitives in {report['chunks']} chunks, {len(report['groups'])} groups",
        "",
        "  group  members  nodes  e-nodes  rules fired  candidates  rejected   first ms    best ms   gain",
    ]
    for i, g in enumerate(report["groups"]):
        fired = sum(1 for r in g["rules"] if r["matches"])
        lines.append(
            f"  {i:5}  {len(g['members']):7}  {g['nodes']:5}  {g['egraph']['nodes'] if g['egraph'] else 0:7}"
            f"  {fired:4} of {len(g['rules']):3}  {'' if 'points' in g else _search_text(g['search'] or {})}"
        )
        lines += [f"{point_text(p["dims"], p["ranges"]):>45}  {_search_text(p['search'])}" for p in g.get("points", ())]
    verify, latency = report["verify"], report["latency_ms"]
    lines.append("")
    if verify:
        word = "right" if verify["ok"] else "WRONG"
        lines.append(
            f"  {word}: max abs error {verify['max_abs_err']:.3g}, relative {verify['max_rel_err']:.3g}, "
            f"against the {verify['reference']}{_allowed(verify)}"
        )
    if latency and "points" not in report:
        lines.append(
            f"  latency {latency['median']:.4g} ms (p20 {latency['p20']:.4g}, p80 {latency['p80']:.4g}, "
            f"{latency['runs']} runs{', each chunk alone, summed' if latency['summed'] else ''})"
        )
    for point in report.get("points", ()):
        lines.append(f"  {_point_line(point)}")
    if more := report.get("other_dims"):
        how = _one_code(report) if more["general"] else f"each is compiled for ({more['refused']})"
        lines.append(f"  other values of {', '.join(report['dims'])}: {how}")
    stages = "  ".join(f"{t['stage']} {t['seconds']:.2f}" for t in report["timeline"])
    other, total = report["unattributed_seconds"], report["total_seconds"]
    lines.append(f"  seconds: {stages}  other {other:.2f}  total {total:.2f}")
    lines.append(f"  session {report['session']}")
    return "\n".join(lines)


def _allowed(verify: dict[str, Any]) -> str:
    """What the errors may be; reports of earlier versions do not say."""
    return f" (allowed: {verify['tolerance']})" if verify.get("tolerance") else ""


def _search_text(search: Mapping[str, Any]) -> str:
    first, best = search.get("first_ms"), search.get("best_ms")
    gain = f"{first / best:5.2f}x" if first and best else "     -"
    rejected = sum(search.get("rejected", {}).values())
    return f"{search.get('candidates', 0):10}  {rejected:8}  {_ms(first)}  {_ms(best)}  {gain}"


def _point_line(point: Mapping[str, Any]) -> str:
    verify, latency = point["verify"], point["latency_ms"]
    said = [point_text(point["dims"], point["ranges"])]
    if verify:
        said.append(
            f"{'right' if verify['ok'] else 'WRONG'} against the {verify['reference']}, relative error "
            f"{verify['max_rel_err']:.3g}"
        )
    if latency:
        said.append(f"latency {latency['median']:.4g} ms")
    return "  ".join(said)


def _one_code(report: Mapping[str, Any]) -> str:
    return "one code for those that take the same kernels" if "points" in report else "one code for all"


def _ms(value: float | None) -> str:
    return f"{value:9.4f}" if value is not None else "        -"
