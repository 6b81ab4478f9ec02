"""Why a rule did not fire, or not at a node: the question put to the right e-graph, for the command and the engine."""

from __future__ import annotations

import contextlib
import difflib
import queue
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
from loguru import logger

from workbench.chunking import Group
from workbench.egraph.messages import XrayResult
from workbench.egraph.program import ChunkProgram
from workbench.egraph.rules import RuleFile, read_library
from workbench.egraph.saturate import Saturator
from workbench.errors import InputError, RuleError, SessionError, WorkbenchError, printable
from workbench.session import events as ev
from workbench.session.saturation import digest_of, limits_of
from workbench.session.spec import DEMO, SessionSpec
from workbench.targets import resolved

if TYPE_CHECKING:
    from workbench.session.recorded import Recorded
    from workbench.session.session import CompileSession

BROKEN = "the rule files as they are now cannot be read; this is with those that the groups were saturated with"
CHANGED = "the rule files have changed since the groups were saturated; this is with the rules as they are now"


def xray_model(spec: SessionSpec, rule: str, node: str | None, group: int | None, scratch: Path) -> dict[str, Any]:
    """Import, split, saturate the group in question and X-ray it: the object that `xray --json` prints.

    Raises InputError for a rule, node or group that is not there, and what importing and saturating raise."""
    from workbench.session.importing import imported
    from workbench.session.inspection import split_and_group

    own = Path(spec.egg) if spec.egg else None
    target = resolved(spec.target)
    files = read_library(own, [Path(r) for r in spec.rules], target)
    path = Path(spec.model)
    if spec.model == DEMO:
        from workbench.frontend.demo import write_demo

        path = write_demo(scratch / "demo.onnx")
    with Saturator(files, limits_of(spec)) as saturator:
        try:
            check_rule(saturator, rule)
        except InputError as error:
            whole = read_library(own, [Path(r) for r in spec.rules], None)
            raise _of_another_target(rule, files, whole) or error from None
        _, programs, groups = split_and_group(imported(spec, path).graph, spec.breaks)
        done = answer(saturator, groups, programs, rule, node, group)
    found = printed(done)
    found.pop("note")
    return {"model": spec.model, "target": target, **found}


def printed(done: ev.XrayDone) -> dict[str, Any]:
    """An answer as `xray --json` has it."""
    found: dict[str, Any] = ev.to_builtins(done)
    for key in ("type", "at", "error"):
        found.pop(key)
    found["at"] = found.pop("place")
    return found


def check_rule(saturator: Saturator, rule: str) -> None:
    """Raises InputError, with the closest names, for a rule that is not in the library."""
    names = [r.name for r in saturator.rules]
    if rule in names:
        return
    shown = close_names(names, rule)
    raise InputError(
        f"there is no rule '{printable(rule, 80)}'",
        f"close to it: {shown}" if shown else "luminal-tui rules MODEL lists them",
    )


def _of_another_target(rule: str, files: Sequence[RuleFile], whole: Sequence[RuleFile]) -> InputError | None:
    """What to say of a rule that is not in `files` and yet in the `whole` library."""
    for file in whole:
        if file not in files and f':name "{rule}"' in file.text:
            targets = " or ".join(file.targets)
            return InputError(
                f"'{printable(rule, 80)}' is a rule for {targets} ({printable(file.name)})",
                f"ask with --target {targets}",
            )
    return None


def close_names(names: Sequence[str], rule: str) -> str:
    """Up to three names that have all the words of `rule`, or look like it, as text."""
    words = rule.lower().split()
    close = [n for n in names if words and all(w in n.lower() for w in words)]
    close += [n for n in difflib.get_close_matches(rule, names, 3, 0.5) if n not in close]
    return ", ".join(f"'{printable(n, 80)}'" for n in close[:3])


