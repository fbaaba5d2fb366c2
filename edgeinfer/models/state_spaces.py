"""State spaces of Mamba and PLaMo 2, the convolution that Mamba-2 shares with them, and models of nothing else.

In: Hyperparameters, then a graph. Out: a `Mamba`, the ops of a layer, a ModelSpec. Uses GGUF's names; independent of
the families.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import Every, LayerState
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.add_vector import AddVector
from edgeinfer.graph.ops.causal_conv import CausalConv
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.state_space import StateSpace
from edgeinfer.models.blocks import embed, head, norm, project
from edgeinfer.models.delta_net import HEADS_MAX, TAPS_MAX, WIDTH_MAX
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph

LEAST_RANK = 64
"""PLaMo 2's files do not state the width of the row that steps are computed from: a 16th of the model's, or this."""


@dataclass(frozen=True, slots=True)
class Mamba:
    """States of `state_width` rows; b, c and a row of `step_rank` numbers are computed from the convolved x.

    `by_head`: a step is computed from that row for each head, as in PLaMo 2, whose products have their parts in another
    order; else one for each column of a single head. `normed`: b, c and that row are normed even without weights.
    """

    heads: int
    head_width: int
    state_width: int
    step_rank: int
    taps: int
    by_head: bool = False
    normed: bool = False

    @classmethod
    def read(cls, hp: Hyperparameters) -> Mamba:
        """Mamba's sizes from the metadata keys of state-space models. Raises BadGGUF if they are invalid."""
        inner = hp.integer("ssm.inner_size", most=HEADS_MAX * WIDTH_MAX)
        rank = hp.integer("ssm.time_step_rank", most=WIDTH_MAX)
        return cls(1, inner, *_state(hp, rank), normed=hp.flag("ssm.dt_b_c_rms", default=False))

    @classmethod
    def read_by_head(cls, hp: Hyperparameters, width: int) -> Mamba:
        """PLaMo 2's, for a model of that width."""
        heads = hp.integer("ssm.time_step_rank", most=HEADS_MAX)
        inner = hp.integer("ssm.inner_size", most=HEADS_MAX * WIDTH_MAX)
        if inner % heads:
            raise BadGGUF(f"{hp.architecture}.ssm.inner_size is {inner}, which is no multiple of {heads} heads")
        return cls(heads, inner // heads, *_state(hp, max(LEAST_RANK, width // 16)), by_head=True)

    @property
    def inner(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_width

    def add(self, g: ModelGraph, out: str = "x") -> None:
        """A layer's ops: they read `normed`, and add to `x` or write another buffer."""
        gate, mixed, summed = (g.buffer(name, self.inner) for name in ("ssm_gate", "mixed", "ssm"))
        self._add_products(g, gate, mixed)
        convolved = convolution(g, mixed, self.inner, self.taps)
        self._add_recurrence(g, convolved, self._add_inputs(g, convolved), summed)
        g.add(GatedAct(gate, summed, summed, self.inner, "silu"))
        project(g, summed, "ssm_out", self.inner, out)

    def _add_products(self, g: ModelGraph, gate: str, mixed: str) -> None:
        """The gate and x, from one tensor: x is first, or each head has its gate first."""
        inner, width, tensor = self.inner, self.head_width, f"{g.prefix}ssm_in"
        order = Every(width, 2 * width) if self.by_head else None
        spans = {mixed: (0, inner), gate: (inner, 2 * inner)}
        if self.by_head:
            spans = {gate: (0, 2 * inner - width), mixed: (width, 2 * inner)}
        for out, rows in spans.items():
            weight = g.hp.matrix(f"{tensor}.weight", (2 * inner, g.sizes.width), rows, order)
            g.add(MatMul("normed", out, weight, g.hp.bias(f"{tensor}.bias", 2 * inner, rows, order)))

    def _add_inputs(self, g: ModelGraph, convolved: str) -> str:
        """b, c and the row that steps are computed from, and the steps; returns the buffer of the steps."""
        widths = {"dt": self.step_rank, "b": self.state_width, "c": self.state_width}
        start, total = 0, sum(widths.values())
        products, norms = [], []
        for part in ("b", "c", "dt") if self.by_head else widths:
            width, out = widths[part], g.buffer(f"ssm_{part}", widths[part])
            shape, rows = (total, self.inner), (start, start + width)
            products.append(MatMul(convolved, out, g.hp.matrix(f"{g.prefix}ssm_x.weight", shape, rows)))
            norms += self._norm(g, out, f"{g.prefix}{out}_norm", width)
            start += width
        n_steps = self.heads if self.by_head else self.inner
        steps = g.buffer("steps", n_steps)
        product = MatMul("ssm_dt", steps, g.hp.matrix(f"{g.prefix}ssm_dt.weight", (n_steps, self.step_rank)))
        g.add(*products, *norms, product)
        return steps

    def _norm(self, g: ModelGraph, buffer: str, tensor: str, width: int) -> list[RMSNorm]:
        """The norm of such a row, if it has one; PLaMo 2's files leave out the ending of its name."""
        weight = g.hp.bias(tensor if tensor in g.hp.tensors else f"{tensor}.weight", width)
        if weight is None and not self.normed:
            return []
        return [RMSNorm(buffer, buffer, weight, width, g.sizes.epsilon)]

    def _add_recurrence(self, g: ModelGraph, convolved: str, steps: str, out: str) -> None:
        hp, prefix, n_steps = g.hp, g.prefix, self.heads if self.by_head else self.inner
        token_width = self.inner + 2 * self.state_width + n_steps
        state = g.state(LayerState((self.heads, self.state_width, self.head_width), token_width))
        rates = f"{prefix}ssm_a"
        rate = hp.vector(rates, n_steps) if self.by_head else hp.table(rates, (n_steps, self.state_width))
        shift, skip = hp.vector(f"{prefix}ssm_dt.bias", n_steps), hp.vector(f"{prefix}ssm_d", n_steps)
        sizes = self.heads, self.head_width, 1, self.state_width
        vectors = rate, shift, skip
        g.add(StateSpace(convolved, steps, out, state, *sizes, *vectors, ("ssm_b", "ssm_c"), not self.by_head))


def convolution(g: ModelGraph, source: str, width: int, taps: int) -> str:
    """The convolution of a state space's inputs, its bias if there is one, and SiLU; returns the buffer."""
    kernel = g.hp.table(f"{g.prefix}ssm_conv1d.weight", (width, taps))
    bias = g.hp.bias(f"{g.prefix}ssm_conv1d.bias", width)
    state, out = g.state(LayerState((taps - 1, width), width)), g.buffer("convolved", width)
    if bias is None:
        g.add(CausalConv(source, out, state, kernel, width, taps, activation="silu"))
    else:
        g.add(CausalConv(source, out, state, kernel, width, taps))
        g.add(AddVector(bias, out, width), Act(out, out, width, "silu"))
    return out


def recurrent(g: ModelGraph, add: Callable[[ModelGraph], None]) -> ModelSpec:
    """A model whose layers are a norm and the state space that `add` adds."""
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        add(g)
    return head(g)


def _state(hp: Hyperparameters, rank: int) -> tuple[int, int, int]:
    """Rows of a state, the width of the row that steps are computed from, and taps."""
    state_width = hp.integer("ssm.state_size", most=WIDTH_MAX)
    return state_width, rank, hp.integer("ssm.conv_kernel", least=2, most=TAPS_MAX)
