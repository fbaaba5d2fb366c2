"""What the two processes say to each other: small JSON messages over a connection, arrays through shared memory.

In: calls and replies. Out: bytes, and back. What comes from the child is only ever read as numbers and text, for the
child may run a program that a file has made do as it likes. Knows no models.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer import errors
from edgeinfer.backends.base import PEAK_BLOCK, PEAK_LANES, DeviceOptions, Limits
from edgeinfer.backends.stopping import Interrupted
from edgeinfer.errors import DeviceFailed, EdgeInferError
from edgeinfer.graph.inputs import Inputs
from edgeinfer.graph.step import AXES, Batch, Floats, InputRows
from edgeinfer.load_options import LoadOptions
from edgeinfer.scheduling.machine.topology import CoreKind

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]
FLAG_BYTES = 64
"""At the start of the shared memory: the text of a stop flag."""
BATCH_ROWS = 5 + AXES
"""Tokens, sequences, positions, parents, outputs, and axes."""


@dataclass(frozen=True, slots=True)
class RemoteOpening:
    """What a child is to open, and how: `load.n_context` is the context that the model is run with."""

    path: Path
    limits: Limits
    options: DeviceOptions
    load: LoadOptions
    kinds: tuple[CoreKind, ...]


@dataclass(frozen=True, slots=True)
class RemoteCall:
    """One call: its name, its plain arguments, and bytes if it takes any. `answered`: whether a reply is waited for.

    The reply has the call's number: whoever is interrupted while waiting finds an old reply before the next one.
    """

    name: str
    arguments: Mapping[str, Plain] = field(default_factory=dict)
    body: bytes = b""
    answered: bool = True
    number: int = 0


@dataclass(frozen=True, slots=True)
class RemoteReply:
    """What came of a call: a plain value and bytes, or an error by its class; or only progress, before the reply."""

    value: Plain = None
    body: bytes = b""
    error: str = ""
    message: str = ""
    progress: tuple[str, int, int] | None = None
    number: int = 0

    def raise_error(self) -> None:
        """Raise the error, if there is one, as what it was."""
        if not self.error:
            return
        if self.error == Interrupted.__name__:
            raise Interrupted
        if self.error == ValueError.__name__:
            raise ValueError(self.message)
        kind = vars(errors).get(self.error)
        if isinstance(kind, type) and issubclass(kind, EdgeInferError):
            raise kind(self.message)
        raise DeviceFailed(f"the process of the device says {self.error}: {self.message}")


def send_call(connection: Connection, call: RemoteCall) -> None:
    """Send a call. Raises OSError where nobody is there."""
    fields = {"name": call.name, "arguments": dict(call.arguments), "answered": call.answered, "number": call.number}
    _send(connection, fields, call.body)


def receive_call(connection: Connection) -> RemoteCall:
    """The next call. Raises EOFError or OSError at the end."""
    fields, body = _receive(connection)
    return RemoteCall(fields["name"], fields["arguments"], body, fields["answered"], fields["number"])


def send_reply(connection: Connection, reply: RemoteReply) -> None:
    """Send a reply. Raises OSError where nobody is there."""
    fields = {"value": reply.value, "error": reply.error, "message": reply.message, "progress": reply.progress}
    _send(connection, {**fields, "number": reply.number}, reply.body)


def receive_reply(connection: Connection) -> RemoteReply:
    """The next reply. Raises EOFError or OSError at the end, ValueError for what is none."""
    fields, body = _receive(connection)
    told = fields["progress"]
    progress = None if told is None else (str(told[0]), int(told[1]), int(told[2]))
    return RemoteReply(
        fields["value"], body, str(fields["error"]), str(fields["message"]), progress, int(fields["number"])
    )


def _send(connection: Connection, fields: object, body: bytes) -> None:
    connection.send_bytes(json.dumps(fields).encode() + b"\n" + body)


def _receive(connection: Connection) -> tuple[dict[str, Any], bytes]:
    head, _, body = connection.recv_bytes().partition(b"\n")
    fields = json.loads(head)
    if not isinstance(fields, dict):
        raise ValueError("no message")
    return fields, body


def inputs_of(facts: Mapping[str, Plain]) -> Inputs:
    """What the model that a child has opened takes besides token ids."""
    return Inputs(int(str(facts["row_width"])), bool(facts["axes"]))


class Shared:
    """Memory that both processes map: a stop flag, a batch, logits and peaks, at the same places for the same sizes.

    A batch's numbers of tokens lie one after the other, axes last; then come its rows, if there may be some.
    """

    def __init__(self, path: Path, max_tokens: int, max_outputs: int, n_vocab: int, row_width: int) -> None:
        """Map a file, which is made as large as it must be. `row_width`: of rows of numbers; 0: there are none."""
        self._widths = n_vocab, -(-n_vocab // PEAK_BLOCK) * PEAK_LANES
        peak_width = self._widths[1]
        n_bytes = FLAG_BYTES + 4 * ((BATCH_ROWS + row_width) * max_tokens + max_outputs * (n_vocab + peak_width))
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
        self._logits: Floats = np.frombuffer(self._memory, np.float32, max_outputs * n_vocab, start)
        self._peaks: Floats = np.frombuffer(
            self._memory, np.float32, max_outputs * peak_width, start + self._logits.nbytes
        )

    def put_batch(self, batch: Batch) -> dict[str, Plain]:
        """Write a batch; what the other side needs to know to read it."""
        n_tokens, n_outputs = len(batch.tokens), len(batch.outputs)
        for row, values in enumerate((batch.tokens, batch.sequences, batch.positions, batch.parents)):
            self._batch[row, :n_tokens] = values
        self._batch[4, :n_outputs] = batch.outputs
        n_rows = 0 if batch.rows is None else len(batch.rows.values)
        if batch.rows is not None:
            self._rows[:n_rows] = batch.rows.values
        if batch.axes is not None:
            self._batch[5:, :n_tokens] = batch.axes.T
        return {"n_tokens": n_tokens, "n_outputs": n_outputs, "n_rows": n_rows, "axes": batch.axes is not None}

    def batch(self, n_tokens: int, n_outputs: int, n_rows: int, *, axes: bool) -> Batch:
        """A copy of the batch that was written."""
        tokens, sequences, positions, parents = self._batch[:4, :n_tokens].copy()
        return Batch(
            tokens,
            sequences,
            positions,
            parents,
            self._batch[4, :n_outputs].copy(),
            InputRows(self._rows[:n_rows].copy()) if n_rows else None,
            self._batch[5:, :n_tokens].T.copy() if axes else None,
        )

    def put_results(self, logits: Floats, peaks: Floats | None) -> Plain:
        """Write logits and peaks; their shapes. Peaks that are larger than they should be are left out."""
        self._logits[: logits.size] = logits.ravel()
        if peaks is None or peaks.size > self._peaks.size:
            return [list(logits.shape), None]
        self._peaks[: peaks.size] = peaks.ravel()
        return [list(logits.shape), list(peaks.shape)]

    def results(self, shapes: Plain, n_outputs: int) -> tuple[Floats, Floats | None]:
        """Logits and peaks of these shapes, as views. Raises ValueError for shapes that cannot be."""
        if not isinstance(shapes, list) or len(shapes) != 2:
            raise ValueError("no shapes")
        logits, peaks = shapes
        found = _shaped(self._logits, logits, n_outputs, self._widths[0])
        return found, None if peaks is None else _shaped(self._peaks, peaks, n_outputs, self._widths[1])


def _shaped(numbers: Floats, shape: Plain, n_rows: int, width: int) -> Floats:
    if shape != [n_rows, width] and (n_rows or not isinstance(shape, list) or shape[:1] != [0]):
        raise ValueError(f"results of shape {shape}, which must be {n_rows} x {width}")
    return numbers[: n_rows * width].reshape(n_rows, width)
