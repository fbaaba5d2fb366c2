"""Mixtures of experts: the sizes a file gives, and the feed-forward branch as ops.

In: Hyperparameters. Out: a `Mixture`, its buffers, and the ops of a layer. Knows GGUF's names for experts, not the
families. Old files that hold a tensor for each expert are read too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgeinfer.errors import UnsupportedModel
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.ops import Buffer, Experts, MatMul, Op, Router, Weight

EXPERTS_MAX = 1024
SOFTMAX_GATING = 1
"""GGUF's number for shares that are a softmax."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """`count` experts of FFN width `width`, of which each token has `active`.

    `normalised` and `scale` as in `ops.Router`. `shared_width`: FFN width of the expert that every token has beside
    them, with the sigmoid of a score of its own as its share; 0 where there is none.
    """

    count: int
    active: int
    width: int
    normalised: bool
    scale: float = 1.0
    shared_width: int = 0

    @classmethod
    def read(cls, hp: Hyperparameters, width: int, *, normalised: bool, shared_width: int = 0) -> Mixture:
        """Sizes from the keys that all families share; the arguments are what they are where a file does not say.

        Raises BadGGUF where they are impossible, UnsupportedModel where shares are computed in another way.
        """
        count = hp.integer("expert_count", most=EXPERTS_MAX)
        gating = hp.integer("expert_gating_func", SOFTMAX_GATING, least=0)
        if gating not in (0, SOFTMAX_GATING):
            raise UnsupportedModel(
                f"{hp.architecture} chooses experts by gating function {gating}; edgeinfer has softmax (1) alone"
            )
        return cls(
            count=count,
            active=hp.integer("expert_used_count", most=count),
            width=hp.integer("expert_feed_forward_length", width),
            normalised=hp.flag("expert_weights_norm", default=normalised),
            scale=hp.number("expert_weights_scale", 0.0) or 1.0,
            shared_width=hp.integer("expert_shared_feed_forward_length", shared_width, least=0),
        )

    def buffers(self) -> tuple[Buffer, ...]:
        """What the ops below write beside their result."""
        routed = (Buffer("scores", self.count), Buffer("shares", self.count))
        return routed if not self.shared_width else (*routed, Buffer("shared_score", 1), Buffer("shared_share", 1))

    def ops(
        self, hp: Hyperparameters, prefix: str, width: int, activation: Literal["silu", "gelu_tanh"], out: str
    ) -> list[Op]:
        """The experts of a layer, which read `normed` and add to `out`."""
        router = hp.matrix(f"{prefix}ffn_gate_inp.weight", (self.count, width))
        gate, up, down = (
            _matrices(hp, f"{prefix}ffn_{name}", self.count, shape)
            for name, shape in {
                "gate": (self.width, width),
                "up": (self.width, width),
                "down": (width, self.width),
            }.items()
        )
        ops: list[Op] = [
            MatMul("normed", "scores", router),
            Router("scores", "shares", self.count, self.active, "softmax", self.normalised, self.scale),
            Experts("normed", "shares", out, gate, up, down, self.active, activation),
        ]
        return ops + (self._shared(hp, prefix, width, activation, out) if self.shared_width else [])

    def _shared(
        self, hp: Hyperparameters, prefix: str, width: int, activation: Literal["silu", "gelu_tanh"], out: str
    ) -> list[Op]:
        """The shared expert: one of one."""
        score = hp.row(f"{prefix}ffn_gate_inp_shexp.weight", width)
        inner = (self.shared_width, width)
        gate, up = (hp.matrix(f"{prefix}ffn_{name}_shexp.weight", inner) for name in ("gate", "up"))
        down = hp.matrix(f"{prefix}ffn_down_shexp.weight", (width, self.shared_width))
        return [
            MatMul("normed", "shared_score", score),
            Router("shared_score", "shared_share", 1, 1, "sigmoid"),
            Experts("normed", "shared_share", out, (gate,), (up,), (down,), 1, activation),
        ]


def _matrices(hp: Hyperparameters, tensor: str, count: int, shape: tuple[int, int]) -> tuple[Weight, ...]:
    """The matrix of each expert, parts of one tensor or tensors of their own."""
    if f"{tensor}.0.weight" in hp.tensors:
        return tuple(hp.matrix(f"{tensor}.{expert}.weight", shape) for expert in range(count))
    return hp.stacked(f"{tensor}_exps.weight", count, shape)
