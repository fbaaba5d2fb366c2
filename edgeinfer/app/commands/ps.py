"""`edgeinfer ps`: which models are open now, and in which process."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING

from edgeinfer.app.command_line.options import Command, Json
from edgeinfer.app.plain_text import echo

if TYPE_CHECKING:
    from edgeinfer.engine.running import OpenModel, Running

HEADINGS = ("PID", "COMMAND", "MODEL", "SINCE", "MEMORY", "ADDRESS")


def ps(as_json: Json = False) -> None:
    """List running edgeinfer processes and their models."""
    from edgeinfer.app.plain_text import table_lines
    from edgeinfer.engine.running import running

    found = running()
    if as_json:
        echo(json.dumps({"processes": [_record(each) for each in found]}))
    elif not found:
        echo("no edgeinfer process of yours is running", err=True)
    else:
        for line in table_lines([HEADINGS, *map(_row, found)]):
            echo(line)


def _record(process: Running) -> dict[str, object]:
    return {
        "pid": process.pid,
        "command": process.command,
        "models": [
            {"name": model.name, "path": str(model.path), "loading": model.is_loading} for model in process.models
        ],
        "since": datetime.fromtimestamp(process.started_s).astimezone().isoformat(timespec="seconds"),
        "memory_bytes": _memory_bytes(process.pid),
        "address": process.address,
    }


def _row(process: Running) -> tuple[str, ...]:
    from edgeinfer.text_values import size_text

    memory_bytes = _memory_bytes(process.pid)
    return (
        str(process.pid),
        process.command,
        ", ".join(map(_model_word, process.models)) or "none",
        _since(datetime.fromtimestamp(process.started_s), datetime.now()),
        "" if memory_bytes is None else size_text(memory_bytes),
        process.address or "",
    )


def _model_word(model: OpenModel) -> str:
    return f"{model.name} (loading)" if model.is_loading else model.name


def _since(started: datetime, now: datetime) -> str:
    """The time of day, with the date where that is another one."""
    return f"{started:%H:%M}" if started.date() == now.date() else f"{started:%Y-%m-%d %H:%M}"


def _memory_bytes(pid: int) -> int | None:
    """What a process and those that it started have in memory; None where it has ended or the system refuses."""
    import psutil

    try:
        process = psutil.Process(pid)
        total = int(process.memory_info().rss)
        children = process.children(recursive=True)
    except (psutil.Error, OSError):
        return None
    for child in children:
        try:
            total += int(child.memory_info().rss)
        except (psutil.Error, OSError):
            continue
    return total


COMMAND = Command(ps)
