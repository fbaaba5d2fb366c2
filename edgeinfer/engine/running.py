"""What runs on this computer: a small file for every open model and every server, removed when it is closed.

In: a model or an address, noted by the process that has it open. Out: `Running` values of this user's live processes.
Files of killed processes are ignored, and removed the next time the folder is read. The folder may be shared with other
computers; their notes are ignored and stay. Nothing here raises: if a note cannot be written, there is none.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edgeinfer.models.store_files import default_root
from edgeinfer.temporary import is_alive, start_time, write_whole

ENDING = ".process"
NOTE_CAP_BYTES = 1 << 16
LATEST_S = 1e12
"""No process starts later, in seconds since 1970."""


def running_folder() -> Path:
    """The folder of the notes, beside the models."""
    return default_root().parent / "running"


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model that a process has open or is opening."""

    name: str
    path: Path
    is_loading: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """A process and its models; `address` if it serves them. `started_s`: seconds since the epoch."""

    pid: int
    command: str
    started_s: float
    models: tuple[OpenModel, ...] = ()
    address: str | None = None


class RunningNote:
    """This process's note, which exists until it is removed; also a context manager."""

    def __init__(self, model: OpenModel | None = None, address: str | None = None) -> None:
        pid = os.getpid()
        self._path = running_folder() / f"{pid}-{secrets.token_hex(4)}{ENDING}"
        record: dict[str, object] = {
            "host": platform.node(),
            "pid": pid,
            "started": start_time(pid),
            "command": _command(sys.argv),
            "address": address,
        }
        if model is not None:
            record |= {"model": model.name, "path": str(model.path.absolute()), "loading": model.is_loading}
        write_whole(self._path, json.dumps(record))

    def __enter__(self) -> RunningNote:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the note; may be called twice."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def running() -> tuple[Running, ...]:
    """The live processes, oldest first; removes notes of dead ones."""
    found: dict[int, Running] = {}
    for each in _notes():
        before = found.get(each.pid)
        if before is None:
            found[each.pid] = each
        else:
            found[each.pid] = replace(
                before, models=before.models + each.models, address=before.address or each.address
            )
    return tuple(sorted((_each_once(each) for each in found.values()), key=lambda each: each.started_s))


def users_of(paths: Sequence[Path]) -> tuple[Running, ...]:
    """The processes that have one of these files open as a model."""
    real_paths = {os.path.realpath(path) for path in paths}
    return tuple(each for each in running() if any(os.path.realpath(model.path) in real_paths for model in each.models))


def _each_once(process: Running) -> Running:
    """The process without "loading" entries for models that it also has open."""
    opened = {model.path for model in process.models if not model.is_loading}
    kept = {(model.path, model.is_loading): model for model in process.models}
    return replace(
        process, models=tuple(model for model in kept.values() if model.path not in opened or not model.is_loading)
    )


def _notes() -> Iterator[Running]:
    for path in sorted(running_folder().glob(f"*{ENDING}")):
        record = _record(path)
        if record is None or record.get("host") != platform.node():
            continue
        note = _read(record)
        if note is not None and is_alive(note.pid, note.started_s):
            yield replace(note, started_s=_began_s(note.pid))
        else:
            with suppress(OSError):
                path.unlink()


def _began_s(pid: int) -> float:
    """When a process began by today's clock, which may not be the one that the note was written by."""
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return time.time()


def _record(path: Path) -> dict[str, object] | None:
    """The contents of a file; a record with only the host if it is not a note, None if the file is gone."""
    try:
        if path.stat().st_size > NOTE_CAP_BYTES:
            return {"host": platform.node()}
        record = json.loads(path.read_bytes())
    except OSError:
        return None
    except (ValueError, RecursionError):
        return {"host": platform.node()}
    return record if isinstance(record, dict) else {"host": platform.node()}


def _read(record: dict[str, object]) -> Running | None:
    pid, started, command = record.get("pid"), record.get("started"), record.get("command")
    name, path, address = record.get("model"), record.get("path"), record.get("address")
    if not isinstance(pid, int) or not isinstance(started, int | float) or not isinstance(command, str):
        return None
    if not abs(started) < LATEST_S or not 0 <= pid < 1 << 31:
        return None
    models: tuple[OpenModel, ...] = ()
    if isinstance(name, str) and isinstance(path, str):
        models = (OpenModel(name, Path(path), record.get("loading") is True),)
    return Running(pid, command, float(started), models, address if isinstance(address, str) else None)


def _command(arguments: Sequence[str]) -> str:
    """The name of a process: the edgeinfer command that it runs, else the name of its program."""
    path = Path(arguments[0] if arguments else "")
    is_ours = path.name.removesuffix(".exe") == "edgeinfer" or path.parts[-2:] == ("edgeinfer", "__main__.py")
    return arguments[1] if is_ours and len(arguments) > 1 else path.name or "python"
