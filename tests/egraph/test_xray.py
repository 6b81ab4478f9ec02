"""X-rays: funnels known by hand, the reason at the first premise that fails, and what stops one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from tests.egraph.test_saturate import with_rules
from tests.small_graphs import matmul, whole
from workbench.chunking import split
from workbench.egraph.messages import XrayResult
from workbench.egraph.program import ChunkProgram, emit
from workbench.egraph.rules import RuleFile
from workbench.egraph.saturate import Saturator
from workbench.egraph.schedule import SCHEDULE
from workbench.errors import InputError, RuleError
from workbench.frontend import import_model
from workbench.ir import dtype as dt
from workbench.ir import ops
from workbench.ir.expr import ZERO, Z
from workbench.ir.hlir import Graph
from workbench.ir.layout import Layout
from workbench.session.inspection import split_and_group

LANGUAGE = """
(datatype Tree (Leaf i64) (Named String) (Pair Tree Tree) (Twice Tree))
(datatype Color (Red) (Blue))
(function color (Tree) Color :no-merge)
(relation ripe (Tree))
(ruleset own)
""" + "".join(f"(ruleset {ruleset})" for ruleset in sorted({r for phase in SCHEDULE for r in phase.rulesets}))
RULES = """
(rule ((= ?e (Pair ?a ?b)) (= ?a (Leaf ?n)) (< ?n 3) (= (Red) (color ?b)))
      ((union ?e (Twice ?a))) :ruleset own :name "four")

(rule ((= ?e (Pair (Leaf 1) (Pair ?b (Leaf 7))))) ((ripe ?e)) :ruleset own :name "nested")
(rewrite (Pair ?x ?x) (Twice ?x) :when ((ripe ?x)) :ruleset own :name "same")
(birewrite (Twice (Twice ?x)) (Pair ?x ?x) :ruleset own :name "both")
(rule ((Pair ?a ?b)
       (= ?c (Twice ?b)) ; what stands
       (ripe ?c)) ((ripe ?a)) :ruleset own)
