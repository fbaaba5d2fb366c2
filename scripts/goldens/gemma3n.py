"""Gemma 3n: its configuration, and how its files differ: stacked projections, keys.

In: sizes; parameters and configurations of transformers. Out: a configuration; GGUF's tensors and keys, following
llama.cpp's converter.
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Gemma3nTextConfig, PretrainedConfig

from goldens.cases import Sizes

Array = NDArray[np.float32]
WITHIN, EVERYWHERE = "sliding_attention", "full_attention"
STACKED = ("altup_projections", "altup_unembed_projections")
SCALE = "altup.correct_output_scale"


def small(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """As E2B: the first two layers have networks that are cut, the last ones share keys and values."""
    n_shared = sizes.layers - 3
    own = {
        "head_dim": sizes.head_width,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": sizes.common()["vocab_size"],
        "num_kv_shared_layers": n_shared,
        "layer_types": [WITHIN, EVERYWHERE, WITHIN, *(EVERYWHERE, WITHIN)[:n_shared]],
        "activation_sparsity_pattern": [0.75, 0.6, *(0.0,) * (sizes.layers - 2)],
        "laurel_rank": 32,
        "sliding_window": 12,
        "rms_norm_eps": 0.01,
    }
    return Gemma3nTextConfig(**sizes.common() | own | changes)


def part(key: str, values: Array) -> tuple[str, Array] | None:
    """GGUF's name and the values of a parameter; None if it needs no special treatment."""
    if key.endswith(SCALE):
        return f"blk.{key.split('.')[2]}.altup_correct_scale.weight", values
    return None


def stacked(parameters: dict[str, Array]) -> dict[str, Array]:
    """The parameters, with the projections that make or join rows as one stack each."""
    found = {key: values for key, values in parameters.items() if not key.startswith(_beginnings())}
    for beginning in _beginnings():
        matrices = [values for key, values in parameters.items() if key.startswith(beginning)]
        found[f"{beginning}weight"] = np.stack(matrices)
    return found


def apart(held: dict[str, Array]) -> dict[str, Array]:
    """The inverse of `stacked`."""
    found = {key: values for key, values in held.items() if not key.startswith(_beginnings())}
    for beginning in _beginnings():
        found |= {f"{beginning}{at}.weight": matrix for at, matrix in enumerate(held[f"{beginning}weight"])}
    return found


def _beginnings() -> tuple[str, ...]:
    return tuple(f"model.{name}." for name in STACKED)


def add_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    """Add keys that other families do not have."""
    writer.add_altup_active_idx(config.altup_active_idx)
    writer.add_altup_num_inputs(config.altup_num_inputs)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    shares = torch.tensor(config.activation_sparsity_pattern, dtype=torch.float32)
    writer.add_activation_sparsity_scale(torch.distributions.Normal(0, 1).icdf(shares).tolist())
    writer.add_sliding_window_pattern([kind == WITHIN for kind in config.layer_types])
