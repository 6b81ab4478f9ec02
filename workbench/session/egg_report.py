"""The report of an egglog program's run: the JSON contract of `egg --json`, and the same as text for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from workbench.errors import WorkbenchError, printable
from workbench.session import events as ev
from workbench.session.progress import Progress
from workbench.session.recorded import Stopped
from workbench.session.spec import SessionSpec
from workbench.session.view import SessionView

SHOWN_OUTPUT_LINES = 40
"""Lines of one output in the text report; --json has all."""


def run_program(spec: SessionSpec) -> tuple[dict[str, Any], WorkbenchError | None]:
    """Run a program with progress on stderr: its report, as far as it got, and the error that ended it."""
    from workbench.session.egg import EggSession
    from workbench.session.headless import Interrupted

    progress = Progress()
    with EggSession(spec, on_event=progress) as session:
        error: WorkbenchError | None = None
        try:
            session.run()
        except Stopped:
            error = WorkbenchError("cancelled")
        except WorkbenchError as raised:
            error = raised
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None
        finally:
            progress.close()
        return program_report(session.view, session.spec, session.store.directory), error


def program_report(view: SessionView, spec: SessionSpec, session: Path) -> dict[str, Any]:
    """The object that `egg --json` prints. Without a result, `outcome` is null: the file could not be read, or the
    program was interrupted."""
    program = view.program
    result = program.result if program else None
    table = view.saturation.get(0)
    saturated = table.result if table else None
    report: dict[str, Any] = {
        "file": program.read.file if program else spec.model,
        "outcome": result.outcome if result else None,
        "error": None,
        "commands": [_command(c) for c in program.commands] if program else [],
        "dropped_commands": program.dropped if program else 0,
        "steps": result.steps if result else 0,
        "rules": [msgspec.to_builtins(r) for r in saturated.rules] if saturated else [],
        "rulesets": [msgspec.to_builtins(r) for r in result.rulesets] if result else [],
        "functions": [msgspec.to_builtins(f) for f in result.functions] if result else [],
        "egraph": {"classes": result.classes, "nodes": result.nodes} if result else None,
        "warnings": result.warnings if result else [],
        "seconds": result.seconds if result else None,
        "total_seconds": round(view.now, 6),
        "session": str(session),
    }
    if result and result.outcome != "ok":
        said = result.error or f"stopped at its {result.stopped}"
        report["error"] = {"message": said, "file": result.file, "line": result.line}
    return report


def _command(command: ev.ProgramCommand) -> dict[str, Any]:
    fields = ("file", "line", "kind", "text", "outputs", "seconds", "steps")
    return {name: getattr(command, name) for name in fields}


def as_text(report: dict[str, Any]) -> str:
    """Outputs in order, then the tables."""
    lines: list[str] = []
    for command in report["commands"]:
        for output in command["outputs"]:
            place = f"{command['file']}:{command['line']}"
            shown = [printable(line, 400) for line in output.splitlines()]
            left = len(shown) - SHOWN_OUTPUT_LINES
            lines.append(f"{place}  {printable(command['text'], 80)}")
            lines += [f"    {line}" for line in shown[:SHOWN_OUTPUT_LINES]]
            if left > 0:
                lines.append(f"    and {left:,} more lines; --json has them")
    for table in (_rules(report["rules"]), _rulesets(report["rulesets"]), _functions(report["functions"])):
        lines += ["", *table] if table else []
    lines += [""]
    lines += [f"warning: {printable(w, 400)}" for w in report["warnings"]]
    egraph = report["egraph"]
    if egraph:
        lines.append(
            f"{report['file']}: {report['outcome']}; {egraph['nodes']:,} e-nodes in {egraph['classes']:,} e-classes "
            f"after {report['steps']:,} steps, {report['seconds']:.3f} s in the engine"
        )
    return "\n".join(lines).strip("\n")


def _rules(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    total = sum(r["seconds"] for r in rows) or 1.0
    lines = [f"{'rule':44} {'ruleset':14} {'matches':>10} {'ms':>10} {'share':>6}  where"]
    for r in sorted(rows, key=lambda r: (r["matches"] == 0, -r["seconds"])):
        fired = f"{r['matches']:10}" if r["matches"] else f"{'never':>10}"
        lines.append(
            f"{printable(r['name'], 44):44} {printable(r['ruleset'], 14):14} {fired} {r['seconds'] * 1e3:10.3f} "
            f"{r['seconds'] / total:6.1%}  {r['file']}:{r['line']}"
        )
    never = sum(not r["matches"] for r in rows)
    return [*lines, f"{len(rows)} rules, {never} never fired"]


def _rulesets(rows: list[dict[str, Any]]) -> list[str]:
    lines = [f"{'ruleset':30} {'rules':>6} {'runs':>8} {'matches':>10} {'ms':>10}"]
    lines += [
        f"{printable(r['name'], 30) or '(default)':30} {r['rules']:6} {r['runs']:8} {r['matches']:10} "
        f"{r['seconds'] * 1e3:10.3f}"
        for r in rows
    ]
    return lines if rows else []


def _functions(rows: list[dict[str, Any]]) -> list[str]:
    lines = [f"{'function':30} {'kind':11} {'rows':>10}  signature"]
    for f in sorted(rows, key=lambda f: -f["rows"]):
        arrow = f" -> {f['output']}" if f["output"] else ""
        signature = printable(f"({' '.join(f['inputs'])}){arrow}", 60)
        lines.append(f"{printable(f['name'], 30):30} {f['kind']:11} {f['rows']:10}  {signature}")
    return lines if rows else []
