"""Random weights of a tiny model, and the formats of its matrices.

In: a transformers model, a format. Out: weights with which every layer matters, and the types of its matrices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from block_formats import LOW_TYPES, Type
from transformers import PretrainedConfig

WIDE_TYPES = (Type.Q4_K, Type.Q6_K, Type.Q3_K, Type.Q5_K, Type.IQ4_XS, Type.Q2_K)
NARROW_TYPES = (Type.Q5_0, Type.IQ4_NL, Type.Q4_1, Type.MXFP4, Type.Q5_1)
MIXED_TYPES = (Type.Q4_0, Type.Q4_K, Type.F16, Type.Q6_K, Type.BF16)
UNIFORM = {
    "f32": Type.F32,
    "f16": Type.F16,
    "bf16": Type.BF16,
    "q8_0": Type.Q8_0,
    "q4_0": Type.Q4_0,
    "q4_1": Type.Q4_1,
}
LEARNED = ("expert_bias", "e_score_correction_bias", "layer_scalar")
"""Buffers with weights: biases used to select experts, factors of layers."""
FACTORS = (
    *("norm.weight", "norm_f.weight", "norm_1.weight", "norm_2.weight"),
    *("layer_scalar", "router.scale", "per_expert_scale"),
)
ONE_PLUS = ("GemmaF", "Gemma2", "Gemma3F", "Gemma3T")
"""Beginnings of classes whose norms multiply by 1 + weight."""
UNSCALED = ("gemma4", "gemma3n")
"""Families that do not divide scores by the root of the head width."""
FIRST_OF_FFN = ("gate_proj.bias", "fc1.bias")


def learned(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """What a model learns: its parameters, and some buffers."""
    yield from model.named_parameters()
    yield from ((name, values) for name, values in model.named_buffers() if name.endswith(LEARNED))


def randomise(model: torch.nn.Module, seed: int, quiet: float) -> None:
    """Fill a model: branches at least as large as the residual stream, uneven attention, logits spread by about 2.

    `quiet` shifts the biases before activations.
    """
    random = np.random.default_rng(seed)
    for name, parameter in learned(model):
        noise = random.standard_normal(tuple(parameter.shape)).astype(np.float32)
        if name.endswith(FACTORS):
            values = 0.3 * noise + (0.0 if holds_differences(type(model).__name__, name) else 1.0)
        elif name.endswith("A_log"):
            values = 0.5 * noise - 2.0  # states that remember some tokens
        elif parameter.ndim == 1:
            values = 0.5 * noise + (quiet if name.endswith(FIRST_OF_FFN) else 0.0)
        else:
            values = noise * _gain(name) / parameter.shape[-1] ** 0.5
        values /= _scale(name, model.config)
        parameter.data = torch.from_numpy(values.astype(np.float32))


def _scale(name: str, config: PretrainedConfig) -> float:
    """By what values are divided: a factor of embeddings or logits (MiniCPM3); queries whose scores are not scaled."""
    if name.endswith("q_norm.weight") and config.model_type.startswith(UNSCALED):
        return 2.0
    if "embed_tokens" in name:
        return getattr(config, "scale_emb", 1.0)
    base = getattr(config, "dim_model_base", None)
    return base / config.hidden_size if base is not None and "lm_head" in name else 1.0


def holds_differences(model: str, name: str) -> bool:
    """Whether a norm's weight is stored as its difference from 1."""
    has_delta_nets = model.startswith(("Qwen3_5", "Qwen3Next"))
    return model.startswith(ONE_PLUS) or (has_delta_nets and not name.endswith("linear_attn.norm.weight"))


def _gain(name: str) -> float:
    if any(part in name for part in ("embed_tokens", "embed_in", "wte", "lm_head", "backbone.embeddings")):
        return 2.0
    if "embed_positions" in name:
        return 4.0
    if "modality_router" in name:
        return 8.0  # its product is divided by the width of the model
    if "router.proj" in name:
        return 3.0  # so that few experts are chosen by a hair
    return 1.5 if "q_proj" in name or "k_proj" in name or "qkv_proj" in name or "query_key" in name else 1.0


class Types:
    """Chooses the type of each matrix of a file: one type for all, or in turn those that its columns allow.

    "k": the types that other files do not have. "mix": one of each kind. "low": those of few bits.
    """

    def __init__(self, form: str, turn: int) -> None:
        uniform = UNIFORM.get(form)
        wide, narrow = {"mix": (MIXED_TYPES, MIXED_TYPES[::2]), "low": (LOW_TYPES, LOW_TYPES)}.get(
            form, (WIDE_TYPES, NARROW_TYPES)
        )
        self._wide = _cycle(wide if uniform is None else (uniform,), turn)
        self._narrow = _cycle(narrow if uniform is None else (uniform,), turn)

    def next(self, columns: int) -> Type:
        """The type of the next matrix."""
        return next(self._narrow if columns % 256 else self._wide)


def _cycle(types: tuple[Type, ...], turn: int) -> Iterator[Type]:
    return itertools.islice(itertools.cycle(types), turn % len(types), None)
