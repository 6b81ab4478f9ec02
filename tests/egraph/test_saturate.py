"""The saturation child: what it refuses and how it says so, its limits, and what it reports."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.choices import matches_of
from workbench.egraph.messages import StepDone
from workbench.egraph.rules import RuleFile, category, library_directory, read_library
from workbench.egraph.saturate import Limits, SaturationStopped, Saturator
from workbench.egraph.snapshot import Snapshot
from workbench.errors import RuleError
from workbench.ir import expr as ex
from workbench.ir.expr import Z, var

EMPTY = "(let $root (RNil))"
SIX = EMPTY + "\n(let $six (MMul (MNum 2) (MNum 3)))"


def with_rules(text: str, limits: Limits | None = None) -> Saturator:
    return Saturator([*read_library(), RuleFile("own.egg", text)], limits)


def counted(steps: Sequence[StepDone]) -> dict[str, int]:
    total: dict[str, int] = {}
    for step in steps:
        for name, matches in step.matches.items():
            total[name] = total.get(name, 0) + matches
    return total


RULE = "(rule ((= ?e (MNum ?n))) ((MAdd ?e ?e)) :ruleset own"
MALFORMED = {
    "unbalanced": ('(ruleset own)\n(rule ((= ?e (MNum ?n)) ((MAdd ?e ?e)) :ruleset own :name "c")', "own.egg:2: "),
    "unknown constructor": ("(ruleset own)\n\n(rule ((= ?e (Nope ?n))) ((MAdd ?e ?e)) :ruleset own)", "own.egg:3: "),
    "wrong type": ("(ruleset own)\n\n(rule ((= ?e (MNum ?n))) ((MAdd ?e ?n)) :ruleset own)", "own.egg:3: "),
    "unbound variable": ("(ruleset own)\n(rule ((= ?e (MNum ?n))) ((MAdd ?e ?q)) :ruleset own)", "own.egg:2: "),
    "no such ruleset": ("\n\n\n(rule ((= ?e (MNum ?n))) ((MAdd ?e ?e)) :ruleset gone)", "own.egg:4: "),
    "a name twice": (f'(ruleset own)\n{RULE} :name "c")\n\n{RULE} :name "c")', "own.egg:4: .*'c' is used twice"),
    "a library rule's name": (f'(ruleset own)\n{RULE} :name "multiply by one")', "own.egg:2: .*used twice"),
    "a two-way rule's name twice": (
        '(ruleset own)\n(birewrite (MAdd ?a ?b) (MAdd ?b ?a) :ruleset own :name "c")\n'
        '(birewrite (MMul ?a ?b) (MMul ?b ?a) :ruleset own :name "c")',
        "own.egg:3: ",
    ),
    "not egglog": ("hello", "own.egg:1: "),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_file_is_refused_with_its_place(kind: str) -> None:
    text, message = MALFORMED[kind]
    with with_rules(text) as saturator, pytest.raises(RuleError, match="^" + message) as raised:
        _ = saturator.rules
    assert "\n" not in str(raised.value)


def test_a_rule_without_a_name_is_called_after_its_place_and_counted() -> None:
    text = (
        "; größe: more bytes than letters, in a comment long enough to span lines ääääääääääääääääää\n"
        "(ruleset own)\n"
        "(rule ((= ?e (MMul ?a ?b))) ((MMod ?a ?b)) :ruleset own)\n"
        "(rewrite (MMod ?a ?b) (MDiv ?b ?a) :ruleset own) (rewrite (MMod ?a ?b) (MMul ?b ?a) :ruleset own)\n\n"
        "(birewrite (MMod ?a ?b) (MMod ?b ?a) :ruleset own)"
    )
    steps: list[StepDone] = []
    with with_rules(text) as saturator:
        own = [r for r in saturator.rules if r.file == "own.egg"]
        saturator.saturate(SIX, steps.append)
    assert [(r.name, r.line) for r in own] == [
        ("own.egg:3", 3),
        ("own.egg:4", 4),
        ("own.egg:4#2", 4),
        ("own.egg:6=>", 6),
        ("own.egg:6<=", 6),
    ]
    assert all(counted(steps)[r.name] > 0 for r in own)


def test_rules_of_the_default_ruleset_run_too() -> None:
    steps: list[StepDone] = []
    with with_rules('(rule ((= ?e (MMul ?a ?b))) ((MMod ?a ?b)) :name "mine")') as saturator:
        saturator.saturate(SIX, steps.append)
    assert counted(steps)["mine"] == 1


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_every_rule_is_listed_where_it_stands(saturator: Saturator, cuda: Saturator, target: str) -> None:
    saturator = cuda if target == "cuda" else saturator
    directory = library_directory()
    assert len({r.name for r in saturator.rules}) == len(saturator.rules)
    for rule in saturator.rules:
        block = "\n".join((directory / rule.file).read_text().splitlines()[rule.line - 1 :])
        assert block.startswith(("(rule ", "(rewrite "))
        before, _ = block.split(f':name "{rule.name}"', 1)
        assert before.count("(rule ") + before.count("(rewrite ") == 1
        assert category(rule.file) in ("Reshape", "cuBLAS" if target == "cuda" else "BLAS", "Other")
    written = sum(file.text.count(":name ") for file in read_library(target=target))
    assert written == len(saturator.rules)


def test_every_file_says_what_it_matches_why_it_is_sound_and_what_it_needs() -> None:
    for file in read_library(target=None):
        heading = file.text.split("\n\n")[0]
        assert heading.startswith("; "), file.name
        if file.name != "base.egg":
            assert all(word in heading for word in ("Matches", "Sound because", "Needs", "Example")), file.name


def test_categories_go_by_directory() -> None:
    assert category("flatten/squeeze.egg") == "Reshape"
    assert category("blas/sgemm_RmRm.egg") == "BLAS"
    assert category("cublas/sgemm_RmRm.egg") == category("cublaslt/lt_RmRm.egg") == "cuBLAS"
    assert category("lower.egg") == category("mine/blas.egg") == "Other"


GROWING = '(ruleset own)\n(rule ((= ?e (MNum ?n)) (< ?n 100000)) ((MNum (+ ?n 1))) :ruleset own :name "count up")'
EXPLODING = (
    "(ruleset own)\n(rule ("
    + " ".join(f"(MNum ?v{i})" for i in range(12))
    + ") ((MNum (% (+ ?v0 "
    + "".join(f"(+ (* 31 ?v{i}) " for i in range(1, 12))
    + "1"
    + ")" * 12
    + ' 1000003))) :ruleset own :name "explode")'
)


def test_the_node_limit_leaves_a_snapshot() -> None:
    with with_rules(GROWING, Limits(nodes=300)) as saturator:
        result = saturator.saturate(SIX)
        assert result.stopped == "node limit (300)"
        snapshot = Snapshot(result.snapshot)
        assert 200 < snapshot.node_count < 400
        assert ex.const(6) is snapshot.expr(snapshot.variables["$six"])
        assert saturator.saturate(SIX).stopped == "node limit (300)"  # and the child goes on


def test_the_time_limit_leaves_a_snapshot() -> None:
    with with_rules(GROWING, Limits(seconds=1.0)) as saturator:
        result = saturator.saturate(SIX)
        assert result.stopped == "time limit (1 s)"
        assert Snapshot(result.snapshot).node_count > 100


def test_a_step_that_never_returns_is_killed_and_leaves_what_was_before_it() -> None:
    with with_rules(EXPLODING, Limits(seconds=0.2, grace_seconds=0.5)) as saturator:
        assert saturator.rules
        steps: list[StepDone] = []
        began = time.monotonic()
        result = saturator.saturate(SIX + "".join(f"\n(let $n{i} (MNum {i * 7}))" for i in range(5)), steps.append)
        assert time.monotonic() - began < 8
        assert result.stopped == "time limit (0.2 s) inside a step of ruleset 'own'"
        assert result.steps == len(steps)
        assert "own" not in {s.ruleset for s in steps}
        assert ex.const(6) is Snapshot(result.snapshot).expr(Snapshot(result.snapshot).variables["$six"])
        assert saturator.saturate(EMPTY).stopped == ""  # a new child is started


def test_a_program_that_is_too_large_is_refused() -> None:
    program = EMPTY + "\n" + "\n".join(f"(let $n{i} (MNum {i * 3}))" for i in range(250_000))
    with with_rules(GROWING, Limits(memory_bytes=220 << 20)) as saturator:
        with pytest.raises(SaturationStopped, match=r"memory.*220 MiB.*--egg-memory"):
            saturator.saturate(program)
        assert saturator.saturate(EMPTY).stopped == ""


@pytest.mark.parametrize(
    "program",
    ["(let $root (RNil)", "(let $root (Nope))", '(let $root (RNil))\n(panic "no")', "(let $a 1)\n(let $a 2)"],
)
def test_a_program_after_a_refusal_works(program: str) -> None:
    with Saturator(read_library()) as saturator:
        with pytest.raises(RuleError):
            saturator.saturate(program)
        assert saturator.saturate(EMPTY).stopped == ""


def test_one_program_leaves_nothing_to_the_next(saturator: Saturator) -> None:
    first = Snapshot(saturator.saturate(SIX).snapshot)
    second = Snapshot(saturator.saturate(EMPTY).snapshot)
    assert set(first.variables) == {"$root", "$six"}
    assert set(second.variables) == {"$root"}
    assert "MMul" not in {second.op(n) for n in range(second.node_count)}


def test_a_rule_that_panics_is_reported_with_its_ruleset() -> None:
    text = '(ruleset own)\n(rule ((= ?e (MNum ?n))) ((panic "boo")) :ruleset own :name "c")'
    with with_rules(text) as saturator:
        with pytest.raises(RuleError, match=r"ruleset 'own': .*boo"):
            saturator.saturate(SIX)
        assert saturator.saturate(EMPTY).stopped == ""


def test_tables_are_no_e_nodes() -> None:
    text = (
        "(relation seen (Expression)) (function weight (Expression) i64 :merge (min old new)) (ruleset own)\n"
        '(rule ((= ?e (MNum ?n))) ((seen ?e) (set (weight ?e) 1)) :ruleset own :name "see")'
    )
    with with_rules(text) as saturator:
        snapshot = Snapshot(saturator.saturate(SIX).snapshot)
    assert {snapshot.op(n) for n in range(snapshot.node_count)} == {"RNil", "MMul", "MNum"}


def test_steps_add_up(saturator: Saturator) -> None:
    steps: list[StepDone] = []
    result = saturator.saturate(SIX, steps.append)
    assert [s.step for s in steps] == list(range(len(steps)))
    assert counted(steps) == {
        "fold product of numbers": 1,
        "a number is free of the iterator": 3,  # 2, 3 and their product
        "a product is free of the iterator": 1,
    }
    assert all(s.seconds >= sum(s.rule_seconds.values()) - 1e-9 for s in steps)
    assert result.engine_seconds <= result.total_seconds


def test_a_snapshot_decodes_expressions_lists_and_dtypes(saturator: Saturator) -> None:
    n = var("n")
    wanted = [Z, Z * n * 4, Z // 3 * 8 + Z % 3, n * n, ex.const(-5), (Z + n) // (n * 2)]
    lines = ["(let $root (RNil))"]
    lines += [f"(let $e{i} {ex.to_egglog(e)})" for i, e in enumerate(wanted)]
    lines.append("(let $list (ECons $e0 (ECons $e1 (ENil))))")
    lines += ["(let $dtype (I32))", '(let $x (Immediate "1" $dtype))']
    snapshot = Snapshot(saturator.saturate("\n".join(lines)).snapshot)
    for i, e in enumerate(wanted):
        assert snapshot.expr(snapshot.variables[f"$e{i}"]) is e
    assert snapshot.shape(snapshot.variables["$list"]) == (wanted[0], wanted[1])
    assert snapshot.dtype(snapshot.variables["$dtype"]).name == "i32"
    (immediate,) = snapshot.nodes_of[snapshot.variables["$x"]]
    assert snapshot.literal(snapshot.children(immediate)[0]) == "1"


class TestLibraryOnDisk:
    def test_the_base_comes_first_and_extra_rules_last(self, tmp_path: Path) -> None:
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "a.egg").write_text("; a")
        (tmp_path / "b.egg").write_text("; b")
        files = [f.name for f in read_library(extra=[tmp_path])]
        assert files[0] == "base.egg"
        assert files[-2:] == ["b.egg", "sub/a.egg"]

    def test_a_target_has_the_files_that_name_it_and_those_that_name_none(self, tmp_path: Path) -> None:
        for target, own, other in (("cpu", "blas/", "cublas"), ("cuda", "cublas", "blas/")):
            names = [f.name for f in read_library(target=target)]
            assert {"base.egg", "lower.egg", "flatten/squeeze.egg"} <= {*names}
            assert any(n.startswith(own) for n in names)
            assert not any(n.startswith(other) for n in names)
        assert len({f.name for f in read_library(target=None)}) == len(list(library_directory().rglob("*.egg")))
        (tmp_path / "gpu.egg").write_text("; Mine.\n;; target: cuda\n(relation a (i64))\n; Target: cpu")
        (tmp_path / "both.egg").write_text("; Target: cuda, cpu\n(relation b (i64))")
        (tmp_path / "code.egg").write_text("(relation c (i64))\n; Target: cuda")
        on = {t: [f.name for f in read_library(extra=[tmp_path], target=t)][-3:] for t in ("cpu", "cuda")}
        assert on["cuda"] == ["both.egg", "code.egg", "gpu.egg"]
        assert on["cpu"][-2:] == ["both.egg", "code.egg"]
        assert "gpu.egg" not in on["cpu"]

    @pytest.mark.parametrize("line", ["; Target: rocm", "; Target:", "; Target: cpu gpu"])
    def test_a_target_that_is_none_is_named_with_its_place(self, tmp_path: Path, line: str) -> None:
        (tmp_path / "mine.egg").write_text(f"; Mine.\n{line}\n(relation a (i64))")
        with pytest.raises(RuleError, match=r"^mine\.egg:2: '(rocm|gpu|)' is not a target"):
            read_library(extra=[tmp_path])

    def test_a_library_without_a_file_for_the_target_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "mine.egg").write_text("; Target: cuda\n")
        with pytest.raises(RuleError, match="none of its rule files is for the target cpu"):
            read_library(tmp_path)

    def test_a_library_with_few_rulesets_saturates(self) -> None:
        """A phase whose rulesets nothing declares is left out."""
        text = """(datatype Tree (Leaf i64) (Pair Tree Tree)) (ruleset lower)
                  (rewrite (Pair ?x ?x) ?x :ruleset lower :name "same")"""
        with Saturator([RuleFile("base.egg", text)]) as it:
            matches, _ = matches_of(it, "(let $t0 (Pair (Leaf 1) (Leaf 1)))")
        assert matches.keys() == {"same"}

    def test_what_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(RuleError, match="no such rule directory"):
            read_library(tmp_path / "absent")
        with pytest.raises(RuleError, match=r"no \.egg files"):
            read_library(tmp_path)
        (tmp_path / "latin.egg").write_bytes(b"; gr\xf6\xdfe")
        with pytest.raises(RuleError, match=r"^latin.egg: not UTF-8"):
            read_library(tmp_path)
        (tmp_path / "latin.egg").write_bytes(b" " * ((4 << 20) + 1))
        with pytest.raises(RuleError, match=r"^latin.egg: over 4 MiB"):
            read_library(tmp_path)
        (tmp_path / "latin.egg").unlink()
        (tmp_path / "gone.egg").symlink_to(tmp_path / "nowhere")
        with pytest.raises(RuleError, match=r"^gone.egg: cannot be read"):
            read_library(tmp_path)
