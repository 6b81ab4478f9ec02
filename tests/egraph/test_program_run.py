"""Whole egglog programs: they come out as egglog has them, with their rules counted step by step and within limits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.egraph.whole_program import comparable
from workbench.egraph.bindings import bindings
from workbench.egraph.eclasses import ClassIndex
from workbench.egraph.egglog_error import taken_apart
from workbench.egraph.program_messages import StepBegun
from workbench.egraph.program_runner import ProgramRunner, Ran
from workbench.egraph.saturate import Limits
from workbench.egraph.snapshot import Snapshot
from workbench.egraph.terms import Terms
from workbench.errors import InputError, ModelError

Run = Callable[..., Ran]

NUMBERS = """(datatype E (Num i64) (Add E E) (Mul E E))
(ruleset fold) (ruleset ac)
(rule ((= e (Add (Num a) (Num b)))) ((union e (Num (+ a b)))) :ruleset fold :name "fold add")
(rewrite (Add a b) (Add b a) :ruleset ac)
(birewrite (Add a (Add b c)) (Add (Add a b) c) :ruleset ac)
(rewrite (Mul a (Num 0)) (Num 0) :ruleset fold)
(let $x (Add (Num 1) (Add (Num 2) (Add (Num 3) (Num 4)))))
"""
EXPLODES = f"""{NUMBERS}
(let $y (Add (Num 101) (Add (Num 102) (Add (Num 103) (Add (Num 104) (Add (Num 105) (Add (Num 106) (Add (Num 107)
  (Add (Num 108) (Add (Num 109) (Add (Num 110) (Num 111))))))))))))
(run fold 5)
(extract $x)
(run-schedule (saturate (run ac)))
(extract $y)
"""
CROSS = """(relation n (i64))
(relation p (i64 i64 i64 i64))
(rule ((n a) (n b) (n c) (n d)) ((p a b c d)) :name "cross product")
(rule ((n a) (< a 300)) ((n (+ a 1))) :name "count")
(n 0)
(run-schedule (repeat 400 (run)))
"""
DOUBLES = """(relation n (i64))
(rule ((n a)) ((n (+ a a)) (n (+ 1 (+ a a)))) :name "double")
(n 1)
(run 60)
"""

PROGRAMS = {
    "schedules": f"""{NUMBERS}
(run-schedule (saturate (run fold)) (repeat 3 (seq (run ac) (run fold))))
(run ac 2 :until (= $x (Num 10)))
(run-schedule (saturate (run ac :until (= (Num 1) (Num 2)))))
(check (= $x (Num 10)))
(extract $x) (extract $x 3) (print-function Add 5) (print-size Num)""",
    "schedulers": f"""{NUMBERS}
(run-schedule (let-scheduler calm (back-off :match-limit 10 :ban-length 2)) (repeat 4 (run-with calm ac) (run fold)))
(extract $x)""",
    "combined": f"""{NUMBERS}
(unstable-combined-ruleset both fold ac)
(run both 3)
(extract $x) (print-size)""",
    "push and pop": f"""{NUMBERS}
(push) (relation seen (E)) (rule ((= e (Num a))) ((seen e)) :ruleset fold :name "see")
(run fold 2)(print-size seen)(pop)
(push 2) (rule ((= e (Num a))) ((Mul e e)) :ruleset fold :name "see") (run fold 1) (print-size Mul) (pop 2)
(run fold 1) (print-size Mul) (fail (print-size seen))""",
    "containers": """(datatype* (T (Leaf i64) (Node Trees)) (sort Trees (Vec T)))
(function depth (T) i64 :merge (max old new))
(rule ((= t (Leaf n))) ((set (depth t) 1)))
(rule ((= t (Node ts)) (> (vec-length ts) 0) (= d (depth (vec-get ts 0)))) ((set (depth t) (+ d 1))))
(let $t (Node (vec-of (Node (vec-of (Leaf 1))) (Leaf 2))))
(run 5) (extract (depth $t)) (print-function depth 10 :mode csv)""",
    "user commands": f"""{NUMBERS}
