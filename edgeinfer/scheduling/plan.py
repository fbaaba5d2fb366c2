"""A plan: which device runs which ops of a model, and what that takes. Readable before anything is loaded.

In: a ModelSpec, a device name, sizes, and speeds where they were measured. Out: a `Plan`. Speeds nobody has measured
stay None. One device runs everything here: there is no split to choose yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.models.spec import ModelSpec
from edgeinfer.ops import Op, Weight
from edgeinfer.scheduling.memory import MemoryNeed


@dataclass(frozen=True, slots=True)
class Speeds:
    """Measured on this machine with this model and device, or None."""

    prefill_tok_s: float | None = None
    decode_tok_s: float | None = None
    ttft_s: float | None = None


@dataclass(frozen=True, slots=True)
class LanePart:
    """Rows of an op's weight (or all of an op without one) on a device."""

    device: str
    rows: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class PlannedOp:
    """One op and where its parts run: `name` is its weight's tensor, or what it does and in which stage."""

    stage: str
    name: str
    lanes: tuple[LanePart, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Where every op runs, what it takes, and how fast it was."""

    device: str
    n_workers: int
    need: MemoryNeed
    available_bytes: int
    speeds: Speeds
    ops: tuple[PlannedOp, ...]

    @property
    def line(self) -> str:
        """The plan in one line."""
        stages = len({op.stage for op in self.ops})
        workers = "1 worker" if self.n_workers == 1 else f"{self.n_workers} workers"
        return f"all {stages} stages on {self.device} ({workers}), weights and KV cache in RAM"


def single_device_plan(
    spec: ModelSpec, device: str, n_workers: int, need: MemoryNeed, available_bytes: int, speeds: Speeds
) -> Plan:
    """The plan that puts a whole model on one device."""
    ops = tuple(_planned(stage.name, op, device) for stage in spec.stages for op in stage.ops)
    return Plan(device, n_workers, need, available_bytes, speeds, ops)


def _planned(stage: str, op: Op, device: str) -> PlannedOp:
    weight = getattr(op, "weight", None)
    if isinstance(weight, Weight):
        tensor = weight.tensor.removesuffix(".weight")
        return PlannedOp(stage, tensor, (LanePart(device, (weight.start, weight.stop)),))
    return PlannedOp(stage, f"{stage}.{type(op).__name__}", (LanePart(device, None),))
