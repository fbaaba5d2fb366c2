"""From a step to the arrays that go into a graph: embedding rows, rotations, masks, the rows whose logits are wanted.

In: steps, and where keys and values lie. Out: arrays by input name, as `Signature` lists them. Knows nothing of
OpenVINO.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.base import Floats, Int32s, Step
from edgeinfer.backends.cache_rows import CacheRows
from edgeinfer.backends.openvino.signature import Signature, mask_name, rope_name
from edgeinfer.models import rope
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import decode_rows, format_of
from edgeinfer.ops import Embed

UNSEEN = np.float32(-65504.0)
"""Added to scores of rows that are not seen: no weight is left of them, in float16 either."""

Arrays = dict[str, NDArray[np.generic]]


class Feed:
    """What the graph of one signature is fed."""

    def __init__(self, signature: Signature, file: GGUFFile) -> None:
        self._signature, self._file = signature, file
        self._frequencies = [
            (rope.frequencies(table, weights.rope_factors(file, table)), table.magnitude) for table in signature.tables
        ]
        self._beam = np.zeros(1, np.int32)

    def arrays(self, step: Step, rows: CacheRows, inputs: Mapping[str, Floats]) -> Arrays:
        """The inputs of a step whose own rows are not appended yet."""
        batch, found = step.batch, Arrays()
        for name, width in self._signature.given:
            found[name] = np.ascontiguousarray(inputs[name], np.float32).reshape(1, -1, width)
        for embed in self._signature.embeds:
            found[f"embed.{embed.out}"] = self._embedded(embed, batch.tokens)[None]
        for number, (frequencies, magnitude) in enumerate(self._frequencies):
            angles = batch.positions[:, None] * frequencies[None, :]
            angles = np.concatenate([angles, angles], axis=1)[None, None]
            found[rope_name(number, "cos")] = (np.cos(angles) * magnitude).astype(np.float32)
            found[rope_name(number, "sin")] = (np.sin(angles) * magnitude).astype(np.float32)
        for window in self._signature.windows:
            found[mask_name(window)] = np.where(rows.visible(step, window), np.float32(0), UNSEEN)[None, None]
        if self._signature.takes:
            found["outputs"] = np.ascontiguousarray(batch.outputs, np.int32)
        if self._signature.layers:
            found["beam"] = self._beam
        return found

    def _embedded(self, embed: Embed, tokens: Int32s) -> Floats:
        """Rows of the embedding, decoded from the file: float32[T, D]."""
        info = self._file.tensors[embed.weight.tensor]
        raw = self._file.raw(embed.weight.tensor).reshape(info.shape[0], -1)[embed.weight.start + tokens]
        values = decode_rows(raw, format_of(info.ggml_type))
        return np.ascontiguousarray(values if embed.scale == 1.0 else values * np.float32(embed.scale), np.float32)