(with-ruleset fold (rule ((= e (Num 7))) ((Mul e e))))
(for ((= e (Num a))) ((Mul e (Num 0))))
(set-cost (Num 2) 50)
(run-schedule (saturate fold)) (multi-extract 2 $x (Num 1)) (print-stats)""",
    "a check that does not hold": f"{NUMBERS}(run fold 1)\n(check (= $x (Num 11)))\n(print-size)",
    "a rule that panics": f'{NUMBERS}(rule ((Add a b)) ((panic "no sums here")))\n(run 1)',
    "a ruleset that is not there": f"{NUMBERS}(run-schedule (run fold) (run nothing))",
    "an unknown function": f"{NUMBERS}\n\n(let $z (Neg $x))",
    "the wrong sort": f"{NUMBERS}\n(let $z (Add\n  $x\n  3))",
    "a rule twice": f"{NUMBERS}(rewrite (Add a b) (Add b a) :ruleset ac)",
    "text that ends early": f"{NUMBERS}\n(check (= $x",
    "a failure that does not come": f"{NUMBERS}(fail (check (= $x $x)))",
    "a proof": f"{NUMBERS}(prove (= $x $x))",
}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """`run(text, ...)` runs a program named p.egg in a directory of its own; one child serves all of a test."""
    runners: dict[object, ProgramRunner] = {}

    def do(text: str, limits: Limits | None = None, **options: object) -> Ran:
        runner = runners.get(limits)
        if runner is None:
            allow = bool(options.pop("allow_files", False))
            runner = runners[limits] = ProgramRunner("p.egg", str(tmp_path), limits or Limits(seconds=60), allow)
        do.runner = runner  # type: ignore[attr-defined]
        return runner.run(text, **options)  # type: ignore[arg-type]

    yield do
    for runner in runners.values():
        runner.close()


def outputs(ran: Ran) -> list[str]:
    return [comparable(o) for c in ran.heard.commands for o in c.outputs]


def matches(ran: Ran) -> dict[str, int]:
    found: dict[str, int] = {}
    for step in ran.heard.steps:
        for rule, count in step.matches.items():
            found[rule] = found.get(rule, 0) + count
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_comes_out_as_egglog_has_it(name: str, run: Run) -> None:
    text = PROGRAMS[name]
    egraph = bindings.EGraph()
    egraph.set_report_level(bindings.TimeOnly())
    ran = run(text)
    try:
        whole = egraph.parse_and_run_program(text, "p.egg")
    except BaseException as error:
        known = taken_apart(error, "p.egg")
        assert (ran.ended.outcome, ran.ended.error) == ("failed", known.message)
        if known.line:
            assert (ran.ended.file, ran.ended.line) == (known.file, known.line)
        return
    assert (ran.ended.outcome, ran.ended.error) == ("ok", "")
    reports = [o.report for o in whole if isinstance(o, bindings.RunScheduleOutput)]
    assert outputs(ran) == [
        comparable(str(o).rstrip("\n")) for o in whole if not isinstance(o, bindings.RunScheduleOutput)
    ]
    assert sum(matches(ran).values()) == sum(sum(r.num_matches_per_rule.values()) for r in reports)
    if name != "schedulers":  # which keep state from round to round: told as one step
        assert len(ran.heard.steps) == sum(len(r.iterations) for r in reports)


def test_errors_without_a_place_get_that_of_their_command(run: Run) -> None:
    ended = run(PROGRAMS["a rule that panics"]).ended
    assert (ended.error, ended.file, ended.line, ended.kind) == ("Panic: no sums here", "p.egg", 9, "run")
    ended = run(PROGRAMS["a ruleset that is not there"]).ended
    assert (ended.line, ended.kind, ended.snapshot) == (8, "run-schedule", None)  # a panic leaves nothing to look at


def test_every_rule_is_listed_once_under_a_name_of_its_own(run: Run) -> None:
    ran = run(PROGRAMS["push and pop"])
    assert [(r.name, r.ruleset, r.line) for r in ran.heard.rules] == [
        ("fold add", "fold", 3),
        ("p.egg:4", "ac", 4),
        ("p.egg:5=>", "ac", 5),
        ("p.egg:5<=", "ac", 5),
        ("p.egg:6", "fold", 6),
        ("see", "fold", 9),
        ("see (p.egg:11)", "fold", 11),
    ]
    fired = matches(ran)
    assert fired["see"] == 5  # the four numbers, and the sum of two of them in the second run
    assert fired["see (p.egg:11)"] == 4
    assert "p.egg:6" not in fired
    assert fired.keys() <= {r.name for r in ran.heard.rules}


def test_rules_of_one_name_in_two_rulesets_are_told_apart_where_they_can_be(run: Run) -> None:
    text = f"""{NUMBERS}(ruleset a) (ruleset b)
