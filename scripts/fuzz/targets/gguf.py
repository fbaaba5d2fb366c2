"""GGUF files: header, tensors, the graph and the tokenizer that follow from them."""

from __future__ import annotations

from pathlib import Path

from scratch import scratch
from vocabularies import headers

from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import spec_of
from edgeinfer.models.text import Tokenizer

DATA = Path(__file__).resolve().parents[3] / "tests/golden/data"
NAMES = "llama-implicit-q8_0", "command-r-q8_0", "gemma3-q8_0", "qwen2moe-q8_0", "lfm2-q8_0", "deepseek2-q8_0"
TEXT = "The rain in Spain, 日本's <s>"
_FILE = scratch() / "model.gguf"


def seeds() -> list[bytes]:
    """Beginnings of tiny models: all of the header, some of the weights; and headers with vocabularies of all kinds."""
    models = [path.read_bytes()[:60_000] for name in NAMES if (path := DATA / f"{name}.gguf").is_file()]
    return [*models, *headers()]


def run(data: bytes) -> None:
    """Open the file, and make of its header what opening a model makes."""
    _FILE.write_bytes(data)
    with GGUFFile.open(_FILE) as file:
        try:
            spec_of(file.metadata, file.tensors)
        finally:
            Tokenizer.from_metadata(file.metadata).encode(TEXT)
