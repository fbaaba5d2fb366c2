"""BERT and EmbeddingGemma, which read texts as a whole. In: sizes. Out: tensors and keys of a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import gguf
import numpy as np

from shapes.shape import Shape

EPSILON = 1e-12


@dataclass(frozen=True, slots=True)
class Bert:
    """BERT's layers; two token types; the first token's row is the embedding, as with bge."""

    def matrices(self, shape: Shape) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of the matrices of all layers."""
        for layer in range(shape.layers):
            prefix = f"blk.{layer}."
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                yield f"{prefix}{name}", shape.width, shape.width
            yield f"{prefix}ffn_up", shape.ffn, shape.width
            yield f"{prefix}ffn_down", shape.width, shape.ffn

    def norms(self, shape: Shape) -> Iterator[tuple[str, int]]:
        """Name and width of every norm."""
        yield "token_embd_norm", shape.width
        for layer in range(shape.layers):
            yield f"blk.{layer}.attn_output_norm", shape.width
            yield f"blk.{layer}.layer_output_norm", shape.width

    def add_keys(self, writer: gguf.GGUFWriter, shape: Shape) -> None:
        """Add the keys that llama does not have."""
        writer.add_head_count_kv(shape.heads)
        writer.add_layer_norm_eps(EPSILON)
        writer.add_causal_attention(False)
        writer.add_token_type_count(2)
        writer.add_pooling_type(gguf.PoolingType.CLS)

    def add_exact(self, writer: gguf.GGUFWriter, shape: Shape, draw: np.random.Generator) -> None:
        """Biases, and the tables of positions and token types."""
        biased = [(name, rows) for name, rows, _ in self.matrices(shape)] + list(self.norms(shape))
        for name, rows in biased:
            writer.add_tensor(f"{name}.bias", draw.standard_normal(rows, dtype=np.float32) * np.float32(0.1))
        for name, rows in (("position_embd", shape.context), ("token_types", 2)):
            writer.add_tensor(f"{name}.weight", draw.standard_normal((rows, shape.width), dtype=np.float32))


@dataclass(frozen=True, slots=True)
class EmbeddingGemma:
    """Gemma 3's layers with heads of width `head_width`; `inner`: width between the two products of the pooled row."""

    head_width: int
    window: int
    inner: int

    def matrices(self, shape: Shape) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of the matrices of all layers, and of the products of the pooled row."""
        query, kv = shape.heads * self.head_width, shape.kv_heads * self.head_width
        for layer in range(shape.layers):
            prefix = f"blk.{layer}."
            yield f"{prefix}attn_q", query, shape.width
            yield f"{prefix}attn_k", kv, shape.width
            yield f"{prefix}attn_v", kv, shape.width
            yield f"{prefix}attn_output", shape.width, query
            yield f"{prefix}ffn_gate", shape.ffn, shape.width
            yield f"{prefix}ffn_up", shape.ffn, shape.width
            yield f"{prefix}ffn_down", shape.width, shape.ffn
        yield "dense_2", self.inner, shape.width
        yield "dense_3", shape.width, self.inner

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
        writer.add_sliding_window(self.window)
        writer.add_pooling_type(gguf.PoolingType.MEAN)
        writer.add_uint32(f"{shape.arch}.dense_2_feat_out", self.inner)
        writer.add_uint32(f"{shape.arch}.dense_3_feat_in", self.inner)

    def add_exact(self, writer: gguf.GGUFWriter, shape: Shape, draw: np.random.Generator) -> None:
        """Adds nothing: there are no such tensors."""