(rewrite (Add m n) (Add n m) :ruleset a :name "swap")
(rule ((Num n)) ((Mul (Num n) (Num 8))) :ruleset b :name "swap")
(run a 1) (run b 1) (unstable-combined-ruleset c a b) (run c 1)"""
    ran = run(text)
    assert ran.ended.outcome == "ok"
    fired = matches(ran)
    assert fired["swap"] == 3 + 3 + 1  # run together, egglog counts them as one: three sums turned round, and the 8
    assert fired["swap (p.egg:10)"] == 4


def test_a_schedule_is_told_step_by_step(run: Run) -> None:
    told: list[object] = []
    ran = run(f"{NUMBERS}(run-schedule (saturate (run fold)))(print-size Num)", on_message=told.append)
    steps = ran.heard.steps
    assert [s.step for s in steps] == [0, 1, 2, 3]
    assert [s.matches.get("fold add", 0) for s in steps] == [1, 1, 1, 0]
    assert sum(isinstance(t, StepBegun) for t in told) == 4
    assert [s.sizes.get("Num") for s in steps] == [5, 6, 7, None]
    assert [s.nodes for s in steps] == [8, 9, 10, 10]
    run_command, size = ran.heard.commands
    assert (run_command.kind, run_command.line, run_command.steps) == ("run-schedule", 8, 4)
    assert (size.outputs, size.steps) == (["7"], 0)


def test_functions_are_counted_whatever_they_hold(run: Run) -> None:
    ran = run(
        """(datatype E (Num i64)) (relation seen (E)) (function best (E) i64 :merge (min old new))
(let $x (Num 1)) (Num 2) (seen $x) (set (best $x) 3) (let n 4)"""
    )
    assert [(f.name, f.kind, f.inputs, f.output, f.rows) for f in ran.ended.functions] == [
        ("Num", "constructor", ["i64"], "E", 2),
        ("seen", "relation", ["E"], "", 1),
        ("best", "function", ["E"], "i64", 1),
    ]
    assert any("should start with `$`" in warning for warning in ran.warnings)
    assert ran.ended.snapshot is not None
    assert Snapshot(ran.ended.snapshot).node_count == 2


def test_a_snapshot_shows_what_containers_and_large_numbers_are(run: Run) -> None:
    ran = run(
        """(datatype* (E (A i64) (L V) (Box M) (Q BigRat)) (sort V (Vec E)) (sort M (Map String V)))
