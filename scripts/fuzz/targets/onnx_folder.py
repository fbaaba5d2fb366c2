"""Folders with ONNX decoders: the settings beside the graph, and its tokenizer. ONNX Runtime reads the graph itself."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from json_changes import changed
from mutation import mutated as mutated_bytes
from scratch import scratch

from edgeinfer.models.decoder_folder import open_folder
from edgeinfer.models.text import ChatTemplate
from edgeinfer.models.text.tokenizer_file import FolderText
from tests.decoder_folders import write_tokenizer

USUAL_BYTES = 60_000
FOLDER = scratch()
GENAI: dict[str, Any] = {
    "model": {
        "type": "llama",
        "vocab_size": 300,
        "context_length": 64,
        "bos_token_id": 1,
        "eos_token_id": [2],
        "decoder": {
            "filename": "model.onnx",
            "head_size": 16,
            "hidden_size": 32,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "inputs": {"input_ids": "input_ids", "past_key_names": "past_key_values.%d.key"},
            "outputs": {"logits": "logits", "present_key_names": "present.%d.key"},
        },
    },
    "search": {"past_present_share_buffer": True},
}
CONFIG = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 64}
FILES = "genai_config.json", "config.json", "tokenizer.json", "tokenizer_config.json"


def seeds() -> list[bytes]:
    """Each file as it is; the first byte says which file it is."""
    write_tokenizer(FOLDER, 300)
    (FOLDER / "model.onnx").write_bytes(b"graph")
    (FOLDER / FILES[0]).write_text(json.dumps(GENAI))
    (FOLDER / FILES[1]).write_text(json.dumps(CONFIG))
    return [bytes([number]) + (FOLDER / name).read_bytes() for number, name in enumerate(FILES)]


def mutated(seeds: Sequence[bytes], rng: random.Random, limit: int) -> bytes:
    """One of the files, changed as JSON or as bytes."""
    seed = rng.choice(seeds)
    if rng.random() < 0.3:
        return seed[:1] + mutated_bytes([seed[1:]], rng, limit)
    return seed[:1] + changed(json.loads(seed[1:]), rng)


def run(data: bytes) -> None:
    """Open the folder with this file in place of its own."""
    path = FOLDER / FILES[(*data[:1], 0)[0] % len(FILES)]
    before = path.read_bytes()
    path.write_bytes(data[1:])
    try:
        folder = open_folder(FOLDER)
        assert folder.fingerprint
        text = FolderText(FOLDER)
        for token in text.encode("The rain", add_special=True, parse_special=True):
            text.piece(token)
        ChatTemplate.from_metadata(folder.metadata, text.vocabulary()).check()
    finally:
        path.write_bytes(before)
