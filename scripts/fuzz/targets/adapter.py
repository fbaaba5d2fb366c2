"""LoRA adapters beside a tiny model: opened with it, and if that goes well, the graph that both make."""

from __future__ import annotations

from pathlib import Path

from scratch import scratch
from tiny import ATTENDING, DATA

from edgeinfer.adapter_choice import AdapterChoice
from edgeinfer.models.load import open_model
from tests.adapter_files import write_adapter

LONGEST_BYTES = 1 << 17
_FOLDER = scratch()
MODEL = DATA / f"{ATTENDING}.gguf"


def seeds() -> list[bytes]:
    """Adapters of rank 2 and 4, one with norms."""
    path = Path(_FOLDER) / "seed.gguf"
    return [write_adapter(MODEL, path, rank=rank, norms=rank == 4).read_bytes() for rank in (2, 4)]


def run(data: bytes) -> None:
    """Open the model with it."""
    path = _FOLDER / "adapter.gguf"
    path.write_bytes(data)
    with open_model(MODEL, adapters=(AdapterChoice(path),)) as model:
        assert model.file.adapters
