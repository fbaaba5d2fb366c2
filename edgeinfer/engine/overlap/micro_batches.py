"""In-flight batches of one sequence each, the micro-batches that run several of them as one step, and their rows.

In: batches placed in the KV cache. Out: `InFlightBatch`es, and the `Step`s that lanes run for several of them together.
An in-flight batch at stage l is about to enter the matmuls after the attention of layer l - 1; at stage 0 it starts.
Values that pass between parts of a model wait in a `RowStore`, in host memory, for one thread at a time, and are
gathered in the requested order. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Limits
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.graph.step import Batch, Floats, Int32s, Step

Int64s = NDArray[np.int64]
FIRST_ROWS = 64
"""Initial number of rows; doubled whenever it is too small."""


@dataclass(slots=True, eq=False)
class InFlightBatch:
    """A batch of one sequence in flight.

    `step`: this batch alone in the KV cache of its KV partition; `members`: indices of its tokens in the caller's
    batch; `rows`: their rows in the row store; `stage`: as above; `awaited`: whether the host's attention of the
    previous layer is still pending; `logits`: float32[O, V], once finished; `ended`: whether it is finished or
    cancelled, so that its rows may belong to another batch.
    """

    sequence: int
    is_resident: bool
    step: Step
    members: Int64s
    rows: Int64s
    stage: int = 0
    awaited: bool = False
    logits: Floats | None = None
    ended: bool = False

    @property
    def n_tokens(self) -> int:
        return len(self.step.batch.tokens)

    @property
    def n_outputs(self) -> int:
        return len(self.step.batch.outputs)

    @property
    def n_seen(self) -> int:
        """Cached tokens that its tokens attend to, summed over the tokens."""
        return int(self.step.batch.positions.sum())


class MicroBatch:
    """In-flight batches that go through a part together: their rows, and their steps, built on first use."""

    def __init__(self, flights: Sequence[InFlightBatch]) -> None:
        self.flights = tuple(flights)
        self.rows: Int64s = np.concatenate([flight.rows for flight in flights])
        self._attending: Step | None = None
        self._plain: Step | None = None

    def attending(self) -> Step:
        """The step of all of them in the KV cache of their KV partition, sequence by sequence."""
        if self._attending is None:
            self._attending = self.flights[0].step if len(self.flights) == 1 else self._joined()
        return self._attending

    def plain(self, n_context: int) -> Step:
        """A step of the same rows for parts without attention: each token stands alone."""
        if self._plain is None:
            found = self.attending()
            n_tokens = len(found.batch.tokens)
            alone = np.full(n_tokens, -1, np.int32)
            batch = Batch(found.batch.tokens, found.batch.sequences, found.batch.positions, alone, found.batch.outputs)
            order, tables = np.arange(n_tokens, dtype=np.int32), np.zeros((1, pages_for(n_context)), np.int32)
            self._plain = Step(batch, np.zeros(n_tokens, np.int32), order, found.batch.positions, tables)
        return self._plain

    def outputs(self) -> Iterator[tuple[InFlightBatch, int, int]]:
        """Each in-flight batch with the start and stop of its output rows."""
        start = 0
        for flight in self.flights:
            yield flight, start, start + flight.n_outputs
            start += flight.n_outputs

    def _joined(self) -> Step:
        steps = [flight.step for flight in self.flights]
        counts = [len(step.batch.tokens) for step in steps]
        starts = [0, *np.cumsum(counts).tolist()]
        parents = [
            np.where(s.batch.parents < 0, -1, s.batch.parents + at) for s, at in zip(steps, starts, strict=False)
        ]
        tables = np.full((len(steps), max(step.tables.shape[1] for step in steps)), -1, np.int32)
        for row, step in enumerate(steps):
            tables[row, : step.tables.shape[1]] = step.tables[0]
        batch = Batch(
            _together([step.batch.tokens for step in steps]),
            _together([step.batch.sequences for step in steps]),
            _together([step.batch.positions for step in steps]),
            _together(parents),
            _together([step.batch.outputs + at for step, at in zip(steps, starts, strict=False)]),
        )
        rows = np.repeat(np.arange(len(steps), dtype=np.int32), counts)
        slots, seen = _together([step.slots for step in steps]), _together([step.starts for step in steps])
        return Step(batch, rows, slots, seen, tables)


class MicroBatches:
    """Groups in-flight batches into micro-batches within a lane's limits; the next layer reuses the last ones."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._last: tuple[tuple[InFlightBatch, ...], list[MicroBatch]] = ((), [])

    def of(self, flights: Sequence[InFlightBatch]) -> list[MicroBatch]:
        """The in-flight batches in order, in as few micro-batches as the limits allow."""
        wanted = tuple(flights)
        if self._last[0] != wanted:
            self._last = wanted, [MicroBatch(part) for part in self._cut(wanted)]
        return self._last[1]

    def forget(self) -> None:
        """Release all references to in-flight batches."""
        self._last = (), []

    def _cut(self, flights: Sequence[InFlightBatch]) -> Iterator[list[InFlightBatch]]:
        part: list[InFlightBatch] = []
        n_tokens = n_outputs = 0
        for flight in flights:
            n_tokens, n_outputs = n_tokens + flight.n_tokens, n_outputs + flight.n_outputs
            if part and (n_tokens > self._limits.max_tokens or n_outputs > self._limits.max_outputs):
                yield part
                part, n_tokens, n_outputs = [], flight.n_tokens, flight.n_outputs
            part.append(flight)
        if part:
            yield part


def _together(parts: Sequence[Int32s]) -> Int32s:
    return np.concatenate(parts).astype(np.int32, copy=False)


class RowStore:
    """One row of each value for every token in flight. `widths` of the values, by name."""

    def __init__(self, widths: Mapping[str, int]) -> None:
        self._values: dict[str, Floats] = {
            name: np.zeros((FIRST_ROWS, width), np.float32) for name, width in widths.items()
        }
        self._free = list(range(FIRST_ROWS - 1, -1, -1))
        self._n_rows = FIRST_ROWS

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._values.values())

    @property
    def n_taken(self) -> int:
        """Rows in use."""
        return self._n_rows - len(self._free)

    def take(self, n_rows: int) -> Int64s:
        """Allocate rows for this many tokens: int64[n_rows]."""
        while len(self._free) < n_rows:
            self._grow()
        return np.array([self._free.pop() for _ in range(n_rows)], np.int64)

    def give_back(self, rows: Int64s) -> None:
        """Free these rows."""
        self._free.extend(rows.tolist())

    def gather(self, names: Iterable[str], rows: Int64s) -> dict[str, Floats]:
        """Copies of rows: float32[len(rows), width] for each name."""
        return {name: self._values[name][rows] for name in names}

    def scatter(self, values: Mapping[str, Floats], rows: Int64s) -> None:
        """Write rows; values that are not stored here are ignored."""
        for name, found in values.items():
            if name in self._values:
                self._values[name][rows] = found

    def _grow(self) -> None:
        self._free.extend(range(2 * self._n_rows - 1, self._n_rows - 1, -1))
        for name, array in self._values.items():
            self._values[name] = np.concatenate([array, np.zeros_like(array)])
        self._n_rows *= 2
