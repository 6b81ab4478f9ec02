"""The explorer as a command: over a model that is saturated for it, or over what a session keeps."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from workbench.errors import InputError, SessionError, WorkbenchError, printable
from workbench.session import events as ev
from workbench.session.eclass import EClassPage
from workbench.session.explorer import Explorer, recorded
from workbench.session.session import CompileSession
from workbench.session.spec import SessionSpec
from workbench.session.store import SessionStore


def explore_model(spec: SessionSpec, question: ev.Explore, scratch: Path) -> EClassPage:
    """Import, split and saturate a model in the directory `scratch`, and answer. Raises as those stages and
    `Explorer.page` do."""
    spec = msgspec.structs.replace(spec, session=str(scratch / "session"))
    with CompileSession(spec) as session:
        session.prepare_saturation()
        session.import_model()
        session.split()
        session.saturate()
        return Explorer(session.store, lambda: session.view).page(question)


def explore_program(spec: SessionSpec, question: ev.Explore, scratch: Path) -> EClassPage:
    """Run an egglog program in the directory `scratch`, and answer; where it failed, from what it had reached, with a
    note. Raises its error where it reached nothing."""
    from workbench.session.egg import EggSession

    spec = msgspec.structs.replace(spec, session=str(scratch / "session"))
    failed: WorkbenchError | None = None
    with EggSession(spec) as session:
        try:
            session.run()
        except WorkbenchError as error:
            failed = error
        try:
            page = Explorer(session.store, lambda: session.view).page(question)
        except SessionError:
            raise failed or SessionError(f"{printable(spec.model)} left no e-graph") from None
        except InputError as error:
            if failed is None:
                raise
            raise InputError(f"{error.message}; the program failed: {failed}") from None
    return page if failed is None else msgspec.structs.replace(page, note=str(failed))


def explore_session(directory: Path, question: ev.Explore) -> EClassPage:
    """Answer from what a session keeps, whether it is running or not. Raises as `Explorer.page` does."""
    store = SessionStore(directory)
    store.read_spec()
    return Explorer(store, recorded(store)).page(question)


def at_node(question: ev.Explore, node: str) -> ev.Explore:
    """The question with the class of a node as people write it: an HLIR id, or a variable of the program such as `$tN`.
    Raises InputError."""
    if re.fullmatch(r"[0-9]{1,9}", node):
        return msgspec.structs.replace(question, node=int(node))
    if not re.fullmatch(r"[^\s()\";]{1,200}", node) or not node.isprintable():
        raise InputError(f"'{printable(node, 40)}' is not a node", "give an HLIR id as the graph pane shows it, or $tN")
    return msgspec.structs.replace(question, variable=node)
