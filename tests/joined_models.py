"""Models with their projector in the same file, as Ollama publishes Gemma 3."""

from __future__ import annotations

from pathlib import Path

import gguf

from tests.golden.goldens import DATA

VISION = DATA / "vision"
MODEL, PROJECTOR = VISION / "gemma3.gguf", VISION / "mmproj-gemma3.gguf"
OLD_NAMES = {
    "v.patch_embd.": "v.patch_embedding.",
    "v.position_embd.": "v.position_embedding.",
    "v.post_ln.": "v.post_layernorm.",
    ".ln1.": ".layer_norm1.",
    ".ln2.": ".layer_norm2.",
    ".attn_out.": ".attn_output.",
    ".ffn_up.": ".mlp.fc1.",
    ".ffn_down.": ".mlp.fc2.",
    "mm.input_projection.": "mm.mm_input_projection.",
    "mm.soft_emb_norm.": "mm.mm_soft_emb_norm.",
}
SIZES = ("block_count", "embedding_length", "feed_forward_length", "image_size", "patch_size", "attention.head_count")


def together(out: Path, *, rows: int = 16) -> Path:
    """A model and its projector in one file, under the names that Ollama gives them."""
    model, projector = gguf.GGUFReader(MODEL), gguf.GGUFReader(PROJECTOR)
    writer = gguf.GGUFWriter(out, "gemma3")
    for key, field in model.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], element)
    for key in SIZES:
        writer.add_uint32(f"gemma3.vision.{key}", projector.fields[f"clip.vision.{key}"].contents())
    writer.add_float32("gemma3.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_uint32("gemma3.mm.tokens_per_image", rows)
    for tensor in (*model.tensors, *projector.tensors):
        name = tensor.name
        if name.startswith(("v.", "mm.")):
            for usual, old in OLD_NAMES.items():
                name = name.replace(usual, old)
        shape = None if tensor.tensor_type in (0, 1) else tensor.data.shape
        writer.add_tensor(name, tensor.data, raw_shape=shape, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
