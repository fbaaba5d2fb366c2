"""The contract between models and devices: what a model computes, as frozen records that nothing executes.

An architecture turns GGUF metadata into a list of these ops; every device runs them. Values between ops are named
buffers of float32 rows; weights are named tensors of the file. Shapes use one legend: T new tokens of a pass,
O rows whose logits are wanted, D model width, H / G query / kv heads, K head width, F FFN width, V vocabulary,
E experts.
Knows nothing of files, devices or plans. A new op touches this file, the reference device and each other device.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias


class Rows(Enum):
    """How many rows a buffer has: one per token of the pass, or one per token whose logits are wanted."""

    TOKENS = "tokens"
    OUTPUTS = "outputs"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A named float32 value between ops: float32[T or O, width]."""

    name: str
    width: int
    rows: Rows = Rows.TOKENS


@dataclass(frozen=True, slots=True)
class Unpair:
    """Row order of a projection whose rotary pairs are neighbours: even rows of each head first, then odd ones.

    Only the first `rotary_width` rows of each `head_width` rows move. With it every `Rope` is half-split ("NeoX").
    """

    head_width: int
    rotary_width: int


@dataclass(frozen=True, slots=True)
class Weight:
    """Rows `start:stop` of a tensor, each `columns` long (or elements of a 1-D one, with `columns` 1).

    A tensor of more dimensions is the rows of its last one: expert e of [E, F, D] is rows e * F to (e + 1) * F.
    """

    tensor: str
    start: int
    stop: int
    columns: int
    unpair: Unpair | None = None

    @property
    def n_rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Rotary embedding frequencies; `models.rope` turns it into numbers.

    `factors` names a float32[rotary_width / 2] tensor that divides the frequencies (Llama 3, LongRoPE), or is None.
    `scaling` linear divides all frequencies by `factor`; yarn blends by wavelength (Peng et al., arXiv 2309.00071).
    `magnitude` multiplies cos and sin.
    """

    base: float
    rotary_width: int
    scaling: Literal["none", "linear", "yarn"] = "none"
    factor: float = 1.0
    original_context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    magnitude: float = 1.0
    factors: str | None = None


Activation: TypeAlias = Literal["silu", "gelu_tanh", "relu", "relu2"]
"""Of x: x * sigmoid(x); the tanh form of GELU; max(x, 0); its square. The last two have exact zeros."""


@dataclass(frozen=True, slots=True)
class Embed:
    """out[t] = scale * weight[token t]."""

    weight: Weight
    out: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class PositionEmbed:
    """out[t] += weight[position of token t]: learned positions. Its stage begins with the `Embed` that writes out."""

    weight: Weight
    out: str


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """out = (source - mean) / sqrt(variance + epsilon) * weight + bias, with mean and variance of the source's row."""

    source: str
    out: str
    weight: Weight
    bias: Weight
    width: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """out = source / sqrt(mean(source^2) + epsilon) * weight, over each of `groups` slices of `width`."""

    source: str
    out: str
    weight: Weight
    width: int
    epsilon: float
    groups: int = 1


@dataclass(frozen=True, slots=True)
class MatMul:
    """out = source @ weight.T (+ bias), or out += the same when `accumulate`."""

    source: str
    out: str
    weight: Weight
    bias: Weight | None = None
    accumulate: bool = False


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotate `value` in place: half-split pairs (i, i + rotary_width / 2) of each head by position * frequency."""

    value: str
    heads: int
    head_width: int
    table: RopeTable


@dataclass(frozen=True, slots=True)
class StoreKV:
    """Write key and value rows [T, G * K] into the KV cache of `layer` at the slots of the step."""

    key: str
    value: str
    layer: int
    kv_heads: int
    head_width: int


@dataclass(frozen=True, slots=True)
class Attention:
    """out = softmax(cap(scale * query @ keys)) @ values over a token's ancestors and itself, per head.

    `window` w: only positions > own position - w. `soft_cap` c: scores become c * tanh(score / c).
    """

    query: str
    out: str
    layer: int
    heads: int
    kv_heads: int
    head_width: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None


@dataclass(frozen=True, slots=True)
class GatedAct:
    """out = activation(gate) * up. With a `threshold` activated gates of a smaller magnitude, and NaN, count as zero.

    A threshold is compared as float32; 0 leaves all as they are.
    """

    gate: str
    up: str
    out: str
    width: int
    activation: Activation
    threshold: float = 0.0


@dataclass(frozen=True, slots=True)
class Act:
    """out = activation(source), of a feed-forward network without a gate. `threshold` as that of `GatedAct`."""

    source: str
    out: str
    width: int
    activation: Activation
    threshold: float = 0.0


@dataclass(frozen=True, slots=True)
class Router:
    """out[t, e] = the share of expert e in token t: zero but for the `active` highest of scores[t], E of them.

    Of equal scores those of lower numbers are higher. Shares are the softmax over all E scores or the sigmoid of each;
    `normalised`: those of a token are divided by their sum. All are multiplied by `scale`.
    """

    scores: str
    out: str
    experts: int
    active: int
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    normalised: bool = False
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Experts:
    """out[t] += the sum over the experts e that have a share in t, lowest first, of share * expert e of source[t].

    An expert is down[e] @ (activation(gate[e] @ x) * (up[e] @ x)). `shares` [T, E] are a Router's with the same
    `active`; an expert whose share is zero is not computed.
    """

    source: str
    shares: str
    out: str
    gate: tuple[Weight, ...]
    up: tuple[Weight, ...]
    down: tuple[Weight, ...]
    active: int
    activation: Literal["silu", "gelu_tanh"] = "silu"

    @property
    def weights(self) -> tuple[Weight, ...]:
        """All matrices of all experts."""
        return (*self.gate, *self.up, *self.down)


@dataclass(frozen=True, slots=True)
class Add:
    """out += source."""

    source: str
    out: str
    width: int


@dataclass(frozen=True, slots=True)
class TakeOutputs:
    """out[o] = source[row of output o]: from here on only rows whose logits are wanted are computed."""

    source: str
    out: str
    width: int


@dataclass(frozen=True, slots=True)
class SoftCap:
    """value = cap * tanh(value / cap), in place."""

    value: str
    width: int
    cap: float


Op = (
    Embed
    | PositionEmbed
    | LayerNorm
    | RMSNorm
    | MatMul
    | Rope
    | StoreKV
    | Attention
    | GatedAct
    | Act
    | Router
    | Experts
    | Add
    | TakeOutputs
    | SoftCap
)


def reads(op: Op) -> set[str]:
    """Buffers whose contents an op depends on."""
    match op:
        case Embed():
            return set()
        case PositionEmbed():
            return {op.out}
        case LayerNorm() | RMSNorm() | Act() | TakeOutputs():
            return {op.source}
        case MatMul():
            return {op.source, op.out} if op.accumulate else {op.source}
        case Rope() | SoftCap():
            return {op.value}
        case StoreKV():
            return {op.key, op.value}
        case Attention():
            return {op.query}
        case GatedAct():
            return {op.gate, op.up}
        case Router():
            return {op.scores}
        case Experts():
            return {op.source, op.shares, op.out}
        case Add():
            return {op.source, op.out}


def writes(op: Op) -> set[str]:
    """Buffers that an op changes."""
    match op:
        case Rope() | SoftCap():
            return {op.value}
        case StoreKV():
            return set()
        case _:
            return {op.out}
