"""Where the weights of a lane are when not all of them stay in memory, and what the lane has read of them.

In: nothing. Out: records that the engine or a lane fills. Knows nothing of the contents of files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class OffloadedWeights:
    """Weights of which only some stay in memory; every pass reads the others from a bundle file.

    pinned          numbers of the bundles that stay
    pinned_bytes    bytes of the pinned bundles
    window_bytes    memory that the others are streamed through
    n_readers       concurrent reads
    cache_bytes     memory for experts of a mixture
    record_bytes    memory for records, and for reading them
    record_readers  concurrent reads of records
    gap_bytes       largest gap between two records that is read as well
    by_records      whether the file holds records instead of matrices for layers that can be stored so
    """

    path: Path
    fingerprint: str
    pinned: frozenset[int]
    pinned_bytes: int
    window_bytes: int
    n_readers: int
    cache_bytes: int = 0
    record_bytes: int = 0
    record_readers: int = 1
    gap_bytes: int = 0
    by_records: bool = True

    @property
    def held_bytes(self) -> int:
        """Bytes of memory for weights."""
        return self.pinned_bytes + self.window_bytes + self.cache_bytes + self.record_bytes


@dataclass(frozen=True, slots=True)
class Prepacked:
    """A bundle file from which all weights may be loaded if that is faster than packing them."""

    path: Path
    fingerprint: str


@dataclass(frozen=True, slots=True)
class WeightReads:
    """What a lane has read of its weights so far.

    Bytes; seconds that passes waited for them; reads by size; seconds during which reads were under way. For weights
    that only some passes need (experts, records): how many were needed, and of these found in memory; how many were
    read on a guess, and of these needed later. For records: how many were read; the bytes of all records of the layers
    computed; of those that are used, token by token; of those that some token of a pass uses; and what was read of
    them, in whole pages. For activations cut at a threshold, wherever the weights are: how many there were, and how
    many were kept.
    """

    n_bytes: int = 0
    waited_s: float = 0.0
    n_passes: int = 0
    sizes: Mapping[int, int] = field(default_factory=dict)
    n_wanted: int = 0
    n_found: int = 0
    n_guessed: int = 0
    n_proved: int = 0
    read_s: float = 0.0
    n_records_read: int = 0
    record_dense_bytes: int = 0
    record_token_bytes: int = 0
    record_pass_bytes: int = 0
    record_read_bytes: int = 0
    n_activations: int = 0
    n_kept: int = 0

    def __add__(self, other: WeightReads) -> WeightReads:
        sizes = {size: self.sizes.get(size, 0) + other.sizes.get(size, 0) for size in {*self.sizes, *other.sizes}}
        return WeightReads(
            self.n_bytes + other.n_bytes,
            self.waited_s + other.waited_s,
            self.n_passes + other.n_passes,
            sizes,
            self.n_wanted + other.n_wanted,
            self.n_found + other.n_found,
            self.n_guessed + other.n_guessed,
            self.n_proved + other.n_proved,
            self.read_s + other.read_s,
            self.n_records_read + other.n_records_read,
            self.record_dense_bytes + other.record_dense_bytes,
            self.record_token_bytes + other.record_token_bytes,
            self.record_pass_bytes + other.record_pass_bytes,
            self.record_read_bytes + other.record_read_bytes,
            self.n_activations + other.n_activations,
            self.n_kept + other.n_kept,
        )


@dataclass(frozen=True, slots=True)
class RecordUse:
    """How records were used: the mean share of them that a token needs, over `n_tokens` tokens.

    found: for a few increasing window sizes in tokens, (share of all records that the window holds, share of the needed
    ones that were found in it); a window holds the records that the most recent tokens needed.
    """

    share: float
    found: tuple[tuple[float, float], ...]
    n_tokens: int


class ThresholdLane(Protocol):
    """A lane that may cut activations at a threshold."""

    @property
    def activations(self) -> tuple[int, int]:
        """The number of activations so far that a threshold applied to, and how many of them were kept."""
        ...


def with_activations(reading: WeightReads, cutting: ThresholdLane | None) -> WeightReads:
    """A lane's reads, with the counts of cut activations if it may cut any."""
    if cutting is None:
        return reading
    n_activations, n_kept = cutting.activations
    return replace(reading, n_activations=n_activations, n_kept=n_kept)


class Streaming(Protocol):
    """A lane that reads part of its weights from a file."""

    @property
    def reading(self) -> WeightReads: ...

    @property
    def record_use(self) -> RecordUse | None:
        """How the records were used; None if there are none."""
        ...

    @property
    def pinned(self) -> Mapping[int, int]:
        """Bundles that stay in memory, and the bytes of each."""
        ...

    @property
    def cache_bytes(self) -> int:
        """Memory for weights that only some passes need; they stay until others are needed more."""
        ...

    def resize_cache(self, n_bytes: int) -> None:
        """Resize that memory, to at most its first size and at least what a pass needs; between two steps."""
        ...

    def pin(self, numbers: frozenset[int]) -> None:
        """Keep exactly these bundles from now on and give back the memory of the others; between two steps."""
        ...

    def shrink(self, n_bytes: int) -> int:
        """Give back up to `n_bytes` of memory for records, for good, between two steps; returns the bytes."""
        ...
