"""The sizes of a decoder-only transformer, and which of its layers attend within a window.

In: Hyperparameters. Out: checked numbers. Raises BadGGUF if they are missing, impossible or contradictory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, TypeAlias, get_args

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.models.hyperparameters import Hyperparameters

LAYERS_MAX = 4096
Norms: TypeAlias = Literal["rms", "layer", "unbiased layer", "bare layer"]
PATTERN = "attention.sliding_window_pattern"
"""Key that says which layers have a window."""
GUESSING = "nextn_predict_layers"
"""Key with the number of a file's blocks that predict tokens beyond the next one (MTP)."""


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Sizes that may differ from layer to layer."""

    heads: int
    kv_heads: int
    ffn_width: int
    head_width: int
    value_width: int
    rotary_width: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that every family has: layers, widths, heads, vocabulary, trained context, and its norms.

    Sizes that differ by layer are the largest of all layers; `layers` holds those of each. `head_width`: of queries and
    keys; `value_width`: of values; `rotary_width`: the part of a head that is rotated. `attends`: which layers have
    attention; all of them unless the family has other kinds. `norms`: RMSNorms, or LayerNorms, of which some have no
    bias and some not even a weight; `epsilon` is theirs.
    """

    n_layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    value_width: int
    rotary_width: int
    ffn_width: int
    n_vocab: int
    n_context_trained: int
    epsilon: float
    attends: tuple[bool, ...]
    layers: tuple[LayerSizes, ...]
    norms: Norms = "rms"

    @classmethod
    def read(
        cls,
        hp: Hyperparameters,
        *,
        mixture: bool = False,
        norms: Norms = "rms",
        hybrid: bool = False,
        recurrent: bool = False,
        guessing: bool = False,
    ) -> Sizes:
        """Sizes from the keys all families share; the vocabulary is the height of the embedding table.

        `mixture`: the family may be a mixture of experts. `hybrid`: layers with 0 kv heads have no attention.
        `recurrent`: no layer has attention or a feed-forward branch, so files state neither. `guessing`: blocks that
        predict tokens beyond the next one count as layers.
        """
        if norms not in get_args(Norms):
            raise ValueError(f"norms={norms!r}: there are {', '.join(map(repr, get_args(Norms)))}")
        embedding = hp.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise BadGGUF("the file has no tensor token_embd.weight: it holds only a vocabulary, or a part of a model")
        if not mixture and hp.integer("expert_count", 0, least=0) > 0:
            raise UnsupportedModel(
                f"this {hp.architecture} is a mixture of experts; edgeinfer has those of llama (Mixtral), qwen2moe, "
                "qwen3moe, qwen35moe, qwen3next, lfm2moe, olmoe, gpt-oss, granitemoe, glm4moe, dots1, ernie4_5-moe, "
                "mellum, afmoe, deepseek, deepseek2, minimax-m2, hunyuan-moe, hy_v3, bailingmoe, bailingmoe2, "
                "exaone-moe, smallthinker, arctic, llama4, phimoe, cohere2moe, laguna, dbrx, grok, granite_swa, mimo2, "
                "nemotron_h_moe, jamba, kimi-linear and nomic-bert-moe"
            )
        n_layers = _n_layers(hp, guessing=guessing)
        width = hp.integer("embedding_length")
        if recurrent:
            attends, layers = (False,) * n_layers, (LayerSizes(0, 0, 0, 0, 0, 0),) * n_layers
        else:
            attends, layers = _layers(hp, n_layers, width, hybrid=hybrid)
        return cls(
            n_layers=n_layers,
            width=width,
            heads=max(layer.heads for layer in layers),
            kv_heads=max(layer.kv_heads for layer in layers),
            head_width=max(layer.head_width for layer in layers),
            value_width=max(layer.value_width for layer in layers),
            rotary_width=max(layer.rotary_width for layer in layers),
            ffn_width=max(layer.ffn_width for layer in layers),
            n_vocab=embedding.shape[0],
            n_context_trained=hp.integer("context_length"),
            epsilon=_epsilon(hp, norms),
            attends=attends,
            layers=layers,
            norms=norms,
        )

    def of_layer(self, number: int) -> Sizes:
        """The same with the numbers of one layer."""
        return replace(self, **asdict(self.layers[number]))

    def with_heads(self, head_width: int, value_width: int) -> Sizes:
        """The same with heads of these widths in all layers."""
        layers = tuple(replace(layer, head_width=head_width, value_width=value_width) for layer in self.layers)
        return replace(self, head_width=head_width, value_width=value_width, layers=layers)

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_width

    @property
    def key_width(self) -> int:
        """Width of all key heads together."""
        return self.kv_heads * self.head_width

    @property
    def values_width(self) -> int:
        """Width of all value heads together."""
        return self.kv_heads * self.value_width

    @property
    def attended_width(self) -> int:
        """Width of the concatenated head outputs of attention."""
        return self.heads * self.value_width


def _epsilon(hp: Hyperparameters, norms: Norms) -> float:
    """The norms' epsilon; Nemotron-H's and Phi 3.5 MoE's files have it under the key of the other kind of norms."""
    keys = "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"
    other, own = keys if norms == "rms" else keys[::-1]
    return hp.number(other if hp.has(other) and not hp.has(own) else own)


