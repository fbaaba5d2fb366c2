"""Predictions corrected by what steps really took, and when that makes another plan worth it.

In: predicted and measured seconds of lanes, by device and kind of work. Out: factors on costs, a corrected profile.
A factor is a moving average of the median of the last ratios, within bounds, so a single outlier moves nothing.
Of a device without work nothing is seen: only a probe can tell that it has become faster. Measures nothing itself.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from edgeinfer.scheduling.cost.seconds import to_device_s
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import CPU, AttentionRates, Curve, DeviceRates, Link, ProductRates, Profile
from edgeinfer.scheduling.placement.placement import Placement, RowRange
from edgeinfer.scheduling.placement.step_time import LaneTime, PassTime, attention_device

Kind = Literal["products", "attention", "others", "link"]
"""Kinds of work with a factor each; `link`: messages and streamed weights of an accelerator."""
LAST = 9
"""Ratios that are kept; the median of so many shrugs off four outliers."""
WEIGHT = 0.5
"""Of a new median in the moving average."""
MOST = 8.0
"""Times slower or faster than predicted that is believed."""
LEAST_S = 1e-9
PAYS = 1.03
"""Times faster that a new plan must be predicted,"""
SOON = 512
"""or so many steps after which what changing plans takes must have come back."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Seconds of one kind of work on a device in a step, as predicted and as measured."""

    device: str
    kind: Kind
    predicted_s: float
    measured_s: float


@dataclass(slots=True)
class _Factor:
    ratios: deque[float] = field(default_factory=lambda: deque(maxlen=LAST))
    value: float = 1.0


class Corrections:
    """Moving averages of measured over predicted seconds, by device and kind of work."""

    def __init__(self) -> None:
        self._factors: dict[tuple[str, Kind], _Factor] = {}

    def note(self, observations: Iterable[Observation]) -> None:
        """Take in a step. Predictions are those of the profile as it was measured, without corrections."""
        for seen in observations:
            if seen.predicted_s < LEAST_S or seen.measured_s <= 0:
                continue
            factor = self._factors.setdefault((seen.device, seen.kind), _Factor())
            factor.ratios.append(min(MOST, max(1 / MOST, seen.measured_s / seen.predicted_s)))
            if len(factor.ratios) >= 3:
                factor.value += WEIGHT * (statistics.median(factor.ratios) - factor.value)

    def factor(self, device: str, kind: Kind) -> float:
        """Measured over predicted seconds; 1 where too little was seen."""
        found = self._factors.get((device, kind))
        return 1.0 if found is None else found.value

    def applied(self, profile: Profile) -> Profile:
        """The profile whose costs are those measured."""
        return replace(profile, devices=tuple(self._device(rates) for rates in profile.devices))

    def _device(self, rates: DeviceRates) -> DeviceRates:
        products, attention, others, link = (
            self.factor(rates.name, kind) for kind in ("products", "attention", "others", "link")
        )
        return replace(
            rates,
            read=_slower(rates.read, products),
            products={form: _product(each, products) for form, each in rates.products.items()},
            attention=tuple(_attention(each, attention) for each in rates.attention),
            element_rate=_slower(rates.element_rate, others),
            op_s=rates.op_s * others,
            link=None if rates.link is None else _link(rates.link, link),
        )


def _slower(curve: Curve, factor: float) -> Curve:
    return Curve(curve.at, tuple(value / factor for value in curve.values))


def _product(rates: ProductRates, factor: float) -> ProductRates:
    slower = {
        name: None if curve is None else _slower(curve, factor)
        for name, curve in (("cached", rates.cached), ("wide", rates.wide))
    }
    return replace(rates, rate=_slower(rates.rate, factor), cached=slower["cached"], wide=slower["wide"])


def _attention(rates: AttentionRates, factor: float) -> AttentionRates:
    return replace(rates, rate=_slower(rates.rate, factor), call_s=rates.call_s * factor)


def _link(link: Link, factor: float) -> Link:
    return Link(link.to_device_bytes_s / factor, link.from_device_bytes_s / factor, link.latency_s * factor)


def observed(work: ModelWork, placement: Placement, predicted: PassTime, measured: PassTime) -> list[Observation]:
    """Observations out of two times of the same placement, lane by lane."""
    sums: dict[tuple[str, Kind], tuple[float, float]] = {}

    def add(device: str, kind: Kind, predicted_s: float, measured_s: float) -> None:
        before = sums.get((device, kind), (0.0, 0.0))
        sums[device, kind] = (before[0] + predicted_s, before[1] + measured_s)

    stages = zip(work.stages, placement.stages, predicted.stages, measured.stages, strict=True)
    for stage, placed, one, other in stages:
        add(placed.home, "others", one.others_s, other.others_s)
        if stage.shape.attention is not None and attention_device(placed) == placed.home:
            add(placed.home, "attention", one.attention_s, other.attention_s)
        for group, again in zip(one.groups, other.groups, strict=True):
            for lane, seen in zip(group.lanes, again.lanes, strict=True):
                add(lane.device, "products", lane.compute_s, seen.compute_s)
                add(lane.device, "others", lane.launch_s, seen.launch_s)
                owner = placed.home if lane.device == CPU else lane.device
                add(owner, "link", _link_s(lane), _link_s(seen))
    return [Observation(device, kind, *seconds) for (device, kind), seconds in sums.items()]


def _link_s(lane: LaneTime) -> float:
    return lane.input_s + lane.stream_s + lane.result_s


def replanning_pays(present_s: float, new_s: float, change_s: float, n_steps: int = SOON) -> bool:
    """Whether to change plans: the new one is clearly faster, and what the change takes soon comes back.

    Seconds of a step as both are predicted with corrections; `change_s` what moving weights takes.
    """
    return new_s * PAYS < present_s and change_s < (present_s - new_s) * n_steps


def change_seconds(profile: Profile, work: ModelWork, before: Placement, after: Placement) -> float:
    """Seconds in which the rows that accelerators newly hold reach them; each link on its own."""
    arriving: dict[str, float] = {}
    for stage, old, new in zip(work.stages, before.stages, after.stages, strict=True):
        for product, was, will in zip(stage.shape.products, old.products, new.products, strict=True):
            for part in will:
                if part.held == "own" and part.device != CPU:
                    kept = sum(_common(part, other) for other in was)
                    n_bytes = (part.n_rows - kept) * product.columns * product.bytes_per_weight
                    arriving[part.device] = arriving.get(part.device, 0.0) + n_bytes
    links = ((profile.device(name).link, n_bytes) for name, n_bytes in arriving.items())
    return max((to_device_s(link, n_bytes) for link, n_bytes in links if link is not None), default=0.0)


def _common(part: RowRange, other: RowRange) -> int:
    """Rows that a part finds where it needs them."""
    if other.held != "own" or other.device != part.device:
        return 0
    return max(0, min(part.stop, other.stop) - max(part.start, other.start))
