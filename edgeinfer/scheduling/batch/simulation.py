"""Batch schedules on a virtual clock: a few passes of one schedule, and a whole workload of sequences.

In: costs, sequences, a schedule, or the schedules to choose among. Out: the steady-state seconds of a pass and the
tokens it makes, with every message and wait between accelerator, CPU and link modelled, which checks the closed form of
`schedules`; for a workload tokens per second and how often each schedule ran.

All sequences of a workload are present at the start. A sequence whose prompt and KV cache fit on the accelerator is
resident. Where a hybrid schedule may be chosen, the others wait in the machine's memory with their KV cache and advance
as the schedule lets them, those furthest behind first. If residents outgrow their room, the youngest moves to the
machine's memory or, with the accelerator only, back to the queue, to read its text again. Sequences move back where
room is left that no waiting prompt takes. Prompts are read one by one between passes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgeinfer.errors import DoesNotFit
from edgeinfer.scheduling.batch.costs import BatchCosts, SequenceGroup
from edgeinfer.scheduling.batch.schedules import SCHEDULES, Prediction, Schedule, choose, meeting
from edgeinfer.scheduling.machine.profile import CPU
from edgeinfer.scheduling.virtual_clock import Clock, ClockTask
from edgeinfer.scheduling.virtual_passes import inward, outward

RECHECK = 16
"""Passes for which a choice holds while no sequence comes or goes."""


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


@dataclass(frozen=True, slots=True)
class Workload:
    """Equal sequences, all present at the start.

    `reserved`: share of the remaining output for which a sequence must also find room to become resident. With 1,
    residents are never displaced; with less, more of them share the accelerator, and some may be.
    """

    n_sequences: int
    n_prompt: int
    n_output: int
    reserved: float = 1.0


@dataclass(frozen=True, slots=True)
class WorkloadOutcome:
    """A finished workload: passes of each schedule, number of displaced residents, and means over its time."""

    seconds: float
    n_tokens: int
    passes: Mapping[Schedule, int]
    n_evicted: int
    mean_resident: float
    mean_offloaded: float

    @property
    def tok_s(self) -> float:
        return self.n_tokens / self.seconds


@dataclass(slots=True)
class _SimulatedSequence:
    """`made` tokens of the output; `credit`: fraction of the next one, for offloaded sequences."""

    n_prompt: int
    made: int = 0
    credit: float = 0.0

    @property
    def n_cached(self) -> int:
        return self.n_prompt + self.made


def run_workload(costs: BatchCosts, load: Workload, among: tuple[Schedule, ...] = SCHEDULES) -> WorkloadOutcome:
    """Run a workload to its end. Raises DoesNotFit if there is not even room for one sequence."""
    return _WorkloadRun(costs, load, among).outcome()


class _WorkloadRun:
    def __init__(self, costs: BatchCosts, load: Workload, among: tuple[Schedule, ...]) -> None:
        if costs.device_tokens < load.n_prompt + load.n_output:
            raise DoesNotFit(
                f"{costs.device.kind} has room for {costs.device_tokens} cached tokens beside the weights of "
                f"{costs.work.name}, and a sequence has {load.n_prompt + load.n_output}; a smaller quant would fit"
            )
        self._costs, self._load, self._among = costs, load, among
        self._hybrid = set(among) != {"accelerator-only"}
        self._waiting = deque(_SimulatedSequence(load.n_prompt) for _ in range(load.n_sequences))
        self._resident: list[_SimulatedSequence] = []
        self._offloaded: list[_SimulatedSequence] = []
        self._seconds, self._n_evicted = 0.0, 0
        self._passes: Counter[Schedule] = Counter()
        self._resident_s = self._offloaded_s = 0.0
        self._choice: Prediction | None = None
        self._age = 0

    def outcome(self) -> WorkloadOutcome:
        while self._waiting or self._resident or self._offloaded:
            self._make_room()
            self._admit()
            self._pass()
        n_tokens = self._load.n_sequences * self._load.n_output
        means = self._resident_s / self._seconds, self._offloaded_s / self._seconds
        return WorkloadOutcome(self._seconds, n_tokens, dict(self._passes), self._n_evicted, *means)

    def _make_room(self) -> None:
        """Displace the youngest residents until the pass has room for a token of each."""
        used = sum(each.n_cached + 1 for each in self._resident)
        while used > self._costs.device_tokens:
            youngest = min(self._resident, key=lambda each: each.made)
            self._resident.remove(youngest)
            used -= youngest.n_cached + 1
            self._n_evicted += 1
            self._choice = None
            if self._hybrid and self._host_room(youngest.n_cached):
                self._offloaded.append(youngest)
                self._seconds += self._costs.move_s(youngest.n_cached)
            else:
                self._waiting.appendleft(youngest)

    def _host_room(self, n_tokens: int) -> bool:
        used = sum(each.n_prompt + self._load.n_output for each in self._offloaded)
        return used + n_tokens + self._load.n_output <= self._costs.host_tokens

    def _admit(self) -> None:
        """Admit waiting sequences where there is room; then offloaded ones may move to the accelerator."""
        room: float = self._costs.device_tokens - sum(map(self._needed, self._resident))
        while self._waiting:
            first = self._waiting[0]
            fits = room >= self._needed(first)
            if not fits and not (self._hybrid and self._host_room(first.n_cached)):
                return
            self._waiting.popleft()
            self._choice = None
            read_s = self._costs.prompt_s(first.n_cached)
            self._seconds += read_s if fits else max(read_s, self._costs.move_s(first.n_cached))
            (self._resident if fits else self._offloaded).append(first)
            room -= self._needed(first) if fits else 0
        self._return(room)

    def _return(self, room: float) -> None:
        """Move the offloaded sequences that are nearest to their end to the accelerator if their full length fits."""
        for each in sorted(self._offloaded, key=lambda each: -each.made):
            if room < self._needed(each):
                return
            self._offloaded.remove(each)
            self._resident.append(each)
            self._seconds += self._costs.move_s(each.n_cached)
            room -= self._needed(each)
            self._choice = None

    def _needed(self, sequence: _SimulatedSequence) -> float:
        """Cached tokens that a resident sequence occupies, with its reservation."""
        to_come = self._load.n_output - sequence.made
        return sequence.n_cached + max(1.0, to_come * self._load.reserved)

    def _pass(self) -> None:
        resident = SequenceGroup(len(self._resident), sum(each.n_cached for each in self._resident))
        offloaded = SequenceGroup(len(self._offloaded), sum(each.n_cached for each in self._offloaded))
        if self._choice is None or self._age >= RECHECK:
            self._choice, self._age = choose(self._costs, resident, offloaded, self._among), 0
        self._age += 1
        choice = self._choice
        self._seconds += choice.seconds
        self._resident_s += choice.seconds * resident.n
        self._offloaded_s += choice.seconds * offloaded.n
        self._passes[choice.schedule] += 1
        for each in self._resident:
            each.made += 1
        if choice.n_offloaded:
            behind = sorted(self._offloaded, key=lambda each: each.made + each.credit)[: choice.n_offloaded]
            for each in behind:
                each.credit += choice.offloaded_tokens / choice.n_offloaded
                gained = int(each.credit + 1e-9)
                each.made += gained
                each.credit -= gained
        self._finish()

    def _finish(self) -> None:
        n_before = len(self._resident) + len(self._offloaded)
        self._resident = [each for each in self._resident if each.made < self._load.n_output]
        self._offloaded = [each for each in self._offloaded if each.made < self._load.n_output]
        if len(self._resident) + len(self._offloaded) < n_before:
            self._choice = None
