"""The sizes of a model with random weights, and the interface for families whose layers differ from llama's.

In: sizes. Out: names and shapes of the matrices and norms of a GGUF file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import gguf
import numpy as np


class Layout(Protocol):
    """What a family has besides the token embedding."""

    def matrices(self, shape: Shape) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of the matrices of all layers; rows of experts are stacked."""
        ...

    def norms(self, shape: Shape) -> Iterator[tuple[str, int]]:
        """Name and width of every norm."""
        ...

    def add_keys(self, writer: gguf.GGUFWriter, shape: Shape) -> None:
        """Add the keys that llama does not have."""
        ...

    def add_exact(self, writer: gguf.GGUFWriter, shape: Shape, draw: np.random.Generator) -> None:
        """Tensors that are never quantised."""
        ...


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model; the head is tied to the embedding, except for olmoe."""

    width: int
    layers: int
    ffn: int
    heads: int
    kv_heads: int
    context: int
    vocabulary: int | None = None  # None: the tokenizer's size
    experts: int = 0  # per layer; 0: dense
    active: int = 0  # experts per token
    arch: str = "llama"
    layout: Layout | None = None  # for layers that differ from llama's
    dense_layers: int = 0  # leading layers of a mixture without experts
    dense_ffn: int = 0  # FFN width of these; `ffn` is an expert's

    def matrices(self, vocabulary: int) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of every matrix; rows of a layer's experts are stacked."""
        kv_width = self.width // self.heads * self.kv_heads
        yield "token_embd", vocabulary, self.width
        if self.layout is not None:
            yield from self.layout.matrices(self)
            return
        if self.arch == "olmoe":  # llama.cpp reads none with a tied head
            yield "output", vocabulary, self.width
        for layer in range(self.layers):
            yield f"blk.{layer}.attn_q", self.width, self.width
            yield f"blk.{layer}.attn_k", kv_width, self.width
            yield f"blk.{layer}.attn_v", kv_width, self.width
            yield f"blk.{layer}.attn_output", self.width, self.width
            yield from self.feed_forward(layer)

    def norms(self) -> Iterator[tuple[str, int]]:
        """Name and width of every norm."""
        if self.layout is not None:
            yield from self.layout.norms(self)
            return
        head = self.width // self.heads
        own = {"olmoe": (self.width, head * self.kv_heads), "qwen3moe": (head, head)}.get(self.arch)
        for layer in range(self.layers):
            yield f"blk.{layer}.attn_norm", self.width
            yield f"blk.{layer}.ffn_norm", self.width
            if own is not None:
                yield f"blk.{layer}.attn_q_norm", own[0]
                yield f"blk.{layer}.attn_k_norm", own[1]
        yield "output_norm", self.width

    @property
    def mixture_layers(self) -> range:
        """The layers with experts."""
        return range(self.dense_layers, self.layers if self.experts else self.dense_layers)

    def feed_forward(self, layer: int) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of the matrices of a layer's FFN, or of all its experts with stacked rows."""
        mixture = layer in self.mixture_layers
        kind, count = ("_exps", self.experts) if mixture else ("", 1)
        inner = self.ffn if mixture else self.dense_ffn or self.ffn
        yield f"blk.{layer}.ffn_gate{kind}", count * inner, self.width
        yield f"blk.{layer}.ffn_up{kind}", count * inner, self.width
        yield f"blk.{layer}.ffn_down{kind}", count * self.width, inner

    def routers(self) -> Iterator[str]:
        """Name of every router."""
        yield from (f"blk.{layer}.ffn_gate_inp" for layer in self.mixture_layers)
