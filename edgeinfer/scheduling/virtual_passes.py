"""Passes of a placed model on a virtual clock: as tasks, and submitted and awaited as on devices, without hardware.

In: a machine, the work of a model, placements and passes. Out: numbers of the tasks a pass ends with; for a
`VirtualExecutor` the seconds of each pass and how long each device was busy, as a real executor would report them. Each
task takes the time that `step_time` gives; unlike there, lanes share links, devices prepare a pass side by side, and
weights that are streamed or read from disk may arrive before the pass needs them, as far as each device's buffer of
`ahead_bytes` allows. So a pass takes no longer than `step_time` says, except for messages that weights must let
through. `slowness` makes devices slower than their profile, as another program on them would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edgeinfer.scheduling.cost.seconds import ACTIVATION_BYTES, Pass
from edgeinfer.scheduling.cost.work import MatMulWork, ModelWork, StageShape
from edgeinfer.scheduling.machine.profile import CPU, Link, Profile
from edgeinfer.scheduling.placement.placement import Placement, RowRange, StagePlacement
from edgeinfer.scheduling.placement.step_time import PassCosts, attention_device, bytes_read, n_computed, product_groups
from edgeinfer.scheduling.virtual_clock import Clock, ClockTask, SimulatedTimeline

AHEAD_BYTES = 512 << 20
"""Bytes of weights in transit or not yet used, per device: two of the largest groups of a 7B model in f16."""
DISK = "disk"

Ends = tuple[int, ...]
"""The tasks that something ends with."""


def inward(device: str) -> str:
    """The resource for transfers into a device."""
    return f"{device} in"


def outward(device: str) -> str:
    """The resource for transfers out of a device."""
    return f"{device} out"


class WeightBuffer:
    """A buffer for weights in transit: new ones wait until enough of the oldest have been used."""

    def __init__(self, n_bytes: float) -> None:
        self._room = n_bytes
        self._held: deque[tuple[float, Ends]] = deque()

    def enter(self, n_bytes: float) -> Ends:
        """Tasks that must end before this many bytes fit; more than the whole buffer wait until it is empty."""
        freed: list[int] = []
        while self._held and self._room < n_bytes:
            released, ends = self._held.popleft()
            self._room += released
            freed += ends
        return tuple(freed)

    def hold(self, n_bytes: float, used: Ends) -> None:
        """Note that bytes stay until `used` has ended."""
        self._room -= n_bytes
        self._held.append((n_bytes, used))


@dataclass(frozen=True, slots=True)
class ProductRows:
    """Rows of a stage's matmul on a device."""

    number: int
    product: MatMulWork
    part: RowRange

    @property
    def n_bytes(self) -> float:
        return self.part.n_rows * self.product.columns * self.product.bytes_per_weight


