"""Phi 3, 3.5 and 4 (dense): Llama's layers with query-key-value in one tensor, gate and up in another.

Rotary pairs are halves of a head, perhaps of a part of it; LongRoPE factors and windows where the file has them.
Source: Phi-3 Technical Report (arXiv 2404.14219).
"""

from __future__ import annotations

from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import LayerStyle, decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.rope_metadata import rope_table
from edgeinfer.models.sizes import Sizes, windows
from edgeinfer.models.spec import ModelSpec


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Phi 3 model. Raises BadGGUF where tensors or keys are missing."""
    sizes = Sizes.read(hp)
    rope = rope_table(hp, sizes.rotary_width)
    styles = [LayerStyle(rope, window=window, fused_ffn=True) for window in windows(hp, sizes)]
    return decoder(hp, sizes, styles)


ARCHITECTURE = Architecture(build)
