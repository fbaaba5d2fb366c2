"""Schedules of one decoding pass, and the one that is predicted to make the most tokens, corrected by measurements.

In: costs, the sequences whose KV cache is on the accelerator (resident) and those whose KV cache is in the machine's
memory (offloaded). Out: a `Prediction`: seconds of a pass and tokens it makes, in closed form.

- accelerator-only: resident sequences advance, offloaded ones wait.
- asymmetric: the pass is split in two, so every weight is read twice. While the accelerator runs the matmuls of one
  half (and attention of the resident ones, all in the first half), the CPU attends for the offloaded ones of the other
  (NEO, Jiang et al., arXiv 2411.01142). A layer takes the longer of both in each half.
- overlap: one pass of all. The accelerator sends off the offloaded sequences' queries and goes on without them; they
  rejoin at the same layer of a later pass, when the CPU's result is ready (APEX, Fan et al., arXiv 2506.03296). They
  advance one layer per pass, spread over all layers, and weights are read once. The CPU may use the whole pass. A token
  takes one pass more than there are layers, because its first queries are made where the previous pass made the last
  token.

Offloaded sequences that would only lengthen a pass are left out of it; the caller lets them take turns. A `Correction`
multiplies the prediction of each schedule by the median of its last ratios of measured to predicted tokens per second,
and chooses the schedule to run next: one whose prediction is close to the best is tried before it is judged.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from edgeinfer.scheduling.batch.costs import BatchCosts, SequenceGroup

Schedule = Literal["accelerator-only", "asymmetric", "overlap"]
SCHEDULES: tuple[Schedule, ...] = ("accelerator-only", "asymmetric", "overlap")
NAMES: Mapping[str, tuple[Schedule, ...]] = MappingProxyType(
    {"apex": SCHEDULES, **{name: (name,) for name in SCHEDULES}}
)
"""The schedules each name chooses among; APEX chooses among all of them."""
LAST = 9
"""Ratios kept; their median tolerates four outliers."""
ENOUGH = 4
"""Ratios after which a schedule counts as tried."""
NEAR = 0.5
"""Share of the best prediction at which another schedule is worth a try: predictions are off by as much."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A pass. `n_offloaded` take part; the CPU attends to `behind` of them during the other half's matmuls.

    Each resident sequence gains a token; all offloaded ones together gain `offloaded_tokens`.
    """

    schedule: Schedule
    seconds: float
    n_resident: int
    n_offloaded: int = 0
    behind: int = 0
    offloaded_tokens: float = 0.0

    @property
    def tokens(self) -> float:
        return self.n_resident + self.offloaded_tokens

    @property
    def tok_s(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


def accelerator_only(costs: BatchCosts, resident: SequenceGroup) -> Prediction:
    """The resident sequences alone."""
    layer_s = costs.products_s(resident.n) + costs.attention_s(resident)
    return Prediction("accelerator-only", costs.n_layers * layer_s + costs.tail_s(resident.n), resident.n)


def asymmetric_s(costs: BatchCosts, resident: SequenceGroup, offloaded: SequenceGroup, behind: int) -> float:
    """Seconds of a pass in two halves: resident and other offloaded sequences, and `behind` offloaded ones."""
    other, rest = offloaded.part(behind), offloaded.part(offloaded.n - behind)
    first_s = costs.products_s(resident.n + rest.n) + costs.attention_s(resident)
    second_s = costs.products_s(behind)
    layer_s = max(first_s, costs.offloaded_s(other) if other.n else 0.0)
    layer_s += max(second_s, costs.offloaded_s(rest) if rest.n else 0.0)
    return costs.n_layers * layer_s + costs.tail_s(resident.n + rest.n) + costs.tail_s(behind)


def asymmetric(costs: BatchCosts, resident: SequenceGroup, offloaded: SequenceGroup) -> Prediction:
    """Two halves, with the number of offloaded sequences that makes the most tokens per second."""
    best = accelerator_only(costs, resident)
    best = Prediction("asymmetric", best.seconds, resident.n)
    for n in _sizes(offloaded.n):
        group = offloaded.part(n)
        for behind in _splits(costs, resident, group):
            seconds = asymmetric_s(costs, resident, group, behind)
            found = Prediction("asymmetric", seconds, resident.n, n, behind, n)
            if found.tok_s > best.tok_s:
                best = found
    return best


def _sizes(n: int) -> list[int]:
    """Numbers of sequences worth trying: all small ones, then in steps of a sixteenth."""
    sizes, size = [], 1
    while size < n:
        sizes.append(size)
        size += max(1, size // 16)
    return [*sizes, n] if n else []


def _splits(costs: BatchCosts, resident: SequenceGroup, group: SequenceGroup) -> set[int]:
    """Candidates for `behind`: as many as the first half hides, all but what the second half hides, all, none."""
    first_s = costs.products_s(resident.n + group.n) + costs.attention_s(resident)
    fitting = _hidden(costs, group, first_s)
    others = group.n - _hidden(costs, group, costs.products_s(group.n))
    return {0, fitting, min(group.n, fitting + 1), others, max(0, others - 1), group.n}


def _hidden(costs: BatchCosts, group: SequenceGroup, seconds: float) -> int:
    """How many of a group the CPU attends to within this many seconds, messages included."""
    one, all_ = costs.offloaded_s(group.part(1)), costs.offloaded_s(group)
    each = (all_ - one) / (group.n - 1) if group.n > 1 else all_
    return max(0, min(group.n, 1 + int((seconds - one) / each))) if each > 0 and seconds > one else 0


def overlap(costs: BatchCosts, resident: SequenceGroup, offloaded: SequenceGroup) -> Prediction:
    """One pass of all; the offloaded advance a layer per pass, or as often as the CPU can attend to all of them."""
    joined = meeting(costs, offloaded.n)
    layer_s = costs.products_s(resident.n + joined) + costs.attention_s(resident)
    seconds = costs.n_layers * layer_s + costs.tail_s(resident.n + joined)
    if not offloaded.n:
        return Prediction("overlap", seconds, resident.n)
    attended = seconds / (costs.cpu_attention_s(offloaded.part(joined)) / joined)
    tokens = min(offloaded.n / (costs.n_layers + 1), attended / costs.n_layers)
    return Prediction("overlap", seconds, resident.n, offloaded.n, 0, tokens)


def meeting(costs: BatchCosts, n_offloaded: int) -> int:
    """Offloaded sequences that rejoin at the same layer if they are spread evenly over all layers."""
    return -(-n_offloaded // (costs.n_layers + 1))


def choose(
    costs: BatchCosts, resident: SequenceGroup, offloaded: SequenceGroup, among: tuple[Schedule, ...] = SCHEDULES
) -> Prediction:
    """The schedule with the most tokens per second; among equals the simplest."""
    found: list[Prediction] = []
    for schedule in among:
        match schedule:
            case "accelerator-only":
                found.append(accelerator_only(costs, resident))
            case "asymmetric":
                found.append(asymmetric(costs, resident, offloaded))
            case "overlap":
                found.append(overlap(costs, resident, offloaded))
    return max(found, key=lambda each: each.tok_s)


class Correction:
    """Measured over predicted tokens per second, by schedule."""

    def __init__(self) -> None:
        self._ratios: dict[Schedule, deque[float]] = {}

    def note(self, schedule: Schedule, predicted_tok_s: float, measured_tok_s: float) -> None:
        """Note a pass; one without a prediction, or in which nothing advanced, is ignored."""
        if predicted_tok_s > 0 and measured_tok_s > 0:
            self._ratios.setdefault(schedule, deque(maxlen=LAST)).append(measured_tok_s / predicted_tok_s)

    def factor(self, schedule: Schedule) -> float:
        """The factor on a schedule's prediction; 1 if it never ran."""
        return statistics.median(self._ratios[schedule]) if schedule in self._ratios else 1.0

    def best(self, predictions: Sequence[Prediction]) -> Prediction:
        """The best untried schedule if it is close enough to the best; else the best by corrected prediction."""
        most = max(each.tok_s for each in predictions)
        untried = [each for each in predictions if each.tok_s >= NEAR * most and not self._is_tried(each.schedule)]
        if untried:
            return max(untried, key=lambda each: each.tok_s)
        tried = [each for each in predictions if self._is_tried(each.schedule)]
        return max(tried, key=lambda each: each.tok_s * self.factor(each.schedule))

    def _is_tried(self, schedule: Schedule) -> bool:
        return len(self._ratios.get(schedule, ())) >= ENOUGH
