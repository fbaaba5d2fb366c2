"""What a sequence has read, so that it can be read again: token ids, and the rows and axes that came with them.

In: batches and the accepted paths through them. Out: batches that read the same text. For evaluators that outlive the
owner of keys and values. Knows no keys and values, and no devices.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from edgeinfer.graph.step import Batch, Floats, InputRows, Int32s, same_axes


@dataclass(slots=True)
class ReadText:
    """Tokens in order, negative where a row was read; the rows; and the axes of all tokens if any token had some."""

    tokens: list[int] = field(default_factory=list)
    rows: list[Floats] = field(default_factory=list)
    axes: list[list[int]] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, batch: Batch, path: Int32s) -> None:
        """Append accepted tokens of a batch."""
        n_before = len(self.tokens)
        self.tokens += batch.tokens[path].tolist()
        if batch.rows is not None and (chosen := batch.rows_of(path)) is not None:
            self.rows += list(chosen.values)
        if batch.axes is not None and self.axes is None:
            first = int(batch.positions[path[0]]) - n_before if len(path) else 0
            self.axes = same_axes(np.arange(first, first + n_before, dtype=np.int32)).tolist()
        if self.axes is not None:
            axes = same_axes(batch.positions) if batch.axes is None else batch.axes
            self.axes += axes[path].tolist()

    def cut(self, n_tokens: int) -> None:
        """Drop everything after the first `n_tokens` tokens."""
        if self.rows:
            del self.rows[sum(token < 0 for token in self.tokens[:n_tokens]) :]
        del self.tokens[n_tokens:]
        if self.axes is not None:
            del self.axes[n_tokens:]
            self.axes = self.axes or None

    def copied(self) -> ReadText:
        """Return an independent copy."""
        return ReadText(list(self.tokens), list(self.rows), None if self.axes is None else list(self.axes))

    def batches(self, sequence: int, most_tokens: int, first: int = 0) -> Iterator[Batch]:
        """Yield batches that read the text one after the other, from position `first` on, without logits."""
        n_rows = 0
        for start in range(0, len(self.tokens), most_tokens):
            tokens = np.array(self.tokens[start : start + most_tokens], np.int32)
            order, n_own = np.arange(len(tokens), dtype=np.int32), int(np.count_nonzero(tokens < 0))
            rows = InputRows(np.array(self.rows[n_rows : n_rows + n_own], np.float32)) if n_own else None
            axes = None if self.axes is None else np.array(self.axes[start : start + most_tokens], np.int32)
            sequences, positions = np.full(len(tokens), sequence, np.int32), order + np.int32(first + start)
            yield Batch(tokens, sequences, positions, order - 1, order[:0], rows, axes)
            n_rows += n_own

    def sealed(self) -> tuple[str, bytes]:
        """The text as JSON, and the bytes of its rows."""
        width = len(self.rows[0]) if self.rows else 0
        header = json.dumps({"tokens": self.tokens, "axes": self.axes, "n_rows": len(self.rows), "width": width})
        return header, b"".join(row.tobytes() for row in self.rows)

    @classmethod
    def unsealed(cls, header: str, body: bytes) -> tuple[ReadText, bytes]:
        """Restore what `sealed` returned. Returns the text and the remaining bytes."""
        fields = json.loads(header)
        n_rows, width = fields["n_rows"], fields["width"]
        rows = np.frombuffer(body[: 4 * n_rows * width], np.float32).reshape(n_rows, width)
        return cls(fields["tokens"], list(rows), fields["axes"]), body[4 * n_rows * width :]
