"""Writes the answers of a batch, one JSON object per line, and finds those that a file already has.

In: entries and their answers, as they finish. Out: lines on stdout or appended to a file, in ASCII, so that no encoding
can reject them. A resumed batch skips what its file has answered; if a prompt has several lines, the last one counts.
Knows no models.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from edgeinfer.app.batch_input import BatchEntry
from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.engine.scheduler.batcher import BatchAnswer

ENDED = ("stop", "length")
"""Finish reasons of answers that are not generated again."""


RECORD = b'{"index": '
"""The beginning of each line."""


def record(entry: BatchEntry, answer: BatchAnswer, approx: float | None = None) -> dict[str, object]:
    """An answer as a JSON object; keys may be added, never renamed. `digest`: of the prompt and its options.

    `approx`: the threshold of an approximate model; the key is absent for others.
    """
    found: dict[str, object] = {"index": entry.index, "id": entry.name, "digest": digest(entry)}
    found |= {} if approx is None else {"approx": approx}
    if answer.error is not None or answer.stats is None:
        return found | {"error": str(answer.error)}
    stats = answer.stats
    return found | {
        "text": answer.text,
        "tokens": list(answer.tokens),
        "n_prompt": stats.n_prompt,
        "n_generated": stats.n_generated,
        "finish_reason": stats.finish_reason,
        "truncated": stats.truncated,
        "notices": list(stats.notices),
        "ttft_s": stats.ttft_s,
        "seed": stats.seed,
    }


def digest(entry: BatchEntry) -> str:
    """Distinguishes entries by their prompts and options."""
    asked = json.dumps([entry.prompt.content, entry.prompt.options], sort_keys=True)
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def is_kept(line: Mapping[str, object], out: Path | None) -> bool:
    """Whether a record is written to the file: a cancelled answer is not, so a resumed batch generates it again."""
    return out is None or line.get("finish_reason") != "cancelled"


def write_line(stream: TextIO, line: Mapping[str, object]) -> None:
    """Write a record and flush it, so that finished answers survive a later failure. Raises EdgeInferError."""
    try:
        stream.write(json.dumps(line) + "\n")
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as reason:
        raise EdgeInferError(
            f"{stream.name} cannot be written: {reason.strerror or reason}; what it has already is whole"
        ) from None


def answered(path: Path, entries: list[BatchEntry]) -> set[int]:
    """Indices of the entries that a file already answers; truncates an incomplete last line left by a crash.

    Raises EdgeInferError for a file of anything else, which is left unchanged.
    """
    if path.exists() and not path.is_file() and not path.is_dir():  # a pipe or a device
        return set()
    try:
        data = path.read_bytes() if path.exists() else b""
        whole, newline, rest = data.rpartition(b"\n")
        lines = whole.decode("utf-8").split("\n") if whole else []
        found = {index for line in lines if (index := _index(line, entries)) is not None}
        if rest:
            if not rest.startswith(RECORD[: len(rest)]):
                raise ValueError("no line of ours")
            with path.open("r+b") as file:
                file.truncate(len(whole) + len(newline))
        return found
    except OSError as reason:
        raise EdgeInferError(f"{path} cannot be read: {reason.strerror or reason}") from None
    except (ValueError, KeyError, TypeError, IndexError):
        raise EdgeInferError(
            f"{path} is there and does not have answers of this batch; give another file with --out"
        ) from None


def _index(line: str, entries: list[BatchEntry]) -> int | None:
    """The entry that a line answers; None if it was cancelled or failed. Raises ValueError for another batch's line."""
    found = json.loads(line)
    index = found["index"]
    entry = entries[index]
    if index < 0 or (found["id"], found["digest"]) != (entry.name, digest(entry)):
        raise ValueError("another batch")
    return int(index) if found.get("finish_reason") in ENDED else None
