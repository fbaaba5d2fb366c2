"""Seconds of ops, stages and passes on a device, from measured rates, and what they are spent on.

In: a device's rates, what a stage has to do, and the tokens of a pass. Out: seconds by cause, as a `Spent`, whose
largest part limits the pass. A cost is never below its bounds: bytes over the best read rate, multiply-adds over the
best rate of the kernel. Weights that are partly cached are interpolated between the two measured cases, by how fast
that many bytes are read.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.op import AttentionHeads
from edgeinfer.scheduling.cost.work import MatMulWork, ModelWork, StageShape
from edgeinfer.scheduling.machine.profile import DeviceRates, Link, ProductRates

KV_ELEMENT_BYTES = {"f16": 2.0, "q8": 34 / 32, "q8q4": (34 / 32 + 10 / 16) / 2, "q4": 10 / 16}
"""Bytes of a cached number, with its part of a scale; of `q8q4`, on average over keys and values."""
CHUNK = 64
"""Cached positions that are chosen together within a budget."""
ACTIVATION_BYTES = 4
"""Bytes of a number that passes from one device to another."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of the weights and the arithmetic of matmuls, of attention, of calls, of links and of the disk."""

    memory: float = 0.0
    arithmetic: float = 0.0
    attention: float = 0.0
    overhead: float = 0.0
    link: float = 0.0
    disk: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.memory + other.memory,
            self.arithmetic + other.arithmetic,
            self.attention + other.attention,
            self.overhead + other.overhead,
            self.link + other.link,
            self.disk + other.disk,
        )

    @property
    def total(self) -> float:
        return self.memory + self.arithmetic + self.attention + self.overhead + self.link + self.disk

    @property
    def largest(self) -> str:
        """The largest share of the time."""
        parts = {
            "memory bandwidth": self.memory,
            "arithmetic": self.arithmetic,
            "attention": self.attention,
            "overhead": self.overhead,
            "link": self.link,
            "disk": self.disk,
        }
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True, slots=True)
class Pass:
    """`n_tokens` of one sequence after `n_cached` cached ones, with logits of `n_outputs` of them.

    `n_sequences`: sequences in the pass, each with as many tokens and equally deep. `budget`: cached positions that a
    token attends to in layers without a window; 0: all.
    """

    n_tokens: int
    n_cached: int = 0
    n_outputs: int = 1
    n_sequences: int = 1
    budget: int = 0

    @property
    def n_attended(self) -> int:
        """Cached positions that are attended to in layers without a window."""
        return min(self.n_cached, self.budget or self.n_cached)

    @property
    def n_rows(self) -> int:
        """Tokens of all sequences."""
        return self.n_tokens * self.n_sequences


