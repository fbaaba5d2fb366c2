"""The sizes of a decoder-only transformer, and which of its layers attend within a window.

In: Hyperparameters. Out: checked numbers. Raises BadGGUF where they are missing, impossible or contradict each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.models.hyperparameters import Hyperparameters

LAYERS_MAX = 4096
GUESSING = "nextn_predict_layers"
"""How many of a file's blocks predict tokens after the next one (MTP)."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What every family has: layers, widths, heads, vocabulary, trained context, and its norms.

    `attends`: which layers have attention; in families without others all of them. `layer_norms`: they subtract the
    mean and have biases, else they are RMSNorms; `epsilon` is theirs.
    """

    n_layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    rotary_width: int
    ffn_width: int
    n_vocab: int
    n_context_trained: int
    epsilon: float
    attends: tuple[bool, ...]
    layer_norms: bool = False

    @classmethod
    def read(
        cls, hp: Hyperparameters, *, mixture: bool = False, layer_norms: bool = False, hybrid: bool = False
    ) -> Sizes:
        """Sizes from the keys all families share; the vocabulary is the height of the embedding table.

        `mixture`: the family may be a mixture of experts. `hybrid`: layers with 0 kv heads have no attention.
        """
        embedding = hp.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise BadGGUF("the file has no tensor token_embd.weight: it holds only a vocabulary, or a part of a model")
        if not mixture and hp.integer("expert_count", 0, least=0) > 0:
            raise UnsupportedModel(
                f"this {hp.architecture} is a mixture of experts; edgeinfer has those of llama (Mixtral), qwen2moe, "
                "qwen3moe, qwen35moe, qwen3next, lfm2moe, olmoe and gpt-oss"
            )
        n_layers = _n_layers(hp)
        width, heads = hp.integer("embedding_length"), hp.integer("attention.head_count")
        attends, kv_heads = _kv_heads(hp, n_layers, heads, hybrid=hybrid)
        if heads % kv_heads:
            raise BadGGUF(f"{hp.architecture} has {heads} heads, which {kv_heads} kv heads cannot share evenly")
        head_width = hp.integer("attention.key_length", width // heads)
        if hp.integer("attention.value_length", head_width) != head_width:
            raise UnsupportedModel(f"{hp.architecture} with keys and values of different width is not supported")
        rotary_width = hp.integer("rope.dimension_count", head_width, least=2)
        if rotary_width > head_width or rotary_width % 2:
            raise BadGGUF(f"{hp.architecture}.rope.dimension_count is {rotary_width}: not even, or above {head_width}")
        return cls(
            n_layers=n_layers,
            width=width,
            heads=heads,
            kv_heads=kv_heads,
            head_width=head_width,
            rotary_width=rotary_width,
            ffn_width=hp.integer("feed_forward_length", hp.integer("expert_feed_forward_length", 0, least=0) or None),
            n_vocab=embedding.shape[0],
            n_context_trained=hp.integer("context_length"),
            epsilon=hp.number("attention.layer_norm_epsilon" if layer_norms else "attention.layer_norm_rms_epsilon"),
            attends=attends,
            layer_norms=layer_norms,
        )

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Width of all key (or value) heads together."""
        return self.kv_heads * self.head_width


def _n_layers(hp: Hyperparameters) -> int:
    """Layers that make a token; a file may have blocks behind them that guess further ones, which are left out."""
    n_blocks, n_guessing = hp.integer("block_count", most=LAYERS_MAX), hp.integer(GUESSING, 0, least=0)
    if n_guessing >= n_blocks:
        raise BadGGUF(f"{hp.architecture}.{GUESSING} is {n_guessing} of {n_blocks} blocks: no layer is left")
    return n_blocks - n_guessing


def _kv_heads(hp: Hyperparameters, n_layers: int, heads: int, *, hybrid: bool) -> tuple[tuple[bool, ...], int]:
    """Which layers have attention, and the kv heads of those."""
    key = "attention.head_count_kv"
    counts = hp.counts(key, n_layers + hp.integer(GUESSING, 0, least=0), heads)[:n_layers]
    kinds = sorted(set(counts) - {0})
    if len(kinds) > 1:
        raise UnsupportedModel(f"{hp.architecture}.{key} differs by layer ({kinds}); edgeinfer has models of one count")
    if not kinds or (0 in counts and not hybrid):
        raise BadGGUF(f"{hp.architecture}.{key} has layers without heads, which {hp.architecture} has not")
    return tuple(count > 0 for count in counts), kinds[0]


def windows(hp: Hyperparameters, sizes: Sizes, *, period: int | None = None, default: int = 0) -> list[int | None]:
    """The attention window of each layer, None where it attends to everything.

    `attention.sliding_window` (or `default`) positions, the token itself included; 0 means no windows at all. With a
    `period` every period-th layer has no window; `attention.sliding_window_pattern` overrides it, by a period or by
    one flag a layer.
    """
    window = hp.integer("attention.sliding_window", default, least=0)
    if window == 0:
        return [None] * sizes.n_layers
    windowed = _windowed_layers(hp, sizes.n_layers, period)
    return [window if flag else None for flag in windowed]


def _windowed_layers(hp: Hyperparameters, n_layers: int, period: int | None) -> list[bool]:
    key = "attention.sliding_window_pattern"
    flags = hp.flags(key)
    if flags is not None:
        if len(flags) != n_layers:
            raise BadGGUF(f"{hp.architecture}.{key} has {len(flags)} entries for {n_layers} layers")
        return flags
    if hp.has(key):
        period = hp.integer(key, least=0)
    return [not period or (layer + 1) % period != 0 for layer in range(n_layers)]
