"""Costs of the pieces of a pass over many sequences; the accelerator holds all weights and some sequences' KV caches.

In: a machine, the work of a model. Out: seconds of the matmuls and other ops of a layer, of attention on either side,
of messages and of prompts, and how many cached tokens fit where. Sequences that are attended to together are counted by
their number and their total of cached tokens: attention time is linear in both. Chooses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from edgeinfer.graph.op import AttentionHeads
from edgeinfer.scheduling.cost.seconds import (
    ACTIVATION_BYTES,
    KV_ELEMENT_BYTES,
    DeviceCost,
    Pass,
    from_device_s,
    to_device_s,
)
from edgeinfer.scheduling.cost.work import ModelWork, StageShape
from edgeinfer.scheduling.machine.profile import Profile

DEVICE_RESERVE_BYTES = 10**9
"""Share of an accelerator's memory for its driver and the buffers of a pass."""
HOST_SHARE = 0.8
"""Share of the machine's memory that KV caches of offloaded sequences may take."""


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """Sequences that are decoded together: their number, and their total of cached tokens."""

    n: int
    n_cached: float

    @property
    def mean_cached(self) -> float:
        return self.n_cached / self.n if self.n else 0.0

    def part(self, n: int) -> SequenceGroup:
        """A part of this group: `n` sequences of its average length."""
        return SequenceGroup(n, self.mean_cached * n)


class BatchCosts:
    """Costs on the CPU and one accelerator (the first, or the one called `name`). Raises ValueError without one.

    `device_tokens` cached tokens fit beside the weights (0 if the weights do not fit), `host_tokens` in the machine's
    memory.
    """

    def __init__(self, profile: Profile, work: ModelWork, kv: str = "f16", name: str | None = None) -> None:
        if not profile.accelerators:
            raise ValueError(f"{profile.name} has no accelerator, and these schedules share work with one")
        self.device = profile.device(name) if name is not None else profile.accelerators[0]
        self.profile, self.work, self._kv = profile, work, kv
        layers = [stage.shape for stage in work.stages if stage.shape.attention is not None]
        if not layers:
            raise ValueError(f"{work.name} has no layer with attention")
        self.n_layers = len(layers)
        self._layer, self._tail = layers[0], [stage.shape for stage in work.stages if stage.shape.attention is None]
        self._heads: AttentionHeads = next(shape.attention for shape in layers if shape.attention is not None)
        self._accelerator = DeviceCost(self.device, work.weight_bytes)
        self._cpu = DeviceCost(profile.cpu, float("inf"))
        self.kv_bytes_per_token = work.kv_bytes_per_token(KV_ELEMENT_BYTES[kv])
        room = self.device.memory_bytes - work.weight_bytes - DEVICE_RESERVE_BYTES
        self.device_tokens = max(0, int(room / self.kv_bytes_per_token))
        self.host_tokens = int(profile.cpu.memory_bytes * HOST_SHARE / self.kv_bytes_per_token)
        self.products_s = cache(self._products_s)
        self.tail_s = cache(self._tail_s)

    def _products_s(self, n: int) -> float:
        """Matmuls and other ops of one layer for n sequences, on the accelerator."""
        return self._without_attention_s(self._layer, n) if n else 0.0

    def _tail_s(self, n: int) -> float:
        """Seconds of a pass of n sequences outside of all layers."""
        fixed = self.device.pass_s + n * self.device.token_s
        return fixed + sum(self._without_attention_s(shape, n) for shape in self._tail) if n else 0.0

    def _without_attention_s(self, shape: StageShape, n: int) -> float:
        products = sum(self._accelerator.product(each, each.n_rows, n).total for each in shape.products)
        return products + self._accelerator.others(shape, n)

    def attention_s(self, group: SequenceGroup) -> float:
        """Attention of one layer on the accelerator."""
        return self._attention_s(self._accelerator, group)

    def cpu_attention_s(self, group: SequenceGroup) -> float:
        """Attention of one layer on the CPU, with an op's overhead."""
        return self._attention_s(self._cpu, group) + self._cpu.rates.op_s if group.n else 0.0

    def _attention_s(self, cost: DeviceCost, group: SequenceGroup) -> float:
        if not group.n:
            return 0.0
        return cost.attention(self._heads, Pass(1, round(group.mean_cached), n_sequences=group.n), self._kv)

    def message_bytes(self, n: int) -> tuple[float, float]:
        """Bytes of queries, keys and values of one layer that leave the accelerator, and of results that come back."""
        return n * self._heads.n_taken * ACTIVATION_BYTES, n * self._heads.n_given * ACTIVATION_BYTES

    def messages_s(self, n: int) -> tuple[float, float]:
        """Seconds of the two messages of one layer."""
        if self.device.link is None:
            return 0.0, 0.0
        leaving, back = self.message_bytes(n)
        return from_device_s(self.device.link, leaving), to_device_s(self.device.link, back)

    def offloaded_s(self, group: SequenceGroup) -> float:
        """Seconds from leaving the accelerator to returning to it, for attention of one layer."""
        return sum(self.messages_s(group.n)) + self.cpu_attention_s(group)

    def prompt_s(self, n_tokens: int) -> float:
        """Seconds of reading a prompt on the accelerator in a single pass."""
        return self._accelerator.model(self.work, Pass(n_tokens), self._kv).total

    def move_s(self, n_tokens: float) -> float:
        """Seconds of moving the KV cache of this many tokens over the link."""
        link = self.device.link
        return n_tokens * self.kv_bytes_per_token / link.to_device_bytes_s if link is not None else 0.0
