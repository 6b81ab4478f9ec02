"""The command. Imports are late, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from workbench import __version__
from workbench.errors import InputError, WorkbenchError, printable
from workbench.targets import CHOICES

if TYPE_CHECKING:
    from workbench.session.spec import SessionSpec

INTERRUPTED = 130

DESCRIPTION = """\
A terminal workbench for e-graph deep-learning compilers.

  luminal-tui [MODEL|SESSION]   the workbench; without an argument: pick a file, a session, or the demo
  luminal-tui demo              the workbench on the built-in model
  luminal-tui compile MODEL     headless: progress on stderr, the report on stdout
"""

EPILOG = """\
MODEL is an .onnx file or `demo`. Exit status: 0 done and verified, 1 compiled but wrong or nothing viable,
2 bad usage or input. LUMINAL_LOG sets the log's level (INFO, or INFO,search=TRACE by module).
"""


def main(argv: Sequence[str] | None = None) -> None:
    """The entry point: parses, runs, and turns errors for people into one line and an exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or (arguments[0] not in COMMANDS and arguments[0] not in ("-h", "--help", "--version")):
        arguments.insert(0, "open")
    options = _parser().parse_args(arguments)
    try:
        status = options.call(options)
        sys.stdout.flush()
    except WorkbenchError as error:
        status = _said(str(error), error.exit_status)
    except KeyboardInterrupt:
        status = _said("interrupted", INTERRUPTED)
    except BrokenPipeError:
        status = 0  # the reader of our output has seen enough
    except MemoryError:
        status = _said("out of memory", 2)
    except OSError as error:
        status = _said(f"{printable(str(error.filename or 'the output'))}: {error.strerror or error}", 2)
    except Exception as error:
        status = _said(f"internal error: {type(error).__name__}: {error} ({_kept_traceback()})", 2)
    _drop_output()
    sys.exit(status)


def _said(line: str, status: int) -> int:
    with contextlib.suppress(OSError):
        print(f"luminal-tui: {' '.join(line.split())}", file=sys.stderr)
    return status


def _kept_traceback() -> str:
    """Where the traceback of the current exception is for a bug report."""
    import traceback

    from workbench.session.store import state_directory, write_file

    path = state_directory() / "crash.txt"
    try:
        write_file(path, traceback.format_exc().encode(errors="backslashreplace"))
    except WorkbenchError:
        return "the traceback could not be kept"
    return f"the traceback is in {path}"


def _drop_output() -> None:
    """What stdout could not take is not tried again when Python ends, which would add a message and change the
    status."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """Errors are one line, as everywhere."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"luminal-tui: {message} ({self.prog} --help lists the options)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="luminal-tui",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"luminal-tui {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (call, summary, setup) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.set_defaults(call=call)
        setup(command)
    return parser


def _model_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL", help="an .onnx file, or demo")
    _import_options(command)


def _import_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--breaks", default="auto", metavar="MODE", help="auto, none, explicit, or a regex on names")
    command.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=VALUE,..",
        help="a named dimension's value to profile at; of several, each gets its own best",
    )
    command.add_argument("--random-weights", action="store_true", help="profile a model whose weights are missing")
    command.add_argument(
        "--allow-opaque", action="store_true", help="onnxruntime, or onnx's reference, runs what is not lowered"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _target_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--target", default="auto", choices=CHOICES, help="what to compile for")


def _rule_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--rules", action="append", default=[], metavar="DIR", help="more rules")
    command.add_argument("--egg", metavar="DIR", help="a rule library in place of the built-in one")
    command.add_argument("--session", metavar="DIR", help="session directory; an unfinished one is resumed")
    _limit_options(command)


def _limit_options(command: argparse.ArgumentParser) -> None:
    """Where a saturation stops; what was reached by then is kept."""
    command.add_argument("--egg-nodes", type=_count, metavar="N", help="e-nodes at which a saturation stops")
    command.add_argument("--egg-seconds", type=_seconds, metavar="S", help="seconds after which a saturation stops")
    command.add_argument("--egg-memory", type=_bytes, metavar="SIZE", help="memory of the saturation, like 4G or 512M")


def _compile_options(command: argparse.ArgumentParser) -> None:
    _target_option(command)
    command.add_argument("--limit", type=_count, metavar="N", help="candidates per group")
    command.add_argument("--seed", type=_whole, default=0, metavar="S")
    command.add_argument("--strategy", default="evolve", metavar="NAME", help="evolve or random")
    command.add_argument("--threads", type=_count, metavar="N", help="threads that kernels and BLAS may use")
    command.add_argument("--memory-limit", type=_count, metavar="BYTES", help="most intermediates a candidate may need")
    command.add_argument("--artifacts", metavar="DIR", help="where artifacts go (default: luminal_artifacts)")
    _rule_options(command)


def _whole(text: str, least: int = 0) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a whole number") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}")
    return value


