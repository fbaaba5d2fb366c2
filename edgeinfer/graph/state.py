"""What layers keep of a sequence: keys and values of its tokens, or a state of a fixed size.

Keys and values lie in pages; layers with a window need those of the window alone (`Windows`).
A state is what a convolution or a recurrence needs of all tokens before the next one. It cannot be cut back: to go back
to an earlier position a copy of it from there is needed, a checkpoint. Which slot of a device's memory holds whose
state is decided by the engine (`engine.kv.states`); ops say how it goes on with a token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PagedKV:
    """What one layer keeps of each token: `kv_heads` keys of `key_width` and values of `value_width`.

    `window` limits its reach. Later layers may attend to it too, if they reach no further.
    """

    kv_heads: int
    key_width: int
    value_width: int
    window: int | None = None

    @property
    def numbers(self) -> int:
        """Numbers of a token's keys and values."""
        return self.kv_heads * (self.key_width + self.value_width)


@dataclass(frozen=True, slots=True)
class Windows:
    """How much layers with a window keep: no whole contexts.

    tokens   the widest window: so many positions, its own among them, a token may see in such a layer
    n_pages  pages of each such layer, for all sequences together
    n_spare  of them so many are free, where they can be, for drafts
    """

    tokens: int
    n_pages: int
    n_spare: int

    def limit(self, layer: PagedKV) -> bool:
        """Whether a layer keeps no more than this."""
        return layer.window is not None and layer.window <= self.tokens


@dataclass(frozen=True, slots=True)
class LayerState:
    """What one layer keeps of a sequence: float32[shape], zeros before the first token.

    `token_width`: numbers of a token by which the state goes on. They are held for drafted tokens until these are
    accepted or rejected.
    """

    shape: tuple[int, ...]
    token_width: int

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
        return 4 * math.prod(self.shape)


MOST_STATE_BYTES = 256 << 20
"""States and their checkpoints take so much, unless FEWEST_STATES take more."""
FEWEST_STATES = 8
"""Slots for one sequence: where it is, where a pass brings it, and checkpoints of the last few hundred tokens."""
SLOTS_IN_PASS = 2
"""Slots of a sequence in a pass: the state it is at, and the one that the pass brings it to."""


def n_state_slots(states: tuple[LayerState, ...], n_pages: int, max_outputs: int) -> int:
    """Slots for the states of a model whose sequences share so many pages; 0 for a model without states.

    No more than every page and every sequence of a pass could have.
    """
    n_bytes = sum(state.nbytes for state in states)
    if not n_bytes:
        return 0
    return max(FEWEST_STATES, min(n_pages + max_outputs, MOST_STATE_BYTES // n_bytes))