def answer(
    saturator: Saturator,
    groups: Sequence[Group],
    programs: Sequence[ChunkProgram],
    rule: str,
    node: str | None,
    group: int | None,
    steps: Mapping[int, int | None] = MappingProxyType({}),
) -> ev.XrayDone:
    """The X-ray of a rule in a group: at a node (an HLIR id, or `$tN` of the group's program), or at all e-classes.
    `steps` says for groups whose saturation was stopped after how many steps.

    Without a group: the one that computes the node, or the first in which the rule has something to match and yet
    does not fire. Raises InputError for what is not there."""
    check_rule(saturator, rule)
    if group is not None and not 0 <= group < len(groups):
        raise InputError(f"there is no group {group}", f"there are groups 0 to {len(groups) - 1}")
    places = list(_places(groups, programs, node, group))
    if not places:
        where = f"group {group}" if group is not None else "any chunk"
        raise InputError(
            f"node {printable(node or '', 40)} is not in {where}",
            "the graph pane shows ids; a scalar constant is written into its consumers and has no e-class",
        )
    best: ev.XrayDone | None = None
    refused: InputError | None = None
    for chosen, variable, hlir in places:
        try:
            done = _ask(saturator, chosen, programs, rule, variable, hlir, steps.get(chosen.index))
        except InputError as error:  # a `$tN` may be of another sort in another group
            refused = refused or error
            continue
        begins = bool(done.premises) and bool(done.premises[0].matches)
        if len(places) == 1 or (begins and done.first_failing is not None):
            return done
        if best is None or (begins and not best.premises[0].matches):
            best = done
    if best is None:
        raise refused or InputError(f"'{printable(rule)}' cannot be asked there")
    return best


def _places(
    groups: Sequence[Group], programs: Sequence[ChunkProgram], node: str | None, group: int | None
) -> Iterator[tuple[Group, str | None, int | None]]:
    """Groups to ask in, each with the node's variable and HLIR id."""
    chosen = [g for g in groups if group in (None, g.index)]
    if node is None:
        yield from ((g, None, None) for g in chosen)
        return
    if node.startswith("$"):
        for g in chosen:
            ids = {v: i for i, v in programs[g.representative].variables.items()}
            if node in ids:
                yield g, node, ids[node]
        return
    if not re.fullmatch(r"[0-9]{1,9}", node):
        raise InputError(f"'{printable(node, 40)}' is not a node", "give an HLIR id as the graph pane shows it, or $tN")
    hlir = int(node)
    # A chunk that computes the node is asked before one that reads it.
    found = [
        (hlir in programs[m].inputs, g.index, programs[m].variables[hlir])
        for g in chosen
        for m in g.members
        if hlir in programs[m].variables
    ]
    if found:
        _, index, variable = min(found)
        yield groups[index], variable, hlir


def _ask(
    saturator: Saturator,
    group: Group,
    programs: Sequence[ChunkProgram],
    rule: str,
    variable: str | None,
    hlir: int | None,
    steps: int | None,
) -> ev.XrayDone:
    result = saturator.xray(programs[group.representative].text, rule, variable, max_steps=steps)
    return done_from(result, group.index, hlir, variable)


def done_from(result: XrayResult, group: int | None, node: int | None, variable: str | None) -> ev.XrayDone:
    """The event of an answer."""
    return ev.XrayDone(
        rule=result.rule,
        group=group,
        node=node,
        variable=variable,
        root=result.root,
        file=result.file,
        line=result.line,
        premises=[ev.PremiseRow(p.text, p.matches, p.counts) for p in result.premises],
        first_failing=result.first_failing,
        wanted=result.wanted,
        place=result.at,
        found_instead=result.found_instead or None,
        binding=result.binding,
        fired=result.fired,
        stopped=result.stopped,
        seconds=result.seconds,
    )


def as_text(found: dict[str, Any]) -> str:
    """The X-ray for a person."""
    where = "at all e-classes"
    if found["variable"]:
        name = printable(found["variable"], 80)
        name = name if found["node"] is None else f"node {found['node']} ({name})"
        where = f"{found['root'] or 'its root'} at {name}"
    inside = "program" if found["group"] is None else "group"
    fired = f"{found['fired']} matches in the {inside}" if found["fired"] else f"it never fired in the {inside}"
    lines = [
        f"{printable(found['rule'])}  {printable(found['file'])}:{found['line']}",
        f"  {'' if found['group'] is None else f'group {found["group"]}, '}{where}; {fired}",
        "",
        "    matches  premise",
    ]
    for place, premise in enumerate(found["premises"]):
        matches = "-" if premise["matches"] is None else f"{premise['matches']:,}"
        mark = ">" if place == found["first_failing"] else " "
        lines.append(f"  {mark} {matches:>7}  {printable(premise['text'], 400)}")
    counts = [p["counts"] for p in found["premises"] if p["matches"] is not None]
    if counts:
        lines.append(f"  matches: {printable(counts[-1], 300)}")
    if found["first_failing"] is not None:
        lines += ["", f"  premise {found['first_failing'] + 1} holds for none of them"]
        lines += [f"    {title:7} {printable(text, 1000)}" for title, text in reasons(found)]
    elif not found["stopped"]:
        lines += ["", "  every premise holds"]
        if not found["fired"]:
            lines.append("  but only now: when its ruleset ran, something was not there yet")
    for said in (found["stopped"], found.get("note", "")):
        if said:
            lines += ["", f"  {printable(said, 600)}"]
    return "\n".join(lines)


