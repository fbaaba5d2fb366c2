"""OPT's GGUF keys and tensor names, as docs/GGUF_KEYS.md defines them.

In: a transformers configuration, names of its parameters. Out: metadata, names. Does not handle weights.
"""

from __future__ import annotations

import re
from typing import Any

import gguf

PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_output",
    "self_attn_layer_norm": "attn_norm",
    "fc1": "ffn_up",
    "fc2": "ffn_down",
    "final_layer_norm": "ffn_norm",
}
ENDS = {
    "embed_tokens": "token_embd",
    "embed_positions": "position_embd",
    "final_layer_norm": "output_norm",
    "project_in": "project_in",
    "project_out": "project_out",
}
NAME = re.compile(r"(?:model\.)?(?:decoder\.)?(?:layers\.(\d+)\.)?(.+)\.(weight|bias)")


def tensor_name(key: str) -> str:
    """The name in the file of a parameter of the checkpoint. Raises RuntimeError if there is none."""
    found = NAME.fullmatch(key)
    layer, part, kind = found.groups() if found else (None, key, "")
    if key == "lm_head.weight":
        return "output.weight"
    name = ENDS.get(part) if layer is None else PARTS.get(part)
    if name is None:
        raise RuntimeError(f"{key} has no name in GGUF")
    return f"{name}.{kind}" if layer is None else f"blk.{layer}.{name}.{kind}"


def add_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    """Add all metadata except the tokenizer."""
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.ffn_dim)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(1e-5)  # torch's default: the configuration has no epsilon
    writer.add_string("opt.feed_forward_activation", config.activation_function)
    writer.add_bool("opt.use_pre_norm", config.do_layer_norm_before)
