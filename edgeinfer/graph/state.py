"""What layers store per sequence: keys and values of its tokens, or a state of fixed size.

Keys and values are stored in pages; layers with a window store only the pages of the window (`Windows`). A state is
what a convolution or a recurrence carries from all earlier tokens to the next one. It cannot be truncated: returning to
an earlier position requires a copy made there, a checkpoint. The engine decides which slot of a device's memory holds
which state (`engine.kv.states`); ops define how a token updates it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


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


MOST_STATE_BYTES = 256 << 20
"""Bytes for states and checkpoints, unless FEWEST_STATES need more."""
FEWEST_STATES = 8
"""Slots per sequence: its state, the state after the pass, and checkpoints of the last few hundred tokens."""
SLOTS_IN_PASS = 2
"""Slots per sequence in a pass: the state before it and the state after it."""


def n_state_slots(states: tuple[LayerState, ...], n_pages: int, max_outputs: int) -> int:
    """State slots for a model whose sequences share that many pages; 0 for a model without states.

    At most as many as all pages and all sequences of a pass could use.
    """
    n_bytes = sum(state.nbytes for state in states)
    if not n_bytes:
        return 0
    return max(FEWEST_STATES, min(n_pages + max_outputs, MOST_STATE_BYTES // n_bytes))
