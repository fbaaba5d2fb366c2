"""An open LoRA adapter beside a model.

Its file is a further shard of the model, and its tensors are in the model's table under names that begin with the
adapter's prefix, so that nothing else has to know of a second file. An embedding that is also the output is looked up
by B and multiplied by transposed B, which is a tensor of its own in the table. Does not know what adapters do
(`models.adapters`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.gguf.header import GGML_TYPES, TensorInfo
from edgeinfer.models.gguf.metadata import Metadata

DOWN, UP = ".lora_a", ".lora_b"
"""How names of A (rank, columns) and B (rows, rank) end; of the embedding, A is (vocabulary, rank), B (width, rank)."""
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
PROJECTION, SOFT_NORM = "mm.input_projection.weight", "mm.soft_emb_norm.weight"
"""Gemma 3's projector, which is stored transposed, and what only Gemma 3 has beside it."""
TRANSPOSED = ".transposed"
"""How the name of a transposed matrix ends."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """An open adapter: its file's metadata, its scale, and what the names of its tensors begin with."""

    path: str
    scale: float
    metadata: Metadata
    prefix: str

    def nbytes(self, tensors: Mapping[str, TensorInfo]) -> int:
        """Bytes of its tensors, which are among those of the model."""
        own = (name for name in tensors if name.startswith(self.prefix) and not name.endswith(TRANSPOSED))
        return sum(tensors[name].nbytes for name in own)

    def __str__(self) -> str:
        return f"adapter {self.path} is added at scale {self.scale:g}"


def with_transposed(tensors: Mapping[str, TensorInfo], adapters: Sequence[Adapter]) -> dict[str, TensorInfo]:
    """The table with matrices that are also read transposed, if their format has no blocks.

    These are B of a tied embedding, for adapters that change it, and Gemma 3's projector.
    """
    found = dict(tensors)
    names = [f"{adapter.prefix}{EMBEDDING}{UP}" for adapter in adapters if OUTPUT not in tensors]
    names += [PROJECTION] if SOFT_NORM in tensors else []
    for name in names:
        info = tensors.get(name)
        kind = None if info is None else GGML_TYPES.get(info.ggml_type)
        if info is not None and kind is not None and kind.block_size == 1 and len(info.shape) == 2:
            found[name + TRANSPOSED] = replace(info, name=name + TRANSPOSED, shape=info.shape[::-1])
    return found


def transpose(raw: NDArray[np.uint8], info: TensorInfo) -> NDArray[np.uint8]:
    """The bytes of a transposed matrix, uint8[nbytes], from those of the matrix. `info`: of the result."""
    rows, columns = info.shape
    turned = raw.reshape(columns, rows, -1).swapaxes(0, 1)
    return np.ascontiguousarray(turned).reshape(-1)
