"""AFMoE: norms around every branch, gated attention, windows in most layers. In: sizes. Out: tensors, keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import gguf
import numpy as np

from shapes.shape import Shape


@dataclass(frozen=True, slots=True)
class Afmoe:
    """Layers with attention (heads of width `head_width`), then experts and one shared expert."""

    head_width: int
    window: int
    scale: float  # of all expert weights

    def matrices(self, shape: Shape) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of the matrices of all layers, and of the head."""
        width, query, kv = shape.width, shape.heads * self.head_width, shape.kv_heads * self.head_width
        yield "output", shape.vocabulary or 0, width
        for layer in range(shape.layers):
            prefix = f"blk.{layer}."
            yield f"{prefix}attn_q", query, width
            yield f"{prefix}attn_k", kv, width
            yield f"{prefix}attn_v", kv, width
            yield f"{prefix}attn_gate", query, width
            yield f"{prefix}attn_output", width, query
            yield from shape.feed_forward(layer)
            if layer in shape.mixture_layers:
                yield f"{prefix}ffn_gate_shexp", shape.ffn, width
                yield f"{prefix}ffn_up_shexp", shape.ffn, width
                yield f"{prefix}ffn_down_shexp", width, shape.ffn

    def norms(self, shape: Shape) -> Iterator[tuple[str, int]]:
        """Name and width of every norm."""
        for layer in range(shape.layers):
            for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
                yield f"blk.{layer}.{name}", shape.width
            yield f"blk.{layer}.attn_q_norm", self.head_width
            yield f"blk.{layer}.attn_k_norm", self.head_width
        yield "output_norm", shape.width

    def add_keys(self, writer: gguf.GGUFWriter, shape: Shape) -> None:
        """Add the keys that llama does not have."""
        writer.add_head_count_kv(shape.kv_heads)
        writer.add_key_length(self.head_width)
        writer.add_value_length(self.head_width)
        writer.add_rope_dimension_count(self.head_width)
        writer.add_sliding_window(self.window)
        writer.add_expert_shared_count(1)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(True)
        writer.add_expert_weights_scale(self.scale)

    def add_exact(self, writer: gguf.GGUFWriter, shape: Shape, draw: np.random.Generator) -> None:
        """Biases by which experts are selected."""
        for layer in shape.mixture_layers:
            bias = draw.standard_normal(shape.experts, dtype=np.float32) * np.float32(0.01)
            writer.add_tensor(f"blk.{layer}.exp_probs_b.bias", bias)