class SimulatedPasses:
    """Submits pass after pass to a clock. `slowness`: factors on the seconds of devices, by name."""

    def __init__(
        self,
        clock: Clock,
        profile: Profile,
        work: ModelWork,
        ahead_bytes: float = AHEAD_BYTES,
        slowness: Mapping[str, float] | None = None,
    ) -> None:
        self._clock, self._profile, self._work = clock, profile, work
        self._slowness = slowness or {}
        self._windows = {device.name: WeightBuffer(ahead_bytes) for device in profile.devices}
        self._disk_window = WeightBuffer(ahead_bytes)
        self._last: Ends = ()

    def submit(self, placement: Placement, step: Pass, kv: str = "f16") -> Ends:
        """The tasks that a pass ends with; it begins when the previous pass has ended."""
        read = bytes_read(self._work, placement, step, kv)
        costs = PassCosts(self._profile, step, kv, read)
        ready = tuple(self._compute(name, costs.fixed_s((name,)), "pass", self._last) for name in read)
        previous = placement.stages[0].home
        for stage, placed in zip(self._work.stages, placement.stages, strict=True):
            n_bytes = step.n_rows * self._work.width * ACTIVATION_BYTES
            ready = self._move(previous, placed.home, n_bytes, ready)
            ready = self._stage(costs, stage.shape, placed, ready)
            previous = placed.home
        self._last = ready
        return ready

    def _stage(self, costs: PassCosts, shape: StageShape, placed: StagePlacement, ready: Ends) -> Ends:
        ready = (self._compute(placed.home, costs.others_s(shape, placed.home), "others", ready),)
        for first, stop in product_groups(shape):
            ready = self._group(costs, shape, placed, (first, stop), ready)
            if first == 0 and shape.attention is not None:
                ready = self._attention(costs, shape, placed, ready)
        return ready

    def _attention(self, costs: PassCosts, shape: StageShape, placed: StagePlacement, ready: Ends) -> Ends:
        heads, device = shape.attention, attention_device(placed)
        if heads is None:
            return ready
        n_bytes = costs.step.n_rows * ACTIVATION_BYTES
        _, call_s, seconds = costs.attention(heads, placed.home, device)
        ready = self._move(placed.home, device, heads.n_taken * n_bytes, ready)
        ready = (self._compute(device, call_s + seconds, "attention", ready),)
        return self._move(device, placed.home, heads.n_given * n_bytes, ready)

    def _group(
        self, costs: PassCosts, shape: StageShape, placed: StagePlacement, bounds: tuple[int, int], ready: Ends
    ) -> Ends:
        """The lanes of matmuls that read the same value; disk first, messages before weights."""
        lanes: dict[str, list[ProductRows]] = {}
        for number in range(*bounds):
            for part in placed.products[number]:
                if part.n_rows > 0:
                    lanes.setdefault(part.device, []).append(ProductRows(number, shape.products[number], part))
        n_tokens = n_computed(shape, costs.step)
        flash = _held_bytes((each for lane in lanes.values() for each in lane), ("flash",))
        read = self._read(costs, flash)
        computed: dict[str, int] = {}
        for device, rows in lanes.items():
            n_bytes = rows[0].product.columns * n_tokens * ACTIVATION_BYTES
            ready_here = self._move(placed.home, device, n_bytes, ready)
            computed[device] = self._compute(device, _lane_s(costs, device, rows, n_tokens), "products", ready_here)
        ends: list[int] = []
        used: list[int] = []
        for device in sorted(lanes, key=lambda device: _held_bytes(lanes[device], ("streamed", "flash"))):
            rows = lanes[device]
            done: Ends = (computed[device],)
            done += self._stream(device, _held_bytes(rows, ("streamed", "flash")), computed[device])
            done += read if any(each.part.held == "flash" for each in rows) else ()
            n_bytes = sum(each.part.n_rows for each in rows) * n_tokens * ACTIVATION_BYTES
            ends += self._move(device, placed.home, n_bytes, done)
            used += done
        if flash > 0:
            self._disk_window.hold(flash, tuple(used))
        return tuple(ends) or ready

    def _read(self, costs: PassCosts, n_bytes: float) -> Ends:
        """Weights from disk, as early as there is room."""
        if n_bytes <= 0:
            return ()
        room = self._disk_window.enter(n_bytes)
        return (self._clock.submit(ClockTask("read", DISK, costs.disk_s(n_bytes), room, yields=True)),)

    def _stream(self, device: str, n_bytes: float, computed: int) -> Ends:
        """Weights over the link, as early as there is room."""
        link = self._link(device)
        if link is None or n_bytes <= 0:
            return ()
        window = self._windows[device]
        seconds = n_bytes / link.to_device_bytes_s
        task = ClockTask("weights", inward(device), seconds, window.enter(n_bytes), link.latency_s, yields=True)
        sent = self._clock.submit(task)
        window.hold(n_bytes, (computed, sent))
        return (sent,)

    def _compute(self, device: str, seconds: float, name: str, ready: Ends) -> int:
        return self._clock.submit(ClockTask(name, device, seconds * self._slowness.get(device, 1.0), ready))

    def _move(self, start: str, end: str, n_bytes: float, ready: Ends) -> Ends:
        """A message from one device to another, through the machine's memory."""
        if start == end or n_bytes <= 0:
            return ready
        out, into = self._link(start), self._link(end)
        if out is not None:
            seconds = n_bytes / out.from_device_bytes_s
            task = ClockTask("message", outward(start), seconds, ready, out.latency_s, yields=True)
            ready = (self._clock.submit(task),)
        if into is not None:
            seconds = n_bytes / into.to_device_bytes_s
            task = ClockTask("message", inward(end), seconds, ready, into.latency_s, yields=True)
            ready = (self._clock.submit(task),)
        return ready

    def _link(self, device: str) -> Link | None:
        return None if device == CPU else self._profile.device(device).link


