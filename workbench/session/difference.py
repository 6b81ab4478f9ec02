"""What differs between two runs, of one session or of two: rules, groups, search, kernels, time, result.

Reports are those of `run_report`. Everything is `before` and `after`; `ratio` is after over before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

COUNTED = ("matches", "enodes", "seconds")
"""Numbers of a rule that are compared, where both reports have them."""
SLOWER, LEAST_SECONDS = 1.5, 0.001
"""A rule's time counts as changed from this factor and this difference on; below it is the noise of the clock."""


class Pair(msgspec.Struct, frozen=True):
    """One number on both sides; None where a side does not have it."""

    before: float | None
    after: float | None
    ratio: float | None = None

    @property
    def same(self) -> bool:
        """Whether both sides have the same number, or none."""
        return self.before == self.after


def pair(before: float | None, after: float | None) -> Pair:
    """Two numbers and their ratio, where there is one."""
    return Pair(before, after, after / before if before and after is not None else None)


class RuleDifference(msgspec.Struct, frozen=True):
    """A rule, summed over groups. `change` is added, removed, matches (or the e-nodes it made), time, or same. The
    place is where it is now, or was. `numbers` are by the names of COUNTED, seconds in seconds."""

    name: str
    category: str
    ruleset: str
    file: str
    line: int
    change: str
    numbers: dict[str, Pair]


class GroupDifference(msgspec.Struct, frozen=True):
    """A group: its index on either side, and what it was `matched_by` (program: the same one; representative: the same
    chunk; '': there is none on the other side)."""

    before: int | None
    after: int | None
    matched_by: str
    numbers: dict[str, Pair]
    """members, hlir_nodes, classes, enodes, seconds; candidates, profiled, first_ms, best_ms of the search"""
    rejected: dict[str, Pair]
    stopped: tuple[str, str] = ("", "")


class KernelDifference(msgspec.Struct, frozen=True):
    """A kernel of the whole program: how often it is called, and its total time in one run, in ms."""

    name: str
    calls: Pair
    ms: Pair


class Option(msgspec.Struct, frozen=True):
    """An option that is not the same on both sides."""

    name: str
    before: Any
    after: Any


