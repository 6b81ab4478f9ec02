"""How the app reaches a session: a live engine over its socket, or a finished session from disk."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from workbench.errors import SessionError
from workbench.session import events as ev
from workbench.session.eclass import EClassPage
from workbench.session.library import directories, locate, locate_program
from workbench.session.spec import EGG, SessionSpec, checked
from workbench.session.store import SessionStore, SessionSummary, new_session_directory, recent_sessions

if TYPE_CHECKING:
    from workbench.session.explorer import Explorer

START_SECONDS = 30.0
ANSWER_SECONDS = 30.0
"""How long a question to the explorer may take."""
MAX_LINE = 1 << 26
"""Bytes of the longest event."""
ERRORS = "engine.err"

__all__ = ["Client", "SessionSpec", "SessionSummary", "attach", "open_session", "recent_sessions", "start_engine"]


class Client(Protocol):
    """A session as the app sees it."""

    directory: Path
    read_only: bool

    def events(self) -> AsyncIterator[ev.AnyEvent]:
        """All past events, then live ones; ends when the engine is gone (at once for a session read from disk)."""
        ...

    async def send(self, command: ev.AnyCommand) -> None:
        """Ask the engine for something. Raises SessionError when there is none."""
        ...

    async def explore(self, question: ev.Explore) -> EClassPage:
        """E-nodes of a group's e-graph. An engine answers on the stream, so `events` must be read meanwhile. Raises
        WorkbenchError for what is not there."""
        ...

    def program(self, chunk: int) -> str:
        """egglog text of a chunk, '' while it is not there."""
        ...

    def node_rows(self, chunk: int) -> list[ev.NodeRow]:
        """Nodes of a chunk, [] while they are not there."""
        ...

    def rule_path(self, file: str, rule: str = "") -> Path | None:
        """The path of a rule file that a rule or an error names; None where there is none, or none of this session."""
        ...

    async def close(self) -> None:
        """Detach; the engine goes on."""
        ...


class ReplayClient:
    """A session read from disk."""

    read_only = True

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = SessionStore(directory)
        self.store.read_spec()
        self._explorer: Explorer | None = None

    async def events(self) -> AsyncIterator[ev.AnyEvent]:
        """What was recorded. Raises SessionError for a damaged log."""
        for event in await asyncio.to_thread(self.store.events):
            yield event

    async def send(self, command: ev.AnyCommand) -> None:
        """See Client."""
        raise SessionError("this session is not running", f"luminal-tui {self.directory} runs it again")

    async def explore(self, question: ev.Explore) -> EClassPage:
        """See Client."""
        from workbench.session.explorer import Explorer, recorded

        if self._explorer is None:
            self._explorer = Explorer(self.store, recorded(self.store))
        return await asyncio.to_thread(self._explorer.page, question)

    def program(self, chunk: int) -> str:
        """See Client."""
        return self.store.program(chunk)

    def node_rows(self, chunk: int) -> list[ev.NodeRow]:
        """See Client."""
        return self.store.node_rows(chunk)

    def rule_path(self, file: str, rule: str = "") -> Path | None:
        """See Client."""
        spec = self.store.read_spec()
        return locate_program(spec, file) if spec.kind == EGG else locate(directories(spec), file, rule)

    async def close(self) -> None:
        """See Client."""


class EngineClient(ReplayClient):
    """A live engine."""

    read_only = False

    def __init__(self, directory: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(directory)
        self._reader, self._writer = reader, writer
        self._asked: dict[int, asyncio.Future[ev.Explored]] = {}
        self._questions = itertools.count(1)

    async def events(self) -> AsyncIterator[ev.AnyEvent]:
        """See Client."""
        try:
            with contextlib.suppress(ConnectionError):
                while (line := await self._reader.readline()).endswith(b"\n"):
                    try:
                        message = ev.decode_message(line)
                    except msgspec.DecodeError as error:
                        raise SessionError(
                            f"the engine is of another version: {error}", "end it and open again"
                        ) from None
                    if isinstance(message, ev.Explored):
                        waiting = self._asked.get(message.id)
                        if waiting is not None and not waiting.done():
                            waiting.set_result(message)
                    else:
                        yield message
        finally:
            for waiting in self._asked.values():
                if not waiting.done():
                    waiting.set_exception(SessionError("the engine is gone"))

    async def explore(self, question: ev.Explore) -> EClassPage:
        """See Client."""
        number = next(self._questions)
        waiting = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            await self.send(msgspec.structs.replace(question, id=number))
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await waiting
        except TimeoutError:
            raise SessionError(f"the engine did not answer within {ANSWER_SECONDS:g} s") from None
        finally:
            del self._asked[number]
        page: EClassPage | None = answer.page
        if page is None:
            raise SessionError(answer.error)
        return page

    async def send(self, command: ev.AnyCommand) -> None:
        """See Client."""
        try:
            self._writer.write(msgspec.json.encode(command) + b"\n")
            await self._writer.drain()
        except (ConnectionError, RuntimeError):
            raise SessionError("the engine is gone", f"luminal-tui {self.directory} starts it again") from None

    async def close(self) -> None:
        """See Client."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


async def attach(directory: Path) -> Client:
    """The live engine of a session, or the session from disk where none runs. Raises SessionError."""
    store = SessionStore(directory)
    store.read_spec()
    if not store.is_live:
        return ReplayClient(directory)
    try:
        reader, writer = await asyncio.open_unix_connection(store.socket_path(), limit=MAX_LINE)
    except (ConnectionError, FileNotFoundError):
        # the process that holds the session has no socket: a headless run, watched from its log
        return ReplayClient(directory)
    return EngineClient(directory, reader, writer)


async def start_engine(spec: SessionSpec) -> Client:
    """Spawn an engine for `spec`, detached, and connect. Raises WorkbenchError when `spec` cannot be, or the engine
    does not start: with what it said."""
    spec = await asyncio.to_thread(checked, spec)
    directory = Path(spec.session).resolve() if spec.session else new_session_directory(spec.model)
    store = SessionStore(directory)
    store.acquire()
    try:
        store.write_spec(msgspec.structs.replace(store.adopt(spec), session=str(directory)))
    finally:
        store.release()
    try:
        return await _spawn(store)
    except SessionError:
        if spec.session is None:
            shutil.rmtree(directory, ignore_errors=True)  # nothing happened in it
        raise


async def open_session(directory: Path) -> Client:
    """A session to work with: attached to where it is live, replayed where it is finished, else gone on with."""
    store = SessionStore(directory)
    summary = store.summary()
    if summary.status == "stopped":
        return await _spawn(store)
    return await attach(directory)


async def _spawn(store: SessionStore) -> Client:
    process = _detached(store)
    path = store.socket_path()
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(ConnectionError, FileNotFoundError):
            reader, writer = await asyncio.open_unix_connection(path, limit=MAX_LINE)
            return EngineClient(store.directory, reader, writer)
        if process.poll() is not None:
            said = (store / ERRORS).read_text(errors="replace").strip().splitlines()
            raise SessionError(f"the engine did not start: {said[-1] if said else 'no word from it'}")
        await asyncio.sleep(0.05)
    process.kill()
    raise SessionError(f"the engine did not answer within {START_SECONDS:g} s", f"see {store / ERRORS}")


def _detached(store: SessionStore) -> subprocess.Popen[bytes]:
    """The engine's process. Not asyncio's, which kills its processes when the loop ends."""
    try:
        with (store / ERRORS).open("wb") as errors:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "workbench.session.engine", str(store.directory)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
    except OSError as error:
        raise SessionError(f"the engine did not start: {error.filename}: {error.strerror}") from None
