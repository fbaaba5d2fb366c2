"""What ops refer to: buffers of rows, weights in the model file, and what layers store per sequence.

In: nothing. Out: records, which hold names, sizes and row orders. Independent of files, memory and devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

MOST_STATE_BYTES = 256 << 20
"""Bytes for states and checkpoints, unless FEWEST_STATES need more."""
FEWEST_STATES = 8
"""Slots per sequence: its state, the state after the pass, and checkpoints of the last few hundred tokens."""
SLOTS_IN_PASS = 2
"""Slots per sequence in a pass: the state before it and the state after it."""


Precision: TypeAlias = Literal["highest", "high"]
"""Of products of float32: as float32 are multiplied and added, or as sums of two bfloat16 are, if that is faster.

The names are PyTorch's (`torch.set_float32_matmul_precision`). Errors of a "high" product are about 2^-16 of its size,
and its bits depend on the instruction set, but neither on other tokens of the pass nor on the number of workers. For
encoders, whose tokens are read once and never again.
"""


class Rows(Enum):
    """Number of rows in a buffer: one per token of the pass, or one per token whose logits are requested."""

    TOKENS = "tokens"
    OUTPUTS = "outputs"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A named float32 value passed between ops: float32[T or O, width].

    `place` names another buffer whose memory this one may share: no op writes to that one between this buffer's first
    write and its last read. `adapter`: the LoRA adapter whose values these are; they are not needed in a pass without
    a row that it is added to.
    """

    name: str
    width: int
    rows: Rows = Rows.TOKENS
    place: str = ""
    adapter: int | None = None


@dataclass(frozen=True, slots=True)
class RopePermutation:
    """Row order of a projection whose rotary pairs are adjacent: even rows of each head first, then odd ones.

    Only the first `rotary_width` rows of each `head_width` rows move. After it every `Rope` is half-split ("NeoX").
    """

    head_width: int
    rotary_width: int


@dataclass(frozen=True, slots=True)
class AxisPermutation:
    """Row order of a projection whose heads rotate each half by an axis of its own, in half-split pairs.

    The quarters of a head are first and second numbers of the pairs of columns, then of rows. After it they are those
    of rows and columns, first ones, then second ones: one half-split `Rope` over two axes.
    """

    head_width: int


@dataclass(frozen=True, slots=True)
class AlternatingPermutation:
    """Row order of a projection whose heads rotate adjacent pairs, by turns of columns and of rows (Kimi-VL).

    After it they are those of rows and then of columns: one half-split `Rope` over two axes.
    """

    head_width: int


@dataclass(frozen=True, slots=True)
class Every:
    """`width` rows out of each `step`, from a weight's first row on: one of several interleaved parts.

    `paired`: even rows of each part first, then odd ones, as in a `RopePermutation`.
    """

    width: int
    step: int
    paired: bool = False


RowOrder: TypeAlias = RopePermutation | AxisPermutation | AlternatingPermutation | Every


@dataclass(frozen=True, slots=True)
class Weight:
    """Rows `start:stop` of a tensor, each `columns` long (or elements of a 1-D tensor, with `columns` 1).

    A tensor with more dimensions is viewed as rows of its last one: expert e of [E, F, D] is rows e * F to (e + 1) * F.
    `order` selects and orders these rows; None keeps them as they are.
    """

    tensor: str
    start: int
    stop: int
    columns: int
    order: RowOrder | None = None

    @property
    def n_rows(self) -> int:
        n_rows = self.stop - self.start
        return -(-n_rows // self.order.step) * self.order.width if isinstance(self.order, Every) else n_rows


@dataclass(frozen=True, slots=True)
class PagedKV:
    """What one layer caches per token: `kv_heads` keys of `key_width` and values of `value_width`.

    `window` limits its reach. Later layers with the same or a smaller reach may attend to it too.
    """

    kv_heads: int
    key_width: int
    value_width: int
    window: int | None = None

    @property
    def numbers(self) -> int:
        """Numbers in a token's keys and values."""
        return self.kv_heads * (self.key_width + self.value_width)


@dataclass(frozen=True, slots=True)
class Windows:
    """How much layers with a window store in place of the whole context.

    tokens   the widest window: positions a token may see in such a layer, including its own
    n_pages  pages of each such layer, shared by all sequences
    n_spare  how many of these pages stay free for drafts, if possible
    """

    tokens: int
    n_pages: int
    n_spare: int

    def limit(self, layer: PagedKV) -> bool:
        """Whether a layer stores no more than this."""
        return layer.window is not None and layer.window <= self.tokens


@dataclass(frozen=True, slots=True)
class LayerState:
    """What one layer stores per sequence: float32[shape], zeros before the first token.

    `token_width`: numbers of a token from which the state is updated. They are kept for drafted tokens until these are
    accepted or rejected.
    """

    shape: tuple[int, ...]
    token_width: int

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return 4 * math.prod(self.shape)


def n_state_slots(states: tuple[LayerState, ...], n_pages: int, max_outputs: int) -> int:
    """State slots for a model whose sequences share that many pages; 0 for a model without states.

    At most as many as all pages and all sequences of a pass could use.
    """
    n_bytes = sum(state.nbytes for state in states)
    if not n_bytes:
        return 0
    return max(FEWEST_STATES, min(n_pages + max_outputs, MOST_STATE_BYTES // n_bytes))
