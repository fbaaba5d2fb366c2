"""LFM2, Qwen 3.5 and Qwen3-Next: mostly short convolutions or delta nets. In: sizes. Out: tensors and keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import gguf
import numpy as np

from shapes.shape import Shape


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Layers most of which have convolutions or delta nets instead of attention (heads of width `head_width`).

    `attending`: the layers with attention. `key_heads`, `value_heads`, `state_width`: for gated delta nets; without
    them the other layers are short convolutions.
    """

    attending: tuple[int, ...]
    head_width: int
    taps: int
    key_heads: int = 0
    value_heads: int = 0
    state_width: int = 0

    @property
    def has_delta(self) -> bool:
        """Whether the layers without attention are gated delta nets."""
        return self.key_heads > 0

    @property
    def inner(self) -> int:
        """Total width of all value heads."""
        return self.value_heads * self.state_width

    @property
    def mixed(self) -> int:
        """Total width of queries, keys and values of a delta net."""
        return 2 * self.key_heads * self.state_width + self.inner

    def matrices(self, shape: Shape) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of the matrices of all layers."""
        width, query = shape.width, shape.heads * self.head_width
        for layer in range(shape.layers):
            prefix = f"blk.{layer}."
            if layer in self.attending:
                yield f"{prefix}attn_q", query * (2 if self.has_delta else 1), width
                for name in ("attn_k", "attn_v"):
                    yield f"{prefix}{name}", shape.kv_heads * self.head_width, width
                yield f"{prefix}attn_output", width, query
            elif self.has_delta:
                yield f"{prefix}attn_qkv", self.mixed, width
                yield f"{prefix}attn_gate", self.inner, width
                if shape.arch == "qwen3next":
                    yield f"{prefix}ssm_ba", 2 * self.value_heads, width
                else:
                    yield f"{prefix}ssm_alpha", self.value_heads, width
                    yield f"{prefix}ssm_beta", self.value_heads, width
                yield f"{prefix}ssm_out", width, self.inner
            else:
                yield f"{prefix}shortconv.in_proj", 3 * width, width
                yield f"{prefix}shortconv.out_proj", width, width
            yield from shape.feed_forward(layer)
            if self.has_delta and shape.experts:
                yield f"{prefix}ffn_gate_shexp", shape.ffn, width
                yield f"{prefix}ffn_up_shexp", shape.ffn, width
                yield f"{prefix}ffn_down_shexp", width, shape.ffn

    def norms(self, shape: Shape) -> Iterator[tuple[str, int]]:
        """Name and width of every norm."""
        for layer in range(shape.layers):
            yield f"blk.{layer}.attn_norm", shape.width
            yield f"blk.{layer}.{'post_attention_norm' if self.has_delta else 'ffn_norm'}", shape.width
            if layer in self.attending:
                yield f"blk.{layer}.attn_q_norm", self.head_width
                yield f"blk.{layer}.attn_k_norm", self.head_width
            elif self.has_delta:
                yield f"blk.{layer}.ssm_norm", self.state_width
        yield "output_norm" if self.has_delta else "token_embd_norm", shape.width

    def add_keys(self, writer: gguf.GGUFWriter, shape: Shape) -> None:
        """Add the keys that other families do not have."""
        if self.has_delta:
            writer.add_ssm_conv_kernel(self.taps)
            writer.add_ssm_state_size(self.state_width)
            writer.add_ssm_group_count(self.key_heads)
            writer.add_ssm_time_step_rank(self.value_heads)
            writer.add_ssm_inner_size(self.inner)
            writer.add_uint32(f"{shape.arch}.full_attention_interval", self.attending[0] + 1)
            writer.add_key_length(self.head_width)
            writer.add_value_length(self.head_width)
            writer.add_rope_dimension_count(self.head_width // 4)
            if shape.arch != "qwen3next":
                writer.add_rope_dimension_sections([11, 11, 10, 0])
            writer.add_head_count_kv(shape.kv_heads)
            if shape.experts:
                writer.add_expert_shared_feed_forward_length(shape.ffn)
        else:
            writer.add_shortconv_l_cache(self.taps)
            writer.add_rope_dimension_count(self.head_width)
            writer.add_head_count_kv([shape.kv_heads * (layer in self.attending) for layer in range(shape.layers)])
            if shape.experts:
                writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)

    def add_exact(self, writer: gguf.GGUFWriter, shape: Shape, draw: np.random.Generator) -> None:
        """Tensors that are never quantised: convolution kernels, and the parameters of decays and routing."""
        for layer in shape.mixture_layers:
            if self.has_delta:
                score = draw.standard_normal(shape.width, dtype=np.float32) * np.float32(shape.width**-0.5)
                writer.add_tensor(f"blk.{layer}.ffn_gate_inp_shexp.weight", score)
            else:
                writer.add_tensor(f"blk.{layer}.exp_probs_b.bias", np.zeros(shape.experts, np.float32))
        for layer in sorted({*range(shape.layers)} - {*self.attending}):
            width = self.mixed if self.has_delta else shape.width
            kernel = draw.standard_normal((width, self.taps), dtype=np.float32) * np.float32(self.taps**-0.5)
            writer.add_tensor(f"blk.{layer}.{'ssm_conv1d' if self.has_delta else 'shortconv.conv'}.weight", kernel)
            if self.has_delta:
                rates = -np.exp(draw.standard_normal(self.value_heads) - 2.0).astype(np.float32)
                writer.add_tensor(f"blk.{layer}.ssm_a", rates)
                writer.add_tensor(f"blk.{layer}.ssm_dt.bias", np.zeros(self.value_heads, np.float32))
