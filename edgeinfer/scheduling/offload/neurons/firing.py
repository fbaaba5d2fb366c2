"""Which neurons of a model with sparse activations fire, and what is read of them in a pass.

In: counts of earlier runs or typical values; how many neurons there are and how many fit in memory; the costs of reads.
Out: expected reads and bytes of a pass. Knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import expm1

from edgeinfer.scheduling.offload.reads import PAGE_BYTES, READ_BYTES, ReadTimes, RecordReads

USUAL_SHARE = 0.1
"""Share of neurons that fire for a token, before any run has counted it: trained ReLU models have 90 to 97 % zeros (LLM
in a flash, arXiv 2312.11514, section 3)."""
LONGEST = 700.0
"""Longest run, as a multiple of the mean length; longer ones are ignored, which also prevents overflow."""


@dataclass(frozen=True, slots=True)
class Firing:
    """How the neurons of a model fire.

    share     of neurons that fire for a token
    found     (share of neurons in memory, share of firing neurons among them), both increasing, with the neurons that
              fired last in memory; () if not counted
    n_tokens  number of tokens counted; 0 if assumed
    """

    share: float = USUAL_SHARE
    found: tuple[tuple[float, float], ...] = ()
    n_tokens: int = 0

    @property
    def says(self) -> str:
        """The source of these numbers, in words."""
        seen = f"seen of {self.n_tokens} tokens" if self.n_tokens else "assumed: no run has shown it yet"
        return f"{100 * self.share:.3g} % of neurons fire for a token ({seen})"

    def found_share(self, held: float) -> float:
        """Share of a token's firing neurons that are in memory, if memory holds the share `held` that fired last.

        Room for fewer neurons than one token needs is of no use: they evict each other. Without counts, firing is taken
        to be random.
        """
        if held >= 1:
            return 1.0
        points = [*(self.found or ((self.share, self.share),)), (1.0, 1.0)]
        for (low, below), (high, above) in pairwise(points):
            if low <= held < high:
                return below + (above - below) * (held - low) / (high - low)
        return 0.0

    def union(self, n_tokens: float) -> float:
        """Share of neurons that fire for at least one of this many tokens, if firing were random: an upper bound."""
        return float(1 - (1 - min(self.share, 1.0)) ** n_tokens)


@dataclass(frozen=True, slots=True)
class FiringNeurons:
    """Neurons of a model, `held` of which fit in memory.

    count         in all layers
    record_bytes  of one
    n_layers      that are requested one after another
    times         of reads
    """

    count: int
    record_bytes: float
    n_layers: int
    held: float
    firing: Firing
    times: ReadTimes

    @property
    def holds_all(self) -> bool:
        """Whether all neurons fit in memory."""
        return self.held >= self.count

    def reads(self, n_tokens: int = 1) -> RecordReads:
        """The reads of a pass: missing neurons lie at random, and near ones are read with the gap between them.

        Gaps between records at random places are exponentially distributed.
        """
        share = self.firing.union(n_tokens)
        held = self.held / self.count
        found = 1.0 if held >= 1 else self.firing.found_share(held) if share <= held else 0.0
        missing = share * (1 - found)
        if missing <= 0:
            return RecordReads(0.0, 0.0, 0.0)
        n_records = self.count * missing
        apart, between = self._gaps(missing)
        n_runs = max(n_records * apart, min(self.n_layers, n_records))
        n_bytes = n_records * (self.record_bytes + between)
        near = between / (1 - apart) if apart < 1 else 0.0
        length = (READ_BYTES + near) / (n_bytes / n_runs)
        cuts = n_runs / expm1(min(length, LONGEST))  # memoryless: a run of any length is as likely to go on
        n_bytes += PAGE_BYTES * (n_runs + cuts) - min(2 * near, READ_BYTES) * cuts  # no gap is read at a cut
        waiting = self.times.first_s * min(self.n_layers, n_records)  # each layer is requested separately
        return RecordReads(n_runs + cuts, n_bytes, waiting + self.times.seconds(n_runs + cuts, n_bytes))

    def _gaps(self, missing: float) -> tuple[float, float]:
        """Share of records that start another read, and the mean number of extra bytes read before each of the others.

        Because records lie on pages, a gap counts half a page to one and a half pages less than its length.
        """
        pages = self.times.gap_bytes // PAGE_BYTES
        apart, between, likely = 1.0, 0.0, missing
        for number in range(int((pages + 2) * PAGE_BYTES / self.record_bytes) + 1):
            joined = likely * max(0.0, min(1.0, pages + 2 - number * self.record_bytes / PAGE_BYTES))
            apart -= joined
            between += joined * number * self.record_bytes
            likely *= 1 - missing
        return max(apart, 0.0), between
