"""Qwen 3 (dense): Qwen 2 without biases, with RMSNorm of each query and key head before the rotary embedding.

Source: Qwen3 Technical Report (arXiv 2505.09388).
"""

from __future__ import annotations

from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import LayerStyle, decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.rope_metadata import rope_table
from edgeinfer.models.sizes import Sizes, windows
from edgeinfer.models.spec import ModelSpec


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a dense Qwen 3 model. Raises BadGGUF where tensors or keys are missing."""
    sizes = Sizes.read(hp)
    rope = rope_table(hp, sizes.rotary_width)
    return decoder(hp, sizes, [LayerStyle(rope, window=window, head_norms=True) for window in windows(hp, sizes)])


ARCHITECTURE = Architecture(build)
