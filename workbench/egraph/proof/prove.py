"""Tries a rule library on random programs and its own examples: in a saturated e-graph all e-nodes of an e-class must
have the same value, and all facts must hold. What does not is attributed to the rule that is to blame."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from workbench.egraph.messages import RuleInfo, StepDone
from workbench.egraph.program import emit
from workbench.egraph.proof.corpus import graphs, random_inputs
from workbench.egraph.proof.examples import Example
from workbench.egraph.proof.facts import SHOWN, false_facts, observers, unequal_expressions
from workbench.egraph.proof.library_calls import CALLS
from workbench.egraph.proof.reading import Read, calls
from workbench.egraph.proof.semantics import Meaning
from workbench.egraph.rules import RuleFile
from workbench.egraph.saturate import Limits, Saturator
from workbench.egraph.schedule import SCHEDULE
from workbench.egraph.snapshot import Snapshot
from workbench.errors import WorkbenchError
from workbench.ir import dtype as dt
from workbench.ir import expr as ex
from workbench.ir import interpret, ops
from workbench.ir.hlir import Graph

LIMITS = Limits(nodes=20_000, seconds=3.0, memory_bytes=4 << 30, grace_seconds=2.0)
"""Of one small program; a rule that reaches them explodes."""
MOST_SUSPECTS = 12
"""Rules that are left out in turn to find the one to blame."""
MOST_COUNTEREXAMPLES = 8
"""Programs whose violations are attributed, per target; more of them say nothing new."""


@dataclass(slots=True)
class Counterexample:
    """A program in which a rule is wrong, and how."""

    program: str
    difference: str
    maker: str
    """The rule that made the wrong e-node, where that is another one."""


@dataclass(slots=True)
class RuleProof:
    """What became of one rule: how often it matched, in how many programs, what shows it wrong."""

    rule: RuleInfo
    targets: list[str] = field(default_factory=list)
    matches: int = 0
    programs: int = 0
    calls: int = 0
    refused: int = 0
    """Library calls it made, and those that the library refuses; extraction leaves these out."""
    unchecked: int = 0
    """E-nodes it made of which nothing can be said."""
    examples: int = 0
    near_misses: int = 0
    complaints: list[str] = field(default_factory=list)
    """Examples on which it does not fire, near misses on which it does, limits that it ran into."""
    counterexample: Counterexample | None = None

    @property
    def verdict(self) -> str:
        """proved, refuted, failed (an example does not hold, it explodes), unchecked or never fired."""
        if self.counterexample is not None:
            return "refuted"
        if self.complaints or self.calls == self.refused > 0:
            return "failed"
        if not self.matches:
            return "never fired"
        return "unchecked" if self.unchecked else "proved"


@dataclass(frozen=True, slots=True)
class _Case:
    """A program with values for its inputs; `values` are known ones, by global variable."""

    text: str
    inputs: Sequence[np.ndarray]
    values: Mapping[str, np.ndarray]
    dims: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Violation:
    maker: str | None
    fact: str
    """The fact's function, where a fact is false."""
    difference: str


@dataclass(slots=True)
class _Looked:
    """What was found in one e-graph; rules by name."""

    violations: list[_Violation] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


