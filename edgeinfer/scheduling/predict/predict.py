"""Predicts a model's seconds: of prompts, of decoding, of passes over drafts.

In: a profile, the work of a model, and its placement unless it is all on the CPU. Out: seconds and rates, from the
header alone. Placed models are predicted by `step_time`, which gives the same for a model that is all on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from edgeinfer.scheduling.cost.seconds import DeviceCost, Pass, chunks
from edgeinfer.scheduling.cost.spent import Spent
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.placement.placement import Placement
from edgeinfer.scheduling.placement.step_time import step_time

MOST_TOKENS = 256
"""Most tokens of a prefill pass."""
DEPTH_STEP = 32
"""Cached tokens between two computed decoding passes; those in between are interpolated."""


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
    ) -> None:
        """`disk_s`: seconds of reading while computing, by tokens of a pass; `waiting_s`: those without computing.

        `most_tokens`: tokens of a prefill pass.
        """
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
        footprint = self._work.weight_bytes + self._work.kv_bytes_per_token() * step.n_cached
        return DeviceCost(self._profile.cpu, footprint).model(self._work, step, self._kv)

    def pass_s(self, n_tokens: int, n_cached: int = 0, n_outputs: int = 1) -> float:
        """Seconds of one pass."""
        return self.seconds(Pass(n_tokens, n_cached, n_outputs)).total

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
