"""Which neurons of a model with zeros in its activations fire, and what must be read of them.

In: what earlier runs saw, or what is usual; how many neurons there are and have room; what reads take. Out: reads and
bytes that a pass is expected to make. Knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import expm1

from edgeinfer.scheduling.offload.small_reads import PAGE_BYTES, READ_BYTES, ReadTimes

USUAL_SHARE = 0.1
"""Of neurons that fire for a token, where no run has shown it: trained ReLU models have 90 to 97 % zeros (LLM in a
flash, arXiv 2312.11514, section 3)."""

LONGEST = 700.0
"""Times the mean length: no run is so long, and numbers have no room for what follows from more."""


@dataclass(frozen=True, slots=True)
class Firing:
    """How the neurons of a model fire.

    share     of neurons that fire for a token
    found     (share of neurons in memory, share of those that fire that are among them), both increasing: of the
              neurons that fired last; () where nobody saw it
    n_tokens  that this was seen of; 0 where it is assumed
    """

    share: float = USUAL_SHARE
    found: tuple[tuple[float, float], ...] = ()
    n_tokens: int = 0

    @property
    def says(self) -> str:
        """Where this comes from, in words."""
        seen = f"seen of {self.n_tokens} tokens" if self.n_tokens else "assumed: no run has shown it yet"
        return f"{100 * self.share:.3g} % of neurons fire for a token ({seen})"

    def found_share(self, held: float) -> float:
        """Share of the neurons a token wants that are in memory, where a share `held` of all is: those that fired last.

        Less than one token wants are of no use: they push each other out. Where nobody saw it, neurons fire by chance.
        """
        if held >= 1:
            return 1.0
        points = [*(self.found or ((self.share, self.share),)), (1.0, 1.0)]
        for (low, below), (high, above) in pairwise(points):
            if low <= held < high:
                return below + (above - below) * (held - low) / (high - low)
        return 0.0

    def union(self, n_tokens: float) -> float:
        """Share of neurons that fire for some of so many tokens, if they did so by chance: at most so many do."""
        return float(1 - (1 - min(self.share, 1.0)) ** n_tokens)


@dataclass(frozen=True, slots=True)
class NeuronReads:
    """Reads of neurons that a pass makes: how many, their bytes, the disk's seconds, and those around them."""

    n_reads: float
    n_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True)
class FiringNeurons:
    """Neurons of a model of which `held` have room in memory.

    count         in all layers
    record_bytes  of one
    n_layers      in which they are asked for one after the other
    times         that reads take
    """

    count: int
    record_bytes: float
    n_layers: int
    held: float
    firing: Firing
    times: ReadTimes

    def reads(self, n_tokens: int = 1) -> NeuronReads:
        """What a pass reads: missing ones lie at random, and near ones are read together with what lies between.

        Gaps between records that are read at random places have an exponential distribution of sizes.
        """
        share = self.firing.union(n_tokens)
        held = self.held / self.count
        found = 1.0 if held >= 1 else self.firing.found_share(held) if share <= held else 0.0
        missing = share * (1 - found)
        if missing <= 0:
            return NeuronReads(0.0, 0.0, 0.0)
        n_records = self.count * missing
        apart, between = self._gaps(missing)
        n_runs = max(n_records * apart, min(self.n_layers, n_records))
        n_bytes = n_records * (self.record_bytes + between)
        near = between / (1 - apart) if apart < 1 else 0.0
        length = (READ_BYTES + near) / (n_bytes / n_runs)
        cuts = n_runs / expm1(min(length, LONGEST))  # runs of any length are as likely to go on
        n_bytes += PAGE_BYTES * (n_runs + cuts) - min(2 * near, READ_BYTES) * cuts  # nothing is read around a cut
        waiting = self.times.first_s * min(self.n_layers, n_records)  # each layer is asked for by itself
        return NeuronReads(n_runs + cuts, n_bytes, waiting + self.times.seconds(n_runs + cuts, n_bytes))

    def _gaps(self, missing: float) -> tuple[float, float]:
        """Share of records that begin another read, and bytes before each that are read along, on average.

        As records lie on pages, a gap counts half a page to one and a half less than it has.
        """
        pages = self.times.gap_bytes // PAGE_BYTES
        apart, between, likely = 1.0, 0.0, missing
        for number in range(int((pages + 2) * PAGE_BYTES / self.record_bytes) + 1):
            joined = likely * max(0.0, min(1.0, pages + 2 - number * self.record_bytes / PAGE_BYTES))
            apart -= joined
            between += joined * number * self.record_bytes
            likely *= 1 - missing
        return max(apart, 0.0), between
