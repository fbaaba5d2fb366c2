"""Messages between an isolated evaluator and its child process, and the shared memory in which they pass arrays.

In: calls and replies, sent through a `Channel`; batches and logits. Out: the same. Replies are validated, because a
hostile file may have taken over the program in the child. Knows no models.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import PEAK_BLOCK, PEAK_LANES, DeviceOptions, Limits
from edgeinfer.backends.evaluator import Interrupted
from edgeinfer.errors import DeviceFailed
from edgeinfer.graph.step import AXES, Batch, Floats, InputRows, Int32s
from edgeinfer.ipc.channel import error_of
from edgeinfer.ipc.records import Plain, read_as
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.text import Vocabulary
from edgeinfer.offload.weights import WeightReads
from edgeinfer.scheduling.machine.topology import CoreKind

Shapes = tuple[tuple[int, ...], tuple[int, ...] | None]
"""Shapes of logits and of peaks, if there are any."""
FLAG_BYTES = 64
"""Bytes of a stop flag's text at the start of the shared memory."""
SPANS = 5 + AXES
BATCH_ROWS = SPANS + 2
"""Number of arrays of a batch: tokens, sequences, positions, parents, outputs, axes, and from SPANS on spans."""


@dataclass(frozen=True, slots=True)
class RemoteOpening:
    """The model that a child opens, and how. `load.n_context`: the context the model runs with."""

    path: Path
    limits: Limits
    options: DeviceOptions
    load: LoadOptions
    kinds: tuple[CoreKind, ...]


@dataclass(frozen=True, slots=True)
class RemoteCall:
    """One call: its name, arguments, and bytes if it takes any. `answered`: whether it has a reply.

    The reply carries the call's number, because an interrupted wait leaves an old reply before the next one.
    """

    name: str
    arguments: Mapping[str, Plain] = field(default_factory=dict)
    body: bytes = b""
    answered: bool = True
    number: int = 0


@dataclass(frozen=True, slots=True)
class RemoteReply:
    """The result of a call: a value and bytes, or an error by its class; or progress, sent before the reply."""

    value: Plain = None
    body: bytes = b""
    error: str = ""
    message: str = ""
    progress: tuple[str, int, int] | None = None
    number: int = 0

    def raise_error(self) -> None:
        """Raise the error, if any, as its original class."""
        if not self.error:
            return
        if self.error == Interrupted.__name__:
            raise Interrupted
        if self.error == ValueError.__name__:
            raise ValueError(self.message)
        raise error_of(self.error, self.message) or DeviceFailed(
            f"the process of the device says {self.error}: {self.message}"
        )


@dataclass(frozen=True, slots=True)
class RemoteFacts:
    """What a child reports about the model it has opened."""

    device: str
    batch_invariant: bool
    n_vocab: int
    row_width: int
    axes: bool
    spans: bool
    scales: tuple[float, ...]
    n_context_trained: int
    max_tokens: int
    max_outputs: int
    branches: bool
    n_workers: int
    affinity: tuple[tuple[int, ...], ...]
    resident_bytes: int
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemotePass:
    """The result of a pass besides its arrays: `shapes` of logits and peaks, free pages, workers.

    `news`: notices, the device, whether batches change its results; None if nothing has changed. `reading`: weights
    read so far; None if all are in memory and no activations are skipped.
    """

    shapes: Shapes
    n_free_pages: int
    n_workers: int
    news: tuple[tuple[str, ...], str, bool] | None
    reading: WeightReads | None


@dataclass(frozen=True, slots=True)
class RemoteVocabulary:
    """The vocabulary of a program in a child, and the bytes of each token."""

    fields: Vocabulary
    pieces: tuple[bytes, ...]

    @classmethod
    def of(cls, value: Plain, n_vocab: int) -> RemoteVocabulary:
        """The vocabulary in a reply. Raises ValueError for an invalid one."""
        reply: RemoteVocabulary = read_as(cls, value)
        words = reply.fields
        check_ids([*words.end_of_generation, *words.strips_right, *words.suppressed], n_vocab)
        sizes = len(words.types), len(reply.pieces), len(words.scores) or words.n_tokens
        if set(sizes) != {words.n_tokens}:
            raise ValueError(f"{words.n_tokens} tokens, {sizes[0]} types, {sizes[1]} pieces and {sizes[2]} scores")
        return reply


def check_ids(tokens: Sequence[int], n_vocab: int) -> None:
    """Raises ValueError for ids outside the vocabulary."""
    for token in tokens:
        if not 0 <= token < n_vocab:
            raise ValueError(f"token {token} of {n_vocab}")


