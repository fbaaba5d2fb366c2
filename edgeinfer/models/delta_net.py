"""Layers with a gated delta rule, as in Qwen3-Next and Qwen3.5: their sizes in a file, and their ops.

In: Hyperparameters, then a graph. Out: a `DeltaNet`, and the ops of a layer. Uses GGUF's names; independent of the
families.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import Every, LayerState
from edgeinfer.graph.ops.causal_conv import CausalConv
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.gated_delta_net import GatedDeltaNet
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.models.blocks import attention, embed, head, norm, project
from edgeinfer.models.decoder import Feed
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes
from edgeinfer.models.trained_heads import TrainedHead, next_token_head

TAPS_MAX, HEADS_MAX, WIDTH_MAX = 64, 4096, 4096


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Key heads and value heads of the same width, and the taps of the convolution before them.

    `grouped`: value heads that share a key head are adjacent.
    """

    key_heads: int
    value_heads: int
    head_width: int
    taps: int
    grouped: bool = False

    @classmethod
    def read(cls, hp: Hyperparameters, *, grouped: bool = False) -> DeltaNet:
        """Sizes from the metadata keys of state-space models. Raises BadGGUF if they are invalid."""
        key_heads = hp.integer("ssm.group_count", most=HEADS_MAX)
        value_heads = hp.integer("ssm.time_step_rank", most=HEADS_MAX)
        width = hp.integer("ssm.state_size", most=WIDTH_MAX)
        inner = hp.integer("ssm.inner_size")
        if value_heads % key_heads:
            raise BadGGUF(f"{hp.architecture} has {value_heads} value heads for {key_heads} key heads")
        if inner != value_heads * width:
            raise BadGGUF(f"{hp.architecture}.ssm.inner_size is {inner}, not {value_heads} heads of {width}")
        return cls(key_heads, value_heads, width, hp.integer("ssm.conv_kernel", least=2, most=TAPS_MAX), grouped)

    def add(self, g: ModelGraph) -> None:
        """A layer's ops: they read `normed` and add to `x`."""
        hp, prefix, width = g.hp, g.prefix, g.sizes.width
        inner, heads = self.value_heads * self.head_width, self.value_heads
        mixed_width = 2 * self.key_heads * self.head_width + inner
        mixed_shape, gate_shape = (mixed_width, width), (inner, width)
        g.add(
            MatMul("normed", g.buffer("mixed", mixed_width), hp.matrix(f"{prefix}attn_qkv.weight", mixed_shape)),
            MatMul("normed", g.buffer("delta_gate", inner), hp.matrix(f"{prefix}attn_gate.weight", gate_shape)),
        )
        self._add_decay_and_strength(g)
        kernel = hp.table(f"{prefix}ssm_conv1d.weight", (mixed_width, self.taps))
        inputs = g.state(LayerState((self.taps - 1, mixed_width), mixed_width))
        state = g.state(LayerState((heads, self.head_width, self.head_width), mixed_width + 2 * heads))
        convolved, out = g.buffer("convolved", mixed_width), g.buffer("delta", inner)
        rate, shift = hp.vector(f"{prefix}ssm_a", heads), hp.vector(f"{prefix}ssm_dt.bias", heads)
        norm = hp.vector(f"{prefix}ssm_norm.weight", self.head_width)
        g.add(
            CausalConv("mixed", convolved, inputs, kernel, mixed_width, self.taps, activation="silu"),
            GatedDeltaNet(
                convolved,
                "decay",
                "strength",
                out,
                state,
                self.key_heads,
                heads,
                self.head_width,
                rate,
                shift,
                self.grouped,
            ),
            RMSNorm(out, out, norm, self.head_width, g.sizes.epsilon, heads),
            GatedAct("delta_gate", out, out, inner, "silu"),
        )
        project(g, out, "ssm_out", inner, "x")

    def _add_decay_and_strength(self, g: ModelGraph) -> None:
        """Two numbers per value head, from separate products, or from one that holds both for each key head in turn."""
        hp, prefix, heads, width = g.hp, g.prefix, self.value_heads, g.sizes.width
        decay, strength = g.buffer("decay", heads), g.buffer("strength", heads)
        fused = f"{prefix}ssm_ba.weight"
        if fused in hp.tensors:
            each, shape = heads // self.key_heads, (2 * heads, width)
            order = Every(each, 2 * each)
            g.add(
                MatMul("normed", decay, hp.matrix(fused, shape, (each, 2 * heads), order)),
                MatMul("normed", strength, hp.matrix(fused, shape, (0, 2 * heads - each), order)),
            )
            return
        alpha, beta = (hp.matrix(f"{prefix}ssm_{name}.weight", (heads, width)) for name in ("alpha", "beta"))
        g.add(MatMul("normed", decay, alpha), MatMul("normed", strength, beta))


def attending_layers(hp: Hyperparameters, n_layers: int) -> list[bool]:
    """Which layers have attention: from one flag per layer, or from a period."""
    key = "attention.recurrent_layers"
    recurrent = hp.flags(key)
    if recurrent is None and hp.has(key):
        raise BadGGUF(f"{hp.architecture}.{key} must be an array with a flag for each layer")
    if recurrent is not None:
        if len(recurrent) < n_layers:
            raise BadGGUF(
                f"{hp.architecture}.attention.recurrent_layers has {len(recurrent)} entries for {n_layers} layers"
            )
        return [not flag for flag in recurrent[:n_layers]]
    interval = hp.integer("full_attention_interval", 4)
    return [(layer + 1) % interval == 0 for layer in range(n_layers)]


def mixture_with_delta_nets(hp: Hyperparameters, *, grouped: bool) -> ModelSpec:
    """Delta nets, gated attention and experts; `grouped`: value heads that share a key head are adjacent."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    return hybrid(g, DeltaNet.read(hp, grouped=grouped), _mixture(g).add)


def head_of_mixture(hp: Hyperparameters) -> TrainedHead:
    """The trained head of such a mixture, which has experts too."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True, guessing=True))
    return head_of_hybrid(g, _mixture(g).add)


def _mixture(g: ModelGraph) -> Mixture:
    width = g.sizes.ffn_width
    return Mixture.read(g.hp, width, normalised=True, shared_width=width)


def hybrid(g: ModelGraph, delta_net: DeltaNet, feed: Feed) -> ModelSpec:
    """Layers of delta nets and layers of gated attention, each with the feed-forward branch that `feed` adds."""
    rope = rope_table(g.hp, g.sizes.rotary_width)
    embed(g)
    for number, attends in enumerate(attending_layers(g.hp, g.sizes.n_layers)):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        if attends:
            attention(g, rope, head_norms=True, gate="attn_q")
        else:
            delta_net.add(g)
        norm(g, "post_attention_norm")
        feed(g)
    return head(g)


def head_of_hybrid(g: ModelGraph, feed: Feed) -> TrainedHead:
    """The trained head of such a model: its block has gated attention. `g`: as for `next_token_head`."""
    rope = rope_table(g.hp, g.sizes.rotary_width)

    def block(g: ModelGraph) -> None:
        norm(g, "attn_norm")
        attention(g, rope, head_norms=True, gate="attn_q")
        norm(g, "post_attention_norm")
        feed(g)

    return next_token_head(g, block)
