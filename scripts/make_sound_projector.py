"""Makes projector files of sound with random weights, for measurements: Whisper's encoder of published shapes.

Run: `python scripts/make_sound_projector.py qwen2-audio OUT.gguf [--type f16|q8_0] [--width 576]`. Shapes: qwen2-audio,
voxtral (both Whisper large v3's encoder), ultravox (Whisper large v3 turbo's), tiny (Whisper tiny's, as Qwen2-Audio).
Names, keys and types of tensors are those of llama.cpp's converter. `--width` is that of the language model, by default
the starter model's. `--layers` leaves layers out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
from make_projector import SPREAD, STARTER_WIDTH, TYPES, Tensor, norm, product

POSITIONS, TAPS = 1500, 3


@dataclass(frozen=True, slots=True)
class SoundShape:
    """An encoder. `projector`: its type; `stacked`: rows that are joined, 1 for none."""

    projector: str
    name: str
    layers: int
    width: int
    heads: int
    n_mels: int = 128
    stacked: int = 1


SHAPES = {
    "qwen2-audio": SoundShape("qwen2a", "Qwen2-Audio", 32, 1280, 20),
    "voxtral": SoundShape("voxtral", "Voxtral", 32, 1280, 20, stacked=4),
    "ultravox": SoundShape("ultravox", "Ultravox", 32, 1280, 20, stacked=8),
    "tiny": SoundShape("qwen2a", "Whisper tiny", 4, 384, 6, n_mels=80),
}


def layers(shape: SoundShape) -> Iterator[Tensor]:
    """The tensors of positions and layers."""
    width, ffn = shape.width, 4 * shape.width
    yield Tensor("a.position_embd.weight", POSITIONS, width, kind="F32")
    for number in range(shape.layers):
        prefix = f"a.blk.{number}."
        for part in "qkv":
            yield from product(f"{prefix}attn_{part}", width, width, bias=part != "k")
        yield from product(f"{prefix}attn_out", width, width)
        yield from product(f"{prefix}ffn_up", ffn, width)
        yield from product(f"{prefix}ffn_down", width, ffn)
        for name in ("ln1", "ln2"):
            yield from norm(f"{prefix}{name}", width)
    yield from norm("a.post_ln", width)


def end(shape: SoundShape, out: int) -> Iterator[Tensor]:
    """The tensors after the layers."""
    joined = shape.width * shape.stacked
    if shape.projector == "qwen2a":
        yield from product("mm.a.fc", out, joined)
        return
    inner = out if shape.projector == "voxtral" else 2 * shape.width
    yield from product("mm.a.mlp.1", inner, joined, bias=False)
    if shape.projector == "ultravox":
        yield from norm("mm.a.norm_pre", joined, bias=False)
        yield from norm("mm.a.norm_mid", inner // 2, bias=False)
        inner //= 2
    yield from product("mm.a.mlp.2", out, inner, bias=False)


def write(shape: SoundShape, kind: str, out_width: int, path: Path, seed: int = 0) -> None:
    """Write a file whose matrices are of `kind`."""
    writer, draw = gguf.GGUFWriter(path, "clip"), np.random.default_rng(seed)
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_name(f"{shape.name} (random)")
    writer.add_string("clip.projector_type", shape.projector)
    writer.add_bool("clip.has_audio_encoder", True)
    sizes = {"embedding_length": shape.width, "feed_forward_length": 4 * shape.width, "block_count": shape.layers}
    sizes |= {"projection_dim": out_width, "attention.head_count": shape.heads, "num_mel_bins": shape.n_mels}
    sizes |= {"projector.stack_factor": shape.stacked} if shape.stacked > 1 else {}
    for key, value in sizes.items():
        writer.add_uint32(f"clip.audio.{key}", value)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
    for number, channels in ((1, shape.n_mels), (2, shape.width)):
        kernel = draw.standard_normal((shape.width, channels, TAPS), np.float32)
        writer.add_tensor(f"a.conv1d.{number}.weight", (kernel * (channels * TAPS) ** -0.5).astype(np.float16))
        writer.add_tensor(
            f"a.conv1d.{number}.bias", np.float32(SPREAD) * draw.standard_normal((shape.width, 1), np.float32)
        )
    for tensor in (*layers(shape), *end(shape, out_width)):
        if not tensor.rows:
            values = np.float32(SPREAD) * draw.standard_normal(tensor.columns, np.float32) + np.float32(tensor.mean)
            writer.add_tensor(tensor.name, values.astype(np.float32))
            continue
        values = draw.standard_normal((tensor.rows, tensor.columns), np.float32) * np.float32(tensor.columns**-0.5)
        form = gguf.GGMLQuantizationType[tensor.kind or kind]
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="f16", choices=TYPES)
    parser.add_argument("--width", type=int, default=STARTER_WIDTH, help="of the language model")
    parser.add_argument("--layers", type=int, default=0)
    given = parser.parse_args()
    shape = SHAPES[given.shape]
    write(replace(shape, layers=given.layers or shape.layers), TYPES[given.type], given.width, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