class Prover:
    """Proves the rules of one library for one target. `own` names the rules that are on trial; others are trusted."""

    def __init__(self, files: Sequence[RuleFile], read: Read, own: frozenset[str], target: str, seed: int = 0) -> None:
        self.files = (*files, observers(files))
        self.read = read
        self.own = own
        self.target = target
        self.seed = seed
        self.proofs: dict[str, RuleProof] = {}
        self.loose: list[str] = []
        """What is wrong in programs where no rule could be blamed."""
        self.attributed = 0
        self._smallest: dict[str, int] = {}
        self._running: Saturator | None = None
        self._left_out: list[str] = []
        """Rules on trial that explode; they are left out from then on."""
        self._other: Saturator | None = None
        """The last one that left rules out."""

    def run(
        self, programs: int, seconds: float, examples: Sequence[Example], on_program: Callable[[int], None]
    ) -> dict[str, RuleProof]:
        """Try `programs` random programs, or as many as `seconds` allow, then the examples. Proofs by rule name.

        Raises RuleError for a library that does not load."""
        began = time.monotonic()
        try:
            for rule in self._saturator().rules:
                if rule.name in self.own:
                    self.proofs[rule.name] = RuleProof(rule, [self.target])
            for done, graph in enumerate(islice(graphs(self.seed), programs)):
                if time.monotonic() - began > seconds:
                    break
                on_program(done)
                case = _case_of(graph, self.seed + done)
                self._try(case.text, lambda _, case=case: case)  # type: ignore[misc]
            for example in examples:
                self._check(example)
        finally:
            for saturator in (self._running, self._other):
                if saturator is not None:
                    saturator.close()
        return self.proofs

    def _saturator(self) -> Saturator:
        if self._running is None:
            self._running = Saturator(self.files, LIMITS, self._left_out)
        return self._running

    def _try(self, text: str, case_of: Callable[[Snapshot], _Case]) -> dict[str, int]:
        """Saturate, count, compare; the matches of each rule."""
        try:
            matches, snapshot, stopped = _saturated(self._saturator(), text)
        except WorkbenchError as error:  # it ran into a limit inside a step, or egglog panicked
            self._runs_away(text, str(error))
            return {}
        if stopped:
            self._runs_away(text, stopped)
        case = case_of(snapshot)
        for name, count in matches.items():
            if name in self.proofs:
                self.proofs[name].matches += count
                self.proofs[name].programs += 1
        found = _look(snapshot, case)
        for name, proof in self.proofs.items():
            proof.calls += found.calls.count(name)
            proof.refused += found.refused.count(name)
            proof.unchecked += found.unknown.count(name)
        if found.violations:
            self._attribute(case, found.violations, matches)
        return matches

    def _runs_away(self, text: str, message: str) -> None:
        """A saturation that a limit or a panic ended: find the rule without which it does not."""
        named = [name for name in self.own if f"'{name}'" in message]
        for name in (named or sorted(self.own))[:MOST_SUSPECTS]:
            if name in self.proofs and name not in self._left_out and self._ends_without(name, text):
                self.proofs[name].complaints.append(f"it explodes or fails: {message}")
                self._left_out.append(name)
                if self._running is not None:
                    self._running.close()
                self._running = None
                return
        if len(self.loose) < MOST_COUNTEREXAMPLES:
            self.loose.append(message)

    def _ends_without(self, name: str, text: str) -> bool:
        try:
            _, _, stopped = _saturated(self._without([*self._left_out, name]), text)
        except WorkbenchError:
            return False
        return not stopped

    def _without(self, names: Sequence[str]) -> Saturator:
        """A saturator without some rules; the last one is kept, since the next question is often about the same."""
        if self._other is None or list(self._other.without) != list(names):
            if self._other is not None:
                self._other.close()
            self._other = Saturator(self.files, LIMITS, list(names))
        return self._other

    def _attribute(self, case: _Case, violations: Sequence[_Violation], matches: Mapping[str, int]) -> None:
        """Blame the rule without which the violations do not come about; what refuted rules explain is explained."""
        refuted = [n for n, p in self.proofs.items() if p.counterexample is not None]
        if refuted:
            left = self._left_without(refuted, case)
            if left == []:
                if len(refuted) == 1:
                    self._refute(refuted[0], case, violations[0])
                return
            violations = left or violations
        if self.attributed == MOST_COUNTEREXAMPLES:
            self._nobody(violations)
            return
        self.attributed += 1
        suspects = self._suspects(violations) or [n for n in matches if n in self.own]
        blamed = suspects[0] if suspects else None
        if len(suspects) > 1:
            clears = (n for n in suspects[:MOST_SUSPECTS] if self._left_without([*refuted, n], case) == [])
            blamed = next(clears, blamed)
        if blamed is None:
            self._nobody(violations)
            return
        own = [v for v in violations if v.maker == blamed]
        self._refute(blamed, case, (own or violations)[0])

    def _nobody(self, violations: Sequence[_Violation]) -> None:
        if len(self.loose) < MOST_COUNTEREXAMPLES:
            self.loose.append(violations[0].difference)

    def _suspects(self, violations: Sequence[_Violation]) -> list[str]:
        """Rules on trial that state a false fact or made a wrong e-node, those that run first in front: what others
        make of a wrong e-node is wrong too."""
        stated = {v.fact for v in violations if v.fact}
        setters = {r.shown for r in self.read.rules if any(stated & set(calls(e)) for e in r.conclusions)}
        makers = {v.maker for v in violations if v.maker}
        places = {ruleset: i for i, phase in enumerate(SCHEDULE) for ruleset in phase.rulesets}
        found = [p.rule for n, p in self.proofs.items() if n in setters | makers and p.matches]
        found.sort(key=lambda rule: (rule.name not in setters, places.get(rule.ruleset, len(places))))
        return [rule.name for rule in found]

    def _left_without(self, names: Sequence[str], case: _Case) -> list[_Violation] | None:
        """The violations in a program when these rules are left out; None where that cannot be said."""
        try:
            _, snapshot, stopped = _saturated(self._without([*self._left_out, *names]), case.text)
        except WorkbenchError:
            return None
        return None if stopped else _look(snapshot, case).violations

    def _refute(self, name: str, case: _Case, violation: _Violation) -> None:
        size = len(case.text)
        if size < self._smallest.get(name, size + 1):
            self._smallest[name] = size
            maker = violation.maker if violation.maker not in (None, name) else ""
            self.proofs[name].counterexample = Counterexample(case.text, violation.difference, maker or "")

    def _check(self, example: Example) -> None:
        proof = self.proofs.get(example.rule)
        if proof is None or example.rule in self._left_out:
            return
        where = f"{example.file}:{example.line}"
        proof.examples += example.fires
        proof.near_misses += not example.fires
        matches = self._try(example.program, lambda bound: _example_case(example, bound, self.seed))
        fired = matches.get(example.rule, 0) > 0
        if fired is not example.fires:
            word = "does not fire on its example" if example.fires else "fires on its near miss"
            proof.complaints.append(f"it {word} at {where}")


