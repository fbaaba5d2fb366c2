"""The answers of a batch, a JSON object a line, and which of them a file has already.

In: entries and their answers, as they end. Out: lines on stdout or at the end of a file. A batch that goes on with its
file skips what is answered in it. Knows no models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from edgeinfer.app.batch_input import Entry
from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.engine.batching.batcher import BatchAnswer

ENDED = ("stop", "length")
"""Answers that are not made again."""


def record(entry: Entry, answer: BatchAnswer) -> dict[str, object]:
    """An answer as a JSON object; keys may be added, never renamed."""
    found: dict[str, object] = {"index": entry.index, "id": entry.name}
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


def write_line(stream: TextIO, line: Mapping[str, object]) -> None:
    """Write a record, at once: what is answered is not lost if the rest is."""
    stream.write(json.dumps(line, ensure_ascii=False) + "\n")
    stream.flush()


def answered(path: Path, entries: list[Entry]) -> set[int]:
    """Indices of entries that a file of this batch has answers of; what a crash left of its last line is cut off.

    Raises EdgeInferError for a file of something else.
    """
    if not path.exists():
        return set()
    try:
        data = path.read_bytes()
        whole, newline, rest = data.rpartition(b"\n")
        if rest:
            with path.open("r+b") as file:
                file.truncate(len(whole) + len(newline))
        return {index for line in whole.decode("utf-8").splitlines() if (index := _index(line, entries)) is not None}
    except OSError as reason:
        raise EdgeInferError(f"{path} cannot be read: {reason.strerror or reason}") from None
    except (ValueError, KeyError, TypeError, IndexError):
        raise EdgeInferError(
            f"{path} is there and does not have answers of this batch; give another file with --out"
        ) from None


def _index(line: str, entries: list[Entry]) -> int | None:
    """The entry that a line answers; None where it was cancelled or failed. Raises ValueError for another batch's."""
    found = json.loads(line)
    index = found["index"]
    if entries[index].name != found["id"]:
        raise ValueError("another batch")
    return int(index) if found.get("finish_reason") in ENDED else None