(rule ((= ?e (Named ?s)) (ripe ?e)) ((ripe ?e)) :ruleset own :name "named")
(rule ((= ?e (Pair ?a ?b)) (= ?e (Twice ?c))) ((subsume (Pair ?a ?b))) :ruleset clean-up :name "clean up")
(rule ((Leaf ?n) (= ?m (+ ?n 1)) (= ?e (Leaf ?m)) (> ?m 100)) ((ripe ?e)) :ruleset own :name "next")
(rule ((Leaf ?a) (Leaf ?b) (Leaf ?c) (ripe (Leaf ?c))) ((ripe (Leaf ?a))) :ruleset own :name "product")
"""
PROGRAM = """
(let $root (Leaf 0))
(let $t0 (Leaf 1)) (let $t1 (Leaf 2)) (let $t2 (Leaf 5))
(let $t3 (Pair $t0 $t1)) (let $t4 (Pair $t0 $t2)) (let $t5 (Pair $t2 $t1)) (let $t6 (Pair $t3 $t3))
(set (color $t1) (Blue)) (set (color $t3) (Red))
"""


@pytest.fixture(scope="module")
def own() -> Iterator[Saturator]:
    with Saturator([RuleFile("base.egg", LANGUAGE), RuleFile("own.egg", RULES)]) as it:
        yield it


def funnel(result: XrayResult) -> list[int | None]:
    return [p.matches for p in result.premises]


def test_a_funnel_counts_the_bindings_that_survive(own: Saturator) -> None:
    result = own.xray(PROGRAM, "four")
    # Four pairs; three of them with a leaf in front, two of those below 3; no second of these is red.
    assert funnel(result) == [4, 3, 2, 0]
    assert [p.text for p in result.premises] == [
        "(= ?e (Pair ?a ?b))",
        "(= ?a (Leaf ?n))",
        "(< ?n 3)",
        "(= (Red) (color ?b))",
    ]
    assert result.premises[2].counts == "distinct bindings of ?e, ?a, ?b, ?n"
    assert (result.rule, result.file, result.line) == ("four", "own.egg", 2)
    assert (result.first_failing, result.fired, result.stopped) == (3, 0, "")


@pytest.mark.parametrize(
    ("rule", "node", "matches", "wanted", "at", "found"),
    [
        ("four", "$t3", [1, 1, 1, 0], "(Red)", "(color ?b)", "(Blue)"),
        ("four", "$t4", [1, 1, 1, 0], "(color $t2)", "", "no (color ..) fact for $t2"),
        ("four", "$t5", [1, 1, 0, 0], "(< ?n 3)", "", "?n is 5"),
        ("four", "$t6", [1, 0, 0, 0], "(Leaf ..)", "?a", "(Pair $t0 $t1)"),
        ("four", "$t0", [0, 0, 0, 0], "(Pair ..)", "?e", "(Leaf 1)"),
        ("nested", "$t5", [0], "(Leaf 1)", "argument 1 of Pair in ?e", "(Leaf 5)"),
        ("nested", "$t4", [0], "(Pair ..)", "argument 2 of Pair in ?e", "(Leaf 5)"),
        ("same", "$t3", [0, 0], "?x, which is $t0", "argument 2 of Pair in ?root", "(Leaf 2)"),
        ("same", "$t6", [1, 0], "(ripe $t3)", "", "no (ripe ..) fact for $t3"),
        ("both=>", "$t3", [0], "(Twice ..)", "?root", "(Pair $t0 $t1)"),
    ],
)
def test_at_a_node_the_first_failing_part_is_named(
    own: Saturator, rule: str, node: str, matches: list[int], wanted: str, at: str, found: str
) -> None:
    result = own.xray(PROGRAM, rule, node)
    assert funnel(result) == matches
    assert (result.wanted, result.at, result.found_instead) == (wanted, at, found)
    assert result.root == ("?root" if rule in ("same", "both=>") else "?e")
    assert result.binding[result.root] == node
    assert node in result.premises[0].counts


def test_a_rewrite_has_its_left_side_and_conditions_as_premises(own: Saturator) -> None:
    assert [p.text for p in own.xray(PROGRAM, "same").premises] == ["(Pair ?x ?x)", "(ripe ?x)"]
    assert [p.text for p in own.xray(PROGRAM, "both=>").premises] == ["(Twice (Twice ?x))"]
    backwards = own.xray(PROGRAM, "both<=")
    assert [p.text for p in backwards.premises] == ["(Pair ?x ?x)"]
    assert funnel(backwards) == [1]


def test_subsumed_e_nodes_are_seen_and_a_rule_that_fired_holds(own: Saturator) -> None:
    result = own.xray(PROGRAM, "both<=", "$t6")
    assert (funnel(result), result.first_failing, result.fired) == ([1], None, 1)
    assert funnel(own.xray(PROGRAM, "clean up", "$t6")) == [1, 1]


def test_a_rule_without_a_name_is_asked_by_its_place(own: Saturator) -> None:
    result = own.xray(PROGRAM, "own.egg:8")
    assert [p.text for p in result.premises] == ["(Pair ?a ?b)", "(= ?c (Twice ?b))", "(ripe ?c)"]
    # Of what is a second of a pair, only $t3 is doubled.
    assert funnel(result) == [4, 1, 0]
    assert result.found_instead.startswith("no (ripe ..) fact for (Twice")


def test_variables_that_only_a_primitive_makes_have_sorts_too(own: Saturator) -> None:
    # 0+1 and 1+1 are leaves.
    assert funnel(own.xray(PROGRAM, "next")) == [4, 4, 2, 0]


def test_hostile_strings_are_shown_escaped(own: Saturator) -> None:
    program = PROGRAM + '\n(let $t7 (Named "a\x1b[2J\u202e\\"b\\n"))'
    result = own.xray(program, "four", "$t7")
    assert "\\x1b[2J" in result.found_instead
    assert result.found_instead.isprintable()
    assert len(own.xray(PROGRAM + f'(let $t7 (Named "{"x" * 5000}"))', "four", "$t7").found_instead) < 200


def test_the_e_graph_of_the_last_program_is_used_again(own: Saturator) -> None:
    own.saturate(PROGRAM)
    assert funnel(own.xray(PROGRAM, "four")) == funnel(own.xray(PROGRAM, "four")) == [4, 3, 2, 0]
    assert own.xray("(let $t0 (Leaf 1))", "four").premises[0].matches == 0
    assert own.saturate(PROGRAM).stopped == ""


@pytest.mark.parametrize(
    ("rule", "node", "said"), [("fuor", None, "no rule 'fuor'"), ("four", "$t99", r"\$t99 is no node")]
)
def test_what_is_not_there_is_refused_and_the_child_goes_on(
    own: Saturator, rule: str, node: str | None, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        own.xray(PROGRAM, rule, node)
    assert funnel(own.xray(PROGRAM, "four")) == [4, 3, 2, 0]


def test_a_node_of_a_sort_that_the_rule_does_not_look_at_is_refused(saturator: Saturator) -> None:
    with pytest.raises(InputError, match="is of sort IRList"):
        saturator.xray("(let $t0 (RNil))", "multiply by one", "$t0")
    with pytest.raises(RuleError, match=r"^program.egg:1"):
        saturator.xray("(let $t0 (Nope))", "multiply by one")


def test_a_cross_product_stops_the_funnel_before_it_is_made(own: Saturator) -> None:
    program = "(let $root (Leaf 0))" + "".join(f"(Leaf {i})" for i in range(101))
    result = own.xray(program, "product")
    assert funnel(result) == [101, 10_201, None, None]
    assert result.stopped.startswith("stopped before premise 3: it shares no variable with those before it")


def test_a_premise_that_does_not_end_is_ended_and_what_was_counted_stays() -> None:
    # Cheap for the schedule, which sees that nothing is `never`; the first three premises have 27 million bindings.
    rule = """(ruleset own) (relation never (Expression))
    (rule ((MAdd ?a ?b) (MAdd ?a ?c) (MAdd ?a ?d) (never ?d)) ((never ?a)) :ruleset own :name "star")"""
    program = "(let $root (RNil))\n" + "".join(f"(MAdd (MVar \"n\") (MNum {i}))" for i in range(300))
    with with_rules(rule) as saturator:
        assert saturator.rules
        began = time.monotonic()
        result = saturator.xray(program, "star", seconds=0.3)
        assert time.monotonic() - began < 3
        assert funnel(result)[:2] == [300, 90_000]
        assert result.stopped.startswith("premise 3 took more than 0.3 s")
        assert saturator.xray(program, "multiply by one").first_failing == 0  # in a new child


class TestMatmulsOfLlama:
    """Every flattening and sgemm rule at matmuls of a transformer where it does not fire."""

    @pytest.fixture(scope="class")
    def programs(self, model_path: object) -> list[ChunkProgram]:
        graph = import_model(model_path("llama3_tiny_4l_ts17")).graph  # type: ignore[operator]
        _, programs, groups = split_and_group(graph)
        return [programs[g.representative] for g in groups]

    @staticmethod
    def matmuls(saturator: Saturator, program: ChunkProgram) -> list[str]:
        """The sums that were recognised."""
        lines = [line.split()[1] for line in program.text.splitlines() if "(Sum " in line]
        return [
            v
            for v in lines
            if any(
                saturator.xray(program.text, r.name, v).first_failing is None
                for r in saturator.rules
                if r.name.startswith("recognize matmul")
            )
        ]

    def test_each_has_a_true_reason(self, saturator: Saturator, programs: Sequence[ChunkProgram]) -> None:
        # All batches here have a leading 1; `squeeze` is asked about another below.
        rules = [
            r.name
            for r in saturator.rules
            if r.file.startswith(("flatten/", "blas/")) and r.file != "flatten/squeeze.egg"
        ]
        assert len(rules) > 8
        seen: dict[str, set[tuple[str, str]]] = {name: set() for name in rules}
        for program in programs:
            for node in self.matmuls(saturator, program):
                for rule in rules:
                    result = saturator.xray(program.text, rule, node)
                    counts = funnel(result)
                    assert None not in counts
                    if result.first_failing is not None:
                        assert not any(counts[result.first_failing :])
                        assert all(counts[: result.first_failing])
                        assert result.wanted
                        assert result.found_instead
                        seen[rule].add((result.wanted, result.at))
        assert all(seen.values()), [name for name, reasons in seen.items() if not reasons]
        layout = ("(MIter)", "argument 12 (b_k) of Matmul in ?e")
        assert layout in seen["sgemm RmCm"]
        assert ("(MIter)", "argument 7 (a_m) of Matmul in ?e") in seen["sgemm CmRm"]
        merge = seen["matmul flattening: merge batch, A contiguous, B broadcast"]
        assert any(wanted == "(MNum 0)" and "(b_batch)" in at for wanted, at in merge)

    def test_what_stands_there_is_what_the_program_says(
        self, saturator: Saturator, programs: Sequence[ChunkProgram]
    ) -> None:
        # The attention product: B is a stack of heads, two of A's for each of its own, so it is no broadcast.
        found = {
            saturator.xray(p.text, "matmul flattening: merge batch, A contiguous, B broadcast", v).found_instead
            for p in programs
            for v in self.matmuls(saturator, p)
        }
        assert any("(MDiv (MIter) (MNum 2))" in text for text in found)


def of_dtype(dtype: dt.DType) -> ChunkProgram:
    """[8, 2, 4] x [4, 3], of any dtype, the batch neither 1 nor contiguous with the rows of B."""
    graph = Graph("matmul")
    a = graph.add(ops.Input("a"), [], (64,), dtype, "a")
    b = graph.add(ops.Input("b"), [], (96,), dtype, "b")
    shape = (8, 2, 3, 4)
    total = matmul(
        graph,
        a,
        Layout(shape, (Z * 8, Z * 4, ZERO, Z), ZERO),
        b,
        Layout(shape, (Z * 12, ZERO, Z, Z * 3), ZERO),
    )
    graph.add(ops.Output("y"), [whole(total)], total.shape, dtype)
    (chunk,) = split(graph, ())
    return emit(graph, chunk.nodes, chunk.inputs, chunk.outputs)


def test_another_dtype_is_the_reason_and_a_batch_of_eight(saturator: Saturator) -> None:
    program = of_dtype(dt.I32)
    (node,) = TestMatmulsOfLlama.matmuls(saturator, program)
    result = saturator.xray(program.text, "sgemm RmRm", node)
    assert funnel(result) == [1, 1, 1, 1, 1, 0, 0, 0]
    assert (result.wanted, result.at, result.found_instead) == ("(F32)", "(dtype ?a)", "(I32)")
    assert result.binding["?a"] == "$t0"
    squeeze = saturator.xray(program.text, "matmul flattening: squeeze leading 1", node)
    assert (squeeze.wanted, squeeze.found_instead) == ("(MNum 1)", "(MNum 8)")
    assert squeeze.at == "item 1 of argument 1 (batch) of Matmul in ?e"
    assert saturator.xray(of_dtype(dt.F32).text, "sgemm RmRm", node).first_failing is None