def _n_layers(hp: Hyperparameters, *, guessing: bool) -> int:
    """Layers used to generate a token, without the MTP blocks after them, unless these are wanted too."""
    n_blocks, n_guessing = hp.integer("block_count", most=LAYERS_MAX), hp.integer(GUESSING, 0, least=0)
    if n_guessing >= n_blocks and not guessing:
        raise BadGGUF(f"{hp.architecture}.{GUESSING} is {n_guessing} of {n_blocks} blocks: no layer is left")
    return n_blocks if guessing else n_blocks - n_guessing


def _layers(
    hp: Hyperparameters, n_layers: int, width: int, *, hybrid: bool
) -> tuple[tuple[bool, ...], tuple[LayerSizes, ...]]:
    """Which layers have attention, and each layer's sizes, from arrays or single numbers in the file."""
    n_blocks, key = hp.integer("block_count", n_layers), "attention.head_count_kv"
    heads = hp.counts("attention.head_count", n_blocks)[:n_layers]
    kv_heads = hp.counts(key, n_blocks, max(heads))[:n_layers]
    of_experts = max(hp.counts("expert_feed_forward_length", n_blocks, 0, least=0)) or None
    ffn = hp.counts("feed_forward_length", n_blocks, of_experts)[:n_layers]
    attends = tuple(count > 0 for count in kv_heads)
    if not any(attends) or not (hybrid or all(attends)):
        raise BadGGUF(f"{hp.architecture}.{key} has layers without heads, which {hp.architecture} has not")
    for query, kv in zip(heads, kv_heads, strict=True):
        if kv and (query == 0 or query % kv):
            raise BadGGUF(f"{hp.architecture} has {query} heads, which {kv} kv heads cannot share evenly")
    most = max(kv_heads)  # for layers without attention, if the file does not say
    widths = _head_widths(hp, n_layers, width // (heads[0] or most))
    layers = zip(heads, kv_heads, ffn, widths, strict=True)
    return attends, tuple(LayerSizes(query or most, kv or most, own, *of_head) for query, kv, own, of_head in layers)


def _head_widths(hp: Hyperparameters, n_layers: int, usual: int) -> list[tuple[int, int, int]]:
    """Widths of a head's keys, values and rotated part, for each layer; layers with a window may have their own."""
    key, value, rotated = "attention.key_length", "attention.value_length", "rope.dimension_count"
    whole = hp.integer(key, usual)
    wide = whole, hp.integer(value, usual), hp.integer(rotated, whole, least=2)
    within = hp.integer(f"{key}_swa", wide[0])
    narrow = within, hp.integer(f"{value}_swa", wide[1]), hp.integer(f"{rotated}_swa", min(wide[2], within), least=2)
    for name, (head_width, _, rotary_width) in ((rotated, wide), (f"{rotated}_swa", narrow)):
        if rotary_width > head_width or rotary_width % 2:
            raise BadGGUF(f"{hp.architecture}.{name} is {rotary_width}: not even, or above {head_width}")
    if narrow == wide:
        return [wide] * n_layers
    return [narrow if is_windowed else wide for is_windowed in _windowed_layers(hp, n_layers, None)]


def windows(
    hp: Hyperparameters, sizes: Sizes, *, period: int | None = None, default: int = 0, first: bool = False
) -> list[int | None]:
    """The attention window of each layer, None if it attends to everything.

    `attention.sliding_window` (or `default`) positions, including the token itself; 0 means no windows. It may be an
    array, with 0 for layers without a window. With a `period` every period-th layer has no window, or the `first` of
    each period; `attention.sliding_window_pattern` overrides it, with a period or one flag per layer.
    """
    key = "attention.sliding_window"
    lengths = hp.counts(key, sizes.n_layers, default, least=0)
    if not any(lengths):
        return [None] * sizes.n_layers
    own = hp.flags(key) or _windowed_layers(hp, sizes.n_layers, period, 0 if first else 1)
    return [length if flag else None for length, flag in zip(lengths, own, strict=True)]


def owners(hp: Hyperparameters, reaches: Sequence[int | None], default: int = 0) -> list[int | None]:
    """The earlier layer whose keys and values each layer attends to, None for its own.

    The last layers, as many as the file says or else `default`, use those of the last layer before them that has a
    window too, or none.
    """
    n_own = len(reaches) - hp.integer("attention.shared_kv_layers", default, least=0, most=len(reaches) - 1)
    last = {window is None: number for number, window in enumerate(reaches[:n_own])}
    found: list[int | None] = [None] * n_own
    for number, window in enumerate(reaches[n_own:], n_own):
        owner = last.get(window is None)
        if owner is None:
            raise BadGGUF(f"layer {number} has no keys and values, nor an earlier layer of its kind that has some")
        found.append(owner)
    return found


def _windowed_layers(hp: Hyperparameters, n_layers: int, period: int | None, ahead: int = 1) -> list[bool]:
    """Which layers have windows; `ahead`: the distance from those without to the next multiple of the period."""
    flags = hp.flags(PATTERN)
    if flags is not None:
        if len(flags) not in (n_layers, hp.integer("block_count", n_layers)):  # MTP blocks may count too
            raise BadGGUF(f"{hp.architecture}.{PATTERN} has {len(flags)} entries for {n_layers} layers")
        return flags[:n_layers]
    if hp.has(PATTERN):
        period = hp.integer(PATTERN, least=0)
    return [not period or (layer + ahead) % period != 0 for layer in range(n_layers)]
