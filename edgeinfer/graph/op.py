"""What every op declares: the buffers and weights it reads and writes, its cost, and its meaning in NumPy.

An op is a frozen record. Shapes use one legend: T new tokens of a pass, O rows whose logits are requested, D model
width, H / G query / kv heads, K head width, F FFN width, V vocabulary, E experts. Independent of files, devices and
plans.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from edgeinfer.graph.cost import Cost
from edgeinfer.graph.weights import Weight

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgeinfer.graph.rotary import RopeSections, RopeTable
    from edgeinfer.graph.step import Floats, Step


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

    def kept(self, op: Op, name: str, head_width: int) -> Floats:
        """The rows of a buffer as a KV cache stores them: float32[T, G * K]."""
        ...

    def queried(self, op: Op, name: str, scale: float, head_width: int) -> Floats:
        """The rows of a buffer times `scale`, as they are multiplied with cached keys: float32[T, H * K]."""
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
