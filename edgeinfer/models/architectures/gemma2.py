"""Gemma 2: scaled embeddings, norms before and after each branch, GELU, soft caps, a window in every other layer.

The file's norms hold 1 + weight. Source: Gemma 2 (arXiv 2408.00118).
"""

from __future__ import annotations

from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import LayerStyle, decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.rope_metadata import rope_table
from edgeinfer.models.sizes import Sizes, windows
from edgeinfer.models.spec import ModelSpec

LAYERS_OF_27B = 46


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Gemma 2 model. Raises BadGGUF where tensors or keys are missing."""
    sizes = Sizes.read(hp)
    # Files do not hold the query scale. It is 1 / sqrt(head width), but for the 27B model 1 / sqrt(width / heads).
    per_head = sizes.width / sizes.heads if sizes.n_layers == LAYERS_OF_27B else sizes.head_width
    rope = rope_table(hp, sizes.rotary_width)
    styles = [
        LayerStyle(
            rope,
            window=window,
            soft_cap=hp.number("attn_logit_softcapping", 50.0) or None,
            scale=per_head**-0.5,
            activation="gelu_tanh",
            post_norms=True,
        )
        for window in windows(hp, sizes, period=2, default=4096)
    ]
    cap = hp.number("final_logit_softcapping", 30.0) or None
    return decoder(hp, sizes, styles, embedding_scale=sizes.width**0.5, logits_cap=cap)


ARCHITECTURE = Architecture(build)