(let $l (L (vec-of (A 1) (L (vec-of)))))
(let $b (Box (map-insert (map-empty) "k" (vec-of (A 3)))))
(let $q (Q (bigrat (bigint 1) (bigint 3))))"""
    )
    assert ran.ended.snapshot is not None
    snapshot = Snapshot(ran.ended.snapshot)
    terms = Terms(snapshot, ClassIndex(ran.ended.snapshot))
    shown = {n: [terms.node(k) for k in snapshot.nodes_of[c]] for n, c in snapshot.variables.items()}
    assert shown == {
        "$l": ["(L (vec-of (A 1) (L (vec-of))))"],
        "$b": ['(Box (map-of "k" (vec-of (A 3))))'],
        "$q": ['(Q "1/3")'],
    }


class TestFiles:
    def test_includes_have_their_own_lines(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "base.egg").write_text("; base\n(datatype E (Num i64))\n(rewrite (Num 1) (Num 2))\n")
        ran = run('(include "lib/base.egg")\n(let $x (Num 1))\n(run 1)\n(check (= $x (Num 2)))')
        assert ran.ended.outcome == "ok"
        assert [(r.name, r.line) for r in ran.heard.rules] == [("lib/base.egg:3", 3)]
        assert [(c.file, c.line) for c in ran.heard.commands] == [("p.egg", 3), ("p.egg", 4)]
        (tmp_path / "lib" / "base.egg").write_text("; base\n(datatype E (Num i65))\n")
        ended = run('(include "lib/base.egg")').ended
        assert (ended.outcome, ended.file, ended.line) == ("failed", "lib/base.egg", 2)

    @pytest.mark.parametrize(
        "command",
        [
            '(include "../secret.egg")',
            '(input r "../secret.egg")',
            '(output "../new.txt" 1)',
            '(print-function r 3 :file "../new.txt")',
            '(print-stats :file "../new.txt")',
            '(fail (print-stats :file "../new.txt"))',
            '(include "link.egg")',
        ],
    )
    def test_outside_the_directory_nothing_is_touched(self, command: str, tmp_path: Path) -> None:
        home = tmp_path / "home"
        home.mkdir()
        (tmp_path / "secret.egg").write_text("(relation stolen (i64))")
        (home / "link.egg").symlink_to(tmp_path / "secret.egg")
        with ProgramRunner("p.egg", str(home), Limits()) as runner:
            ended = runner.run(f"(relation r (String))\n{command}").ended
            assert (ended.outcome, ended.line) == ("failed", 2)
            assert "is outside the directory of the program; --allow-files permits it" in ended.error
        assert not (tmp_path / "new.txt").exists()
        with ProgramRunner("p.egg", str(home), Limits(), allow_files=True) as runner:
            ended = runner.run(f"(relation r (String))\n{command}").ended
            assert "--allow-files" not in ended.error

    def test_a_file_that_is_there_is_not_written_to(self, run: Run, tmp_path: Path) -> None:
        text = '(relation r (i64))\n(r 1)\n(print-function r 3 :file "out.txt")'
        assert run(text).ended.outcome == "ok"
        assert "(r 1)" in (tmp_path / "out.txt").read_text()
        assert run(text).ended.outcome == "ok"  # its own file it may write again
        (tmp_path / "mine.txt").write_text("mine")
        ended = run(text.replace("out.txt", "mine.txt")).ended
        assert ended.error == "'mine.txt' is there already and would be written to; --allow-files permits it"
        assert (tmp_path / "mine.txt").read_text() == "mine"
        assert "hidden" in run(text.replace("out.txt", ".bashrc")).ended.error
        assert not (tmp_path / ".bashrc").exists()

    @pytest.mark.parametrize(
        "use",
        [
            """(let $p (py-exec "open('pwned', 'w')" (py-dict) (py-dict)))""",
            """(let $p (py-eval "open('pwned', 'w')" (py-dict) (py-dict)))""",
            """(sort F (UnstableFn (String PyObject PyObject) PyObject))
(let $p (unstable-app (unstable-fn "py-eval") "open('pwned', 'w')" (py-dict) (py-dict)))""",
            """(relation r (i64)) (r 1)