def _lane_s(costs: PassCosts, device: str, rows: list[ProductRows], n_tokens: int) -> float:
    """Launching and computing all rows of a lane."""
    cost = costs.devices[device]
    launched = len({each.number for each in rows}) * cost.rates.op_s
    return launched + sum(cost.product(each.product, each.part.n_rows, n_tokens).total for each in rows)


def _held_bytes(rows: Iterable[ProductRows], held: tuple[str, ...]) -> float:
    return sum(each.n_bytes for each in rows if each.part.held in held)


@dataclass(frozen=True, slots=True)
class SimulatedTicket:
    """A submitted pass."""

    number: int


@dataclass(frozen=True, slots=True)
class PassReport:
    """A finished pass: its seconds, and the seconds each device, link and disk spent on what.

    `spent_s` by resource and name of the task: products, attention, others, pass; message, weights; read.
    """

    seconds: float
    spent_s: Mapping[tuple[str, str], float]

    def busy_s(self, resource: str) -> float:
        """Seconds in which a resource worked."""
        return sum(seconds for (name, _), seconds in self.spent_s.items() if name == resource)


@dataclass(frozen=True, slots=True)
class _Submitted:
    first: int
    stop: int
    ends: Ends


class VirtualExecutor:
    """Passes on a virtual clock, one after another."""

    def __init__(
        self,
        profile: Profile,
        work: ModelWork,
        kv: str = "f16",
        ahead_bytes: float = AHEAD_BYTES,
        slowness: Mapping[str, float] | None = None,
    ) -> None:
        self._clock = Clock()
        self._lowering = SimulatedPasses(self._clock, profile, work, ahead_bytes, slowness)
        self._kv = kv
        self._submitted: dict[int, _Submitted] = {}
        self._n_passes = 0
        self._ended = 0.0

    def submit(self, placement: Placement, step: Pass) -> SimulatedTicket:
        """Begin a pass when the previous one has ended."""
        first = self._clock.n_tasks
        ends = self._lowering.submit(placement, step, self._kv)
        self._n_passes += 1
        self._submitted[self._n_passes] = _Submitted(first, self._clock.n_tasks, ends)
        return SimulatedTicket(self._n_passes)

    def wait(self, ticket: SimulatedTicket) -> PassReport:
        """Advance the clock to the end of a pass; its seconds count from the end of the pass awaited before it.

        Raises KeyError for a pass that was awaited before.
        """
        submitted = self._submitted.pop(ticket.number)
        began, self._ended = self._ended, self._clock.wait(submitted.ends)
        spent: dict[tuple[str, str], float] = {}
        for number in range(submitted.first, submitted.stop):
            task = self._clock.span(number).task
            key = (task.resource, task.name)
            spent[key] = spent.get(key, 0.0) + task.seconds
        return PassReport(self._ended - began, spent)

    @property
    def seconds(self) -> float:
        """The current time of the virtual clock."""
        return self._clock.now

    @property
    def timeline(self) -> SimulatedTimeline:
        """Every task of every pass so far."""
        return self._clock.timeline


def pass_seconds(
    profile: Profile,
    work: ModelWork,
    placement: Placement,
    step: Pass,
    kv: str = "f16",
    n_passes: int = 4,
    ahead_bytes: float = AHEAD_BYTES,
) -> float:
    """Seconds of one pass among equal ones, without the first: later ones show the gain of streaming ahead."""
    executor = VirtualExecutor(profile, work, kv, ahead_bytes)
    tickets = [executor.submit(placement, step) for _ in range(max(2, n_passes))]
    reports = [executor.wait(ticket) for ticket in tickets]
    return sum(report.seconds for report in reports[1:]) / (len(reports) - 1)
