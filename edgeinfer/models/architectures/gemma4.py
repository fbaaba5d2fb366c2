"""Gemma 4 (text): Gemma 3 with wider heads in layers without a window, and values normed without a weight.

Scores are not scaled. Layers without a window rotate a quarter of each head (the file holds factors), and may use the
keys' product as values; the last layers may attend to the keys and values of the last earlier one of their kind. Small
models (E2B, E4B) add embeddings per layer; the mixture (26B-A4B) adds experts beside its dense networks. The file's
norm weights are stored as they are. Source: Gemma 4 model card (Google, 2026).
"""

from __future__ import annotations

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.scale import Scale
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm, rejoin
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.layer_inputs import LayerInputs
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import local_rope_table, rope_table
from edgeinfer.models.sizes import PATTERN, Sizes, owners, windows
from edgeinfer.models.variants import WholeRows

IMAGE = WholeRows(1120, windows_only=True)
"""Rows of an image see each other in layers with a window; the most of its budgets."""


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Gemma 4 text model. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    reaches = windows(hp, g.sizes)
    mixture = _mixture(g)
    embed(g, g.sizes.width**0.5)
    inputs = LayerInputs.read(g)
    if hp.flags(PATTERN) is None:
        raise BadGGUF(f"the file has no array {hp.architecture}.{PATTERN}, which says which layers have a window")
    caches: list[int] = []
    for number, (window, owner) in enumerate(zip(reaches, owners(hp, reaches), strict=True)):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        caches.append(attend(g, window, None if owner is None else caches[owner]))
        rejoin(g, "post_attention_norm")
        norm(g, "ffn_norm")
        feed_forward(g, "gelu_tanh", out="branch")
        if mixture is not None:
            _add_experts(g, mixture)
        rejoin(g, "post_ffw_norm")
        if inputs is not None:
            inputs.branch(g, number)
            rejoin(g, "post_norm")
        factor = hp.bias(f"{g.prefix}layer_output_scale.weight", 1)
        if factor is not None:
            g.add(Scale("x", g.sizes.width, 1.0, factor))
    return head(g, hp.number("final_logit_softcapping", 0.0) or None)


def attend(g: ModelGraph, window: int | None, shared: int | None) -> int:
    """Attention of a layer, written to `branch`; returns the number of its cache."""
    table = rope_table if window is None else local_rope_table
    rope = table(g.hp, g.sizes.rotary_width)
    return attention(g, rope, window=window, scale=1.0, head_norms=True, shared=shared, bare_values=True, out="branch")


def _mixture(g: ModelGraph) -> Mixture | None:
    """The experts beside dense networks, if there are any."""
    if not g.hp.integer("expert_count", 0, least=0):
        return None
    return Mixture.read(g.hp, g.sizes.ffn_width, normalised=True, activation="gelu_tanh")


def _add_experts(g: ModelGraph, mixture: Mixture) -> None:
    """Norm the dense network's output and add that of experts, which have norms of their own.

    Scores are those of rows normed for them, divided by the root of the width.
    """
    hp, prefix, width, epsilon = g.hp, g.prefix, g.sizes.width, g.sizes.epsilon
    dense = hp.vector(f"{prefix}post_ffw_norm_1.weight", width)
    scored, routed = g.buffer("scored", width), g.buffer("routed", width)
    g.add(RMSNorm("branch", "branch", dense, width, epsilon))
    norm(g, "pre_ffw_norm_2")
    g.add(RMSNorm("x", scored, hp.vector(f"{prefix}ffn_gate_inp.scale", width), width, epsilon))
    mixture.branch(g, routed, scored, width**-0.5)
    experts = hp.vector(f"{prefix}post_ffw_norm_2.weight", width)
    g.add(RMSNorm(routed, routed, experts, width, epsilon), Add(routed, "branch", width))


def whole_rows(hp: Hyperparameters) -> WholeRows | None:
    """Where rows of an image see each other: nowhere in the small models, which add embeddings per layer."""
    return None if hp.integer("embedding_length_per_layer_input", 0, least=0) else IMAGE


ARCHITECTURE = Architecture(build, whole=whole_rows)
