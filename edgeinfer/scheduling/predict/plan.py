"""The memory one device needs for a whole model, and the speeds measured with it.

In: a device's name and its need, the available memory, measured speeds. Out: a `Plan`, readable before anything is
loaded. Plans and predictions for several devices that share a model are in `planner`.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.scheduling.cost.memory import MemoryNeed
from edgeinfer.scheduling.offload.streaming import StreamedModel


@dataclass(frozen=True, slots=True)
class MeasuredSpeeds:
    """Measured on this machine with this model and device, or None.

    `n_prompt`: tokens of the prompts of `prefill_tok_s`, None if not recorded; `decode_tok_s` is with drafts, if there
    were any, `plain_tok_s` one token at a time.
    """

    prefill_tok_s: float | None = None
    decode_tok_s: float | None = None
    ttft_s: float | None = None
    n_prompt: int | None = None
    plain_tok_s: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A model as a whole on one device: the memory it takes, the memory available, and its measured speed.

    `kept`: what stays of the weights if not all do.
    """

    device: str
    n_workers: int
    n_stages: int
    need: MemoryNeed
    available_bytes: int
    speeds: MeasuredSpeeds
    kept: StreamedModel | None = None

    @property
    def line(self) -> str:
        """The plan in one line."""
        workers = "1 worker" if self.n_workers == 1 else f"{self.n_workers} workers"
        where = "weights and KV cache in RAM"
        if self.kept is not None:
            where = f"{self.kept.flash_bytes / 1e6:.0f} MB of weights a pass from disk, the others and KV cache in RAM"
        return f"all {self.n_stages} stages on {self.device} ({workers}), {where}"
