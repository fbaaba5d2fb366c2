"""Small model files and wheels for tests, written by packages that are not ours."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import gguf
import numpy as np


def write_model(path: Path, *, kib: int = 512, seed: int = 0, tokens: int = 0) -> bytes:
    """Write a GGUF file with `kib` KiB of random weights (and a vocabulary), by the gguf package; gives its bytes."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_file_type(0)
    writer.add_block_count(1)
    if tokens:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"token-{index:012d}" for index in range(tokens)])
    rng = np.random.default_rng(seed)
    writer.add_tensor("token_embd.weight", rng.standard_normal((kib, 256), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def write_hollow_llama(path: Path, *, layers: int = 24, width: int = 1024, ffn: int = 4096) -> Path:
    """A llama of 800 MB that takes a few KB of disk: everything after its header is a hole."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(8)
    writer.add_layer_norm_rms_eps(1e-5)
    shapes = [("token_embd", 256, width), ("output", 256, width), ("output_norm", width)]
    for layer in range(layers):
        shapes += [(f"blk.{layer}.{name}", width, width) for name in ("attn_q", "attn_k", "attn_v", "attn_output")]
        shapes += [(f"blk.{layer}.ffn_gate", ffn, width), (f"blk.{layer}.ffn_up", ffn, width)]
        shapes += [(f"blk.{layer}.ffn_down", width, ffn)]
        shapes += [(f"blk.{layer}.attn_norm", width), (f"blk.{layer}.ffn_norm", width)]
    n_bytes = 0
    for name, *shape in shapes:
        kind = np.dtype(np.float16 if len(shape) == 2 else np.float32)
        writer.add_tensor_info(f"{name}.weight", shape, kind, math.prod(shape) * kind.itemsize)
        n_bytes += math.prod(shape) * kind.itemsize
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(-(-path.stat().st_size // 32) * 32 + n_bytes)
    return path


def write_wheel(
    folder: Path,
    members: dict[str, bytes],
    *,
    package: str = "tiny-model",
    version: str = "1.0",
    compression: int = zipfile.ZIP_DEFLATED,
    models_last: bool = False,
) -> Path:
    """Write a wheel that pip accepts, with `members` besides its own records."""
    stem = package.replace("-", "_")
    info = f"{stem}-{version}.dist-info"
    records = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    path = folder / f"{stem}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in ({**records, **members} if models_last else {**members, **records}).items():
            archive.writestr(name, data)
    return path


def write_hollow_8b(path: Path) -> Path:
    """A model of the shape of Llama 3.1 8B in Q4_K_M, whose layers differ in formats; after its header is a hole."""
    width, ffn, kv_width, layers, vocabulary = 4096, 14336, 1024, 32, 128256
    four, six = (gguf.GGMLQuantizationType.Q4_K, 144), (gguf.GGMLQuantizationType.Q6_K, 210)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(131072)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(32)
    writer.add_head_count_kv(8)
    writer.add_layer_norm_rms_eps(1e-5)
    size = 0

    def matrix(name: str, rows: int, columns: int, form: tuple[gguf.GGMLQuantizationType, int]) -> None:
        nonlocal size
        kind, block_bytes = form
        row_bytes = columns // 256 * block_bytes
        writer.add_tensor_info(f"{name}.weight", (rows, row_bytes), np.dtype(np.uint8), rows * row_bytes, kind)
        size += rows * row_bytes

    def vector(name: str) -> None:
        nonlocal size
        writer.add_tensor_info(f"{name}.weight", (width,), np.dtype(np.float32), 4 * width)
        size += 4 * width

    matrix("token_embd", vocabulary, width, four)
    for layer in range(layers):
        more = six if layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2 else four
        matrices = (("attn_q", width, width), ("attn_k", kv_width, width), ("attn_output", width, width))
        for name, rows, columns in (*matrices, ("ffn_gate", ffn, width), ("ffn_up", ffn, width)):
            matrix(f"blk.{layer}.{name}", rows, columns, four)
        matrix(f"blk.{layer}.attn_v", kv_width, width, more)
        matrix(f"blk.{layer}.ffn_down", width, ffn, more)
        vector(f"blk.{layer}.attn_norm")
        vector(f"blk.{layer}.ffn_norm")
    vector("output_norm")
    matrix("output", vocabulary, width, six)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(-(-path.stat().st_size // 32) * 32 + size)
    return path
