"""Seconds of a pass of a placed model: stages one after another, lanes of several devices side by side.

In: a profile, the work of a model, a placement and a `Pass`. Out: a `PassTime`, down to each lane and its rows.

- A stage runs on its home: all ops but matmuls and attention take `DeviceCost.others` there.
- Matmuls that read the same value (`product_groups`) start together; the next group waits for all of them. A device
  with rows of a group is a lane. A lane away from home first gets the group's input (tokens x columns x 4 bytes), and
  sends its rows of all matmuls back (tokens x rows x 4 bytes), one message each way. In between it takes `op_s` for
  each matmul it has rows of, and then the longest of: computing, sending streamed and flash rows over its link (one
  message), reading the group's flash rows (all lanes', because there is one disk). A group takes as long as its longest
  lane; lanes do not wait for each other's messages.
  Where messages keep the CPU busy (`host_s` of a link), its own rows of the group begin after them.
- Attention follows the first group. Away from home it gets queries, keys and values, and sends its result back.
- Where the home changes between stages, the residual moves first. Transfers between accelerators go through the
  machine's memory: one message out, one in.
- Every device that takes part adds its `pass_s`, and `token_s` for each token; these include bringing logits back. A
  device whose messages were measured with all their overhead adds none where it has only rows.

A device with `link` None shares the machine's memory. The slowdown of the CPU's own reads by link traffic is not
counted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from edgeinfer.graph.op import AttentionHeads
from edgeinfer.scheduling.cost.seconds import (
    ACTIVATION_BYTES,
    KV_ELEMENT_BYTES,
    DeviceCost,
    Pass,
    Spent,
    from_device_s,
    to_device_s,
)
from edgeinfer.scheduling.cost.work import ModelWork, StageShape, StageWork
from edgeinfer.scheduling.machine.profile import CPU, Profile
from edgeinfer.scheduling.placement.placement import Placement, RowRange, StagePlacement

SAME_INPUT = (("attn_q", "attn_k", "attn_v", "attn_qkv"), ("ffn_gate", "ffn_up"))
"""Kinds of matmuls that read the same value when they follow each other."""


@dataclass(frozen=True, slots=True)
class LaneTime:
    """A device's share of a group: `input_s`, `launch_s`, the longest of the next three, `result_s`, in sequence."""

    device: str
    seconds: float
    input_s: float
    launch_s: float
    compute_s: float
    stream_s: float
    disk_s: float
    result_s: float