def _count(text: str) -> int:
    return _whole(text, 1)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.001 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a number of seconds of at least 0.001")
    return value


def _bytes(text: str) -> int:
    from workbench.session.spec import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _spec(options: argparse.Namespace) -> SessionSpec:
    from workbench.session.spec import DEFAULT_LIMIT, SessionSpec, checked, parse_dims

    given = vars(options)
    spec = SessionSpec(
        model=options.model,
        target=given.get("target", "auto"),
        limit=given.get("limit") or DEFAULT_LIMIT,
        seed=given.get("seed", 0),
        strategy=given.get("strategy", "evolve"),
        breaks=options.breaks,
        dims=parse_dims(options.dim),
        rules=tuple(given.get("rules", ())),
        egg=given.get("egg"),
        random_weights=options.random_weights,
        allow_opaque=options.allow_opaque,
        threads=given.get("threads"),
        expected=given.get("expected"),
        session=given.get("session"),
        artifacts=given.get("artifacts"),
        memory_limit=given.get("memory_limit"),
        egg_nodes=given.get("egg_nodes"),
        egg_seconds=given.get("egg_seconds"),
        egg_memory=given.get("egg_memory"),
    )
    return checked(spec)


def _compile(options: argparse.Namespace) -> int:
    from workbench.session.headless import compile_report

    report, error = compile_report(_spec(options))
    try:
        if options.json:
            print(json.dumps(report))
        elif report["groups"]:
            from workbench.session.report import as_text

            print(as_text(report))
    finally:
        if error is not None:
            raise error
    return 0


def _run(options: argparse.Namespace) -> int:
    from workbench.session.headless import run_model

    summary, wrong = run_model(_spec(options), options.input, options.output, search_again=options.search)
    print(json.dumps(summary) if options.json else "\n".join(f"{k}: {v}" for k, v in summary.items()))
    if wrong is not None:
        raise wrong
    return 0


def _rules(options: argparse.Namespace) -> int:
    if options.scaling is not None:
        return _scaling(options)
    if options.group is not None:
        raise InputError("--group says which chunk --scaling repeats", "give --scaling too")
    from workbench.session.headless import rules_report
    from workbench.session.rule_table import rule_table

    report = rules_report(_spec(options))
    print(json.dumps(report) if options.json else rule_table(report))
    return 0


