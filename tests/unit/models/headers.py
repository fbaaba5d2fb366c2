"""Headers of small models, written by the gguf package, for tests that need no weights."""

from __future__ import annotations

from pathlib import Path

import gguf

from edgeinfer.models.gguf import Metadata, TensorInfo, parse_header

LLAMA = {
    "context_length": 128,
    "embedding_length": 32,
    "block_count": 2,
    "feed_forward_length": 48,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


def keyed(folder: Path, architecture: str, values: dict[str, object]) -> Metadata:
    """Metadata with these keys and values; None leaves a key out."""
    path = folder / "header.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            (writer.add_uint64 if value >= 0 else writer.add_int64)(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    blob = path.read_bytes()
    return parse_header(blob, len(blob)).metadata


def sizes(architecture: str = "llama", **changes: object) -> dict[str, object]:
    """The hyperparameters of a small model under its prefix; `changes` have dots as double underscores."""
    merged = LLAMA | {key.replace("__", "."): value for key, value in changes.items()}
    return {f"{architecture}.{key}": value for key, value in merged.items()}


def tensor(name: str, *shape: int, ggml_type: int = 0, type_name: str = "F32") -> TensorInfo:
    """A tensor of the table; its bytes are nowhere."""
    nbytes = 4
    for size in shape:
        nbytes *= size
    return TensorInfo(name, shape, ggml_type, type_name, 0, nbytes, 0)


def llama_tensors(
    width: int = 32, query: int = 32, kv: int = 16, ffn: int = 48, layers: int = 2, n_vocab: int = 50
) -> dict[str, TensorInfo]:
    """The tensor table of a llama-shaped model with a tied head."""
    table = [tensor("token_embd.weight", n_vocab, width), tensor("output_norm.weight", width)]
    for layer in range(layers):
        prefix = f"blk.{layer}."
        table += [
            tensor(f"{prefix}attn_norm.weight", width),
            tensor(f"{prefix}attn_q.weight", query, width),
            tensor(f"{prefix}attn_k.weight", kv, width),
            tensor(f"{prefix}attn_v.weight", kv, width),
            tensor(f"{prefix}attn_output.weight", width, query),
            tensor(f"{prefix}ffn_norm.weight", width),
            tensor(f"{prefix}ffn_gate.weight", ffn, width),
            tensor(f"{prefix}ffn_up.weight", ffn, width),
            tensor(f"{prefix}ffn_down.weight", width, ffn),
        ]
    return {info.name: info for info in table}


def gemma_tensors(head_norms: bool, **sizes_of: int) -> dict[str, TensorInfo]:
    """The tensor table of a Gemma 2 or (with `head_norms`) 3."""
    table = llama_tensors(**sizes_of)
    width = table["output_norm.weight"].shape[0]
    for layer in range(sizes_of["layers"]):
        extra = [tensor(f"blk.{layer}.{name}.weight", width) for name in ("post_attention_norm", "post_ffw_norm")]
        if head_norms:
            extra += [tensor(f"blk.{layer}.attn_{letter}_norm.weight", 128) for letter in "qk"]
        table |= {info.name: info for info in extra}
    return table