def _case_of(graph: Graph, seed: int) -> _Case:
    leaves = [n.id for n in graph if isinstance(n.op, ops.Input | ops.Constant)]
    outputs = [graph[o].operands[0].source for o in graph.outputs]
    nodes = [n.id for n in graph if not isinstance(n.op, ops.Input | ops.Constant | ops.Output)]
    program = emit(graph, nodes, leaves, outputs)
    values = random_inputs(graph, seed)
    interpret.evaluate(graph, nodes, values, graph.dims, keep={n.id for n in graph})
    known = {variable: values[node] for node, variable in program.variables.items()}
    return _Case(program.text, [values[i] for i in program.inputs], known, graph.dims)


def _example_case(example: Example, snapshot: Snapshot, seed: int) -> _Case:
    """The example with random inputs of the shapes that its Input terms have; named dimensions are 3."""
    rng = np.random.default_rng(seed)
    dims = dict.fromkeys(_dimensions(snapshot), 3)
    inputs: dict[int, np.ndarray] = {}
    for node in range(snapshot.node_count):
        if snapshot.op(node) == "Input":
            position, _, dtype, shape = snapshot.children(node)
            size = 1
            for extent in snapshot.shape(shape):
                size *= int(ex.evaluate(extent, dims))
            held = snapshot.dtype(dtype)
            made = rng.standard_normal(size) if held.is_float else rng.integers(1, 4, size)
            inputs[int(snapshot.literal(position))] = made.astype(held.numpy)
    filler = np.zeros(0, dt.F32.numpy)
    ordered = [inputs.get(i, filler) for i in range(max(inputs, default=-1) + 1)]
    return _Case(example.program, ordered, {}, dims)


def _dimensions(snapshot: Snapshot) -> Iterator[str]:
    for node in range(snapshot.node_count):
        if snapshot.op(node) == "MVar":
            yield str(snapshot.literal(snapshot.children(node)[0]))


def _saturated(saturator: Saturator, text: str) -> tuple[dict[str, int], Snapshot, str]:
    steps: list[StepDone] = []
    result = saturator.saturate(text, steps.append)
    matches: dict[str, int] = {}
    for step in steps:
        for name, count in step.matches.items():
            matches[name] = matches.get(name, 0) + count
    return matches, Snapshot(result.snapshot), result.stopped


def _look(snapshot: Snapshot, case: _Case) -> _Looked:
    """What does not hold in a saturated e-graph."""
    found = _Looked()
    known = {name: value for name, value in case.values.items() if name in snapshot.variables}
    for node, word in unequal_expressions(snapshot, case.dims):
        found.violations.append(_Violation(snapshot.made_by(node), "", word))
    meaning = Meaning(snapshot, case.inputs, known, case.dims)
    for disagreement in meaning.disagreements():
        maker = snapshot.made_by(disagreement.wrong)
        if disagreement.refused:
            found.refused.append(maker or "")
        else:
            op = snapshot.op(disagreement.wrong)
            found.violations.append(_Violation(maker, "", f"{op}: {disagreement.difference}"))
    for fact in false_facts(meaning):
        found.violations.append(_Violation(None, fact.function, fact.difference))
    for node in range(snapshot.node_count):
        if snapshot.op(node) in CALLS:
            found.calls.append(snapshot.made_by(node) or "")
    for node in meaning.unknown:
        if not snapshot.op(node).startswith(SHOWN):
            found.unknown.append(snapshot.made_by(node) or "")
    return found
