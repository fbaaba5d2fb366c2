"""Model files with a trained head of random weights, written by gguf from files without one."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

GUESSING = "nextn_predict_layers"
HEADS = {
    "qwen35": ("qwen35-f32.gguf", False),
    "qwen35-own": ("qwen35-f32.gguf", True),
    "qwen35moe": ("qwen35moe-f32.gguf", False),
    "qwen3next": ("qwen3next-f32.gguf", False),
    "glm4moe": ("glm4moe-f32.gguf", False),
}
"""The file in `tests/golden/data` that each golden head is added to, and whether the head has its own output."""


def write_with_head(model: Path, path: Path, *, seed: int = 0, own_output: bool = False) -> Path:
    """Copy a model and add a block that guesses the token after the next; its shapes are those of an attending layer.

    `own_output`: the block has an output product of its own.
    """
    reader, rng = gguf.GGUFReader(model), np.random.default_rng(seed)
    kind = reader.fields["general.architecture"].contents()
    held = reader.fields.get(f"{kind}.{GUESSING}")
    n_layers = reader.fields[f"{kind}.block_count"].contents() - (held.contents() if held else 0)
    writer = gguf.GGUFWriter(path, kind)
    _copy_fields(reader, writer, kind, n_layers)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for tensor in reader.tensors:
        if not tensor.name.startswith(f"blk.{n_layers}."):
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    like = max(n for n in range(n_layers) if f"blk.{n}.attn_output.weight" in tensors)
    for name, tensor in tensors.items():
        start, found, rest = name.partition(f"blk.{like}.")
        if found and not start:
            shape = tuple(int(size) for size in reversed(tensor.shape))
            writer.add_tensor(f"blk.{n_layers}.{rest}", _values(rng, shape))
    vocabulary, width = (int(size) for size in reversed(tensors["token_embd.weight"].shape))
    shapes = {"eh_proj": (width, 2 * width), "enorm": (width,), "hnorm": (width,), "shared_head_norm": (width,)}
    if own_output:
        shapes["shared_head_head"] = vocabulary, width
    for name, own in shapes.items():
        writer.add_tensor(f"blk.{n_layers}.nextn.{name}.weight", _values(rng, own))
    _write(writer)
    return path


def write_sure_head(model: Path, path: Path) -> Path:
    """The same, but neither the model nor its head looks back: both give for a token what its embedding alone says."""
    middle = path.with_suffix(".random.gguf")
    write_with_head(model, middle)
    reader = gguf.GGUFReader(middle)
    kind = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, kind)
    _copy_fields(reader, writer, kind, -1)
    for tensor in reader.tensors:
        values = np.array(tensor.data)
        if tensor.name.endswith(("attn_output.weight", "ssm_out.weight", "ffn_down.weight")):
            values[:] = 0
        elif tensor.name.endswith(("norm.weight", "enorm.weight")) and "ssm" not in tensor.name:
            values[:] = 1
        elif tensor.name.endswith("eh_proj.weight"):
            values = np.eye(*values.shape, dtype=np.float32)
        writer.add_tensor(tensor.name, values, raw_dtype=tensor.tensor_type)
    _write(writer)
    return path


def _write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_fields(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, kind: str, n_layers: int) -> None:
    """All keys, with one block after `n_layers`: arrays with a value for each layer get another; -1: as they are."""
    skipped = {"general.architecture"} | ({f"{kind}.block_count", f"{kind}.{GUESSING}"} if n_layers >= 0 else set())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in skipped:
            continue
        value, form = field.contents(), field.types[0]
        by_layer = field.name.startswith(f"{kind}.") and "sections" not in field.name
        if form is gguf.GGUFValueType.ARRAY and by_layer and len(value) == n_layers:
            value = [*value, value[-1]]
        inner = field.types[-1] if form is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, form, sub_type=inner)
    if n_layers >= 0:
        writer.add_block_count(n_layers + 1)
        writer.add_uint32(f"{kind}.{GUESSING}", 1)


def _values(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Random weights of a usual size: matrices keep the size of rows, vectors are near one."""
    values = rng.standard_normal(shape).astype(np.float32)
    return 1 + values / 10 if len(shape) == 1 else values / np.float32(shape[-1]) ** 0.5
