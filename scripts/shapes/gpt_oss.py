"""gpt-oss: biases everywhere, sinks, windows in every second layer. In: sizes. Out: tensors and keys of a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import gguf
import numpy as np

from shapes.shape import Shape


@dataclass(frozen=True, slots=True)
class GptOss:
    """Layers with attention (heads of width `head_width`), then experts."""

    head_width: int
    window: int
    trained_context: int
    stretch: float  # YaRN's factor

    def matrices(self, shape: Shape) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of the matrices of all layers, and of the head."""
        width, query, kv = shape.width, shape.heads * self.head_width, shape.kv_heads * self.head_width
        yield "output", shape.vocabulary or 0, width
        for layer in range(shape.layers):
            prefix = f"blk.{layer}."
            yield f"{prefix}attn_q", query, width
            yield f"{prefix}attn_k", kv, width
            yield f"{prefix}attn_v", kv, width
            yield f"{prefix}attn_output", width, query
            yield f"{prefix}ffn_gate_exps", shape.experts * shape.ffn, width
            yield f"{prefix}ffn_up_exps", shape.experts * shape.ffn, width
            yield f"{prefix}ffn_down_exps", shape.experts * width, shape.ffn

    def norms(self, shape: Shape) -> Iterator[tuple[str, int]]:
        """Name and width of every norm."""
        for layer in range(shape.layers):
            yield f"blk.{layer}.attn_norm", shape.width
            yield f"blk.{layer}.post_attention_norm", shape.width
        yield "output_norm", shape.width

    def add_keys(self, writer: gguf.GGUFWriter, shape: Shape) -> None:
        """Add the keys that llama does not have."""
        writer.add_head_count_kv(shape.kv_heads)
        writer.add_key_length(self.head_width)
        writer.add_value_length(self.head_width)
        writer.add_sliding_window(self.window)
        writer.add_rope_dimension_count(self.head_width)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(self.stretch)
        writer.add_rope_scaling_orig_ctx_len(self.trained_context)

    def add_exact(self, writer: gguf.GGUFWriter, shape: Shape, draw: np.random.Generator) -> None:
        """Sinks and biases."""

        def add(name: str, *sizes: int) -> None:
            writer.add_tensor(name, draw.standard_normal(sizes, dtype=np.float32) * np.float32(0.1))

        for layer in range(shape.layers):
            prefix = f"blk.{layer}."
            add(f"{prefix}attn_sinks.weight", shape.heads)
            add(f"{prefix}attn_q.bias", shape.heads * self.head_width)
            add(f"{prefix}attn_k.bias", shape.kv_heads * self.head_width)
            add(f"{prefix}attn_v.bias", shape.kv_heads * self.head_width)
            add(f"{prefix}attn_output.bias", shape.width)
            add(f"{prefix}ffn_gate_inp.bias", shape.experts)
            add(f"{prefix}ffn_gate_exps.bias", shape.experts, shape.ffn)
            add(f"{prefix}ffn_up_exps.bias", shape.experts, shape.ffn)
            add(f"{prefix}ffn_down_exps.bias", shape.experts, shape.width)
