"""`check-rules`: lint and proof of a rule directory, or of the library that ships, for every target it is for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.egraph.proof.examples import Example, examples_of
from workbench.egraph.proof.lint import Finding, lint
from workbench.egraph.proof.prove import Prover, RuleProof
from workbench.egraph.proof.reading import Read, read_rules
from workbench.egraph.rules import RuleFile, read_library
from workbench.errors import RuleError, printable
from workbench.targets import TARGETS

PROGRAMS = 160
VERDICTS = ("proved", "refuted", "failed", "unchecked", "never fired")
SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Checked:
    """The verdict on each rule, and the lint's findings."""

    proofs: Sequence[RuleProof]
    findings: Sequence[Finding]
    programs: int
    seed: int
    loose: Sequence[str] = ()
    """What is wrong without a rule to blame."""

    @property
    def refuted(self) -> list[RuleProof]:
        """Rules that are wrong, or whose examples do not hold."""
        return [p for p in self.proofs if p.verdict in ("refuted", "failed")]

    @property
    def doubtful(self) -> bool:
        """Whether the lint found something, or a rule never fired or could not be checked."""
        return bool(self.findings) or any(p.verdict in ("never fired", "unchecked") for p in self.proofs)


def check_rules(
    directory: Path | None = None,
    *,
    programs: int = PROGRAMS,
    seconds: float = SECONDS,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda line: None,
) -> Checked:
    """Check the rules of a directory: with a `base.egg` of its own it is a whole library, else it is tried on top of
    the one that ships. `seconds` bounds the random programs of one target.

    Raises RuleError (file:line) for files that cannot be read, parsed or loaded."""
    whole = directory is None or (directory / "base.egg").is_file()
    library = () if whole else read_library(target=None)
    own = read_library(directory, target=None)
    trusted, read = read_rules(library), read_rules(own)
    findings = lint(read, trusted if library else read)
    clashing = {r.name for r in trusted.rules} & {r.name for r in read.rules}
    own = tuple(_renamed(file, clashing) for file in own)
    examples = [e for file in own for e in examples_of(file)]
    on_trial = read_rules(own)
    there = {r.shown for r in on_trial.rules}
    for example in examples:
        if example.rule not in there:
            raise RuleError(
                f"{printable(example.file)}:{example.line}: there is no rule '{printable(example.rule)}' to fire",
                "the example's name must be the rule's",
            )
    loose: list[str] = []

    def prove(target: str) -> Mapping[str, RuleProof]:
        files = [f for f in (*library, *own) if target in f.targets]
        mine = [f for f in own if target in f.targets]
        if not mine:
            return {}
        names = frozenset(r.shown for r in read_rules(mine).rules)
        both = Read((*trusted.rules, *on_trial.rules), frozenset(), frozenset(), frozenset())
        prover = Prover(files, both, names, target, seed)
        proofs = prover.run(programs, seconds, _examples_for(target, own, examples), lambda done: say(target, done))
        loose.extend(prover.loose)
        return proofs

    progress: dict[str, int] = {}

    def say(target: str, done: int) -> None:
        progress[target] = done
        if done % 20 == 0:
            on_progress(", ".join(f"{t}: program {n}" for t, n in sorted(progress.items())))

    with ThreadPoolExecutor(len(TARGETS)) as pool:
        proofs = _merged(pool.map(prove, TARGETS))
    order = {r.shown: i for i, r in enumerate(on_trial.rules)}
    return Checked(sorted(proofs, key=lambda p: order[p.rule.name]), findings, programs, seed, loose)


def _renamed(file: RuleFile, clashing: set[str]) -> RuleFile:
    """A file whose rules are named as those that ship is tried beside them under other names."""

    def other(found: re.Match[str]) -> str:
        return f':name "{found[1]} (yours)"' if found[1] in clashing else found[0]

    text = re.sub(r':name\s+"([^"\n]*)"', other, file.text)
    named = re.sub(r'(;\s*Fires )"([^"\n]*)"', lambda m: f'{m[1]}"{m[2]} (yours)"' if m[2] in clashing else m[0], text)
    return RuleFile(file.name, named)


def _examples_for(target: str, own: Iterable[RuleFile], examples: Sequence[Example]) -> list[Example]:
    """Each example once, for the first target that its file is for."""
    first = {file.name for file in own if file.targets[0] == target}
    return [e for e in examples if e.file in first]


