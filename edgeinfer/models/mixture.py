"""Mixtures of experts: the sizes in a file, and the feed-forward branch as ops.

In: Hyperparameters, then a graph. Out: a `Mixture`, and the ops of a layer in the graph. Uses GGUF's names for experts;
independent of the families. Also reads old files with one tensor per expert.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.graph.activations import Activation, ExpertActivation
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.router import Router, Scoring
from edgeinfer.graph.ops.scale import Scale
from edgeinfer.graph.ops.zero import Zero
from edgeinfer.models.blocks import FeedForwardGate, feed_forward, join
from edgeinfer.models.hyperparameters import COUNT_MAX, Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes

EXPERTS_MAX = 1024
SOFTMAX_GATING, SIGMOID_GATING, CHOSEN_SOFTMAX_GATING = 1, 2, 3
"""GGUF's numbers for the scoring: softmax over all experts, sigmoids, or softmax over the chosen ones."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """`count` experts of FFN width `width`, `active` of which are used per token.

    `normalised`, `scale`, `scoring`, `groups`, `active_groups` and `rated_by` are as in `ops.Router`, `scales_source`
    is as in `ops.Experts`. `shared_width`: FFN width of
    the shared expert that every token also uses, 0 if there is none; its share is the sigmoid of its own score, or one
    if it is not `shared_scored`. `gated`: whether experts have a gate matrix. `latent_width`: width of the rows that
    experts read and write, if those are not the model's own but products of them; the shared expert's are.
    """

    count: int
    active: int
    width: int
    normalised: bool
    scale: float = 1.0
    shared_width: int = 0
    activation: ExpertActivation = "silu"
    scoring: Scoring = "softmax"
    shared_scored: bool = True
    groups: int = 1
    active_groups: int = 1
    gated: bool = True
    latent_width: int = 0
    rated_by: int = 2
    scales_source: bool = False

    @classmethod
    def read(
        cls,
        hp: Hyperparameters,
        width: int,
        *,
        normalised: bool,
        shared_width: int = 0,
        activation: ExpertActivation = "silu",
        shared_scored: bool = True,
        gating: int = SOFTMAX_GATING,
        layer: int | None = None,
    ) -> Mixture:
        """Sizes from the keys that all families share; the arguments are the values for keys missing from a file.

        `layer`: experts of that layer, for families whose files may have a number for each layer. Raises BadGGUF if
        they are impossible, UnsupportedModel for another way of computing shares.
        """
        count = hp.integer("expert_count", most=EXPERTS_MAX)
        gating = hp.integer("expert_gating_func", 0, least=0) or gating
        if gating not in (SOFTMAX_GATING, SIGMOID_GATING, CHOSEN_SOFTMAX_GATING):
            raise UnsupportedModel(
                f"{hp.architecture} chooses experts by gating function {gating}; edgeinfer has softmax (1, 3) and "
                "sigmoid (2)"
            )
        normalised = hp.flag("expert_weights_norm", default=normalised) or gating == CHOSEN_SOFTMAX_GATING
        active = _of_layer(hp, "expert_used_count", layer, most=count)
        groups, active_groups = _groups(hp, count, active)
        return cls(
            count=count,
            active=active,
            width=_of_layer(hp, "expert_feed_forward_length", layer, width),
            normalised=normalised,
            scale=hp.number("expert_weights_scale", 0.0) or 1.0,
            shared_width=hp.integer("expert_shared_feed_forward_length", shared_width, least=0),
            activation=activation,
            scoring="sigmoid" if gating == SIGMOID_GATING else "softmax",
            shared_scored=shared_scored,
            groups=groups,
            active_groups=active_groups,
        )

    @classmethod
    def read_with_shared(
        cls, hp: Hyperparameters, sizes: Sizes, *, normalised: bool = False, gating: int = SOFTMAX_GATING
    ) -> Mixture:
        """For families after DeepSeek's: a shared expert as wide as this many of the others."""
        width = hp.integer("expert_feed_forward_length", sizes.ffn_width)
        shared = width * hp.integer("expert_shared_count", least=0, most=EXPERTS_MAX)
        return cls.read(hp, width, normalised=normalised, shared_width=shared, shared_scored=False, gating=gating)

    @classmethod
    def read_sigmoid(cls, hp: Hyperparameters, sizes: Sizes, *, normalised: bool) -> Mixture:
        """The same for families after DeepSeek-V3: sigmoid shares."""
        return cls.read_with_shared(hp, sizes, normalised=normalised, gating=SIGMOID_GATING)

    def add(self, g: ModelGraph, scale: float = 1.0) -> None:
        """The experts of a layer: read `normed` and add their output, times `scale`, to `x`."""
        self.add_routed(g, "x", scale)
        self._add_shared(g, "x", scale)

    def after_dense(self, g: ModelGraph) -> None:
        """The same, but a dense branch in the first layers, and between those with experts if they are not all."""
        hp = g.hp
        n_dense, step = hp.integer("leading_dense_block_count", 0, least=0), hp.integer("interleave_moe_layer_step", 1)
        if g.number < n_dense or (g.number + 1) % step:
            feed_forward(g)
        else:
            self.add(g)

    def where_routed(self, g: ModelGraph) -> None:
        """The same, but a dense branch in layers without a router."""
        if f"{g.prefix}ffn_gate_inp.weight" in g.hp.tensors:
            self.add(g)
        else:
            feed_forward(g)

    def branch(self, g: ModelGraph, out: str = "branch", scored: str = "normed", score_scale: float = 1.0) -> None:
        """The same, written to `branch`, for layers that norm the mixture's output before adding it to `x`.

        `out`: another buffer. `scored`: the rows that scores are computed from; these are multiplied by `score_scale`.
        """
        out = g.buffer(out, g.sizes.width)
        g.add(Zero(out, g.sizes.width))
        self.add_routed(g, out, scored=scored, score_scale=score_scale)
        self._add_shared(g, out)

    def add_routed(
        self,
        g: ModelGraph,
        out: str,
        scale: float = 1.0,
        scored: str = "normed",
        score_scale: float = 1.0,
        source: str = "normed",
    ) -> None:
        """A router and the experts it chooses, which read `source`; their output is added to `out`.

        Biases, and factors of experts, are used if the file has them; gate and up matrices may be halves of one tensor.
        """
        hp, width, prefix = g.hp, g.sizes.width, g.prefix
        scores, shares = g.buffer("scores", self.count), g.buffer("shares", self.count)
        router = hp.matrix(f"{prefix}ffn_gate_inp.weight", (self.count, width))
        gate, up, down = self._stacks(hp, prefix, self.latent_width or width)
        g.add(MatMul(scored, scores, router, hp.bias(f"{prefix}ffn_gate_inp.bias", self.count)))
        if score_scale != 1.0:
            g.add(Scale(scores, self.count, score_scale))
        source, end = self._latent_rows(g, source) if self.latent_width else (source, out)
        g.add(
            Router(
                *(scores, shares, self.count, self.active, self.scoring, self.normalised, self.scale * scale),
                _choice_bias(hp, f"{prefix}exp_probs_b", self.count),
                self.groups,
                self.active_groups,
                hp.bias(f"{prefix}ffn_down_exps.scale", self.count),
                self.rated_by,
            ),
            Experts(
                *(source, shares, end, gate, up, down, self.active, self.activation),
                self._biases(hp, prefix, width),
                self.scales_source,
            ),
        )
        if self.latent_width:
            back = hp.matrix(f"{prefix}ffn_latent_up.weight", (width, self.latent_width))
            g.add(MatMul(end, out, back, accumulate=True))

    def _stacks(self, hp: Hyperparameters, prefix: str, width: int) -> tuple[tuple[Weight, ...], ...]:
        """The gate matrices (none if not `gated`), up matrices and down matrices of a layer's experts."""
        inner = (self.width, width)
        gate: tuple[Weight, ...] = ()
        if self.gated and f"{prefix}ffn_gate_up_exps.weight" in hp.tensors:
            gate, up = hp.stacked_halves(f"{prefix}ffn_gate_up_exps.weight", self.count, inner)
        else:
            gate = _matrices(hp, f"{prefix}ffn_gate", self.count, inner) if self.gated else ()
            up = _matrices(hp, f"{prefix}ffn_up", self.count, inner)
        return gate, up, _matrices(hp, f"{prefix}ffn_down", self.count, (width, self.width))

    def _latent_rows(self, g: ModelGraph, source: str) -> tuple[str, str]:
        """The product of `source` that experts read, and the zeros to which they add."""
        rows, end = (g.buffer(name, self.latent_width) for name in ("latent", "latent_out"))
        weight = g.hp.matrix(f"{g.prefix}ffn_latent_down.weight", (self.latent_width, g.sizes.width))
        g.add(MatMul(source, rows, weight), Zero(end, self.latent_width))
        return rows, end

    def _biases(self, hp: Hyperparameters, prefix: str, width: int) -> tuple[Weight, Weight, Weight] | None:
        """The biases of gate, up and down, if there are gates and the file has their bias."""
        if not self.gated or f"{prefix}ffn_gate_exps.bias" not in hp.tensors:
            return None
        inner, outer = (self.count, self.width), (self.count, width)
        gate, up = (hp.table(f"{prefix}ffn_{name}_exps.bias", inner) for name in ("gate", "up"))
        return gate, up, hp.table(f"{prefix}ffn_down_exps.bias", outer)

    def _add_shared(self, g: ModelGraph, out: str, scale: float = 1.0) -> None:
        """The shared expert, if there is one; added to `out`, or, if it is scaled, to `x`."""
        if self.shared_width and self.shared_scored:
            self._add_scored(g, out)
        elif self.shared_width and scale == 1.0:
            self._add_plain(g, out, adds=True)
        elif self.shared_width:
            self._add_plain(g, "branch", adds=False)
            join(g, scale)

    def _add_plain(self, g: ModelGraph, out: str, *, adds: bool) -> None:
        """The shared expert without a score."""
        activation: Activation = "silu" if self.activation == "swiglu_oai" else self.activation
        has_own = f"{g.prefix}ffn_gate_shexp.weight" in g.hp.tensors
        gate: FeedForwardGate = "none" if not self.gated else "own" if has_own else "in ffn_up"
        feed_forward(g, activation, gate=gate, width=self.shared_width, suffix="_shexp", out=out, adds=adds)

    def _add_scored(self, g: ModelGraph, out: str) -> None:
        """The shared expert with a score, as a mixture with a single expert."""
        hp, width, prefix = g.hp, g.sizes.width, g.prefix
        score = hp.row(f"{prefix}ffn_gate_inp_shexp.weight", width)
        inner = (self.shared_width, width)
        gate, up = (hp.matrix(f"{prefix}ffn_{name}_shexp.weight", inner) for name in ("gate", "up"))
        down = hp.matrix(f"{prefix}ffn_down_shexp.weight", (width, self.shared_width))
        own_score, share = g.buffer("shared_score", 1), g.buffer("shared_share", 1)
        g.add(
            MatMul("normed", own_score, score),
            Router(own_score, share, 1, 1, "sigmoid"),
            Experts("normed", share, out, (gate,), (up,), (down,), 1, self.activation),
        )