class DeviceCost:
    """Costs on one device that reads `footprint` bytes of weights and KV cache in every pass.

    `speed` and `read`: the part of the device in use (some cores), as shares of its arithmetic and of its read rate.
    """

    def __init__(self, rates: DeviceRates, footprint: float, speed: float = 1.0, read: float = 1.0) -> None:
        self.rates = rates
        self._read_bytes_s = rates.read(footprint) * read
        self._speed, self._read = speed, read
        self._footprint = footprint

    def product(self, product: MatMulWork, n_rows: float, n_tokens: int) -> Spent:
        """Rows of a matrix times `n_tokens` activations; for experts, the rows that the tokens are expected to use."""
        if n_rows <= 0 or n_tokens <= 0:
            return Spent()
        rates = self.rates.product(product.form, product.bytes_per_weight)
        n_weights = n_rows * product.columns * product.share_read(n_tokens)
        n_multiplied = n_rows * product.columns * product.share_used * n_tokens
        computed = n_weights * self._weight_s(rates, n_multiplied / n_weights, product.columns)
        read = n_weights * product.bytes_per_weight / self._read_bytes_s
        busy = n_multiplied / rates.best / self._speed
        seconds = max(computed, read, busy)
        arithmetic = busy if busy >= read else min(busy, seconds - read)
        return Spent(memory=seconds - arithmetic, arithmetic=arithmetic)

    def _weight_s(self, rates: ProductRates, n_tokens: float, columns: int) -> float:
        """Seconds per weight, from memory or from caches depending on the footprint."""
        measured = rates.weight_s(n_tokens, columns)
        if rates.cached is None:
            return measured / self._speed
        cached = min(measured, rates.cached.seconds(n_tokens))
        return cached / self._speed + (measured - cached) * self._missing(rates.footprint) / self._read

    def _missing(self, measured_footprint: float) -> float:
        """Share of the weights that come from memory, at most 1; all did when the rates were measured.

        Caches retain hardly anything of a footprint several times their size, so no larger model is slower.
        """
        read = self.rates.read
        fastest = max(read.values)
        slowness = [1 / read(bytes_) - 1 / fastest for bytes_ in (self._footprint, measured_footprint)]
        return min(1.0, slowness[0] / slowness[1]) if slowness[1] > 0 else 1.0

    def attention(self, heads: AttentionHeads, step: Pass, kv: str = "f16") -> float:
        """Attention of one layer for all sequences of a pass."""
        rates = self.rates.attention_rates((heads.key_width + heads.value_width) // 2, heads.whole)
        if rates.cached_only and not step.n_cached:
            return 0.0
        own = heads.multiply_adds(step.n_tokens, 0) if rates.cached_only else 0.0
        n_cached = step.n_cached if heads.window else step.n_attended
        n_compared = (step.n_cached - n_cached) / CHUNK  # chunks whose summaries a budget compares
        work = (heads.multiply_adds(step.n_tokens, n_cached) - own) * step.n_sequences
        work += step.n_rows * n_compared * 2 * heads.heads * heads.key_width
        computed = work * rates.rate.seconds(step.n_tokens) / step.n_tokens / self._speed
        if rates.row_s is not None:
            computed += step.n_rows * heads.heads * rates.row_s(step.n_tokens) / self._speed
        n_bytes = heads.reach(step.n_tokens, n_cached) * heads.kv_bytes_per_token(KV_ELEMENT_BYTES[kv])
        n_bytes += n_compared * heads.kv_heads * 2 * heads.key_width * KV_ELEMENT_BYTES["f16"]
        read = n_bytes * step.n_sequences / self._read_bytes_s
        return max(computed, read) + rates.call_s

    def others(self, shape: StageShape, n_tokens: int) -> float:
        """Everything in a stage except matmuls and attention."""
        elements = shape.n_elements * self.rates.element_rate.seconds(max(1, n_tokens)) / self._speed
        return shape.n_ops * self.rates.op_s + elements

    def stage(self, shape: StageShape, step: Pass, kv: str = "f16") -> Spent:
        """A whole stage on this device."""
        n_tokens = min(step.n_outputs * step.n_sequences, step.n_rows) if shape.for_outputs else step.n_rows
        total = Spent(overhead=self.others(shape, n_tokens))
        for product in shape.products:
            total += self.product(product, product.n_rows, n_tokens)
        if shape.attention is not None:
            total += Spent(attention=self.attention(shape.attention, step, kv))
        return total

    def model(self, work: ModelWork, step: Pass, kv: str = "f16") -> Spent:
        """A whole pass on this device."""
        spent = {shape: self.stage(shape, step, kv) for shape in {stage.shape for stage in work.stages}}
        total = Spent(overhead=self.rates.pass_s + step.n_rows * self.rates.token_s)
        for stage in work.stages:
            total += spent[stage.shape]
        return total


def chunks(n_tokens: int, most: int, n_cached: int = 0) -> list[Pass]:
    """The passes of a prompt: `most` tokens each, with logits of the last token of the last one."""
    starts = range(0, n_tokens, most)
    return [
        Pass(min(most, n_tokens - start), n_cached + start, n_outputs=int(start + most >= n_tokens)) for start in starts
    ]


def to_device_s(link: Link, n_bytes: float) -> float:
    """Seconds until this many bytes have reached an accelerator."""
    return link.latency_s + n_bytes / link.to_device_bytes_s if n_bytes > 0 else 0.0


def from_device_s(link: Link, n_bytes: float) -> float:
    """Seconds until this many bytes have come back."""
    return link.latency_s + n_bytes / link.from_device_bytes_s if n_bytes > 0 else 0.0