class Shared:
    """Memory that both processes map: a stop flag, a batch, logits and peaks, at offsets that depend only on the sizes.

    The integer arrays of a batch come one after another, axes and spans last, followed by its rows and by its scales of
    LoRA adapters, if the model takes any.
    """

    def __init__(
        self, path: Path, max_tokens: int, max_outputs: int, n_vocab: int, row_width: int, n_adapters: int = 0
    ) -> None:
        """Map a file and grow it to the required size. `row_width`: numbers per row; 0: no rows.

        `n_adapters`: scales per token.
        """
        self._widths = n_vocab, -(-n_vocab // PEAK_BLOCK) * PEAK_LANES
        peak_width = self._widths[1]
        per_token = BATCH_ROWS + row_width + n_adapters
        n_bytes = FLAG_BYTES + 4 * (per_token * max_tokens + max_outputs * (n_vocab + peak_width))
        with path.open("r+b") as file:
            file.truncate(n_bytes)
            self._memory = mmap.mmap(file.fileno(), n_bytes)
        self.flag: NDArray[np.uint8] = np.frombuffer(self._memory, np.uint8, 2)
        numbers = np.frombuffer(self._memory, np.int32, BATCH_ROWS * max_tokens, FLAG_BYTES)
        self._batch = numbers.reshape(BATCH_ROWS, max_tokens)
        start = FLAG_BYTES + numbers.nbytes
        rows = np.frombuffer(self._memory, np.float32, row_width * max_tokens, start)
        self._rows: Floats = rows.reshape(max_tokens, row_width)
        start += rows.nbytes
        scales = np.frombuffer(self._memory, np.float32, n_adapters * max_tokens, start)
        self._scales: Floats = scales.reshape(max_tokens, n_adapters)
        start += scales.nbytes
        self._logits: Floats = np.frombuffer(self._memory, np.float32, max_outputs * n_vocab, start)
        self._peaks: Floats = np.frombuffer(
            self._memory, np.float32, max_outputs * peak_width, start + self._logits.nbytes
        )

    def put_batch(self, batch: Batch) -> dict[str, Plain]:
        """Write a batch; returns what the other side needs to read it."""
        n_tokens, n_outputs = len(batch.tokens), len(batch.outputs)
        for row, values in enumerate((batch.tokens, batch.sequences, batch.positions, batch.parents)):
            self._batch[row, :n_tokens] = values
        self._batch[4, :n_outputs] = batch.outputs
        n_rows = 0 if batch.rows is None else len(batch.rows.values)
        if batch.rows is not None:
            self._rows[:n_rows] = batch.rows.values
        if batch.axes is not None:
            self._batch[5:SPANS, :n_tokens] = batch.axes.T
        if batch.spans is not None:
            self._batch[SPANS:, :n_tokens] = batch.spans.T
        if batch.scales is not None:
            self._scales[:n_tokens] = batch.scales
        blocks: list[Plain] = [] if batch.blocks is None else batch.blocks.tolist()
        stated: dict[str, Plain] = {
            "axes": batch.axes is not None,
            "scales": batch.scales is not None,
            "spans": batch.spans is not None,
            "blocks": blocks,
        }
        return {"n_tokens": n_tokens, "n_outputs": n_outputs, "n_rows": n_rows, **stated}

    def batch(
        self,
        n_tokens: int,
        n_outputs: int,
        n_rows: int,
        *,
        axes: bool,
        scales: bool = False,
        spans: bool = False,
        blocks: Int32s | None = None,
    ) -> Batch:
        """A copy of the batch that was written."""
        tokens, sequences, positions, parents = self._batch[:4, :n_tokens].copy()
        return Batch(
            tokens,
            sequences,
            positions,
            parents,
            self._batch[4, :n_outputs].copy(),
            InputRows(self._rows[:n_rows].copy()) if n_rows else None,
            self._batch[5:SPANS, :n_tokens].T.copy() if axes else None,
            self._scales[:n_tokens].copy() if scales else None,
            blocks=blocks,
            spans=self._batch[SPANS:, :n_tokens].T.copy() if spans else None,
        )

    def put_results(self, logits: Floats, peaks: Floats | None) -> Shapes:
        """Write logits and peaks; returns their shapes. Peaks that exceed their reserved size are left out."""
        self._logits[: logits.size] = logits.ravel()
        if peaks is None or peaks.size > self._peaks.size:
            return logits.shape, None
        self._peaks[: peaks.size] = peaks.ravel()
        return logits.shape, peaks.shape

    def results(self, shapes: Shapes, n_outputs: int) -> tuple[Floats, Floats | None]:
        """Logits and peaks of these shapes, as views. Raises ValueError for invalid shapes."""
        shape, peaks_shape = shapes
        logits = _shaped(self._logits, shape, n_outputs, self._widths[0])
        return logits, None if peaks_shape is None else _shaped(self._peaks, peaks_shape, n_outputs, self._widths[1])


def _shaped(numbers: Floats, shape: tuple[int, ...], n_rows: int, width: int) -> Floats:
    if shape != (n_rows, width) and (n_rows or shape[:1] != (0,)):
        raise ValueError(f"results of shape {shape}, which must be {n_rows} x {width}")
    return numbers[: n_rows * width].reshape(n_rows, width)