@dataclass(frozen=True, slots=True)
class GroupTime:
    """Matmuls `first:stop` of a stage, which start together, and their lanes."""

    first: int
    stop: int
    lanes: tuple[LaneTime, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class StageTime:
    """A stage: moving the residual here, its groups, attention with its moves, and all other ops."""

    move_s: float
    groups: tuple[GroupTime, ...]
    attention_s: float
    others_s: float
    spent: Spent

    @property
    def seconds(self) -> float:
        return self.move_s + sum(group.seconds for group in self.groups) + self.attention_s + self.others_s


@dataclass(frozen=True, slots=True)
class PassTime:
    """A pass: its stages in order, its overhead, and what all of it is spent on."""

    stages: tuple[StageTime, ...]
    fixed_s: float
    spent: Spent
    seconds: float

    @property
    def bound_by(self) -> str:
        """The largest share of the time."""
        return self.spent.largest


def product_groups(shape: StageShape) -> tuple[tuple[int, int], ...]:
    """First matmul, and the one after the last, of each group of matmuls that read the same value."""
    groups: list[tuple[int, int]] = []
    previous = None
    for number, product in enumerate(shape.products):
        reads = next((kinds for kinds in SAME_INPUT if product.kind in kinds), None)
        if reads is not None and reads is previous:
            groups[-1] = (groups[-1][0], number + 1)
        else:
            groups.append((number, number + 1))
        previous = reads
    return tuple(groups)


def n_computed(shape: StageShape, step: Pass) -> int:
    """Tokens that the matmuls of a stage are computed for."""
    return min(step.n_outputs * step.n_sequences, step.n_rows) if shape.for_outputs else step.n_rows


class PassCosts:
    """Costs of a pass on a machine whose devices read this many bytes each (`footprints`, by name)."""

    def __init__(self, profile: Profile, step: Pass, kv: str, footprints: dict[str, float]) -> None:
        self.profile, self.step, self.kv = profile, step, kv
        self.devices = {rates.name: DeviceCost(rates, footprints.get(rates.name, 0.0)) for rates in profile.devices}
        self._links = {rates.name: rates.link for rates in profile.devices}

    def move_s(self, start: str, end: str, n_bytes: float) -> float:
        """Seconds to move this many bytes from one device to another."""
        if start == end:
            return 0.0
        out, into = self._links[start], self._links[end]
        leaving = from_device_s(out, n_bytes) if start != CPU and out is not None else 0.0
        return leaving + (to_device_s(into, n_bytes) if end != CPU and into is not None else 0.0)

    def stream_s(self, device: str, n_bytes: float) -> float:
        """Seconds in which weights come from the machine's memory."""
        link = self._links[device]
        return 0.0 if link is None else to_device_s(link, n_bytes)

    def disk_s(self, n_bytes: float) -> float:
        """Seconds in which weights come from disk. Raises ValueError on a machine without one."""
        if n_bytes <= 0:
            return 0.0
        if self.profile.disk is None:
            raise ValueError("rows are placed on flash, and nothing is known of a disk")
        return n_bytes / self.profile.disk.best_bytes_s

    def others_s(self, shape: StageShape, home: str) -> float:
        """Everything of a stage but matmuls and attention."""
        cost = self.devices[home]
        elsewhere = len(shape.products) + (shape.attention is not None)
        n_own = max(0, shape.n_ops - elsewhere)
        return cost.others(shape, n_computed(shape, self.step)) - (shape.n_ops - n_own) * cost.rates.op_s

    def attention(self, heads: AttentionHeads, home: str, device: str) -> tuple[float, float, float]:
        """Seconds of moving there and back, of the call, and of attending."""
        n_bytes = self.step.n_rows * ACTIVATION_BYTES
        moved = self.move_s(home, device, heads.n_taken * n_bytes) + self.move_s(device, home, heads.n_given * n_bytes)
        cost = self.devices[device]
        return moved, cost.rates.op_s, cost.attention(heads, self.step, self.kv)

    def host_s(self, device: str, n_bytes: float) -> float:
        """Seconds that the CPU is busy with this many bytes that go to a device and come back."""
        link = self._links[device]
        if link is None or not link.host_s:
            return 0.0
        return 2 * link.host_s + n_bytes / link.to_device_bytes_s

    def fixed_s(self, used: Sequence[str], homes: Collection[str] | None = None) -> float:
        """Overhead of a pass outside of all stages, with these devices; `homes`: those of stages, None for all."""
        own = [name for name in used if homes is None or name in homes or not self.host_s(name, 0.0)]
        rates = [self.devices[name].rates for name in own]
        return sum(each.pass_s + self.step.n_rows * each.token_s for each in rates)


def step_time(profile: Profile, work: ModelWork, placement: Placement, step: Pass, kv: str = "f16") -> PassTime:
    """Seconds of one pass. Raises ValueError for rows on flash without a disk, KeyError for unknown devices."""
    read = bytes_read(work, placement, step, kv)
    costs = PassCosts(profile, step, kv, read)
    known: dict[tuple[int, int, str], StageTime] = {}
    times = []
    previous = placement.stages[0].home
    for stage, placed in zip(work.stages, placement.stages, strict=True):
        key = (id(stage.shape), id(placed), previous)
        if key not in known:
            known[key] = _stage_time(costs, work, stage.shape, placed, previous)
        times.append(known[key])
        previous = placed.home
    fixed_s = costs.fixed_s(tuple(read), {placed.home for placed in placement.stages})
    spent = Spent(overhead=fixed_s)
    for time in times:
        spent += time.spent
    return PassTime(tuple(times), fixed_s, spent, spent.total)


def bytes_read(work: ModelWork, placement: Placement, step: Pass, kv: str = "f16") -> dict[str, float]:
    """Bytes of weights and KV cache that each participating device reads in a pass, by its name."""
    read: dict[str, float] = {}
    counted: dict[tuple[int, int], dict[str, float]] = {}
    for stage, placed in zip(work.stages, placement.stages, strict=True):
        key = (id(stage.shape), id(placed))
        if key not in counted:
            counted[key] = _stage_bytes(stage, placed, step, kv)
        for device, n_bytes in counted[key].items():
            read[device] = read.get(device, 0.0) + n_bytes
    return read


def _stage_bytes(stage: StageWork, placed: StagePlacement, step: Pass, kv: str) -> dict[str, float]:
    read = {placed.home: 0.0}
    for product, parts in zip(stage.shape.products, placed.products, strict=True):
        for part in parts:
            n_bytes = part.n_rows * product.columns * product.bytes_per_weight
            read[part.device] = read.get(part.device, 0.0) + n_bytes
    heads = stage.shape.attention
    if heads is not None:
        device = attention_device(placed)
        n_cached = step.n_cached if heads.window else step.n_attended
        n_bytes = heads.reach(step.n_tokens, n_cached) * heads.kv_bytes_per_token(KV_ELEMENT_BYTES[kv])
        read[device] = read.get(device, 0.0) + n_bytes * step.n_sequences
    return read


def attention_device(placed: StagePlacement) -> str:
    """Where a stage attends: at home unless it says otherwise."""
    return placed.attention if placed.attention is not None else placed.home


def _stage_time(
    costs: PassCosts, work: ModelWork, shape: StageShape, placed: StagePlacement, previous: str
) -> StageTime:
    moved = costs.move_s(previous, placed.home, costs.step.n_rows * work.width * ACTIVATION_BYTES)
    others = costs.others_s(shape, placed.home)
    spent = Spent(overhead=others, link=moved)
    groups = []
    for first, stop in product_groups(shape):
        group = _ProductGroup(costs, shape, placed, first, stop)
        groups.append(group.time)
        spent += group.spent
    attended = 0.0
    if shape.attention is not None:
        link_s, call_s, seconds = costs.attention(shape.attention, placed.home, attention_device(placed))
        spent += Spent(attention=seconds, overhead=call_s, link=link_s)
        attended = link_s + call_s + seconds
    return StageTime(moved, tuple(groups), attended, others, spent)


class _ProductGroup:
    """Times of one group of matmuls."""

    def __init__(self, costs: PassCosts, shape: StageShape, placed: StagePlacement, first: int, stop: int) -> None:
        self._costs, self._home = costs, placed.home
        self._n_tokens = n_computed(shape, costs.step)
        self._columns = shape.products[first].columns
        self._first, self._stop = first, stop
        self._products = shape.products
        self._lanes: dict[str, list[tuple[int, RowRange]]] = {}
        for number in range(first, stop):
            for part in placed.products[number]:
                if part.n_rows > 0:
                    self._lanes.setdefault(part.device, []).append((number, part))
        everything = [each for lane in self._lanes.values() for each in lane]
        self._disk_s = costs.disk_s(self._weight_bytes(everything, ("flash",)))

    @cached_property
    def time(self) -> GroupTime:
        """The lanes, and the time of the longest."""
        lanes = tuple(self._lane(device) for device in self._lanes)
        return GroupTime(self._first, self._stop, lanes, max((lane.seconds for lane in lanes), default=0.0))

    @property
    def spent(self) -> Spent:
        """What the longest lane spends its time on."""
        if not self.time.lanes:
            return Spent()
        lane = max(self.time.lanes, key=lambda lane: lane.seconds)
        spent = Spent(overhead=lane.launch_s, link=lane.input_s + lane.result_s)
        if lane.compute_s >= max(lane.stream_s, lane.disk_s):
            return spent + self._computed(lane.device)
        return spent + (Spent(link=lane.stream_s) if lane.stream_s >= lane.disk_s else Spent(disk=lane.disk_s))

    def _lane(self, device: str) -> LaneTime:
        costs, rows = self._costs, self._lanes[device]
        n_bytes = self._n_tokens * ACTIVATION_BYTES
        input_s = costs.move_s(self._home, device, self._columns * n_bytes)
        if device == self._home == CPU:
            input_s = sum(self._busy_s(other, n_bytes) for other in self._lanes if other != CPU)
        result_s = costs.move_s(device, self._home, sum(part.n_rows for _, part in rows) * n_bytes)
        launch_s = len({number for number, _ in rows}) * costs.devices[device].rates.op_s
        compute_s = self._computed(device).total
        stream_s = costs.stream_s(device, self._weight_bytes(rows, ("streamed", "flash")))
        disk_s = self._disk_s if any(part.held == "flash" for _, part in rows) else 0.0
        seconds = input_s + launch_s + max(compute_s, stream_s, disk_s) + result_s
        return LaneTime(device, seconds, input_s, launch_s, compute_s, stream_s, disk_s, result_s)

    def _busy_s(self, device: str, n_bytes: float) -> float:
        """Seconds that the CPU takes to exchange the group's rows with a device."""
        n_rows = sum(part.n_rows for _, part in self._lanes[device])
        return self._costs.host_s(device, (self._columns + n_rows) * n_bytes)

    def _computed(self, device: str) -> Spent:
        memory, arithmetic = 0.0, 0.0
        for number, part in self._lanes[device]:
            seconds = self._costs.devices[device].product(self._products[number], part.n_rows, self._n_tokens)
            memory += seconds.memory
            arithmetic += seconds.arithmetic
        return Spent(memory=memory, arithmetic=arithmetic)

    def _weight_bytes(self, rows: Sequence[tuple[int, RowRange]], held: tuple[str, ...]) -> float:
        chosen = [(self._products[number], part) for number, part in rows if part.held in held]
        return sum(part.n_rows * product.columns * product.bytes_per_weight for product, part in chosen)