def reasons(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The lines that say why the first failing premise fails, titled."""
    bound = ", ".join(f"{name} = {value}" for name, value in found["binding"].items())
    titled = (("wanted", found["wanted"]), ("at", found["at"]), ("found", found["found_instead"]), ("with", bound))
    return [(title, text) for title, text in titled if text]


class XrayDesk:
    """Answers X-ray questions about a running session, one at a time, on a thread of its own, by `answer`, which `end`
    ends. Answers are events; a question that makes no sense is answered by its `error`."""

    def __init__(
        self, session: Recorded, answer: Callable[[ev.Xray], ev.XrayDone], end: Callable[[], None]
    ) -> None:
        self.session = session
        self._answer = answer
        self._end = end
        self._questions: queue.SimpleQueue[ev.Xray | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def ask(self, question: ev.Xray) -> None:
        """Queue a question; its answer comes as an XrayDone event."""
        self._questions.put(question)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="xray", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread; what is not answered stays so."""
        self._closed = True
        self._questions.put(None)
        self._end()
        if self._thread is not None:
            self._thread.join(5)

    def _work(self) -> None:
        while (question := self._questions.get()) is not None:
            try:
                done = self._answer(question)
            except WorkbenchError as error:
                done = _refused(question, str(error))
            except Exception as error:
                logger.exception("an X-ray failed")
                done = _refused(question, f"internal error: {type(error).__name__}: {printable(str(error))}")
            if self._over():
                return
            with contextlib.suppress(SessionError):  # a full disk: the session thread says so
                self.session.emit(done)

    def _over(self) -> bool:
        return self._closed


class ModelXray:
    """Answers about the groups of a model's session, from a child process of its own, so that a search goes on
    meanwhile."""

    def __init__(self, session: CompileSession) -> None:
        self.session = session
        self._saturator: Saturator | None = None
        self._files: tuple[RuleFile, ...] = ()

    def close(self) -> None:
        """End the child process."""
        if self._saturator is not None:
            self._saturator.close()

    def answer(self, question: ev.Xray) -> ev.XrayDone:
        """Raises WorkbenchError for a question that makes no sense, or too early."""
        session = self.session
        groups, programs = session.groups, session.programs
        if not groups:
            raise SessionError("the model is not split yet", "ask again when it is")
        note = ""
        try:
            files = session.library()
            saturator = self._saturator_of(files)
        except RuleError:
            if session.rules_in_use is None:
                raise
            files, note = session.rules_in_use, BROKEN
            saturator = self._saturator_of(files)
        node = None if question.node is None else str(question.node)
        steps = {i: s.event.steps for i, s in session.saturated.items()}
        done = answer(saturator, groups, programs, question.rule, node, question.group, steps)
        known = None if done.group is None else session.saturated.get(done.group)
        if known is not None and known.rules_digest != digest_of(files):
            note = CHANGED
        return msgspec.structs.replace(done, note=note)

    def _saturator_of(self, files: tuple[RuleFile, ...]) -> Saturator:
        """A saturator that has loaded `files`. Raises RuleError."""
        if self._saturator is None or files != self._files:
            if self._saturator is not None:
                self._saturator.close()
            self._saturator, self._files = Saturator(files, limits_of(self.session.spec)), files
        _ = self._saturator.rules
        return self._saturator


def model_desk(session: CompileSession) -> XrayDesk:
    """The desk of a model's session."""
    asked = ModelXray(session)
    return XrayDesk(session, asked.answer, asked.close)


def _refused(question: ev.Xray, message: str) -> ev.XrayDone:
    return ev.XrayDone(rule=question.rule, group=question.group, node=question.node, error=message)