(rule ((r x) (= y (py-eval "open('pwned', 'w')" (py-dict) (py-dict)))) ((r 2))) (run 1)""",
        ],
    )
    def test_python_is_not_run(self, use: str, run: Run, tmp_path: Path) -> None:
        ended = run(f"; py-exec in a comment is fine\n{use}", allow_files=True).ended
        assert ended.outcome == "failed"
        assert "runs Python code, which a rule file may not" in ended.error
        assert ended.line > 1
        assert not (tmp_path / "pwned").exists()
        assert run("; py-exec\n(relation py (i64))").ended.outcome == "ok"

    def test_modules_in_the_working_directory_are_not_imported(self, run: Run, tmp_path: Path) -> None:
        for name in ("workbench", "msgspec", "egglog"):
            (tmp_path / f"{name}.py").write_text(f"open('pwned', 'w')\nraise SystemExit('{name}')\n")
        assert run("(relation r (i64))").ended.outcome == "ok"
        assert not (tmp_path / "pwned").exists()

    def test_files_that_include_each_other_end(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "p.egg").write_text('(include "p.egg")')
        assert "nest deeper than 50" in run('(include "p.egg")').ended.error

    def test_a_program_that_cannot_be_read(self, tmp_path: Path) -> None:
        (tmp_path / "bytes.egg").write_bytes(b"\xff\xfe")
        (tmp_path / "folder.egg").mkdir()
        os.mkfifo(tmp_path / "pipe.egg")
        for name, said in (("no", "no such"), ("bytes", "UTF-8"), ("folder", "a directory"), ("pipe", "not a regular")):
            with ProgramRunner(f"{name}.egg", str(tmp_path), Limits()) as runner, pytest.raises(ModelError, match=said):
                runner.read()


class TestLimits:
    def test_too_many_nodes_stop_between_steps(self, run: Run) -> None:
        ran = run(EXPLODES, Limits(nodes=5_000))
        ended = ran.ended
        assert (ended.outcome, ended.limit, ended.line) == ("stopped", "nodes", 13)
        assert ran.stopped == "node limit (5000)"
        assert outputs(ran) == ["(Num 10)"]
        assert ran.culprit is not None
        assert ran.culprit.rule in ("p.egg:5=>", "p.egg:5<=")
        assert ended.snapshot is not None
        assert Snapshot(ended.snapshot).node_count > 5_000
        assert ended.steps == len(ran.heard.steps) > 4

    def test_a_step_that_takes_too_long_is_ended_and_what_was_before_it_is_kept(self, run: Run) -> None:
        limits = Limits(seconds=1.5, grace_seconds=0.3)
        ran = run(CROSS, limits)
        ended = ran.ended
        assert (ended.outcome, ended.limit, ended.line, ended.kind) == ("stopped", "seconds", 6, "run-schedule")
        assert "time limit (1.5 s)" in ran.stopped
        assert ran.culprit is not None
        assert ran.culprit.rule == "cross product"
        sizes = {f.name: f.rows for f in ended.functions}
        assert sizes["n"] == ended.steps + 1  # one more number a step
        assert run("(relation r (i64)) (r 1) (print-size r)", limits).heard.commands[0].outputs == ["1"]

    def test_too_much_memory(self, run: Run) -> None:
        ran = run(DOUBLES, Limits(memory_bytes=280 << 20))
        assert (ran.ended.outcome, ran.ended.limit) == ("stopped", "memory")
        assert "memory limit (280 MiB)" in ran.stopped
        assert ran.culprit is not None
        assert ran.culprit.rule == "double"

    def test_cancelling_ends_a_step_soon(self, run: Run) -> None:
        began = time.monotonic()
        ran = run(CROSS, cancelled=lambda: time.monotonic() - began > 1.5)
        assert (ran.ended.outcome, ran.ended.limit, ran.stopped[:9]) == ("stopped", "cancelled", "cancelled")

    def test_the_child_that_crashes_is_replaced(self, run: Run) -> None:
        deep = "(Add (Num 1) " * 60_000 + "(Num 1)" + ")" * 60_000
        ran = run(f"{NUMBERS}\n(let $deep {deep})")
        assert ran.ended.outcome == "stopped"
        assert "crash of the engine" in ran.stopped
        assert run(f"{NUMBERS}(print-size Add)").ended.outcome == "ok"


class TestXray:
    def test_the_premises_of_a_rule_on_what_the_program_left(self, run: Run) -> None:
        run(f"{NUMBERS}(run fold 1)")
        runner: ProgramRunner = run.runner  # type: ignore[attr-defined]
        found = runner.xray("p.egg:6")
        assert (found.first_failing, found.fired) == (0, 0)
        assert [(p.text, p.matches) for p in found.premises] == [("(Mul a (Num 0))", 0)]
        found = runner.xray("fold add", "$x")
        assert found.first_failing == 0
        assert "(Add" in found.found_instead
        with pytest.raises(InputError, match="there is no rule"):
            runner.xray("nothing")
        with pytest.raises(InputError, match="no node of this program"):
            runner.xray("fold add", "$nothing")

    def test_a_rule_whose_functions_were_popped_cannot_be_asked(self, run: Run) -> None:
        run("(push)\n(relation r (i64))\n(rule ((r n)) ((r (+ n 1))) :name \"count\")\n(r 1)\n(run 3)\n(pop)")
        with pytest.raises(InputError, match="r"):
            run.runner.xray("count")  # type: ignore[attr-defined]

    def test_after_a_run_that_had_to_be_killed_the_rest_is_asked(self, run: Run) -> None:
        run(CROSS, Limits(seconds=1.5, grace_seconds=0.3))
        found = run.runner.xray("count")  # type: ignore[attr-defined]
        assert found.premises[0].matches == found.fired + 1
