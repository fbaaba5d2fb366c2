"""The cost of an op, as counts derived from its record alone: weights read, products, attention, elements written.

Independent of any machine's speed: measured rates belong to scheduling. No cost depends on the name of a buffer.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.weights import Weight


def share_read(experts: int, active: int, n_tokens: int) -> float:
    """The expected share of experts used by `n_tokens`, with `active` experts per token, all equally likely."""
    return 1.0 - (1.0 - active / experts) ** n_tokens


@dataclass(frozen=True, slots=True)
class MatMulCost:
    """Rows times a matrix, or times `experts` matrices of the same shape, `active` of which are used per row.

    `weight` is the (first) matrix. `source` is the buffer whose rows are multiplied; None if preparing them is counted
    as elements.
    """

    weight: Weight
    source: str | None
    experts: int = 1
    active: int = 1

    def share_read(self, n_tokens: int) -> float:
        """The expected share of the matrices read by a pass of that many tokens."""
        return share_read(self.experts, self.active, n_tokens)

    def multiply_adds(self, n_tokens: int) -> int:
        """Multiply-adds for that many tokens."""
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
        """Bytes of a cached token in this layer."""
        return self.kv_heads * (self.key_width + self.value_width) * element_bytes

    @property
    def n_taken(self) -> int:
        """Numbers that attention reads per token: queries, keys and values."""
        return self.heads * self.key_width + self.kv_heads * (self.key_width + self.value_width)

    @property
    def n_given(self) -> int:
        """Numbers that attention writes per token."""
        return self.heads * self.value_width

    def reach(self, n_tokens: int, n_cached: int) -> int:
        """Cached positions read by a pass of that many tokens, including the tokens' own."""
        return n_tokens + min(n_cached, self.window or n_cached)

    def multiply_adds(self, n_tokens: int, n_cached: int) -> float:
        """Multiply-adds of scores and value sums, for `n_tokens` consecutive tokens after `n_cached`."""
        first, last = n_cached + 1, n_cached + n_tokens
        if self.window is None or last <= self.window:
            seen = (first + last) * n_tokens / 2
        else:
            below = max(0, self.window - first + 1)  # tokens that attend to everything before them
            seen = (first + first + below - 1) * below / 2 + (n_tokens - below) * self.window
        return self.heads * (self.key_width + self.value_width) * seen


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one op. `gathered`: weights of which each token reads one row; `vectors`: small weights read whole.

    `n_elements`: numbers written per token outside products and attention.
    """

    gathered: tuple[Weight, ...] = ()
    vectors: tuple[Weight, ...] = ()
    products: tuple[MatMulCost, ...] = ()
    attention: AttentionHeads | None = None
    n_elements: int = 0
