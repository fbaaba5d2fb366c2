"""MiniCPM3: its configuration, and file differences: ranks of latent rows, widths of keys and rotation.

In: sizes and configurations of transformers. Out: configurations, and GGUF's keys, following llama.cpp's converter,
which leaves out the width of values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
from transformers import MiniCPM3Config, PretrainedConfig

if TYPE_CHECKING:
    from goldens.cases import Sizes

MOST_RANK = 64


def config(sizes: Sizes) -> PretrainedConfig:
    """Latent attention with values half as wide as keys, an untied head."""
    width, rank = sizes.width // sizes.heads, min(sizes.width, MOST_RANK)
    own = {
        "num_key_value_heads": sizes.heads,
        "q_lora_rank": rank,
        "kv_lora_rank": rank,
        "qk_nope_head_dim": width,
        "qk_rope_head_dim": width,
        "v_head_dim": width,
        "tie_word_embeddings": False,
    }
    return MiniCPM3Config(**sizes.common() | own)


def add_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    """Add keys that other families do not have."""
    writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_key_length(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_vocab_size(config.vocab_size)
