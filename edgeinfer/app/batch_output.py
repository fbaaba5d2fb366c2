"""The answers of a batch, a JSON object a line, and which of them a file has already.

In: entries and their answers, as they end. Out: lines on stdout or at the end of a file, in ASCII, so that no encoding
can refuse them. A batch that goes on with its file skips what is answered in it; of several lines for one prompt the
last counts. Knows no models.
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
"""Answers that are not made again."""


RECORD = b'{"index": '
"""What each line begins with."""


def record(entry: BatchEntry, answer: BatchAnswer, approx: float | None = None) -> dict[str, object]:
    """An answer as a JSON object; keys may be added, never renamed. `digest`: of what was asked.

    `approx`: the threshold of an approximate model, which others have no key for.
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
    """Tells prompts and their own options apart."""
    asked = json.dumps([entry.prompt.content, entry.prompt.options], sort_keys=True)
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def is_kept(line: Mapping[str, object], out: Path | None) -> bool:
    """Whether a record is written: an answer that was broken off is made again by a batch that goes on."""
    return out is None or line.get("finish_reason") != "cancelled"


def write_line(stream: TextIO, line: Mapping[str, object]) -> None:
    """Write a record, at once: what is answered is not lost if the rest is. Raises EdgeInferError."""
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
    """Indices of entries that a file of this batch has answers of; what a crash left of its last line is cut off.

    Raises EdgeInferError for a file of something else, which stays as it is.
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
    """The entry that a line answers; None where it was cancelled or failed. Raises ValueError for another batch's."""
    found = json.loads(line)
    index = found["index"]
    entry = entries[index]
    if index < 0 or (found["id"], found["digest"]) != (entry.name, digest(entry)):
        raise ValueError("another batch")
    return int(index) if found.get("finish_reason") in ENDED else None