def _of_layer(
    hp: Hyperparameters, key: str, layer: int | None, default: int | None = None, most: int = COUNT_MAX
) -> int:
    """A number of a layer; without a layer, one number for all. Raises BadGGUF."""
    if layer is None:
        return hp.integer(key, default, most=most)
    found = hp.counts(key, hp.integer("block_count"), default)[layer]
    if not 1 <= found <= most:
        raise BadGGUF(f"{hp.architecture}.{key} is {found} in layer {layer}; it must be between 1 and {most}")
    return found


def _groups(hp: Hyperparameters, count: int, active: int) -> tuple[int, int]:
    """Number of expert groups, and how many groups a token may use. Raises BadGGUF if they do not fit."""
    groups = hp.integer("expert_group_count", 0, least=0, most=count) or 1
    active_groups = hp.integer("expert_group_used_count", 0, least=0, most=groups) or groups
    if count % groups:
        raise BadGGUF(f"{hp.architecture}.expert_group_count is {groups}: {count} experts make no groups of one size")
    if active > active_groups * (count // groups):
        raise BadGGUF(
            f"{hp.architecture}.expert_group_used_count is {active_groups}: these groups have "
            f"{active_groups * (count // groups)} experts, and a token has {active}"
        )
    return (groups, active_groups) if active_groups < groups else (1, 1)


def _matrices(hp: Hyperparameters, tensor: str, count: int, shape: tuple[int, int]) -> tuple[Weight, ...]:
    """The matrix of each expert: parts of one tensor or separate tensors."""
    if f"{tensor}.0.weight" in hp.tensors:
        return tuple(hp.matrix(f"{tensor}.{expert}.weight", shape) for expert in range(count))
    return hp.stacked(f"{tensor}_exps.weight", count, shape)


def _choice_bias(hp: Hyperparameters, name: str, count: int) -> Weight | None:
    """What is added to shares when experts are chosen, if anything.

    ERNIE's files have it as a matrix of one row; Hunyuan 3's leave out the ending of its name.
    """
    name = name if name in hp.tensors else f"{name}.bias"
    info = hp.tensors.get(name)
    return hp.table(name, (1, count)) if info is not None and len(info.shape) == 2 else hp.bias(name, count)
