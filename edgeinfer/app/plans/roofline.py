"""The roofline of a plan: what each device allows, and where the planned passes lie.

In: the work of a model, a plan with its profile. Out: roofs and points, in multiply-adds per second and per byte of
weights and cache. Weights that every pass reads from disk give a roof of their own. Measures and draws nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.app.plans.planning import VERIFIED, Planned
from edgeinfer.scheduling.cost.intensity import best_madds_s, mean_pass_work
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.prediction import MeasuredSpeeds


@dataclass(frozen=True, slots=True)
class DeviceRoof:
    """What a device allows: the lesser of `madds_s` and intensity times `bytes_s`."""

    device: str
    bytes_s: float
    madds_s: float

    def rate(self, intensity: float) -> float:
        """The highest possible rate of multiply-adds per second."""
        return min(self.madds_s, intensity * self.bytes_s)

    @property
    def ridge(self) -> float:
        """The intensity from which on arithmetic is the limit."""
        return self.madds_s / self.bytes_s


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """A kind of pass: multiply-adds per byte, and per second; predicted, or as answers measured it."""

    name: str
    intensity: float
    madds_s: float
    is_measured: bool = False


def planned_roofs(work: ModelWork, planned: Planned) -> tuple[DeviceRoof, ...]:
    """The roofs of all devices that take part, and of the disk if the plan reads weights from it."""
    devices = dict.fromkeys((*planned.decode.placement.devices, *planned.prefill_placement.devices))
    found = []
    for name in devices:
        rates = planned.profile.device(name)
        madds_s = best_madds_s(work, rates)
        if madds_s is not None:
            found.append(DeviceRoof(name, rates.read(work.weight_bytes), madds_s))
    flash_bytes = planned.decode.usage.flash_bytes
    if flash_bytes and planned.profile.disk is not None and found:
        share = flash_bytes / work.weight_bytes
        bytes_s = planned.profile.disk.best_bytes_s / share
        found.append(DeviceRoof(f"disk, {share:.0%} of the weights", bytes_s, found[0].madds_s))
    return tuple(found)


def planned_points(work: ModelWork, planned: Planned, speeds: MeasuredSpeeds, kv: str) -> tuple[PlannedPoint, ...]:
    """Passes of a prompt, of one token, and of several that are verified; of one sequence alone."""
    if planned.n_sequences != 1:
        return ()
    n_passes, n_prompt = len(planned.prefill), planned.n_prompt
    n_tokens = n_prompt / n_passes
    madds, n_bytes = mean_pass_work(work, n_tokens, (n_prompt - n_tokens) / 2, 1 / n_passes, kv)
    prefill_s = sum(step.seconds for step in planned.prefill)
    found = [PlannedPoint("prompt", madds / n_bytes, madds * n_passes / prefill_s)] if n_bytes else []
    for name, n_verified, seconds in (
        ("one token", 1, planned.decode.seconds),
        (f"{VERIFIED} drafted tokens", VERIFIED, planned.verify.seconds),
    ):
        madds, n_bytes = mean_pass_work(work, n_verified, n_prompt, n_verified, kv)
        if n_bytes:
            found.append(PlannedPoint(name, madds / n_bytes, madds / seconds))
            if n_verified == 1 and speeds.plain_tok_s:
                measured = madds * speeds.plain_tok_s
                found.append(PlannedPoint("one token, measured", madds / n_bytes, measured, is_measured=True))
    return tuple(found)
