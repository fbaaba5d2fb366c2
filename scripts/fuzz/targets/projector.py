"""Projector files (mmproj): their headers, and the encoders of images and sound that follow from them."""

from __future__ import annotations

from scratch import scratch
from tiny import DATA

from edgeinfer.models.projector_file import open_projector

PATTERNS = "vision/*.gguf", "sounds/mmproj-*.gguf"
LONGEST_BYTES = 1 << 18
_FILE = scratch() / "mmproj.gguf"


def seeds() -> list[bytes]:
    """Tiny ones."""
    paths = [path for pattern in PATTERNS for path in sorted(DATA.glob(pattern))]
    return [path.read_bytes() for path in paths if path.stat().st_size <= LONGEST_BYTES]


def run(data: bytes) -> None:
    """Open it."""
    _FILE.write_bytes(data)
    with open_projector(_FILE) as file:
        assert file.facts.encoders.all
