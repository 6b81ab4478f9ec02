"""Why a rule of an egglog program did not fire, asked of the e-graph that the program left."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from workbench.egraph.program_runner import Heard, ProgramRunner
from workbench.errors import InputError, printable
from workbench.session import events as ev
from workbench.session.saturation import limits_of
from workbench.session.spec import SessionSpec
from workbench.session.xray import close_names, done_from, printed


def xray_program(spec: SessionSpec, rule: str, node: str | None) -> dict[str, Any]:
    """Run a program and X-ray a rule of it: the object that `xray --json` prints. A program that fails or is stopped is
    asked as it was then.

    Raises InputError for a rule or a global variable that is not there, ModelError for a file that cannot be read."""
    with ProgramRunner(spec.model, spec.working or os.getcwd(), limits_of(spec), spec.allow_files) as runner:
        ran = runner.run(runner.read())
        done = ask_program(runner, ran.heard, rule, node)
    found = {"model": spec.model, "target": None, **printed(done)}
    ended = ran.ended
    if ended.outcome != "ok":
        place = f"{ended.file}:{ended.line}"
        found["note"] = f"the program ended early, at {place}: {ended.error or ran.stopped}"
    return found


def ask_program(runner: ProgramRunner, heard: Heard, rule: str, node: str | None) -> ev.XrayDone:
    """The X-ray of a rule at all e-classes, or at that of the global variable `node`. Raises InputError."""
    info = next((r for r in heard.rules if r.name == rule), None)
    if info is None:
        close = close_names([r.name for r in heard.rules], rule)
        raise InputError(
            f"there is no rule '{printable(rule, 80)}'",
            f"close to it: {close}" if close else f"the program declares {len(heard.rules)}",
        )
    result = runner.xray(rule, node)
    done = done_from(result, group=None, node=None, variable=node)
    # Of a question that was ended, the child could not say where the rule is.
    return msgspec.structs.replace(done, file=info.file, line=info.line)
