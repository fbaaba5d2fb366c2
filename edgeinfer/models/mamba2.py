"""Mamba-2's layers: their sizes in a file, and their ops.

In: Hyperparameters, then a graph. Out: a `Mamba2`, and the ops of a layer. Uses GGUF's names; independent of the
families.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.operands import LayerState
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.state_space import StateSpace
from edgeinfer.models.blocks import project
from edgeinfer.models.delta_net import HEADS_MAX, TAPS_MAX, WIDTH_MAX
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.state_spaces import convolution


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Heads, the groups of heads that share b and c of `state_width` numbers, and the taps of the convolution."""

    heads: int
    head_width: int
    groups: int
    state_width: int
    taps: int

    @classmethod
    def read(cls, hp: Hyperparameters) -> Mamba2:
        """Sizes from the metadata keys of state-space models. Raises BadGGUF if they are invalid."""
        heads = hp.integer("ssm.time_step_rank", most=HEADS_MAX)
        groups = hp.integer("ssm.group_count", most=HEADS_MAX)
        inner = hp.integer("ssm.inner_size", most=HEADS_MAX * WIDTH_MAX)
        if heads % groups:
            raise BadGGUF(f"{hp.architecture} has {heads} heads for {groups} groups, which cannot share them evenly")
        if inner % heads:
            raise BadGGUF(f"{hp.architecture}.ssm.inner_size is {inner}, which is no multiple of {heads} heads")
        state_width = hp.integer("ssm.state_size", most=WIDTH_MAX)
        return cls(heads, inner // heads, groups, state_width, hp.integer("ssm.conv_kernel", least=2, most=TAPS_MAX))

    @property
    def inner(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_width

    def add(self, g: ModelGraph, out: str = "x") -> None:
        """A layer's ops: they read `normed`, and add to `x` or write another buffer."""
        inner, mixed_width = self.inner, self.inner + 2 * self.groups * self.state_width
        gate, mixed, steps = g.buffer("ssm_gate", inner), g.buffer("mixed", mixed_width), g.buffer("steps", self.heads)
        self._add_products(g, {gate: inner, mixed: mixed_width, steps: self.heads})
        convolved = convolution(g, mixed, mixed_width, self.taps)
        summed = g.buffer("ssm", inner)
        self._add_recurrence(g, convolved, steps, summed, mixed_width)
        g.add(GatedAct(gate, summed, summed, inner, "silu"))
        self._add_norm(g, summed)
        project(g, summed, "ssm_out", inner, out)

    def _add_products(self, g: ModelGraph, widths: dict[str, int]) -> None:
        """The parts of one projection, each in its buffer."""
        start, total = 0, sum(widths.values())
        for name, width in widths.items():
            tensor, rows = f"{g.prefix}ssm_in", (start, start + width)
            weight = g.hp.matrix(f"{tensor}.weight", (total, g.sizes.width), rows)
            g.add(MatMul("normed", name, weight, g.hp.bias(f"{tensor}.bias", total, rows)))
            start += width

    def _add_recurrence(self, g: ModelGraph, mixed: str, steps: str, out: str, width: int) -> None:
        state = g.state(LayerState((self.heads, self.state_width, self.head_width), width + self.heads))
        rate, skip = (g.hp.table(f"{g.prefix}ssm_{name}", (self.heads, 1)) for name in ("a", "d"))
        shift = g.hp.vector(f"{g.prefix}ssm_dt.bias", self.heads)
        sizes = self.heads, self.head_width, self.groups, self.state_width
        g.add(StateSpace(mixed, steps, out, state, *sizes, rate, shift, skip))

    def _add_norm(self, g: ModelGraph, name: str) -> None:
        """The norm of each group, with its own weights; some models have none."""
        tensor = f"{g.prefix}ssm_norm.weight"
        if tensor in g.hp.tensors:
            width = self.inner // self.groups
            weight = g.hp.table(tensor, (self.groups, width))
            g.add(RMSNorm(name, name, weight, width, g.sizes.epsilon, self.groups, self.groups > 1))