class Difference(msgspec.Struct, frozen=True):
    """All of it. `before` and `after` say what is compared."""

    before: dict[str, Any]
    after: dict[str, Any]
    options: list[Option]
    rules: list[RuleDifference]
    groups: list[GroupDifference]
    kernels: list[KernelDifference]
    timeline: dict[str, Pair]
    verify: dict[str, Any]
    latency_ms: dict[str, Pair]
    not_compared: list[str]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared: what it is called, its report, and the options it was run with."""

    name: str
    report: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    status: str = ""


def compare(before: Side, after: Side) -> Difference:
    """What differs from one run to the other."""
    old, new = before.report, after.report
    matched = match_groups(old["groups"], new["groups"], same_model=old["model"] == new["model"])
    return Difference(
        before=_described(before),
        after=_described(after),
        options=[
            Option(name, before.options.get(name), after.options.get(name))
            for name in dict.fromkeys((*before.options, *after.options))
            if before.options.get(name) != after.options.get(name)
        ],
        rules=rule_differences(_rules_of(old), _rules_of(new)),
        groups=[_group(i, j, how, old["groups"], new["groups"]) for i, j, how in matched],
        kernels=_kernels(old["kernels"], new["kernels"]),
        timeline=_timeline(old, new),
        verify={
            "before": old["verify"],
            "after": new["verify"],
            **{k: pair(_get(old, "verify", k), _get(new, "verify", k)) for k in ("max_abs_err", "max_rel_err")},
        },
        latency_ms={k: pair(_get(old, "latency_ms", k), _get(new, "latency_ms", k)) for k in ("median", "p20", "p80")},
        not_compared=_not_compared(before, after, matched),
    )


def _described(side: Side) -> dict[str, Any]:
    kept = ("model", "target", "seed", "strategy", "nodes", "chunks", "total_seconds")
    return {"name": side.name, "status": side.status, **{key: side.report.get(key) for key in kept}}


def _get(report: Mapping[str, Any] | None, *keys: str) -> Any:
    """A value some levels down; None where a level is not there."""
    found: Any = report
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _rules_of(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [rule for group in report["groups"] for rule in group.get("rules") or ()]


def rule_differences(
    before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]
) -> list[RuleDifference]:
    """Rules by name, those of several groups summed: added and removed first, then by how much their matches changed,
    then by time, then the rest by name."""
    old, new = _summed(before), _summed(after)
    _rename_anonymous(old, new)
    found = []
    for key in dict.fromkeys((*new, *old)):
        was, now = old.get(key), new.get(key)
        stands = now or was
        assert stands is not None
        numbers = {
            name: pair(was.get(name) if was else None, now.get(name) if now else None)
            for name in COUNTED
            if any(side is not None and side.get(name) is not None for side in (was, now))
        }
        found.append(
            RuleDifference(
                name=stands["name"],
                category=stands["category"],
                ruleset=stands["ruleset"],
                file=stands["file"],
                line=stands["line"],
                change="added" if was is None else "removed" if now is None else _change(numbers),
                numbers=numbers,
            )
        )
    return sorted(found, key=_weight)


def _change(numbers: Mapping[str, Pair]) -> str:
    if any(not p.same for name, p in numbers.items() if name != "seconds" and None not in (p.before, p.after)):
        return "matches"
    seconds = numbers.get("seconds")
    if seconds is not None and seconds.before is not None and seconds.after is not None:
        low, high = sorted((seconds.before, seconds.after))
        if high - low >= LEAST_SECONDS and high >= SLOWER * low:
            return "time"
    return "same"


def _weight(rule: RuleDifference) -> tuple[int, float, str]:
    order = ("added", "removed", "matches", "time", "same").index(rule.change)
    by = rule.numbers.get("seconds" if rule.change == "time" else "matches")
    size = abs((by.after or 0) - (by.before or 0)) if by is not None and rule.change != "same" else 0.0
    return order, -size, rule.name


def _summed(rules: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for rule in rules:
        known = found.get(rule["name"])
        if known is None:
            found[rule["name"]] = dict(rule)
            continue
        for name in COUNTED:
            if rule.get(name) is not None:
                known[name] = (known.get(name) or 0) + rule[name]
    return found


def _rename_anonymous(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]) -> None:
    """A rule without a name is called by its line, which edits above it shift. Where a file has as many of them on
    both sides, they are taken to be the same in order, under the names that they have now."""

    def anonymous(rules: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, rule in sorted(rules.items(), key=lambda item: (item[1]["line"], item[0])):
            if name.startswith(f"{rule['file']}:{rule['line']}"):
                found.setdefault(rule["file"], []).append(name)
        return found

    mine, theirs = anonymous(old), anonymous(new)
    for file, names in mine.items():
        if len(names) == len(theirs.get(file, ())):
            moved = [old.pop(name) for name in names]
            old.update(zip(theirs[file], moved, strict=True))


def match_groups(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], *, same_model: bool
) -> list[tuple[int | None, int | None, str]]:
    """Indices of groups that belong together: those of the same program, then, of the same model, those whose
    representatives are the same chunk; the rest stand alone."""
    found: dict[int, tuple[int | None, str]] = {}
    left = dict(enumerate(before))
    for how, key in (("program", "digest"), ("representative", "representative"))[: 1 + same_model]:
        for place, group in enumerate(after):
            if place in found or group.get(key) is None:
                continue
            same = next((i for i, other in left.items() if other.get(key) == group[key]), None)
            if same is not None:
                found[place] = (same, how)
                del left[same]
    pairs: list[tuple[int | None, int | None, str]] = []
    for place in range(len(after)):
        match, how = found.get(place, (None, ""))
        pairs.append((match, place, how))
    return [*pairs, *((i, None, "") for i in left)]


def _group(
    i: int | None, j: int | None, how: str, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> GroupDifference:
    old = before[i] if i is not None else None
    new = after[j] if j is not None else None
    numbers = {
        "members": pair(*(len(side["members"]) if side else None for side in (old, new))),
        "hlir_nodes": pair(_get(old, "nodes"), _get(new, "nodes")),
    }
    for name, keys in (
        ("classes", ("egraph", "classes")),
        ("enodes", ("egraph", "nodes")),
        ("seconds", ("egraph", "seconds")),
        ("candidates", ("search", "candidates")),
        ("profiled", ("search", "profiled")),
        ("first_ms", ("search", "first_ms")),
        ("best_ms", ("search", "best_ms")),
    ):
        numbers[name] = pair(_get(old, *keys), _get(new, *keys))
    reasons = [_get(side, "search", "rejected") or {} for side in (old, new)]
    rejected = {r: pair(*(side.get(r, 0) for side in reasons)) for r in dict.fromkeys((*reasons[0], *reasons[1]))}
    stopped = tuple(_get(side, "egraph", "stopped") or "" for side in (old, new))
    return GroupDifference(i, j, how, numbers, rejected, (stopped[0], stopped[1]))


def _kernels(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[KernelDifference]:
    """Kernels by name, those that cost most on either side first."""
    sides: list[dict[str, tuple[int, float]]] = []
    for rows in (before, after):
        sums: dict[str, tuple[int, float]] = {}
        for row in rows:
            calls, ms = sums.get(row["name"], (0, 0.0))
            sums[row["name"]] = (calls + row["calls"], ms + row["ms"])
        sides.append(sums)
    found = []
    for name in dict.fromkeys((*sides[0], *sides[1])):
        (calls_before, before_ms), (calls_after, after_ms) = (side.get(name, (None, None)) for side in sides)
        found.append(KernelDifference(name, pair(calls_before, calls_after), pair(before_ms, after_ms)))
    return sorted(found, key=lambda k: (-max(k.ms.before or 0, k.ms.after or 0), k.name))


def _timeline(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Pair]:
    old, new = ({t["stage"]: t["seconds"] for t in side["timeline"]} for side in (before, after))
    stages = {stage: pair(old.get(stage), new.get(stage)) for stage in dict.fromkeys((*old, *new))}
    return {**stages, "total": pair(before["total_seconds"], after["total_seconds"])}


def _not_compared(before: Side, after: Side, matched: Sequence[tuple[int | None, int | None, str]]) -> list[str]:
    """Sentences on what a reader might take for compared and is not, or not alike."""
    said = []
    old, new = before.report, after.report
    if old["model"] != new["model"] and any(how != "program" for *_, how in matched):
        said.append("The models are different: totals of rules, kernels and times are of different work.")
    if old["target"] != new["target"]:
        said.append("The targets are different: times are of different devices and kernels.")
    for side, what in ((before, old), (after, new)):
        reached = [
            ("groups", what["groups"]),
            ("saturated e-graphs", all(g["egraph"] for g in what["groups"])),
            ("a search of every group", all(g["search"] for g in what["groups"])),
            ("a verified result", what["verify"]),
            ("a measured latency", what["latency_ms"]),
        ]
        # An egglog program has nothing to search.
        missing = [word for word, there in (reached[:2] if what["target"] == "egg" else reached) if not there]
        if missing:
            said.append(f"{side.name} has not reached: {', '.join(missing)}.")
    alone = [sum(1 for m in matched if m[place] is None) for place in (0, 1)]
    for count, one, other in ((alone[1], before, after), (alone[0], after, before)):
        if count:
            said.append(f"Groups of {one.name} that have none like them in {other.name}: {count}.")
    if any(how == "representative" for *_, how in matched):
        said.append("Groups matched by representative have different programs: the graph or its breaks changed.")
    return said
