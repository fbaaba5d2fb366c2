"""An open LoRA adapter beside a model.

Its file is a further shard of the model, and its tensors are in the model's table under names that begin with the
adapter's prefix, so that nothing else has to know of a second file. Does not know what adapters do (`models.adapters`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.models.gguf.header import TensorInfo
from edgeinfer.models.gguf.metadata import Metadata


@dataclass(frozen=True, slots=True)
class Adapter:
    """An open adapter: its file's metadata, its scale, and what the names of its tensors begin with."""

    path: str
    scale: float
    metadata: Metadata
    prefix: str

    def nbytes(self, tensors: Mapping[str, TensorInfo]) -> int:
        """Bytes of its tensors, which are among those of the model."""
        return sum(info.nbytes for name, info in tensors.items() if name.startswith(self.prefix))

    def __str__(self) -> str:
        return f"adapter {self.path} is added at scale {self.scale:g}"
