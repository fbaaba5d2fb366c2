"""What every op declares: the buffers and weights it reads and writes, its cost, and its meaning in NumPy.

An op is a frozen record. Its cost follows from the record alone, as counts: weights read, products, attention, elements
written; seconds are derived elsewhere. Shapes use one legend: T new tokens of a pass, O rows whose logits are
requested, D model width, H / G query / kv heads, K head width, F FFN width, V vocabulary, E experts. Independent of
files, devices and plans.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from edgeinfer.graph.operands import Precision, Weight

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgeinfer.graph.rotary import RopeSections, RopeTable
    from edgeinfer.graph.step import Floats, Step


def share_read(experts: int, active: int, n_tokens: int) -> float:
    """The expected share of experts used by `n_tokens`, with `active` experts per token, all equally likely."""
    return 1.0 - (1.0 - active / experts) ** n_tokens


@dataclass(frozen=True, slots=True)
class MatMulCost:
    """Rows times a matrix, or times `experts` matrices of the same shape, `active` of which are used per row.

    `weight` is the (first) matrix. `source` is the buffer whose rows are multiplied; None if preparing them is counted
    as elements. `precision`: what is enough of weights that are floats.
    """

    weight: Weight
    source: str | None
    experts: int = 1
    active: int = 1
    precision: Precision = "highest"

    def share_read(self, n_tokens: int) -> float:
        """The expected share of the matrices read by a pass of that many tokens."""
        return share_read(self.experts, self.active, n_tokens)

    def multiply_adds(self, n_tokens: int) -> int:
        """Multiply-adds for that many tokens."""
        return self.weight.n_rows * self.weight.columns * self.active * n_tokens


@dataclass(frozen=True, slots=True)
class BlockAttention:
    """Blocks of `size` tokens of a prompt, `sampled` of which choose `budget` positions that all of them attend to."""

    size: int
    budget: int
    sampled: int


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """Attention of one layer: query heads, key/value heads, widths of keys and values, and the window, if any.

    `blocks`: what blocks of a prompt attend to, if not to everything. Without `causal` tokens of a pass attend to those
    after them too, within the window if there is one, or to `span` of them on average, where passes state what each
    sees (infinite: that is not known). `precision`: what is enough.
    """

    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    window: int | None = None
    blocks: BlockAttention | None = None
    causal: bool = True
    precision: Precision = "highest"
    span: float | None = None

    @property
    def whole(self) -> bool:
        """Whether every token attends to all of its text, and need not be exact."""
        return not self.causal and self.window is None and self.precision != "highest"

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
        if not self.causal:
            each: float = n_cached + n_tokens
            each = each if self.window is None else min(each, 2 * self.window - 1)
            each = each if self.span is None else min(each, self.span)
            return self.heads * (self.key_width + self.value_width) * n_tokens * each
        blocks = None if self.blocks is None or n_tokens < self.blocks.size else self.blocks
        most, seen = self.window if blocks is None else blocks.budget, _positions(n_tokens, n_cached, None)
        chosen = seen if most is None else _positions(n_tokens, n_cached, most)
        found = self.heads * (self.key_width + self.value_width) * chosen
        if blocks is not None and chosen < seen:
            found += self.heads * self.key_width * seen * blocks.sampled / blocks.size
        return found


def _positions(n_tokens: int, n_cached: int, most: int | None) -> float:
    """Positions that `n_tokens` consecutive tokens after `n_cached` attend to, `most` each, if that is limited."""
    first, last = n_cached + 1, n_cached + n_tokens
    if most is None or last <= most:
        return (first + last) * n_tokens / 2
    below = max(0, most - first + 1)  # tokens that attend to everything before them
    return (first + first + below - 1) * below / 2 + (n_tokens - below) * most


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


class Access(NamedTuple):
    """A buffer that an op reads or writes, with the width it expects."""

    buffer: str
    width: int


class OpContext(Protocol):
    """The environment in which an op's meaning is evaluated: buffers, weights and caches of one pass.

    values         the rows of each buffer, float32[T or O, width]; ops replace them
    visible_slots  the KV slots each token attends to, ordered by position: int64[S] each
    """

    step: Step
    values: dict[str, Floats]
    visible_slots: Sequence[NDArray[np.int64]]

    def matrix(self, weight: Weight) -> Floats:
        """A matrix: float32[rows, columns]."""
        ...

    def vector(self, weight: Weight) -> Floats:
        """A vector: float32[rows]."""
        ...

    def rotations(self, table: RopeTable, sections: RopeSections | None) -> tuple[Floats, Floats]:
        """Cosines and sines of the tokens' positions, per rotary pair: float32[T, rotary_width / 2] each."""
        ...

    def rounds(self, weight: Weight) -> bool:
        """Whether rows are rounded before a product with this matrix, as integer devices do."""
        ...

    def rounded(self, op: Op, name: str, rows: Floats) -> Floats:
        """The rounded rows a product reads in place of rows float32[n, width]. `name` is their buffer."""
        ...

    def kept(self, op: Op, name: str, head_width: int, *, is_key: bool) -> Floats:
        """The rows of a buffer as a KV cache stores keys, or values: float32[T, G * K]."""
        ...

    def queried(self, op: Op, name: str, scale: float, head_width: int) -> Floats:
        """The rows of a buffer times `scale`, as they are multiplied with cached keys: float32[T, H * K]."""
        ...

    def summarised(self, rows: Floats) -> Floats:
        """Keys and queries [..., K] as budgets compare them: rotated if the cache holds rotated keys."""
        ...

    def scored(self, op: Op, name: str) -> Floats:
        """The rows of a buffer as they are used for choosing experts: float32[T, E]."""
        ...

    def walk(self, state: int, advance: Callable[[int, Floats], Floats]) -> None:
        """Update a layer's state with the tokens of the pass, in order.

        advance(token, before) returns the state after a token, given the state before it; both are float32[shape].
        """
        ...

    def located(self, layer: int, slots: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """Where a layer's cache stores these slots; differs in a cache that keeps only a window."""
        ...

    def cache(self, layer: int) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Keys and values of a cache: float[slots, G, key or value width], readable and writable."""
        ...


class Op(ABC):
    """One op. Subclasses, one file each in `graph/ops`, are frozen records."""

    __slots__ = ()

    readies_rows: ClassVar[bool] = False
    """Whether a device may round the rows it writes for the products that follow, at no extra cost."""
    takes_outputs: ClassVar[bool] = False
    """Whether it reduces the rows to those whose logits are requested."""

    @property
    def kind(self) -> str:
        """Its name: that of its file, here and in the devices' folders."""
        return type(self).__module__.rpartition(".")[2]

    @property
    @abstractmethod
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        """The buffers it reads, and those it changes."""

    @property
    def matrices(self) -> tuple[Weight, ...]:
        """Its weights that are matrices."""
        return ()

    @property
    def vectors(self) -> tuple[Weight, ...]:
        """Its weights that are vectors."""
        return ()

    @property
    @abstractmethod
    def cost(self) -> Cost:
        """Its cost."""

    @abstractmethod
    def evaluate(self, context: OpContext) -> None:
        """Its meaning: update the buffers it writes, or a cache."""

    @property
    def reads(self) -> frozenset[str]:
        """Names of the buffers it reads."""
        return frozenset(access.buffer for access in self.accesses[0])

    @property
    def writes(self) -> frozenset[str]:
        """Names of the buffers it changes."""
        return frozenset(access.buffer for access in self.accesses[1])
