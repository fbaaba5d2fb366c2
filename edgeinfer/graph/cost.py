"""What an op costs, as counts that its record alone decides: weights read, products, attention, elements written.

Nobody's speeds: rates of a machine are the business of scheduling. No cost depends on the name of a buffer.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.weights import Weight


def share_read(experts: int, active: int, n_tokens: int) -> float:
    """The share of the experts that `n_tokens` are expected to have, `active` each, all equally likely."""
    return 1.0 - (1.0 - active / experts) ** n_tokens


@dataclass(frozen=True, slots=True)
class MatMulCost:
    """Rows times a matrix, or times each of `experts` alike matrices of which a row has `active`. `weight`: the first.

    `source`: the buffer whose rows are multiplied; None where what it takes to prepare them is counted as elements.
    """

    weight: Weight
    source: str | None
    experts: int = 1
    active: int = 1

    def share_read(self, n_tokens: int) -> float:
        """The share of the matrices that a pass of so many tokens is expected to read."""
        return share_read(self.experts, self.active, n_tokens)

    def multiply_adds(self, n_tokens: int) -> int:
        """Multiply-adds for so many tokens."""
        return self.weight.n_rows * self.weight.columns * self.active * n_tokens


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """Attention of one layer: query heads, key/value heads, widths of keys and values, and the window, if any."""

    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    window: int | None = None

    def kv_bytes_per_token(self, element_bytes: float = 2.0) -> float:
        """Bytes that a cached token takes in this layer."""
        return self.kv_heads * (self.key_width + self.value_width) * element_bytes

    @property
    def n_taken(self) -> int:
        """Numbers of a token that attention takes in: queries, keys and values."""
        return self.heads * self.key_width + self.kv_heads * (self.key_width + self.value_width)

    @property
    def n_given(self) -> int:
        """Numbers that it gives for a token."""
        return self.heads * self.value_width

    def reach(self, n_tokens: int, n_cached: int) -> int:
        """Cached positions that a pass of so many tokens looks at, the tokens' own included."""
        return n_tokens + min(n_cached, self.window or n_cached)

    def multiply_adds(self, n_tokens: int, n_cached: int) -> float:
        """Of scores and of blending, for `n_tokens` in a row after `n_cached`."""
        first, last = n_cached + 1, n_cached + n_tokens
        if self.window is None or last <= self.window:
            seen = (first + last) * n_tokens / 2
        else:
            below = max(0, self.window - first + 1)  # tokens that see everything before them
            seen = (first + first + below - 1) * below / 2 + (n_tokens - below) * self.window
        return self.heads * (self.key_width + self.value_width) * seen


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one op. `gathered`: weights of which a token reads a row; `vectors`: those read whole, which are small.

    `n_elements`: numbers written for a token beside products and attention.
    """

    gathered: tuple[Weight, ...] = ()
    vectors: tuple[Weight, ...] = ()
    products: tuple[MatMulCost, ...] = ()
    attention: AttentionHeads | None = None
    n_elements: int = 0
