"""What a session is asked to do: the options that the command, the app and the Python API share."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from workbench.errors import ModelError, WorkbenchError, printable
from workbench.session.points import MOST_POINTS
from workbench.targets import CHOICES

DEMO = "demo"
DEFAULT_LIMIT = 120
LEAST_EGG_MEMORY = 256 << 20
"""Bytes of address space that the saturation process needs to start at all."""
COMPILE, EGG = "compile", "egg"
"""Kinds of sessions: a model through all stages, or one egglog program."""


class SessionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`model` is a path, or `demo`. `limit` is candidates per group and point; `breaks` is auto, none, explicit or a
    regular expression on node names; `dims` gives named dimensions the value, or values, that are searched at: the
    first is the representative (see `points`). `rules` are directories added to the library, `egg` one that replaces
    it. `expected` is an .npz with `in_NAME` and `out_NAME` arrays. `session` and `artifacts` are directories, chosen
    where None."""

    model: str = DEMO
    target: str = "auto"
    limit: int = DEFAULT_LIMIT
    seed: int = 0
    strategy: str = "evolve"
    breaks: str = "auto"
    dims: dict[str, int | tuple[int, ...]] = {}
    rules: tuple[str, ...] = ()
    egg: str | None = None
    random_weights: bool = False
    allow_opaque: bool = False
    threads: int | None = None
    expected: str | None = None
    session: str | None = None
    artifacts: str | None = None
    memory_limit: int | None = None
    egg_nodes: int | None = None
    """The limits of one saturation, with its own defaults: e-nodes, seconds, bytes."""
    egg_seconds: float | None = None
    egg_memory: int | None = None
    kind: str = COMPILE
    """With `egg` the model is an egglog program: its files are relative to `working`; with `allow_files` they may be
    anywhere."""
    working: str = ""
    allow_files: bool = False
    run: int = 0
    """Counts reruns: a rerun search tries and times everything anew."""
    toggled: tuple[int, ...] = ()
    """HLIR nodes at which the user turned a break on or off."""

    @property
    def representative(self) -> dict[str, int]:
        """The first value that `dims` gives each of its dimensions."""
        return {name: values_of(value)[0] for name, value in self.dims.items()}


def checked(spec: SessionSpec) -> SessionSpec:
    """`spec`, when work can start with it: types are right, names are known, numbers are in range.

    Raises WorkbenchError, before anything is on disk."""
    from workbench.search.strategies import STRATEGIES

    try:
        spec = msgspec.convert(msgspec.to_builtins(spec, enc_hook=os.fspath), SessionSpec)
        msgspec.json.encode(spec)
    except (msgspec.ValidationError, TypeError) as error:
        raise WorkbenchError(f"options: {error}") from None
    except UnicodeEncodeError as error:
        raise WorkbenchError(f"'{printable(str(error.object))}' is not a name in UTF-8", "rename it") from None
    if spec.strategy not in STRATEGIES:
        raise WorkbenchError(f"--strategy: '{printable(spec.strategy)}' is not one of {', '.join(STRATEGIES)}")
    if spec.kind not in (COMPILE, EGG):
        raise WorkbenchError(f"'{printable(spec.kind)}' is not a kind of session")
    if spec.target not in CHOICES:
        raise WorkbenchError(f"--target: '{printable(spec.target)}' is not one of {', '.join(CHOICES)}")
    for name, value, least in (
        ("limit", spec.limit, 1),
        ("seed", spec.seed, 0),
        ("threads", spec.threads, 1),
        ("memory-limit", spec.memory_limit, 1),
        ("egg-nodes", spec.egg_nodes, 1),
        ("egg-seconds", spec.egg_seconds, 0.001),
        ("egg-memory", spec.egg_memory, LEAST_EGG_MEMORY),
    ):
        if value is not None and value < least:
            raise WorkbenchError(f"--{name}: {value} is less than {least}")
    spec = msgspec.structs.replace(spec, dims=_checked_dims(spec.dims))
    if spec.kind == EGG:
        _check_file(spec.model, "an .egg file")
        return spec if spec.working else msgspec.structs.replace(spec, working=os.getcwd())
    if spec.model != DEMO:
        _check_file(spec.model, "an ONNX file")
    return spec


