"""An image encoder in memory: its two graphs on a device.

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
from edgeinfer.graph.step import Batch, Floats
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.projector_file import ProjectorFile
from edgeinfer.models.vision.encoder import Size, TileInput


class OpenBeside(Protocol):
    """Opens a model on the device and workers of another one, as `SequenceEvaluator.beside`."""

    def __call__(self, spec: ModelSpec, file: GGUFFile, fingerprint: str, limits: Limits) -> SequenceEvaluator: ...


class OpenEncoder:
    """An encoder whose weights are in memory. One call at a time. Close it; the file stays open."""

    def __init__(self, projector: ProjectorFile, fingerprint: str, beside: OpenBeside) -> None:
        """Raises DoesNotFit, UnsupportedModel."""
        self._encoder = encoder = projector.encoder
        self._table = _table(projector)
        first, last = encoder.trunk, encoder.projection
        self._trunk = beside(first, projector.file, fingerprint, encoder_limits(first))
        try:
            self._projection = beside(last, projector.file, fingerprint, encoder_limits(last))
        except BaseException:
            self._trunk.close()
            raise
        projector.file.release()

    def encoded(self, tile: TileInput, grid: Size) -> Floats:
        """The rows of a tile: float32[M, D]."""
        hidden, positions = tile.patches, self._encoder.positions
        if positions is not None and self._table is not None:
            hidden = np.concatenate([hidden, positions[1](self._table, grid)], axis=1)
        joined, most = self._encoder.joined(_run(self._trunk, hidden, tile), grid), self._projection.limits.max_tokens
        parts = (joined[first : first + most] for first in range(0, len(joined), most))
        return np.concatenate([_run(self._projection, part).copy() for part in parts])

    def close(self) -> None:
        """Free the memory."""
        self._trunk.close()
        self._projection.close()


def _table(projector: ProjectorFile) -> Floats | None:
    """The table of positions, with the vectors after it."""
    encoder, file = projector.encoder, projector.file
    if encoder.positions is None:
        return None
    vectors = [vector(file, weight)[None] for weight in encoder.constants]
    return np.concatenate([matrix(file, encoder.positions[0]), *vectors])


def _run(executor: SequenceEvaluator, hidden: Floats, tile: TileInput | None = None) -> Floats:
    """The result of a graph for hidden rows that are read together: float32[N, W], valid until the next run."""
    every = np.arange(len(hidden), dtype=np.int32)
    sequence = executor.create()
    try:
        return executor.evaluate(
            Batch(
                tokens=np.zeros(len(hidden), np.int32),
                sequences=np.full(len(hidden), sequence, np.int32),
                positions=every,
                parents=every - 1,
                outputs=every,
                axes=None if tile is None else tile.axes,
                hidden=np.ascontiguousarray(hidden, np.float32),
                spans=None if tile is None else tile.spans,
            )
        )
    finally:
        executor.free(sequence)
