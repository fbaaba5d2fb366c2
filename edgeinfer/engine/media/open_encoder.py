"""An encoder of images or sound in memory: its graphs on a device.

In: a projector file, what opens models on the device, tiles. Out: rows of the language model. A tile is one pass.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from edgeinfer.backends.base import Limits
from edgeinfer.backends.weights import matrix, vector
from edgeinfer.engine.kv.limits import encoder_limits
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import Batch, Floats, Int32s
from edgeinfer.jit.memory import trim_heap
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.projector_file import ProjectorFile
from edgeinfer.models.vision.encoder import Encoder, Size, TileInput


class OpenBeside(Protocol):
    """Opens a model on the device and workers of another one, as `SequenceEvaluator.beside`."""

    def __call__(self, spec: ModelSpec, file: GGUFFile, fingerprint: str, limits: Limits) -> SequenceEvaluator: ...


class OpenEncoder:
    """An encoder whose weights are in memory. One call at a time. Close it; the file stays open."""

    def __init__(
        self, projector: ProjectorFile, fingerprint: str, beside: OpenBeside, encoder: Encoder | None = None
    ) -> None:
        """`encoder`: one of the file's; None: that of images. Raises DoesNotFit, UnsupportedModel."""
        self._encoder = encoder = projector.encoder if encoder is None else encoder
        self._table, self._queries = _table(encoder, projector.file), _queries(encoder, projector.file)
        self._opened: list[SequenceEvaluator] = []
        try:
            for graph in encoder.graphs:
                self._opened.append(beside(graph, projector.file, fingerprint, encoder_limits(graph)))
        except BaseException:
            self.close()
            raise
        projector.file.release()

    def encoded(self, tile: TileInput, grid: Size) -> Floats:
        """The rows of a tile: float32[M, D]."""
        encoder, opened = self._encoder, self._opened
        second, stem, patches = encoder.second, encoder.stem, tile.made()
        if stem is not None:
            patches = stem.after(_run_in_parts(opened[0], stem.before(patches, grid)), grid)
        hidden = self._hidden(patches, grid)
        del patches
        trim_heap()  # what they were made of is as large
        rows = _run(opened[0 if stem is None else 1], hidden, tile.axes, tile.spans)
        del hidden
        if second is not None:
            between = second.tokens(rows, grid, self._queries)
            rows = _run(opened[-2], between.made(), between.axes, between.spans)
        return _run_in_parts(opened[-1], encoder.joined(rows, grid))

    def _hidden(self, patches: Floats, grid: Size) -> Floats:
        """Patches, with the learned positions beside them if there are any: float32[N, P + D]."""
        positions = self._encoder.positions
        if positions is None or self._table is None:
            return patches
        added = positions[1](self._table, grid)
        hidden: Floats = np.empty((len(patches), patches.shape[1] + added.shape[1]), np.float32)
        hidden[:, : patches.shape[1]], hidden[:, patches.shape[1] :] = patches, added
        return hidden

    def give_back(self) -> None:
        """Give back the memory that passes need, until the next one."""
        for each in self._opened:
            scratch = each.capabilities.scratch
            if scratch is not None:
                scratch.give_back()
        trim_heap()

    def close(self) -> None:
        """Free the memory."""
        for executor in self._opened:
            executor.close()


def _table(encoder: Encoder, file: GGUFFile) -> Floats | None:
    """The table of positions, with the vectors after it."""
    if encoder.positions is None:
        return None
    vectors = [vector(file, weight)[None] for weight in encoder.constants]
    return np.concatenate([matrix(file, encoder.positions[0]), *vectors])


def _queries(encoder: Encoder, file: GGUFFile) -> Floats:
    """The table of the second trunk, empty without one."""
    if encoder.second is None or encoder.second.table is None:
        return np.zeros((0, 0), np.float32)
    return matrix(file, encoder.second.table)


def _run_in_parts(executor: SequenceEvaluator, joined: Floats) -> Floats:
    """The result of a graph whose rows do not see each other, for as many at a time as its limits allow."""
    n_rows, most = len(joined), executor.limits.max_tokens
    rows: Floats | None = None
    for first in range(0, n_rows, most):
        part = joined[first : first + most]
        found = _run(executor, part.reshape(len(part), -1))
        if rows is None:
            rows = np.empty((n_rows, found.shape[1]), np.float32)
        rows[first : first + most] = found
    assert rows is not None
    return rows


def _run(
    executor: SequenceEvaluator, hidden: Floats, axes: Int32s | None = None, spans: Int32s | None = None
) -> Floats:
    """The result of a graph for hidden rows that are read together: float32[N, W], valid until the next run."""
    n_tokens = len(hidden)
    every = np.arange(n_tokens, dtype=np.int32)
    sequence = executor.create()
    try:
        return executor.evaluate(
            Batch(
                tokens=np.zeros(n_tokens, np.int32),
                sequences=np.full(n_tokens, sequence, np.int32),
                positions=every,
                parents=every - 1,
                outputs=every,
                axes=axes,
                hidden=np.ascontiguousarray(hidden, np.float32),
                spans=spans,
            )
        )
    finally:
        executor.free(sequence)
