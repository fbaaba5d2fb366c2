"""What every op says of itself: what it reads and writes, its weights, what it costs, and what it means in NumPy.

An op is a frozen record. Shapes use one legend: T new tokens of a pass, O rows whose logits are requested, D model
width, H / G query / kv heads, K head width, F FFN width, V vocabulary, E experts. Knows no file, no device and no plan.
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
    """A buffer that an op reads or writes, and the width it takes it to have."""

    buffer: str
    width: int


class OpContext(Protocol):
    """What the meaning of an op is computed in: buffers, weights and caches of one pass.

    values         the rows of each buffer, float32[T or O, width], which ops replace
    visible_slots  the KV slots that each token attends to, by position: int64[S] for each
    """

    step: Step
    values: dict[str, Floats]
    visible_slots: Sequence[NDArray[np.int64]]

    def matrix(self, weight: Weight) -> Floats:
        """float32[rows, columns]."""
        ...

    def vector(self, weight: Weight) -> Floats:
        """float32[rows]."""
        ...

    def rotations(self, table: RopeTable, sections: RopeSections | None) -> tuple[Floats, Floats]:
        """Cosines and sines of the tokens' positions, by pairs: float32[T, rotary_width / 2] each."""
        ...

    def rounds(self, weight: Weight) -> bool:
        """Whether rows are rounded before they are multiplied by this matrix, as integer devices do."""
        ...

    def rounded(self, op: Op, name: str, rows: Floats) -> Floats:
        """What a product reads instead of rows float32[n, width], rounded. `name`: their buffer's."""
        ...

    def kept(self, op: Op, name: str, head_width: int) -> Floats:
        """The rows of a buffer as a KV cache keeps them: float32[T, G * K]."""
        ...

    def queried(self, op: Op, name: str, scale: float, head_width: int) -> Floats:
        """The rows of a buffer times `scale` as they meet cached keys: float32[T, H * K]."""
        ...

    def scored(self, op: Op, name: str) -> Floats:
        """The rows of a buffer as choices are made by them: float32[T, E]."""
        ...

    def walk(self, state: int, advance: Callable[[int, Floats], Floats]) -> None:
        """Go through the tokens of the pass in order with a layer's state.

        advance(token, before) gives the state after a token from that after the token before it: float32[shape] both.
        """
        ...

    def located(self, layer: int, slots: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """Where the cache of a layer has slots: elsewhere in one that keeps only a window."""
        ...

    def cache(self, layer: int) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Keys and values of a cache: float[slots, G, key or value width], to be read and written."""
        ...


class Op(ABC):
    """One op. Its subclasses, one file each in `graph/ops`, are frozen records."""

    __slots__ = ()

    readies_rows: ClassVar[bool] = False
    """Whether a device may round the rows it writes for the products that follow at no cost of their own."""
    takes_outputs: ClassVar[bool] = False
    """Whether it leaves only the rows whose logits are requested."""

    @property
    def kind(self) -> str:
        """Its name: that of its file, here and in the folders of devices."""
        return type(self).__module__.rpartition(".")[2]

    @property
    @abstractmethod
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        """The buffers whose contents it depends on, and those it changes."""

    @property
    def matrices(self) -> tuple[Weight, ...]:
        """Weights that are matrices: rows of numbers."""
        return ()

    @property
    def vectors(self) -> tuple[Weight, ...]:
        """Weights that are single numbers in a row."""
        return ()

    @property
    @abstractmethod
    def cost(self) -> Cost:
        """What it costs."""

    @abstractmethod
    def evaluate(self, context: OpContext) -> None:
        """What it means: change the buffers it writes, or a cache."""

    @property
    def reads(self) -> frozenset[str]:
        """Names of the buffers whose contents it depends on."""
        return frozenset(access.buffer for access in self.accesses[0])

    @property
    def writes(self) -> frozenset[str]:
        """Names of the buffers that it changes."""
        return frozenset(access.buffer for access in self.accesses[1])