def _check_rules(options: argparse.Namespace) -> int:
    from pathlib import Path

    from workbench.egraph.proof import check

    def progress(line: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{line:<60}", end="", file=sys.stderr, flush=True)

    directory = None if options.directory is None else Path(options.directory)
    checked = check.check_rules(
        directory, programs=options.programs, seconds=options.seconds, seed=options.seed, on_progress=progress
    )
    progress("")
    progress("\r")
    print(json.dumps(check.as_json(checked)) if options.json else check.as_text(checked, options.all))
    return 1 if checked.refuted or checked.loose or (options.strict and checked.doubtful) else 0


def _scaling(options: argparse.Namespace) -> int:
    import tempfile
    from pathlib import Path

    from workbench.session.scaling import as_text, parse_sizes, scaling_report

    sizes = parse_sizes(options.scaling)
    with tempfile.TemporaryDirectory() as scratch:
        report = scaling_report(
            _spec(options), sizes, options.group, Path(scratch), lambda line: print(line, file=sys.stderr)
        )
    print(json.dumps(report) if options.json else as_text(report))
    return 0


def _is_program(model: str) -> bool:
    return model.endswith(".egg")


def _program_spec(options: argparse.Namespace) -> SessionSpec:
    from workbench.session.spec import EGG, SessionSpec, checked

    given = vars(options)
    return checked(
        SessionSpec(
            kind=EGG,
            model=options.model,
            session=given.get("session"),
            egg_nodes=given.get("egg_nodes"),
            egg_seconds=given.get("egg_seconds"),
            egg_memory=given.get("egg_memory"),
            allow_files=given.get("allow_files", False),
        )
    )


def _egg(options: argparse.Namespace) -> int:
    spec = _program_spec(options)
    if not options.json and sys.stdin.isatty() and sys.stdout.isatty():
        return _app(spec, options)
    from workbench.session.egg_report import as_text, run_program

    report, error = run_program(spec)
    try:
        print(json.dumps(report) if options.json else as_text(report))
    finally:
        if error is not None:
            raise error
    return 0


def _xray_program(options: argparse.Namespace) -> int:
    from workbench.session.egg_xray import xray_program
    from workbench.session.xray import as_text

    for name, value in (("--rules", options.rules), ("--egg", options.egg), ("--group", options.group is not None)):
        if value:
            raise InputError(f"{name} is for models", "an .egg file brings its own rules and has no groups")
    found = xray_program(_program_spec(options), options.rule, options.node)
    print(json.dumps(found) if options.json else as_text(found))
    return 0


def _xray(options: argparse.Namespace) -> int:
    if _is_program(options.model):
        return _xray_program(options)
    import tempfile
    from pathlib import Path

    from workbench.session.xray import as_text, xray_model

    with tempfile.TemporaryDirectory() as scratch:
        found = xray_model(_spec(options), options.rule, options.node, options.group, Path(scratch))
    print(json.dumps(found) if options.json else as_text(found))
    return 0


def _explore(options: argparse.Namespace) -> int:
    import tempfile
    from pathlib import Path

    from workbench.session import events as ev
    from workbench.session.eclass_text import as_text
    from workbench.session.explore import at_node, explore_model, explore_program, explore_session
    from workbench.session.store import find_session

    question = ev.Explore(
        about="rule" if options.rule else "users" if options.users else "class",
        group=options.group,
        member=options.chunk,
        eclass=options.eclass,
        rule=options.rule or "",
        offset=options.offset,
        limit=options.limit,
        filter=options.filter,
    )
    if options.node is not None:
        question = at_node(question, options.node)
    session = find_session(options.model)
    is_program = session is None and _is_program(options.model)
    if session is not None or is_program:
        plain = vars(_parser().parse_args(["explore", options.model]))
        of_a_model = ("breaks", "dim", "random_weights", "allow_opaque", "target", "rules", "egg")
        if given := [name for name in of_a_model if vars(options)[name] != plain[name]]:
            other = "an egglog program" if is_program else "a session"
            raise InputError(
                f"--{given[0].replace('_', '-')} is for a model; {printable(options.model)} is {other}",
                "its e-graph is as it made it",
            )
    with tempfile.TemporaryDirectory() as scratch:
        if session is not None:
            page = explore_session(session, question)
        elif is_program:
            page = explore_program(_program_spec(options), question, Path(scratch))
        else:
            page = explore_model(_spec(options), question, Path(scratch))
    if options.json:
        import msgspec

        print(json.dumps({"model": options.model, **msgspec.to_builtins(page)}))
    else:
        print(as_text(page))
    return 0


def _inspect(options: argparse.Namespace) -> int:
    import tempfile
    from pathlib import Path

    from workbench.session.inspection import as_text, inspect_model

    with tempfile.TemporaryDirectory() as scratch:
        result = inspect_model(_spec(options), Path(scratch))
    print(json.dumps(result) if options.json else as_text(result))
    return 0


def _devices(options: argparse.Namespace) -> int:
    from workbench.runtime import describe_devices

    devices = describe_devices()
    if options.json:
        print(json.dumps({"devices": devices}))
        return 0
    for device in devices:
        print(device.get("name", "device"))
        for key, value in device.items():
            if key != "name":
                print(f"  {key.replace('_', ' '):16} {_shown(value)}")
    return 0


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _sessions(options: argparse.Namespace) -> int:
    import time

    from workbench.session.store import recent_sessions

    found = recent_sessions()
    if options.json:
        print(json.dumps([{**_plain(s), "directory": str(s.directory)} for s in found]))
        return 0
    for s in found:
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(s.started))
        print(f"{started}  {s.status:8}  {s.target:5}  {printable(s.model, 60)}\n    {s.directory}")
    if not found:
        print("no sessions yet; luminal-tui demo starts one")
    return 0


