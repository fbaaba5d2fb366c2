"""Where a lane's weights are that do not all stay in memory, and what it has read of them.

In: nothing. Out: records that the engine fills, or a lane. Knows no files' contents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class OffloadedWeights:
    """Weights of which only some stay in memory; the others come from a bundle file in every pass.

    pinned          numbers of the bundles that stay
    pinned_bytes    what they take
    window_bytes    memory that the others pass through
    n_readers       reads under way at a time
    cache_bytes     memory for experts of a mixture
    neuron_bytes    memory for single neurons, and for reading them
    neuron_readers  reads of neurons under way at a time
    gap_bytes       between two neurons that are read along
    by_neurons      whether the file has single neurons of layers with zeros in their activations
    """

    path: Path
    fingerprint: str
    pinned: frozenset[int]
    pinned_bytes: int
    window_bytes: int
    n_readers: int
    cache_bytes: int = 0
    neuron_bytes: int = 0
    neuron_readers: int = 1
    gap_bytes: int = 0
    by_neurons: bool = True

    @property
    def held_bytes(self) -> int:
        """Memory for weights."""
        return self.pinned_bytes + self.window_bytes + self.cache_bytes + self.neuron_bytes


@dataclass(frozen=True, slots=True)
class Prepacked:
    """A bundle file that all weights may be read from at the start, where that is faster than to pack them."""

    path: Path
    fingerprint: str


@dataclass(frozen=True, slots=True)
class WeightReads:
    """What a lane has read of its weights so far.

    Bytes, seconds that passes waited for them, reads by their size, seconds in which reads were under way. Of what only
    some passes need (experts, neurons): how many were wanted, and found in memory; how many were read on a guess, and
    then wanted. Of neurons: how many were read; the bytes of all of them, layer after layer; of those that fire for
    each token by itself; of those that fire for some token of a pass; and what was read of them, in whole pages. Of
    activations that are cut at a threshold, wherever weights are: how many there were, and how many were kept.
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
    n_neurons_read: int = 0
    neuron_dense_bytes: int = 0
    neuron_token_bytes: int = 0
    neuron_pass_bytes: int = 0
    neuron_read_bytes: int = 0
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
            self.n_neurons_read + other.n_neurons_read,
            self.neuron_dense_bytes + other.neuron_dense_bytes,
            self.neuron_token_bytes + other.neuron_token_bytes,
            self.neuron_pass_bytes + other.neuron_pass_bytes,
            self.neuron_read_bytes + other.neuron_read_bytes,
            self.n_activations + other.n_activations,
            self.n_kept + other.n_kept,
        )


@dataclass(frozen=True, slots=True)
class Fired:
    """How neurons fired: what share for a token, of `n_tokens` that were seen.

    found: (share of all neurons, share of those that fire that are among them) of the neurons that fired last, for a
    few, increasing numbers of tokens.
    """

    share: float
    found: tuple[tuple[float, float], ...]
    n_tokens: int


class ThresholdLane(Protocol):
    """A lane that may cut activations at a threshold."""

    @property
    def activations(self) -> tuple[int, int]:
        """How many were cut or kept so far, and how many were kept."""
        ...


def with_activations(reading: WeightReads, cutting: ThresholdLane | None) -> WeightReads:
    """What a lane has read, with what it has cut, if it may cut anything."""
    if cutting is None:
        return reading
    n_activations, n_kept = cutting.activations
    return replace(reading, n_activations=n_activations, n_kept=n_kept)


class Streaming(Protocol):
    """A lane whose weights come from a file in part."""

    @property
    def reading(self) -> WeightReads: ...

    @property
    def fired(self) -> Fired | None:
        """How neurons fired that are read singly; None where none are."""
        ...

    @property
    def pinned(self) -> Mapping[int, int]:
        """Bundles that stay in memory, and the bytes of each."""
        ...

    @property
    def cache_bytes(self) -> int:
        """Memory for what only some passes need, which is kept as long as nothing else is needed more."""
        ...

    def resize_cache(self, n_bytes: int) -> None:
        """Have so much of it from now on, no more than at first and no less than a pass needs; between two steps."""
        ...

    def pin(self, numbers: frozenset[int]) -> None:
        """Keep these bundles from now on, and give the memory of the others back; between two steps."""
        ...

    def shrink(self, n_bytes: int) -> int:
        """Give back so many bytes of what comes and goes, or what can be; for good, between two steps. How many."""
        ...
