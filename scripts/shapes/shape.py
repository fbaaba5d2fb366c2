"""The sizes of a model with random weights, and what a family whose layers are not llama's tells of its own.

In: sizes. Out: names and shapes of the matrices and norms of a GGUF file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import gguf
import numpy as np


class Layout(Protocol):
    """What a family has beside the token embedding."""

    def matrices(self, shape: Shape) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of the matrices of all layers; the rows of experts one after the other."""
        ...

    def norms(self, shape: Shape) -> Iterator[tuple[str, int]]:
        """Name and width of every norm."""
        ...

    def add_keys(self, writer: gguf.GGUFWriter, shape: Shape) -> None:
        """The keys that llama has not."""
        ...

    def add_exact(self, writer: gguf.GGUFWriter, shape: Shape, draw: np.random.Generator) -> None:
        """Tensors that are never quantised."""
        ...


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model; its head is tied to the embedding, but for olmoe."""

    width: int
    layers: int
    ffn: int
    heads: int
    kv_heads: int
    context: int
    vocabulary: int | None = None  # as many as the tokenizer has
    experts: int = 0  # of each layer; 0: dense
    active: int = 0  # experts of a token
    arch: str = "llama"
    layout: Layout | None = None  # layers of another kind than llama's
    dense_layers: int = 0  # the first layers of a mixture that have no experts
    dense_ffn: int = 0  # FFN width of these; `ffn` is that of an expert

    def matrices(self, vocabulary: int) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of every matrix; the rows of a layer's experts one after the other."""
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
        """The layers that have experts."""
        return range(self.dense_layers, self.layers if self.experts else self.dense_layers)

    def feed_forward(self, layer: int) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of the matrices of a layer's FFN, or of all its experts one after the other."""
        mixture = layer in self.mixture_layers
        kind, count = ("_exps", self.experts) if mixture else ("", 1)
        inner = self.ffn if mixture else self.dense_ffn or self.ffn
        yield f"blk.{layer}.ffn_gate{kind}", count * inner, self.width
        yield f"blk.{layer}.ffn_up{kind}", count * inner, self.width
        yield f"blk.{layer}.ffn_down{kind}", count * self.width, inner

    def routers(self) -> Iterator[str]:
        """Name of every router."""
        yield from (f"blk.{layer}.ffn_gate_inp" for layer in self.mixture_layers)