def _plain(summary: Any) -> dict[str, Any]:
    return {k: getattr(summary, k) for k in ("model", "target", "status", "started")}


def _diff(options: argparse.Namespace) -> int:
    from workbench.session.diff import diff_sessions

    difference = diff_sessions(options.before, options.after)
    if options.json:
        import msgspec

        print(json.dumps(msgspec.to_builtins(difference)))
        return 0
    from workbench.session.difference_text import as_text

    print(as_text(difference))
    return 0


def _open(options: argparse.Namespace) -> int:

    from workbench.session.store import find_session

    target: object = None
    if options.model is not None:
        target = find_session(options.model)
        if target is None and options.model != "demo" and not os.path.exists(options.model):
            raise InputError(
                f"{printable(options.model)}: no such file or session", "luminal-tui sessions lists the sessions"
            )
        target = target or (_program_spec(options) if _is_program(options.model) else _spec(options))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise WorkbenchError("the workbench needs a terminal", "luminal-tui compile MODEL runs without one")
    return _app(target, options)


def _attach(options: argparse.Namespace) -> int:
    from workbench.session.store import find_session, recent_sessions

    if options.session is None:
        live = [s for s in recent_sessions() if s.status == "running"]
        if not live:
            raise WorkbenchError("no session is running", "luminal-tui sessions lists those that were")
        return _app(live[0].directory, options)
    directory = find_session(options.session)
    if directory is None:
        raise WorkbenchError(f"{printable(options.session)}: no such session", "luminal-tui sessions lists them")
    return _app(directory, options)


def _app(target: object, options: argparse.Namespace) -> int:
    from workbench.tui.app import WorkbenchApp

    app = WorkbenchApp(opening=target, ascii=options.ascii, theme=options.theme)  # type: ignore[arg-type]
    app.run()
    return app.return_code or 0


def _app_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--ascii", action="store_true", help="draw with plain characters only")
    command.add_argument("--theme", choices=("dark", "light"))


