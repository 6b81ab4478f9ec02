"""Sessions on disk: where they are, what is in one, and who holds it.

A session directory has `session.json` (the spec), `events.jsonl` and `candidates.jsonl` (append-only), `chunks/` (the
program and node rows of each chunk), `snapshots/` (saturated e-graphs), `best/` (the best candidate of each group),
`report.json`, `log.txt`, and `lock`, held by the process that runs it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from workbench.errors import SessionError
from workbench.session import events as ev
from workbench.session.spec import SessionSpec, placed

EVENTS, CANDIDATES, SPEC, REPORT, LOCK, LOG = (
    "events.jsonl",
    "candidates.jsonl",
    "session.json",
    "report.json",
    "lock",
    "log.txt",
)


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One line of the list of sessions. `status` is running, finished, failed or stopped."""

    directory: Path
    model: str
    target: str
    status: str
    started: float


def state_directory() -> Path:
    """Where sessions live unless told otherwise: $XDG_STATE_HOME/luminal-tui."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "luminal-tui"


def sessions_directory() -> Path:
    """The directory of all default sessions."""
    return state_directory() / "sessions"


def new_session_directory(model: str) -> Path:
    """A fresh directory named for the time and the model."""
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(model).stem)[:40] or "model"
    base = sessions_directory()
    _make_private(base)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    try:
        return Path(tempfile.mkdtemp(prefix=f"{stamp}-{stem}-", dir=base))
    except OSError as error:
        raise SessionError(f"{base}: cannot be written: {error.strerror}", "choose a --session directory") from None


def _make_private(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SessionError(f"{path}: cannot be made: {error.strerror}") from None


class SessionStore:
    """One session directory. `acquire` takes its lock for writing; reading needs none."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock: int | None = None

    def __truediv__(self, name: str) -> Path:
        return self.directory / name

    def acquire(self) -> None:
        """Create the directory where needed and take its lock. Raises SessionError while another process holds it."""
        _make_private(self.directory)
        try:
            handle = os.open(self / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise SessionError(f"{self.directory}: cannot be used as a session: {error.strerror}") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(handle, 20).decode("ascii", "replace").strip()
            os.close(handle)
            raise SessionError(
                f"{self.directory}: this session is live (process {owner or 'unknown'})",
                f"luminal-tui attach {self.directory}",
            ) from None
        self._lock = handle
        try:
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
            for name in ("chunks", "snapshots"):
                _make_private(self / name)
        except OSError as error:
            self.release()
            raise SessionError(f"{self / LOCK}: cannot be written: {error.strerror}") from None
        except SessionError:
            self.release()
            raise

    def release(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def is_live(self) -> bool:
        """Whether some process holds the lock."""
        try:
            handle = os.open(self / LOCK, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except OSError:
            return True
        finally:
            os.close(handle)

    def write(self, name: str, data: bytes) -> None:
        """Replace a file whole or not at all. Raises SessionError when the disk is full or not writable."""
        write_file(self / name, data)

    def touch(self, name: str) -> None:
        """Make a file the newest, where that can be done."""
        with contextlib.suppress(OSError):
            os.utime(self / name)

    def read_spec(self) -> SessionSpec:
        """The spec that the session was started with. Raises SessionError where there is none."""
        try:
            return msgspec.json.decode((self / SPEC).read_bytes(), type=SessionSpec)
        except OSError:
            raise SessionError(f"{self.directory}: not a session directory (no {SPEC} in it)") from None
        except msgspec.DecodeError as error:
            raise SessionError(f"{self.directory}: {SPEC} is damaged: {error}") from None

    def write_spec(self, spec: SessionSpec) -> None:
        """Record the spec, its paths made absolute."""
        self.write(SPEC, msgspec.json.encode(placed(spec)))

    def adopt(self, spec: SessionSpec) -> SessionSpec:
        """`spec` as this directory goes on with it: its reruns and toggled breaks stay.

        Raises SessionError when other work was begun here."""
        if not (self / EVENTS).exists():
            return spec
        old, new = self.read_spec(), placed(spec)
        changed = [f for f in ("model", "breaks", "dims", "rules", "egg") if getattr(old, f) != getattr(new, f)]
        if changed:
            raise SessionError(
                f"{self.directory}: this session was started with another {' and '.join(changed)}",
                "use another --session directory",
            )
        return msgspec.structs.replace(spec, run=old.run, toggled=old.toggled)

    def events(self) -> list[ev.AnyEvent]:
        """What was recorded. Raises SessionError for a damaged line, and for a log of a newer version."""
        found: list[ev.AnyEvent] = []
        for number, line in enumerate(self.read_events(), 1):
            try:
                found.append(ev.decode(line))
            except (msgspec.DecodeError, ValueError) as error:  # ValueError: not UTF-8
                raise SessionError(
                    f"{self / EVENTS}:{number}: cannot be read: {error}",
                    "it is damaged, or a newer luminal-tui wrote it",
                ) from None
        return found

    def read_events(self) -> list[bytes]:
        """Lines of the event log; a torn last line is left out."""
        try:
            data = (self / EVENTS).read_bytes()
        except OSError:
            return []
        return data[: data.rfind(b"\n") + 1].splitlines()

    def program(self, chunk: int) -> str:
        """The egglog program of a chunk, or '' where it is not there yet."""
        try:
            return (self / f"chunks/chunk_{chunk}.egg").read_text(encoding="utf-8")
        except OSError:
            return ""

    def node_rows(self, chunk: int) -> list[ev.NodeRow]:
        """The nodes of a chunk, or [] where they are not there yet."""
        try:
            data = (self / f"chunks/chunk_{chunk}.json").read_bytes()
        except OSError:
            return []
        return msgspec.json.decode(data, type=list[ev.NodeRow])

    def socket_path(self) -> Path:
        """Where the engine listens; in the runtime directory, since socket paths must be short."""
        name = hashlib.blake2b(str(self.directory.resolve()).encode(), digest_size=8).hexdigest()
        base = os.environ.get("XDG_RUNTIME_DIR")
        root = Path(base) / "luminal-tui" if base else Path(tempfile.gettempdir()) / f"luminal-tui-{os.getuid()}"
        _make_private(root)
        if root.stat().st_uid != os.getuid():
            raise SessionError(f"{root}: belongs to another user", "set XDG_RUNTIME_DIR to a directory of your own")
        return root / f"{name}.sock"

    def summary(self) -> SessionSummary:
        """The session in one line."""
        spec = self.read_spec()
        status = "running" if self.is_live else _STATUS.get(self._last_word(), "stopped")
        return SessionSummary(self.directory, spec.model, spec.target, status, (self / SPEC).stat().st_mtime)

    def _last_word(self) -> str:
        """The type of the last event about the work, as far as the end of the file tells."""
        try:
            with (self / EVENTS).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                data = file.read()
        except OSError:
            return ""
        for line in reversed(data[: data.rfind(b"\n") + 1].splitlines()):
            try:
                kind = msgspec.json.decode(line, type=_Kind).type
            except (msgspec.DecodeError, ValueError):
                return ""
            if kind not in _ASIDE:
                return kind
        return ""


class _Kind(msgspec.Struct):
    type: str = ""


_ASIDE = {"log", "xray_done", "rules_on_disk"}
"""Events that say nothing about how far the work is."""
_STATUS = {"session_finished": "finished", "failed": "failed"}
TAIL_BYTES = 64 << 10


def write_file(path: Path, data: bytes) -> None:
    """Write `path` whole or not at all, through a temporary file beside it. Raises SessionError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise SessionError(f"{path}: cannot be written: {error.strerror}") from None


def check_writable(directory: Path) -> None:
    """Raises SessionError when `write_file` cannot work in `directory`, which need not be there yet. Writes nothing."""
    nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise SessionError(f"{directory}: cannot be written: {nearest} is not a directory")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise SessionError(f"{directory}: cannot be written: no permission in {nearest}")


def recent_sessions(limit: int = 50) -> list[SessionSummary]:
    """Default sessions, newest first."""
    found: list[SessionSummary] = []
    base = sessions_directory()
    if base.is_dir():
        for directory in base.iterdir():
            with contextlib.suppress(SessionError, OSError):  # the rest of the list is worth more than the reason
                found.append(SessionStore(directory).summary())
    return sorted(found, key=lambda s: -s.started)[:limit]


def find_session(name: str) -> Path | None:
    """The session directory that `name` stands for: a path, or the name of a default session."""
    for candidate in (Path(name), sessions_directory() / name):
        with contextlib.suppress(OSError):  # longer than a name may be, or not ours to look into
            if (candidate / SPEC).is_file():
                return candidate
    return None