def _check_file(path: str, wanted: str) -> None:
    shown = printable(path)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise ModelError(f"no such file: {shown}") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {shown}: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(mode):
        raise ModelError(f"{shown} is a directory, not {wanted}")
    if not stat.S_ISREG(mode):
        raise ModelError(f"{shown} is not a regular file")


def placed(spec: SessionSpec) -> SessionSpec:
    """`spec` with absolute paths: what is kept on disk means the same from any directory."""

    def absolute(path: str | None) -> str | None:
        return None if path is None else os.path.abspath(path)

    return msgspec.structs.replace(
        spec,
        model=spec.model if spec.model == DEMO else os.path.abspath(os.path.join(spec.working, spec.model)),
        rules=tuple(os.path.abspath(path) for path in spec.rules),
        egg=absolute(spec.egg),
        expected=absolute(spec.expected),
        session=absolute(spec.session),
        artifacts=absolute(spec.artifacts),
    )


def parse_bytes(text: str) -> int:
    """An amount of memory: bytes, or with K, M, G or T behind it (powers of 1024). Raises ValueError."""
    found = re.fullmatch(r"([0-9]{1,18}|[0-9]{1,6}\.[0-9]{1,6})([KMGT]?)(iB|B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise ValueError(f"'{printable(text, 40)}' is not an amount of memory like 4G or 512M")
    return int(float(found.group(1)) * 1024 ** " KMGT".index(found.group(2).upper() or " "))


def parse_dims(items: Iterable[str]) -> dict[str, int | tuple[int, ...]]:
    """`NAME=VALUE` or `NAME=VALUE,VALUE,..` items as a mapping. Raises WorkbenchError for anything else."""
    dims: dict[str, int | tuple[int, ...]] = {}
    for item in items:
        found = re.fullmatch(r"([^=]+)=([0-9]{1,18}(?:,[0-9]{1,18})*)", item)
        if not found:
            shown = printable(item, 60)
            raise WorkbenchError(f"--dim: '{shown}' is not NAME=VALUE or NAME=VALUE,VALUE,.. with whole numbers")
        name, values = found.group(1), _one_or_more(tuple(map(int, found.group(2).split(","))))
        if dims.setdefault(name, values) != values:
            said = " and ".join(map(values_text, (dims[name], values)))
            raise WorkbenchError(f"--dim: '{printable(name, 60)}' is given twice, as {said}")
    return _checked_dims(dims)


def values_of(value: int | Sequence[int]) -> tuple[int, ...]:
    """The values that an entry of `dims` gives."""
    return (value,) if isinstance(value, int) else tuple(value)


def values_text(value: int | Sequence[int]) -> str:
    """An entry of `dims` as it is typed."""
    return ",".join(map(str, values_of(value)))


def _one_or_more(values: tuple[int, ...]) -> int | tuple[int, ...]:
    return values[0] if len(values) == 1 else values


def _checked_dims(dims: Mapping[str, int | tuple[int, ...]]) -> dict[str, int | tuple[int, ...]]:
    """`dims` in the one form that is kept. Raises WorkbenchError for values that cannot be searched at."""
    points = 1
    for name, value in dims.items():
        shown, values = printable(name, 60), values_of(value)
        if not values:
            raise WorkbenchError(f"--dim: '{shown}' is given no value")
        if min(values) < 1:
            raise WorkbenchError(
                f"--dim: '{shown}' is given as {min(values)}; it must be at least 1",
                "nothing can be timed at an extent of 0; a run at 0 needs no value here",
            )
        if len(set(values)) < len(values):
            raise WorkbenchError(f"--dim: '{shown}' is given the same value twice: {values_text(value)}")
        points *= len(values)
    if points > MOST_POINTS:
        raise WorkbenchError(
            f"--dim: all combinations of these values are {points} points to search at, more than {MOST_POINTS}",
            "give fewer values",
        )
    return {name: _one_or_more(values_of(value)) for name, value in dims.items()}
