"""What to expect of a model on a machine: the seconds of its passes, and its memory and measured speeds.

In: a profile, the work of a model, and its placement unless it is all on the CPU; measured speeds, if there are any.
Out: seconds and rates, from the header alone; a `Plan`, readable before anything is loaded. Placed models are predicted
by `step_time`, which gives the same for a model that is all on the CPU. Plans for several devices are in `planner`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from edgeinfer.scheduling.cost.memory import MemoryNeed
from edgeinfer.scheduling.cost.seconds import DeviceCost, Pass, Spent, chunks
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.offload.streaming import StreamedModel
from edgeinfer.scheduling.placement.placement import Placement
from edgeinfer.scheduling.placement.step_time import step_time

MOST_TOKENS = 256
"""Most tokens of a prefill pass."""
DEPTH_STEP = 32
"""Cached tokens between two computed decoding passes; those in between are interpolated."""


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
        if self.need.kv_file_bytes:
            where = "weights and a part of the KV cache in RAM"
        if self.kept is not None:
            where = f"{self.kept.flash_bytes / 1e6:.0f} MB of weights a pass from disk, the others and KV cache in RAM"
        return f"all {self.n_stages} stages on {self.device} ({workers}), {where}"


class Predictor:
    """Predicts one model on a machine: on its CPU, or as it is placed."""

    def __init__(
        self,
        profile: Profile,
        work: ModelWork,
        kv: str = "f16",
        placement: Placement | None = None,
        *,
        disk_s: Callable[[int], float] | None = None,
        waiting_s: Callable[[int], float] | None = None,
        most_tokens: int = MOST_TOKENS,
        kv_budget: int = 0,
    ) -> None:
        """`disk_s`: seconds of reading while computing, by tokens of a pass; `waiting_s`: those without computing.

        `most_tokens`: tokens of a prefill pass. `kv_budget`: of the tokens of answers, as `Pass.budget`.
        """
        self._kv_budget = kv_budget
        self._profile, self._work, self._kv, self._placement = profile, work, kv, placement
        self._disk_s, self._waiting_s = disk_s, waiting_s
        self._most_tokens = reading_tokens(profile, work, placement, most_tokens)
        self.seconds = lru_cache(maxsize=4096)(self._seconds)

    def _seconds(self, step: Pass) -> Spent:
        """What a pass is spent on: only the disk, if reading takes longest."""
        computed = self._computed(step)
        disk_s = 0.0 if self._disk_s is None else self._disk_s(step.n_rows)
        found = computed if computed.total >= disk_s else Spent(disk=disk_s)
        return found if self._waiting_s is None else found + Spent(disk=self._waiting_s(step.n_rows))

    def _computed(self, step: Pass) -> Spent:
        if self._placement is not None:
            return step_time(self._profile, self._work, self._placement, step, self._kv).spent
        footprint = self._work.weight_bytes + self._work.kv_bytes_per_token() * step.n_attended
        return DeviceCost(self._profile.cpu, footprint).model(self._work, step, self._kv)

    def pass_s(self, n_tokens: int, n_cached: int = 0, n_outputs: int = 1) -> float:
        """Seconds of one pass of an answer."""
        return self.seconds(Pass(n_tokens, n_cached, n_outputs, budget=self._kv_budget)).total

    def together_s(self, n_sequences: int, n_cached: float) -> float:
        """Seconds of a pass that gives a token to each of several answers, with so many cached tokens each."""
        return self.seconds(Pass(1, round(n_cached), 1, n_sequences, self._kv_budget)).total

    def prompt_s(self, n_tokens: int, n_cached: int = 0) -> float:
        """Seconds of reading a prompt."""
        return sum(self.seconds(step).total for step in chunks(n_tokens, self._most_tokens, n_cached))

    def decode_s(self, n_tokens: int, n_cached: int = 0) -> float:
        """Seconds of this many consecutive one-token passes."""
        total, start = 0.0, n_cached
        while start < n_cached + n_tokens:
            stop = min(start + DEPTH_STEP, n_cached + n_tokens)
            total += (stop - start) * self.pass_s(1, (start + stop) // 2)
            start = stop
        return total


def reading_tokens(profile: Profile, work: ModelWork, placement: Placement | None, most: int = MOST_TOKENS) -> int:
    """Most tokens of a prefill pass of a model with this placement (None: on the CPU).

    `most`: tokens of a pass before joining.
    """
    devices = () if placement is None else placement.devices
    joining = profile.device(devices[0]).joining if len(devices) == 1 else None
    return most if joining is None else joining.tokens(work.n_weights, most)
