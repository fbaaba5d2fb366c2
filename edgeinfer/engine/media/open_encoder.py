"""An encoder of images or sound in memory: its graphs on a device.

In: a projector file, what opens models on the device, tiles. Out: rows of the language model. A tile is one pass.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from edgeinfer.backends.base import Limits
from edgeinfer.backends.weights import matrix, vector
from edgeinfer.engine.kv.limits import encoder_limits
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import Batch, Floats
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
        encoder = self._encoder
        positions, second, stem = encoder.positions, encoder.second, encoder.stem
        trunk, projection = self._opened[0 if stem is None else 1], self._opened[-1]
        if stem is not None:
            read = _run_in_parts(self._opened[0], stem.before(tile.patches, grid))
            tile = replace(tile, patches=stem.after(read, grid))
        if positions is not None and self._table is not None:
            patches = np.concatenate([tile.patches, positions[1](self._table, grid)], axis=1)
            tile = replace(tile, patches=patches)
        rows = _run(trunk, tile)
        if second is not None:
            rows = _run(self._opened[-2], second.tokens(rows, grid, self._queries))
        return _run_in_parts(projection, encoder.joined(rows, grid))

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


def _run_in_parts(executor: SequenceEvaluator, hidden: Floats) -> Floats:
    """The result of a graph whose rows do not see each other, for as many at a time as its limits allow."""
    most = executor.limits.max_tokens
    parts = (hidden[first : first + most] for first in range(0, len(hidden), most))
    return np.concatenate([_run(executor, TileInput(part)).copy() for part in parts])


def _run(executor: SequenceEvaluator, tile: TileInput) -> Floats:
    """The result of a graph for tokens that are read together: float32[N, W], valid until the next run."""
    n_tokens = len(tile.patches)
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
                axes=tile.axes,
                hidden=np.ascontiguousarray(tile.patches, np.float32),
                spans=tile.spans,
            )
        )
    finally:
        executor.free(sequence)
