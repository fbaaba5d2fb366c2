"""A model for measurements: any shape and quant format, without a file, with weights of zeros or of some numbers.

In: sizes and the name of a format. Out: a `GGUFFile` over memory that holds no page until it is read, and its spec. The
speed of our own ops does not depend on the values of weights, but other runtimes may store equal matrices only once.
"""

from __future__ import annotations

import math
import mmap
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.gguf.file import Shard
from edgeinfer.models.gguf.header import GGML_TYPES, GGMLType, parse_header
from edgeinfer.models.load import Model, spec_of

ALIGNMENT = 32
FILLED = 1 << 20
STRING, U32, F32 = 8, 4, 6
"""GGUF's codes for value types."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a Llama model whose head is tied to its embedding."""

    width: int
    ffn_width: int
    heads: int
    kv_heads: int
    head_width: int
    n_layers: int
    n_vocab: int
    n_context: int

    def matrices(self) -> Mapping[str, tuple[int, int]]:
        """Rows and columns of every matrix by name."""
        layer = {
            "attn_q": (self.heads * self.head_width, self.width),
            "attn_k": (self.kv_heads * self.head_width, self.width),
            "attn_v": (self.kv_heads * self.head_width, self.width),
            "attn_output": (self.width, self.heads * self.head_width),
            "ffn_gate": (self.ffn_width, self.width),
            "ffn_up": (self.ffn_width, self.width),
            "ffn_down": (self.width, self.ffn_width),
        }
        layers = {f"blk.{n}.{name}.weight": sides for n in range(self.n_layers) for name, sides in layer.items()}
        return {"token_embd.weight": (self.n_vocab, self.width), **layers}

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices of a layer."""
        return sum(rows * columns for name, (rows, columns) in self.matrices().items() if name.startswith("blk.0."))


def synthetic_model(shape: ModelShape, form: str, seed: int | None = None) -> Model:
    """A model whose matrices all have the format called `form`: zeros, or all different if there is a seed."""
    header, n_bytes = synthetic_header(shape, form)
    if sys.platform == "win32":
        mapping = mmap.mmap(-1, n_bytes)
    else:
        mapping = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE)
    mapping[: len(header)] = header
    if seed is not None:
        _fill(mapping, -(-len(header) // ALIGNMENT) * ALIGNMENT, seed)
    shard = Shard(Path("synthetic.gguf"), mapping, parse_header(mapping, n_bytes, "a synthetic model"))
    file = GGUFFile((shard,))
    return Model(file, spec_of(file.metadata, file.tensors))


def _fill(mapping: mmap.mmap, first: int, seed: int) -> None:
    """Bytes whose halves that may hold a sign and exponent are small: finite values in every format."""
    import numpy as np

    values = np.frombuffer(mapping, np.uint8)[first:]
    draw = np.random.Generator(np.random.SFC64(seed))
    for start in range(0, len(values), FILLED):
        part = values[start : start + FILLED]
        part[:] = np.frombuffer(draw.bytes(len(part)), np.uint8) & 0x0F | 0x20


def synthetic_header(shape: ModelShape, form: str) -> tuple[bytes, int]:
    """The header of the file, and the file's size."""
    kind = next(kind for kind in GGML_TYPES.values() if kind.name == form)
    numbers = {
        "embedding_length": shape.width,
        "feed_forward_length": shape.ffn_width,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_width,
        "attention.value_length": shape.head_width,
        "rope.dimension_count": shape.head_width,
        "block_count": shape.n_layers,
        "context_length": shape.n_context,
    }
    keys = [_text("general.architecture") + struct.pack("<I", STRING) + _text("llama")]
    keys += [_text(f"llama.{name}") + struct.pack("<II", U32, value) for name, value in numbers.items()]
    keys.append(_text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", F32, 1e-5))
    entries, offset = [], 0
    for name, sides, row in _tensors(shape, kind):
        dimensions = struct.pack(f"<I{len(sides)}Q", len(sides), *sides[::-1])
        entries.append(_text(name) + dimensions + struct.pack("<IQ", row.id, offset))
        n_bytes = math.prod(sides) // row.block_size * row.block_bytes
        offset += -(-n_bytes // ALIGNMENT) * ALIGNMENT
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(entries), len(keys)) + b"".join(keys) + b"".join(entries)
    return header, -(-len(header) // ALIGNMENT) * ALIGNMENT + offset


def _tensors(shape: ModelShape, kind: GGMLType) -> list[tuple[str, tuple[int, ...], GGMLType]]:
    """Name, shape and type of every tensor: matrices, then the norms."""
    norms = [f"blk.{n}.{name}.weight" for n in range(shape.n_layers) for name in ("attn_norm", "ffn_norm")]
    found: list[tuple[str, tuple[int, ...], GGMLType]] = [
        (name, sides, kind) for name, sides in shape.matrices().items()
    ]
    return [*found, *((name, (shape.width,), GGML_TYPES[0]) for name in (*norms, "output_norm.weight"))]


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded
