"""Gemma 3n (text): several rows for each token, of which layers compute the first and predict the others (AltUp).

Attention has a product of low rank beside it (LAuReL), the networks of the first layers keep only gates far above
their mean, and layers add embeddings of their own to all rows but the first. The last layers attend to the keys and
values of the last earlier one of their kind. Scores are not scaled; norm weights are stored as they are. Source: Gemma
3n model card (Google, 2025).
"""

from __future__ import annotations

import numpy as np

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.mul_vector import MulVector
from edgeinfer.graph.ops.scale import Scale
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm, rejoin
from edgeinfer.models.hyperparameters import NUMBER_MAX, Hyperparameters
from edgeinfer.models.layer_inputs import LayerInputs
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import local_rope_table, rope_table
from edgeinfer.models.sizes import Sizes, owners, windows
from edgeinfer.models.streams import MOST, Streams

PERIOD = 5
"""Every fifth layer has no window, if the file does not say."""
OWN_LAYERS = 20
"""Layers with keys and values of their own, if the file does not say."""
CUT_LAYERS, CUT = 10, 1.6448533535003662
"""Layers that keep the highest twentieth of a normal distribution, if the file does not say."""
CUTS = "activation_sparsity_scale"


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Gemma 3n text model. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    reaches, cuts = windows(hp, g.sizes, period=PERIOD), _cuts(hp, g.sizes.n_layers)
    owned = owners(hp, reaches, max(0, g.sizes.n_layers - OWN_LAYERS))
    tables = rope_table(hp, g.sizes.rotary_width, default_base=1e6), local_rope_table(hp, g.sizes.rotary_width)
    embed(g, g.sizes.width**0.5)
    inputs = LayerInputs.read(g)
    if inputs is None:
        raise BadGGUF(f"{hp.architecture}.embedding_length_per_layer_input is 0, but layers need inputs")
    streams = Streams.begin(g, _count(hp))
    caches: list[int] = []
    for number, (window, owner, cut) in enumerate(zip(reaches, owned, cuts, strict=True)):
        g.stage(f"blk.{number}")
        streams.predict()
        norm(g, "attn_norm")
        beside = _low_rank(g)
        rope, shared = tables[window is not None], None if owner is None else caches[owner]
        caches.append(
            attention(g, rope, window=window, scale=1.0, head_norms=True, shared=shared, bare_values=True, out="branch")
        )
        rejoin(g, "post_attention_norm")
        g.add(Add(beside, "x", g.sizes.width), Scale("x", g.sizes.width, 2.0**-0.5))
        norm(g, "ffn_norm")
        feed_forward(g, "gelu_tanh", out="branch", deviations=cut)
        rejoin(g, "post_ffw_norm")
        streams.correct()
        _add_inputs(g, inputs, streams, number)
    streams.join()
    return head(g, hp.number("final_logit_softcapping", 0.0) or None)


def _count(hp: Hyperparameters) -> int:
    """How many rows each token has. Raises UnsupportedModel if layers compute another one than the first."""
    active = hp.integer("altup.active_idx", 0, least=0)
    if active:
        raise UnsupportedModel(f"{hp.architecture}.altup.active_idx is {active}; edgeinfer has models where it is 0")
    return hp.integer("altup.num_inputs", least=2, most=MOST)


def _cuts(hp: Hyperparameters, n_layers: int) -> list[float | None]:
    """How many deviations above their mean gates of each layer must be; None, in the file -infinity, to keep all."""
    full = f"{hp.architecture}.{CUTS}"
    values = hp.metadata.get(full)
    if values is None:
        return [CUT if number < CUT_LAYERS else None for number in range(n_layers)]
    if not isinstance(values, np.ndarray) or not np.issubdtype(values.dtype, np.number) or len(values) != n_layers:
        raise BadGGUF(f"{full} must hold a number for each of {n_layers} layers")
    if not np.all((np.abs(values) <= NUMBER_MAX) | (values == -np.inf)):
        raise BadGGUF(f"{full} must hold numbers between {-NUMBER_MAX} and {NUMBER_MAX}, or -infinity")
    return [None if value == -np.inf else float(value) for value in values]


def _low_rank(g: ModelGraph) -> str:
    """`normed` with the norm of a product of low rank added; returns its buffer."""
    hp, width, prefix = g.hp, g.sizes.width, g.prefix
    down = hp.columns_of(f"{prefix}laurel_l.weight", width)
    low, out = g.buffer("low rank", down.n_rows), g.buffer("laurel", width)
    g.add(MatMul("normed", low, down), MatMul(low, out, hp.matrix(f"{prefix}laurel_r.weight", (width, down.n_rows))))
    norm(g, "laurel_post_norm", out, out)
    g.add(Add("normed", out, width))
    return out


def _add_inputs(g: ModelGraph, inputs: LayerInputs, streams: Streams, number: int) -> None:
    """Add the layer's own inputs, with a gate made from the first row times a vector, to the other rows."""
    width = g.sizes.width
    gated = g.buffer("gated row", width)
    streams.take(gated)
    g.add(MulVector(g.hp.vector(f"{g.prefix}altup_correct_scale.weight", width), gated, width))
    inputs.branch(g, number, gated)
    norm(g, "post_norm", "branch", "branch")
    streams.add_to_others("branch")


ARCHITECTURE = Architecture(build)
