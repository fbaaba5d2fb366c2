"""Nanbeige 4.2: Llama's layers, gone through several times, with the final norm between two times.

Each time has keys and values of its own. Source: Nanbeige4 (arXiv 2512.06266) for the layers.
"""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm, norm_in_place
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import LAYERS_MAX, Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Nanbeige. Raises BadGGUF where tensors or keys are missing."""
    sizes = Sizes.read(hp)
    n_own, n_times = sizes.n_layers, hp.integer("num_loops", 1, most=LAYERS_MAX // sizes.n_layers)
    has_norms = not hp.flag("skip_loop_final_norm", default=False)
    whole = replace(sizes, n_layers=n_own * n_times, attends=sizes.attends * n_times, layers=sizes.layers * n_times)
    g, rope = ModelGraph(hp, whole), rope_table(hp, sizes.rotary_width)
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}", f"blk.{number % n_own}.")
        norm(g, "attn_norm")
        attention(g, rope, paired=True)
        norm(g, "ffn_norm")
        feed_forward(g)
        if has_norms and (number + 1) % n_own == 0 and number + 1 < n_own * n_times:
            g.prefix = ""
            norm_in_place(g, "output_norm")
    return head(g)


ARCHITECTURE = Architecture(build)
