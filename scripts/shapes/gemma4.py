"""Gemma 4's small models: embeddings per layer, two head widths, layers that share keys and values.

In: sizes. Out: tensors, keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import gguf
import numpy as np

from shapes.shape import Shape

UNROTATED = 1e30
"""What divides the frequency of a pair that is not rotated."""


@dataclass(frozen=True, slots=True)
class Gemma4:
    """Every `period`-th layer has no window and heads twice as wide; four of seven layers share keys and values."""

    head_width: int
    window: int
    period: int
    inputs: int  # per layer

    def widths(self, shape: Shape) -> list[int]:
        """Width of a head in each layer."""
        return [self.head_width * (1 if (layer + 1) % self.period else 2) for layer in range(shape.layers)]

    def shared(self, shape: Shape) -> int:
        """Layers at the end without keys and values of their own, whose FFN is twice as wide."""
        return shape.layers * 4 // 7

    def inner(self, shape: Shape) -> list[int]:
        """FFN width of each layer."""
        return [shape.ffn * (1 if layer < shape.layers - self.shared(shape) else 2) for layer in range(shape.layers)]

    def matrices(self, shape: Shape) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of the matrices of all layers, and of their inputs."""
        width, inputs = shape.width, self.inputs
        yield "per_layer_token_embd", shape.vocabulary or 0, inputs * shape.layers
        yield "per_layer_model_proj", inputs * shape.layers, width
        for layer, (head, inner) in enumerate(zip(self.widths(shape), self.inner(shape), strict=True)):
            prefix = f"blk.{layer}."
            yield f"{prefix}attn_q", shape.heads * head, width
            if layer < shape.layers - self.shared(shape):
                yield f"{prefix}attn_k", shape.kv_heads * head, width
                yield f"{prefix}attn_v", shape.kv_heads * head, width
            yield f"{prefix}attn_output", width, shape.heads * head
            yield f"{prefix}ffn_gate", inner, width
            yield f"{prefix}ffn_up", inner, width
            yield f"{prefix}ffn_down", width, inner
            yield f"{prefix}inp_gate", inputs, width
            yield f"{prefix}proj", width, inputs

    def norms(self, shape: Shape) -> Iterator[tuple[str, int]]:
        """Name and width of every norm, and of the factor of each layer."""
        yield "per_layer_proj_norm", self.inputs
        for layer, head in enumerate(self.widths(shape)):
            prefix = f"blk.{layer}."
            for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm"):
                yield f"{prefix}{name}", shape.width
            yield f"{prefix}attn_q_norm", head
            if layer < shape.layers - self.shared(shape):
                yield f"{prefix}attn_k_norm", head
            yield f"{prefix}layer_output_scale", 1
        yield "output_norm", shape.width

    def add_keys(self, writer: gguf.GGUFWriter, shape: Shape) -> None:
        """Add the keys that llama does not have."""
        writer.add_head_count_kv(shape.kv_heads)
        for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
            add(2 * self.head_width)
        for add in (writer.add_key_length_swa, writer.add_value_length_swa, writer.add_rope_dimension_count_swa):
            add(self.head_width)
        writer.add_sliding_window(self.window)
        writer.add_sliding_window_pattern([head == self.head_width for head in self.widths(shape)])
        writer.add_shared_kv_layers(self.shared(shape))
        writer.add_embedding_length_per_layer_input(self.inputs)
        writer.add_final_logit_softcapping(30.0)
        writer.add_feed_forward_length(self.inner(shape))

    def add_exact(self, writer: gguf.GGUFWriter, shape: Shape, draw: np.random.Generator) -> None:
        """Factors by which layers without a window rotate a quarter of each head."""
        factors = np.full(self.head_width, UNROTATED, np.float32)
        factors[: self.head_width // 4] = 1.0
        writer.add_tensor("rope_freqs.weight", factors)
