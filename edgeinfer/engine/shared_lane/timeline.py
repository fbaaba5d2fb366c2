"""When each device worked in a step; read by the machine screen, predictions and `overlap`.

In: spans, by time.perf_counter. Out: sums and overlaps in seconds. Measures nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class DeviceSpan:
    """A device worked on `stages` from `began` to `ended`."""

    device: str
    stages: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """The spans of a step, in the order in which the host saw them end; `began` and `ended` are the step's.

    `waited_s`: seconds in which the host only waited for other devices.
    """

    spans: tuple[DeviceSpan, ...]
    began: float
    ended: float
    waited_s: float = 0.0

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that took part, in order of their first span."""
        return tuple(dict.fromkeys(span.device for span in self.spans))

    def busy_s(self, device: str) -> float:
        """Seconds a device worked."""
        return sum(ended - began for began, ended in _merged(self.spans, device))

    @property
    def overlap(self) -> float:
        """Share of the least busy device's working time in which another device worked too; 0 for one device."""
        if len(self.devices) < 2:
            return 0.0
        least = min(self.devices, key=self.busy_s)
        others = [span for span in self.spans if span.device != least]
        both = _common_s(_merged(self.spans, least), _merged([replace(s, device="other") for s in others], "other"))
        return min(1.0, both / self.busy_s(least)) if self.busy_s(least) > 0 else 0.0


def _merged(spans: Sequence[DeviceSpan], device: str) -> list[tuple[float, float]]:
    """The busy intervals of a device, increasing, with overlaps merged."""
    found: list[tuple[float, float]] = []
    for began, ended in sorted((span.began, span.ended) for span in spans if span.device == device):
        if found and began <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], ended)
        else:
            found.append((began, ended))
    return found


def _common_s(first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]]) -> float:
    return sum(
        max(0.0, min(ended, other_ended) - max(began, other_began))
        for began, ended in first
        for other_began, other_ended in second
    )
