"""The engine: a detached process that runs one session and serves its events over a Unix socket.

It outlives the app that started it. JSONL both ways: a client gets every event so far, then live ones, and may send
commands. It ends on `Shutdown`, or when it has had nothing to do and nobody attached for `IDLE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec
from loguru import logger

from workbench.errors import SessionError, WorkbenchError, printable
from workbench.session import events as ev
from workbench.session.egg import EggSession
from workbench.session.egg_watch import ProgramWatch
from workbench.session.explorer import Explorer, ExplorerDesk
from workbench.session.recorded import Stopped
from workbench.session.session import CompileSession
from workbench.session.spec import EGG
from workbench.session.store import SessionStore
from workbench.session.watch import LibraryWatch
from workbench.session.xray import XrayDesk, model_desk

IDLE_SECONDS = 3600.0
MAX_BACKLOG = 64 << 20
"""Bytes a client may lag behind before it is cut off; it can attach again and gets everything."""
MAX_COMMAND = 1 << 16
"""Bytes of the longest line a client may send."""
LAST_STEP_SECONDS = 10.0
"""How long the running step may take to end when the engine has to."""


class Engine:
    """One session with its socket. Work runs on a thread of its own; the event loop only carries messages."""

    def __init__(self, directory: Path, idle_seconds: float = IDLE_SECONDS) -> None:
        self.store = SessionStore(directory)
        self.idle_seconds = idle_seconds
        self.loop = asyncio.new_event_loop()
        self.clients: set[asyncio.StreamWriter] = set()
        self.last_active = time.monotonic()
        self.busy = threading.Event()
        self._pending: deque[ev.Rerun | ev.ToggleBreak | None] = deque()
        """What clients asked for and the session thread has not begun; None ends it."""
        self._asked = threading.Condition()
        spec = msgspec.structs.replace(self.store.read_spec(), session=str(directory))
        self.session: CompileSession | EggSession
        self.watch: LibraryWatch | ProgramWatch
        if spec.kind == EGG:
            self.session = egg = EggSession(spec)
            self.xrays = XrayDesk(egg, egg.xray, egg.runner.kill)
            self.watch = ProgramWatch(egg, self._ask)
        else:
            self.session = compiling = CompileSession(spec)
            self.xrays = model_desk(compiling)
            self.watch = LibraryWatch(compiling, self._ask)
        self.history: list[bytes] = self.store.read_events()
        self.session.on_event = self._on_event
        self.explorer = ExplorerDesk(Explorer(self.store, lambda: self.session.view))

    def run(self) -> None:
        """Serve until told to shut down or idle for long. Raises SessionError when there can be no socket."""
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._serve())
        finally:
            self.watch.close()
            self.explorer.close()
            self.xrays.close()
            self.session.close()

    def _on_event(self, event: ev.AnyEvent) -> None:
        line = ev.encode(event)
        if isinstance(event, ev.StageFinished) and event.stage == "saturate":
            self.watch.look()  # the rules in use are others now
        with contextlib.suppress(RuntimeError):  # the loop is closed while shutting down
            self.loop.call_soon_threadsafe(self._broadcast, line)

    def _broadcast(self, line: bytes) -> None:
        self.history.append(line)
        for client in list(self.clients):
            if client.transport.get_write_buffer_size() > MAX_BACKLOG:
                self.clients.discard(client)
                client.transport.abort()
            else:
                client.write(line + b"\n")

    async def _serve(self) -> None:
        self.ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self.ended.set)
        path = self.store.socket_path()
        server = await self._listen(path)
        worker = threading.Thread(target=self._work, name="session", daemon=True)
        worker.start()
        self.watch.start()
        try:
            await self._until_ended()
        finally:
            server.close()
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            self._ask(None)
            await asyncio.to_thread(worker.join, LAST_STEP_SECONDS)
            await asyncio.sleep(0)  # what the session said last is on its way to the clients
            await asyncio.gather(*(_hang_up(client) for client in self.clients))

    async def _listen(self, path: Path) -> asyncio.Server:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # the lock is ours, so a socket left here is of a dead engine
        mask = os.umask(0o177)
        try:
            return await asyncio.start_unix_server(self._client, path, limit=MAX_COMMAND)
        except OSError as error:
            raise SessionError(
                f"{path}: no socket can be made: {error.strerror or error}", "set XDG_RUNTIME_DIR to a short path"
            ) from None
        finally:
            os.umask(mask)

    async def _until_ended(self) -> None:
        while not self.ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), min(5.0, self.idle_seconds / 2))
            if not self.store.directory.is_dir():
                return  # removed: nobody will ask for it again
            if self.clients or (self.busy.is_set() and not self.session.view.paused):
                self.last_active = time.monotonic()
            elif time.monotonic() - self.last_active > self.idle_seconds:
                return

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            sent = 0
            while sent < len(self.history):  # it grows while a slow client reads
                lines, sent = self.history[sent:], len(self.history)
                writer.write(b"".join(line + b"\n" for line in lines))
                await writer.drain()
            self.clients.add(writer)
            while line := await reader.readline():
                self._take(line, writer)
        except (ConnectionError, ValueError, asyncio.LimitOverrunError):
            pass  # a client that goes away or sends an endless line is dropped
        finally:
            self.clients.discard(writer)
            writer.close()

    def _answer(self, client: asyncio.StreamWriter, answer: ev.Explored) -> None:
        """Send an answer to who asked; called on another thread."""

        def send() -> None:
            if client in self.clients:
                client.write(msgspec.json.encode(answer) + b"\n")

        with contextlib.suppress(RuntimeError):  # the loop is closed while shutting down
            self.loop.call_soon_threadsafe(send)

    def _take(self, line: bytes, client: asyncio.StreamWriter) -> None:
        """Do what a client's line asks for; what cannot be done is put in the log."""
        with contextlib.suppress(SessionError):  # a full disk, when it is about the log: the session thread says so
            try:
                self._command(ev.decode_command(line), client)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                logger.warning("a client sent something that is not a command: {}", printable(str(error)))
            except WorkbenchError as error:
                logger.warning("{}", error)

    def _command(self, command: ev.AnyCommand, client: asyncio.StreamWriter) -> None:
        match command:
            case ev.TogglePause():
                if self.session.view.paused:
                    self.session.resume()
                elif self.busy.is_set():
                    self.session.pause()
            case ev.Cancel():
                with self._asked:
                    if self.busy.is_set():
                        self.session.cancel()
            case ev.Shutdown():
                self.ended.set()
            case ev.Rerun(stage=stage):
                if stage not in ev.STAGES:
                    raise WorkbenchError(f"rerun: '{printable(stage)}' is not a stage")
                if ev.STAGES.index(stage) <= ev.STAGES.index("saturate"):
                    self.watch.rerun(command)
                else:
                    self._ask(command)
            case ev.ToggleBreak(node=node):
                self.session.check_break(node)
                self._ask(command)
            case ev.LookAtRules():
                self.watch.look()
            case ev.Xray():
                self.xrays.ask(command)
            case ev.Explore():
                self.explorer.ask(command, functools.partial(self._answer, client))

    def _ask(self, command: ev.Rerun | ev.ToggleBreak | None) -> None:
        """Queue work for the session thread; it takes the place of the running one."""
        with self._asked:
            self.session.cancel()
            self._pending.append(command)
            self._asked.notify()

    def _next(self) -> ev.Rerun | ev.ToggleBreak | None:
        with self._asked:
            self.busy.clear()
            while not self._pending:
                self._asked.wait()
            command = self._pending.popleft()
            if self._pending:
                self.session.cancel()  # the one behind it takes its place at once
            else:
                self.session.clear_cancel()
            self.busy.set()
            return command

    def _work(self) -> None:
        """The session thread: the whole run first, then what clients ask for."""
        self.busy.set()
        self._guarded(self.session.run)
        while (command := self._next()) is not None:
            self._guarded(functools.partial(self._restart, command))

    def _restart(self, command: ev.Rerun | ev.ToggleBreak) -> None:
        session = self.session
        match command:
            case ev.Rerun(stage=stage, new_seed=new_seed):
                first = session.earliest(stage)
                session.restart(first, "new seed" if new_seed else "rerun", new_seed)
            case ev.ToggleBreak(node=node):
                session.toggle_break(node)
                first = "split"
                session.restart(first, f"break at node {node}")
        session.run(first)

    def _guarded(self, work: Callable[[], object]) -> None:
        """Run `work`; the thread outlives whatever it raises."""
        try:
            work()
        except (Stopped, WorkbenchError) as error:
            logger.debug("the run ended early: {!r}", error)  # the events say why
        except Exception as error:
            with contextlib.suppress(SessionError):
                logger.exception("the session thread failed")
                self.session.emit(
                    ev.Failed(
                        stage=self.session.view.stage,
                        message=f"internal error: {type(error).__name__}: {printable(str(error))}",
                        hint=f"the traceback is in {self.store.directory}/log.txt",
                    )
                )


async def _hang_up(client: asyncio.StreamWriter) -> None:
    """Close once the client has read everything, or soon."""
    with contextlib.suppress(ConnectionError, TimeoutError):
        await asyncio.wait_for(client.drain(), 2)
        client.close()
        await asyncio.wait_for(client.wait_closed(), 2)


def main() -> None:
    """`python -m workbench.session.engine DIRECTORY`: errors before the socket is up go to stderr, one line, exit 2."""
    try:
        Engine(Path(sys.argv[1])).run()
    except WorkbenchError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)


if __name__ == "__main__":
    from workbench.session import engine  # under its own name, by which the log knows its modules

    engine.main()
