"""File differences of LFM2: convolution kernels, names, and heads of layers without attention.

In: parameters and configurations of transformers. Out: GGUF's tensors and keys, following llama.cpp's converter.
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

KERNEL = ".conv.conv.weight"
EXACT = ("shortconv.conv.weight",)
"""Tensors that are never quantised."""
NAMES = {
    "feed_forward.gate.weight": "ffn_gate_inp.weight",
    "feed_forward.expert_bias": "exp_probs_b.bias",
    "feed_forward.experts.down_proj": "ffn_down_exps.weight",
}


def part(key: str, values: NDArray[np.float32]) -> tuple[str, NDArray[np.float32]] | None:
    """GGUF's name and the values of a parameter; None if it needs no special treatment."""
    if key.endswith(KERNEL):
        return f"blk.{key.split('.')[2]}.shortconv.conv.weight", values[:, 0]
    suffix = next((suffix for suffix in NAMES if key.endswith(suffix)), None)
    if suffix is not None:
        return f"blk.{key.split('.')[2]}.{NAMES[suffix]}", values
    return ("token_embd_norm.weight", values) if key == "model.embedding_norm.weight" else None


def add_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    """Add keys that other families do not have, or have as a single number."""
    writer.add_head_count_kv([config.num_key_value_heads * (kind != "conv") for kind in config.layer_types])
    writer.add_shortconv_l_cache(config.conv_L_cache)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if getattr(config, "num_dense_layers", None) is not None:
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