def _setup_open(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL|SESSION", nargs="?", help="an .onnx file, a session, or demo")
    _import_options(command)
    _compile_options(command)
    _app_options(command)


def _setup_compile(command: argparse.ArgumentParser) -> None:
    _model_options(command)
    _compile_options(command)
    command.add_argument("--expected", metavar="NPZ", help="in_NAME and out_NAME arrays to verify against")


def _setup_run(command: argparse.ArgumentParser) -> None:
    _model_options(command)
    _compile_options(command)
    command.add_argument("-i", "--input", required=True, metavar="NPZ", help="inputs: NAME or in_NAME arrays")
    command.add_argument("-o", "--output", required=True, metavar="NPZ", help="where the outputs go")
    command.add_argument("--search", action="store_true", help="search even where a best is known")


def _setup_rules(command: argparse.ArgumentParser) -> None:
    _model_options(command)
    _target_option(command)
    _rule_options(command)
    command.add_argument("--scaling", metavar="N,N,..", help="saturate so many copies of the repeating chunk")
    command.add_argument("--group", type=_whole, metavar="G", help="the group whose chunk --scaling repeats")


def _setup_check_rules(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "directory", metavar="DIR", nargs="?", help="rules of your own, or a library with its base.egg (built-in)"
    )
    command.add_argument("--programs", type=_whole, default=160, metavar="N", help="random programs for each target")
    command.add_argument("--seconds", type=_count, default=120, metavar="S", help="most seconds of random programs")
    command.add_argument("--seed", type=_whole, default=0, metavar="S")
    command.add_argument("--all", action="store_true", help="list the proved rules too")
    command.add_argument("--strict", action="store_true", help="exit 1 for lint and for rules that never fired too")
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _setup_xray(command: argparse.ArgumentParser) -> None:
    _model_options(command)
    _target_option(command)
    command.add_argument("--rule", required=True, metavar="NAME", help="its name, or FILE:LINE where it has none")
    command.add_argument(
        "--node", metavar="N", help="an HLIR node id as the graph pane shows it, or a $variable of a program"
    )
    command.add_argument("--group", type=_whole, metavar="G", help="the group to ask in")
    command.add_argument("--rules", action="append", default=[], metavar="DIR", help="more rules")
    command.add_argument("--egg", metavar="DIR", help="a rule library in place of the built-in one")
    _limit_options(command)


def _setup_inspect(command: argparse.ArgumentParser) -> None:
    _model_options(command)
    _target_option(command)


def _setup_explore(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL|SESSION", help="an .onnx or .egg file, demo, or a session")
    _import_options(command)
    _target_option(command)
    which = command.add_mutually_exclusive_group()
    which.add_argument("--node", metavar="N", help="the e-class of an HLIR node id, or of a variable")
    which.add_argument("--class", type=_whole, dest="eclass", metavar="C", help="an e-class by its number")
    which.add_argument("--rule", metavar="NAME", help="the e-nodes that a rule made first")
    command.add_argument("--users", action="store_true", help="the e-nodes that use the class, not those in it")
    command.add_argument("--group", type=_whole, metavar="G", help="the group to look in")
    command.add_argument("--chunk", type=_whole, metavar="N", help="the member of the group whose node ids are meant")
    command.add_argument("--filter", default="", metavar="WORDS", help="only e-nodes whose term or rule has the words")
    command.add_argument("--limit", type=_count, default=100, metavar="ROWS", help="e-nodes at a time (at most 500)")
    command.add_argument("--offset", type=_whole, default=0, metavar="ROW", help="the first e-node to show")
    command.add_argument("--rules", action="append", default=[], metavar="DIR", help="more rules")
    command.add_argument("--egg", metavar="DIR", help="a rule library in place of the built-in one")


def _setup_egg(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="FILE.egg", help="an egglog program")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    _limit_options(command)
    command.add_argument(
        "--allow-files", action="store_true", help="let it read and write files outside its own directory"
    )
    command.add_argument("--session", metavar="DIR", help="session directory")
    _app_options(command)


def _setup_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _setup_diff(command: argparse.ArgumentParser) -> None:
    command.add_argument("before", metavar="A", help="a session: its directory or name")
    command.add_argument("after", metavar="B", help="the session to compare with it")
    _setup_json(command)


def _setup_attach(command: argparse.ArgumentParser) -> None:
    command.add_argument("session", metavar="SESSION", nargs="?", help="directory or name; default: the newest running")
    _app_options(command)


COMMANDS: dict[
    str, tuple[Callable[[argparse.Namespace], int], str, Callable[[argparse.ArgumentParser], None]]
] = {
    "open": (_open, "the workbench on a model or a session (what happens without a command)", _setup_open),
    "compile": (_compile, "compile a model and print the report", _setup_compile),
    "run": (_run, "compile a model, or reuse the best known, and execute it", _setup_run),
    "rules": (_rules, "saturate only, and print the rule table", _setup_rules),
    "check-rules": (_check_rules, "prove and lint a rule library: random programs, its examples", _setup_check_rules),
    "xray": (_xray, "how far a rule's premises hold, and what stops the first that fails", _setup_xray),
    "explore": (_explore, "the e-nodes of an e-class, who made each, and what the best candidate uses", _setup_explore),
    "inspect": (_inspect, "operator coverage, shapes, breaks and groups, without compiling", _setup_inspect),
    "egg": (_egg, "run any egglog program: its outputs, and what each of its rules does and costs", _setup_egg),
    "devices": (_devices, "what can run kernels here", _setup_json),
    "sessions": (_sessions, "recent sessions", _setup_json),
    "diff": (_diff, "what differs from session A to session B", _setup_diff),
    "attach": (_attach, "the workbench on a session that is running, or the record of one", _setup_attach),
}
