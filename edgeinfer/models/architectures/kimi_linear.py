"""Kimi Linear: delta attention with a decay per key column in most layers, latent attention in those with kv heads.

Nothing is rotated. The first layers are dense, the others mixtures as in DeepSeek-V3. Source: Kimi Linear (Moonshot AI,
arXiv 2510.26692).
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import LayerState
from edgeinfer.graph.ops.causal_conv import CausalConv
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.gated_delta_net import GatedDeltaNet
from edgeinfer.graph.ops.join_parts import JoinParts
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import embed, head, norm, project
from edgeinfer.models.delta_net import TAPS_MAX, WIDTH_MAX
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.latent_attention import LatentAttention, latent_sizes
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph


@dataclass(frozen=True, slots=True)
class DeltaAttention:
    """`heads` heads of queries, keys and values, all `head_width` wide, after convolutions of `taps` taps."""

    heads: int
    head_width: int
    taps: int

    @property
    def inner(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_width

    def add(self, g: ModelGraph) -> None:
        """A layer's ops: they read `normed` and add to `x`."""
        hp, prefix, heads, width, inner = g.hp, g.prefix, self.heads, self.head_width, self.inner
        mixed = self._add_convolutions(g)
        decay, gate = self._add_narrow(g, "ssm_f", "decay"), self._add_narrow(g, "ssm_g", "delta_gate")
        strength, out = g.buffer("strength", heads), g.buffer("delta", inner)
        g.add(MatMul("normed", strength, hp.matrix(f"{prefix}ssm_beta.weight", (heads, g.sizes.width))))
        state = g.state(LayerState((heads, width, width), 4 * inner + heads))
        rate, shift = hp.flat(f"{prefix}ssm_a", heads), hp.vector(f"{prefix}ssm_dt.bias", inner)
        weight = hp.vector(f"{prefix}ssm_norm.weight", width)
        sizes = heads, heads, width
        g.add(
            GatedDeltaNet(mixed, decay, strength, out, state, *sizes, rate, shift, by_column=True),
            RMSNorm(out, out, weight, width, g.sizes.epsilon, heads),
            GatedAct(gate, out, out, inner, "sigmoid"),
        )
        project(g, out, "attn_output", inner, "x")

    def _add_convolutions(self, g: ModelGraph) -> str:
        """Queries, keys and values after their convolutions, side by side; returns their buffer."""
        hp, prefix, inner = g.hp, g.prefix, self.inner
        fused = f"{prefix}attn_qkv.weight"
        parts = []
        for place, part in enumerate("qkv"):
            given, out = g.buffer(f"plain_{part}", inner), g.buffer(f"convolved_{part}", inner)
            if fused in hp.tensors:
                rows = place * inner, (place + 1) * inner
                weight = hp.matrix(fused, (3 * inner, g.sizes.width), rows)
            else:
                weight = hp.matrix(f"{prefix}attn_{part}.weight", (inner, g.sizes.width))
            kernel = hp.flat(f"{prefix}ssm_conv1d_{part}.weight", inner * self.taps)
            state = g.state(LayerState((self.taps - 1, inner), inner))
            g.add(MatMul("normed", given, weight))
            parts.append((out, CausalConv(given, out, state, kernel, inner, self.taps, activation="silu")))
        mixed = g.buffer("mixed", 3 * inner)
        g.add(*(op for _, op in parts), JoinParts(tuple(out for out, _ in parts), mixed, inner))
        return mixed

    def _add_narrow(self, g: ModelGraph, tensor: str, out: str) -> str:
        """A product of a product that is as narrow as a head; returns its buffer."""
        narrow, found = g.buffer(f"narrow_{out}", self.head_width), g.buffer(out, self.inner)
        first = g.hp.matrix(f"{g.prefix}{tensor}_a.weight", (self.head_width, g.sizes.width))
        second = g.hp.matrix(f"{g.prefix}{tensor}_b.weight", (self.inner, self.head_width))
        g.add(MatMul("normed", narrow, first), MatMul(narrow, found, second))
        return found


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Kimi Linear. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, latent_sizes(hp, hybrid=True))
    latent = LatentAttention.read(hp, g.sizes)
    heads, width = g.sizes.heads, hp.integer("kda.head_dim", most=WIDTH_MAX)
    delta = DeltaAttention(heads, width, hp.integer("ssm.conv_kernel", least=2, most=TAPS_MAX))
    mixture = Mixture.read_sigmoid(hp, g.sizes, normalised=True)
    embed(g)
    for number, attends in enumerate(g.sizes.attends):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        if attends:
            latent.add(g, None)
        else:
            delta.add(g)
        norm(g, "ffn_norm")
        mixture.after_dense(g)
    return head(g)


ARCHITECTURE = Architecture(build, spelling="kimi-linear")
