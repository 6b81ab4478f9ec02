"""The engine: a detached process that runs one session and serves its events over a Unix socket.

It outlives the app that started it. JSONL both ways: a client gets every event so far, then live ones, and may send
commands. It ends on `Shutdown`, or when it has had nothing to do and nobody attached for `IDLE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sys
import threading
import time
from pathlib import Path

import msgspec
from loguru import logger

from workbench.errors import WorkbenchError
from workbench.session import events as ev
from workbench.session.session import CompileSession, Stopped
from workbench.session.store import SessionStore

IDLE_SECONDS = 3600.0
MAX_BACKLOG = 64 << 20
"""Bytes a client may lag behind before it is cut off; it can attach again and gets everything."""


class Engine:
    """One session with its socket. Work runs on a thread of its own; the event loop only carries messages."""

    def __init__(self, directory: Path) -> None:
        self.store = SessionStore(directory)
        self.loop = asyncio.new_event_loop()
        self.history: list[bytes] = self.store.read_events()
        self.clients: set[asyncio.StreamWriter] = set()
        self.work: queue.Queue[ev.AnyCommand | None] = queue.Queue()
        self.busy = threading.Event()
        self.last_active = time.monotonic()
        spec = msgspec.structs.replace(self.store.read_spec(), session=str(directory))
        self.session = CompileSession(spec, on_event=self._on_event)

    def run(self) -> None:
        """Serve until told to shut down or idle for long."""
        asyncio.set_event_loop(self.loop)
        worker = threading.Thread(target=self._work, name="session", daemon=True)
        try:
            self.loop.run_until_complete(self._serve(worker))
        finally:
            self.session.cancel()
            self.work.put(None)
            worker.join(timeout=30)
            self.session.close()

    def _on_event(self, event: ev.AnyEvent) -> None:
        line = ev.encode(event)
        with contextlib.suppress(RuntimeError):  # the loop is closed while shutting down
            self.loop.call_soon_threadsafe(self._broadcast, line)

    def _broadcast(self, line: bytes) -> None:
        self.history.append(line)
        for client in list(self.clients):
            self._send(client, line)

    def _send(self, client: asyncio.StreamWriter, line: bytes) -> None:
        if client.transport.get_write_buffer_size() > MAX_BACKLOG:
            self.clients.discard(client)
            client.transport.abort()
            return
        client.write(line + b"\n")

    async def _serve(self, worker: threading.Thread) -> None:
        self.ended = asyncio.Event()
        path = self.store.socket_path()
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # the lock is ours, so a socket left here is of a dead engine
        mask = os.umask(0o177)
        try:
            server = await asyncio.start_unix_server(self._client, path, limit=1 << 20)
        finally:
            os.umask(mask)
        worker.start()
        try:
            async with server:
                while not self.ended.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.ended.wait(), 5)
                    if self.busy.is_set() or self.clients:
                        self.last_active = time.monotonic()
                    elif time.monotonic() - self.last_active > IDLE_SECONDS:
                        break
        finally:
            for client in list(self.clients):
                client.close()
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(line + b"\n" for line in self.history))
        self.clients.add(writer)
        try:
            while line := await reader.readline():
                try:
                    self._command(ev.decode_command(line))
                except msgspec.DecodeError as error:
                    logger.warning("a client sent something that is not a command: {}", error)
        except (ConnectionError, ValueError, asyncio.LimitOverrunError):
            pass  # a client that goes away or sends an endless line is dropped
        finally:
            self.clients.discard(writer)
            writer.close()

    def _command(self, command: ev.AnyCommand) -> None:
        match command:
            case ev.TogglePause():
                if self.session.view.paused:
                    self.session.resume()
                elif self.busy.is_set():
                    self.session.pause()
            case ev.Cancel():
                self.session.cancel()
            case ev.Shutdown():
                self.session.cancel()
                self.ended.set()
            case ev.Rerun() | ev.ToggleBreak():
                self.session.cancel()
                self.work.put(command)

    def _work(self) -> None:
        """The session thread: the whole run first, then what clients ask for."""
        self._run("import")
        while (command := self.work.get()) is not None:
            self.busy.set()
            try:
                self._restart(command)
            except WorkbenchError as error:
                self.session.emit(ev.Failed(stage="", message=error.message, hint=error.hint))
            self.busy.clear()

    def _restart(self, command: ev.AnyCommand) -> None:
        session = self.session
        match command:
            case ev.Rerun(stage=stage, new_seed=new_seed):
                first = _earliest(session, stage)
                session.restart(first, "new seed" if new_seed else "rerun", new_seed)
                self._run(first)
            case ev.ToggleBreak(node=node):
                session.toggle_break(node)
                session.restart("split", f"break at node {node}")
                self._run("split")

    def _run(self, first: str) -> None:
        self.busy.set()
        try:
            self.session.run(first)
        except (Stopped, WorkbenchError) as error:
            logger.debug("the run ended early: {!r}", error)  # the events say why
        except Exception as error:
            logger.exception("the session thread failed")
            self.session.emit(
                ev.Failed(
                    stage=self.session.view.stage,
                    message=f"internal error: {type(error).__name__}: {error}",
                    hint=f"the traceback is in {self.store.directory}/log.txt",
                )
            )
        finally:
            self.busy.clear()


def _earliest(session: CompileSession, stage: str) -> str:
    """`stage`, or an earlier one whose results are not there."""
    if session.imported is None:
        return "import"
    if not session.groups:
        return "split"
    if stage == "search" and len(session.saturated) < len(session.groups):
        return "saturate"
    return stage


def main() -> None:
    """`python -m workbench.session.engine DIRECTORY`: errors before the socket is up go to stderr, one line, exit 2."""
    try:
        engine = Engine(Path(sys.argv[1]))
    except WorkbenchError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    engine.run()


if __name__ == "__main__":
    main()
