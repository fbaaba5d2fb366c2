"""How sounds are cut: numbers of rows as the families' processors count them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from edgeinfer.models.projector_file import open_projector
from edgeinfer.models.sounds.chunks import n_tokens, piece_chunks, pieces
from edgeinfer.models.sounds.encoder import SoundEncoder
from edgeinfer.models.sounds.mel import HOP, RATE
from tests.golden.goldens import DATA

N_MOST = 1500
CHUNK = 30 * RATE
LENGTHS = (400, 640, 641, 16_000, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 639, CHUNK + 641, 31 * RATE, 3 * CHUNK)


def rows_of_qwen(n_samples: int) -> int:
    """What Qwen2-Audio's processor writes for a sound of up to 30 seconds: frames that begin in it, halved twice."""
    frames = -(-n_samples // HOP)
    return (((frames - 1) // 2 + 1) - 2) // 2 + 1


@pytest.mark.parametrize("length", LENGTHS)
def test_pieces_have_the_rows_of_sounds_of_their_own(length: int) -> None:
    cut = pieces(length, N_MOST)
    assert [n_tokens(each) // 2 for each in cut] == [rows_of_qwen(each) for each in cut]
    assert all(n_tokens(each) // 2 for each in cut)
    assert 0 <= length - sum(cut) <= 2 * HOP  # what is left out has no row


def test_chunks_have_the_frames_that_their_tokens_read() -> None:
    samples = np.zeros(CHUNK + 5000, np.float32)
    assert [len(each.patches) for each in piece_chunks(samples, N_MOST, 16)] == [3000, 2 * n_tokens(5000) + 1]


def published(name: str, tmp_path: Path) -> SoundEncoder:
    """A golden encoder with as many positions as published ones have."""
    reader, out = gguf.GGUFReader(DATA / "sounds" / f"mmproj-{name}.gguf"), tmp_path / "mmproj.gguf"
    writer = gguf.GGUFWriter(out, "clip")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0])
    for tensor in reader.tensors:
        data = np.resize(tensor.data, (N_MOST, 32)) if tensor.name == "a.position_embd.weight" else tensor.data
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_projector(out) as projector:
        assert projector.encoders.sound is not None
        return projector.encoders.sound


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("qwen2a", {400: [1], 16_000: [25], CHUNK: [750], 31 * RATE: [750, 25]}),
        ("qwen25o", {400: [1], 16_000: [25], 32_000: [50], 33_000: [50, 2], 32_320: [50]}),
        ("voxtral", {400: [375], 16_000: [375], CHUNK: [375], 31 * RATE: [375, 375]}),
        ("ultravox", {400: [1], 16_000: [7], CHUNK: [188], 31 * RATE: [188, 7]}),
    ],
)
def test_published_encoders_have_chunks_of_thirty_seconds_or_two(
    name: str, rows: dict[int, list[int]], tmp_path: Path
) -> None:
    encoder = published(name, tmp_path)
    assert {length: [tile.n_rows for tile in encoder.plan(length).tiles] for length in rows} == rows
