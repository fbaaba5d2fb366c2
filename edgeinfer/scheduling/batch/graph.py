"""Decoding passes of a schedule as tasks on a virtual clock: accelerator, CPU, and the link each way.

In: costs, sequences, a schedule. Out: the steady-state seconds of a pass and the tokens it makes, with every message
and wait modelled. Used to check `schedules`, which predicts the same in closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeinfer.scheduling.batch.costs import BatchCosts, SequenceGroup
from edgeinfer.scheduling.batch.schedules import meeting
from edgeinfer.scheduling.machine.profile import CPU
from edgeinfer.scheduling.simulate.clock import Clock, ClockTask
from edgeinfer.scheduling.simulate.lowering import inward, outward


@dataclass(frozen=True, slots=True)
class Steady:
    """A pass in steady state, and the share of it in which the accelerator and the CPU work."""

    seconds: float
    tokens: float
    accelerator_share: float
    cpu_share: float

    @property
    def tok_s(self) -> float:
        return self.tokens / self.seconds


class _Passes:
    """Submits tasks; attention of offloaded sequences is a message, CPU work and a message back."""

    def __init__(self, costs: BatchCosts) -> None:
        self.costs, self.clock, self.name = costs, Clock(), costs.device.name

    def products(self, n: int, after: tuple[int, ...], seconds: float = 0.0) -> int:
        return self.clock.submit(ClockTask("products", self.name, self.costs.products_s(n) + seconds, after))

    def tail(self, n: int, after: tuple[int, ...]) -> int:
        return self.clock.submit(ClockTask("tail", self.name, self.costs.tail_s(n), after))

    def offload(self, group: SequenceGroup, after: tuple[int, ...]) -> int:
        leaving, back = self.costs.message_bytes(group.n)
        link = self.costs.device.link
        if link is not None:
            seconds = leaving / link.from_device_bytes_s
            task = ClockTask("queries", outward(self.name), seconds, after, link.latency_s, yields=True)
            after = (self.clock.submit(task),)
        attended = self.clock.submit(ClockTask("attention", CPU, self.costs.cpu_attention_s(group), after))
        if link is None:
            return attended
        seconds = back / link.to_device_bytes_s
        task = ClockTask("results", inward(self.name), seconds, (attended,), link.latency_s, yields=True)
        return self.clock.submit(task)

    def steady(self, ends: list[float], tokens: Sequence[float]) -> Steady:
        """Averages over the second half of the run."""
        half = len(ends) // 2
        seconds, n_passes = ends[-1] - ends[half - 1], len(ends) - half
        timeline = self.clock.timeline
        shares = (timeline.busy_share(self.name), timeline.busy_share(CPU))
        return Steady(seconds / n_passes, sum(tokens[half:]) / n_passes, *shares)


def run_accelerator_only(costs: BatchCosts, resident: SequenceGroup, n_passes: int = 4) -> Steady:
    """Passes of the resident sequences alone."""
    passes = _Passes(costs)
    last: tuple[int, ...] = ()
    ends = []
    for _ in range(n_passes):
        for _ in range(costs.n_layers):
            last = (passes.products(resident.n, last, costs.attention_s(resident)),)
        last = (passes.tail(resident.n, last),)
        ends.append(passes.clock.span(last[0]).end)
    return passes.steady(ends, [resident.n] * n_passes)


def run_asymmetric(
    costs: BatchCosts, resident: SequenceGroup, offloaded: SequenceGroup, behind: int, n_passes: int = 4
) -> Steady:
    """Passes in two halves; each half's matmuls of a layer wait for its own attention of the previous layer."""
    passes = _Passes(costs)
    other, rest = offloaded.part(behind), offloaded.part(offloaded.n - behind)
    first: tuple[int, ...] = ()
    second: tuple[int, ...] = ()
    ends = []
    for number in range(n_passes):
        for layer in range(costs.n_layers):
            done = passes.products(resident.n + rest.n, first, costs.attention_s(resident))
            first = (passes.offload(rest, (done,)) if rest.n else done,)
            if other.n and number > 0 and layer == 0:
                second = (passes.tail(other.n, second),)
            if other.n:
                second = (passes.offload(other, (passes.products(other.n, second),)),)
        first = (passes.tail(resident.n + rest.n, first),)
        ends.append(passes.clock.span(first[0]).end)
    return passes.steady(ends, [resident.n + offloaded.n] * n_passes)


def run_overlap(costs: BatchCosts, resident: SequenceGroup, offloaded: SequenceGroup, n_passes: int = 8) -> Steady:
    """Passes of all sequences: those whose result is ready at their layer join, and are sent off again at the next one.

    A sequence that has been through all layers has a token, and is sent off at the first layer of the next pass.
    """
    passes = _Passes(costs)
    group = offloaded.part(meeting(costs, offloaded.n))
    n_groups = -(-offloaded.n // group.n) if group.n else 0
    waiting: list[list[int]] = [[] for _ in range(costs.n_layers)]
    for number in range(n_groups):
        waiting[number * costs.n_layers // n_groups].append(passes.offload(group, ()))
    last: tuple[int, ...] = ()
    ends, tokens = [], []
    n_starting = 0
    for _ in range(n_passes):
        arriving, starting, n_starting = n_starting, n_starting, 0
        for layer in range(costs.n_layers):
            now = passes.clock.span(last[0]).end if last else 0.0
            ready = [each for each in waiting[layer] if passes.clock.span(each).end <= now]
            n_joined = len(ready) + (starting if layer == 0 else 0)
            last = (passes.products(resident.n + group.n * n_joined, last, costs.attention_s(resident)),)
            waiting[layer] = [each for each in waiting[layer] if each not in ready]
            waiting[layer] += [passes.offload(group, last) for _ in range(arriving)]
            arriving = len(ready)
        n_starting = arriving
        last = (passes.tail(resident.n + group.n * n_starting, last),)
        ends.append(passes.clock.span(last[0]).end)
        tokens.append(resident.n + n_starting * group.n)
    return passes.steady(ends, tokens)
