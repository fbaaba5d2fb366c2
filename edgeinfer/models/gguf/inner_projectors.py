"""Projectors within the files of models, as Ollama publishes them: llama.cpp's names for their keys and tensors.

In: a parsed header. Out: new names and further values, with which the file is that of a model and of its projector too.
Source: the list of transformations in Ollama's `llama/compat`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt

from edgeinfer.models.gguf.header import TensorInfo
from edgeinfer.models.gguf.metadata import Metadata
from edgeinfer.models.gguf.values import MetadataValue

HOLDERS = frozenset({"gemma3"})
"""Architectures of models whose files may hold their projector."""
GEMMA3_PARTS = {
    "v.patch_embedding.": "v.patch_embd.",
    "v.position_embedding.": "v.position_embd.",
    "v.post_layernorm.": "v.post_ln.",
    ".layer_norm1.": ".ln1.",
    ".layer_norm2.": ".ln2.",
    ".attn_output.": ".attn_out.",
    ".mlp.fc1.": ".ffn_up.",
    ".mlp.fc2.": ".ffn_down.",
    "mm.mm_input_projection.": "mm.input_projection.",
    "mm.mm_soft_emb_norm.": "mm.soft_emb_norm.",
}
SIZES = (
    *("block_count", "embedding_length", "feed_forward_length", "image_size", "patch_size"),
    *("attention.head_count", "attention.layer_norm_epsilon"),
)


@dataclass(frozen=True, slots=True)
class InnerProjector:
    """What such a file needs: new names of keys and of tensors, and further values."""

    keys: dict[str, str]
    values: dict[str, MetadataValue]
    tensors: dict[str, str]


def gemma3_projector(metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> InnerProjector | None:
    """Gemma 3's; None for files without, and for those with llama.cpp's names."""
    if "v.patch_embedding.weight" not in tensors:
        return None
    values: dict[str, MetadataValue] = {
        "clip.projector_type": "gemma3",
        "clip.use_gelu": True,
        "clip.vision.image_mean": 0.5,
        "clip.vision.image_std": 0.5,
    }
    side, patch, rows, width = (
        metadata.get(f"gemma3.{key}")
        for key in ("vision.image_size", "vision.patch_size", "mm.tokens_per_image", "embedding_length")
    )
    if isinstance(width, int):
        values["clip.vision.projection_dim"] = width
    if isinstance(side, int) and isinstance(patch, int) and isinstance(rows, int) and patch > 0 and rows > 0:
        values["clip.vision.projector.scale_factor"] = side // patch // isqrt(rows)
    keys = {f"gemma3.vision.{key}": f"clip.vision.{key}" for key in SIZES}
    return InnerProjector(keys, values, _renamed(tensors, GEMMA3_PARTS))


def _renamed(tensors: Mapping[str, TensorInfo], parts: Mapping[str, str]) -> dict[str, str]:
    """New names of the tensors of a projector, by parts of their names."""
    found = {}
    for name in tensors:
        if name.startswith(("v.", "mm.")):
            part = next((part for part in parts if part in name), None)
            if part is not None:
                found[name] = name.replace(part, parts[part], 1)
    return found