def _merged(found: Iterable[Mapping[str, RuleProof]]) -> list[RuleProof]:
    """One proof a rule, over the targets."""
    merged: dict[str, RuleProof] = {}
    for proofs in found:
        for name, proof in proofs.items():
            before = merged.setdefault(name, proof)
            if before is proof:
                continue
            before.targets += proof.targets
            before.matches += proof.matches
            before.programs += proof.programs
            before.calls += proof.calls
            before.refused += proof.refused
            before.unchecked += proof.unchecked
            before.examples += proof.examples
            before.near_misses += proof.near_misses
            before.complaints += proof.complaints
            before.counterexample = before.counterexample or proof.counterexample
    return list(merged.values())


def as_json(checked: Checked) -> dict[str, Any]:
    """The object of `check-rules --json`."""
    return {
        "seed": checked.seed,
        "programs": checked.programs,
        "unexplained": list(checked.loose),
        "rules": [_rule_json(p) for p in checked.proofs],
        "lint": [
            {"kind": f.kind, "rule": f.rule, "file": f.file, "line": f.line, "text": f.text, "advice": f.advice}
            for f in checked.findings
        ],
    }


def _rule_json(proof: RuleProof) -> dict[str, Any]:
    wrong = proof.counterexample
    return {
        "name": proof.rule.name,
        "file": proof.rule.file,
        "line": proof.rule.line,
        "targets": proof.targets,
        "verdict": proof.verdict,
        "matches": proof.matches,
        "programs": proof.programs,
        "calls": proof.calls,
        "refused": proof.refused,
        "unchecked": proof.unchecked,
        "examples": proof.examples,
        "near_misses": proof.near_misses,
        "complaints": proof.complaints,
        "counterexample": wrong
        and {"program": wrong.program, "difference": wrong.difference, "maker": wrong.maker},
    }


def as_text(checked: Checked, every: bool = False) -> str:
    """The report for a terminal; `every` lists the proved rules too."""
    lines: list[str] = []
    for proof in checked.proofs:
        if every or proof.verdict != "proved":
            lines += _rule_lines(proof)
    for f in checked.findings:
        lines.append(f"{printable(f.file)}:{f.line}: {f.kind}: {printable(f.rule, 60)}")
        lines.append(f"    {f.text}")
        lines.append(f"    {f.advice}")
    for difference in checked.loose[:3]:
        lines.append(f"wrong in some program, and no rule could be blamed: {printable(difference, 200)}")
    bare = [p for p in checked.proofs if not p.examples or not p.near_misses]
    if bare:
        lines.append(f"{len(bare)} rules without an example and a near miss: {_names(bare)}")
    counts = {verdict: sum(p.verdict == verdict for p in checked.proofs) for verdict in VERDICTS}
    said = ", ".join(f"{n} {verdict}" for verdict, n in counts.items() if n)
    lines.append(
        f"{len(checked.proofs)} rules: {said}; {len(checked.findings)} lint findings "
        f"({checked.programs} random programs a target, seed {checked.seed})"
    )
    return "\n".join(lines)


def _rule_lines(proof: RuleProof) -> list[str]:
    rule = proof.rule
    head = f"{printable(rule.file)}:{rule.line}: {proof.verdict}: {printable(rule.name, 80)}"
    lines = [f"{head} ({proof.matches} matches in {proof.programs} programs, {' and '.join(proof.targets)})"]
    lines += [f"    {printable(c, 300)}" for c in dict.fromkeys(proof.complaints)]
    if proof.verdict == "never fired":
        lines.append("    no program made it fire: give it an example (; Fires ..)")
    if proof.calls == proof.refused > 0:
        lines.append(f"    the library refuses every call that it makes ({proof.calls})")
    if proof.verdict == "unchecked":
        lines.append(f"    it made {proof.unchecked} e-nodes of which the built-in language says nothing")
    wrong = proof.counterexample
    if wrong is not None:
        lines.append(f"    {wrong.difference}")
        if wrong.maker:
            lines.append(f"    in an e-node that '{printable(wrong.maker, 60)}' made of what it stated")
        lines.append("    in this program, with random inputs:")
        lines += [f"      {printable(line, 160)}" for line in wrong.program.splitlines()]
    return lines


def _names(proofs: Sequence[RuleProof]) -> str:
    shown = ", ".join(printable(p.rule.name, 40) for p in proofs[:4])
    return shown if len(proofs) <= 4 else f"{shown} and {len(proofs) - 4} more"
