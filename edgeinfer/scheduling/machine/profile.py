"""A machine as measured rates: what its cores, memory, disk and accelerators do per second.

In: numbers from a probe of this machine, or from a file about another one. Out: frozen records that costs are computed
from. Knows neither where the numbers come from nor what a model is; `profile_file` writes and reads them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

QUIET_SHARE = 0.9
"""A machine that was less idle than this while it was measured may perform better than measured."""
CPU = "cpu"
"""Name of the device that every machine has; its memory is the machine's."""
FLOATS = ("F16", "BF16", "F32")
"""Formats without blocks."""
ANY = "*"
"""Format of the matmul rates used for every format without rates of its own."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A positive quantity `values` at increasing places `at`: linear in between, constant before and beyond."""

    at: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        increasing = all(low < high for low, high in zip(self.at, self.at[1:], strict=False))
        if not self.at or len(self.at) != len(self.values) or not increasing or min(self.values) <= 0:
            raise ValueError(
                f"a curve needs increasing places and as many positive values, not {self.at}, {self.values}"
            )

    @classmethod
    def level(cls, value: float) -> Curve:
        """The same value everywhere."""
        return cls((1,), (value,))

    def __call__(self, place: float) -> float:
        return _straight(self.at, self.values, place)

    def seconds(self, n_tokens: float) -> float:
        """Seconds per unit of work and token, from a curve of units per second: times are interpolated, not rates.

        Outside of the measured numbers of tokens the rate is constant.
        """
        low, high = self.at[0], self.at[-1]
        if n_tokens <= low or n_tokens >= high:
            return n_tokens / self.values[0 if n_tokens <= low else -1]
        return _straight(self.at, tuple(n / rate for n, rate in zip(self.at, self.values, strict=True)), n_tokens)


def _straight(places: tuple[float, ...], values: tuple[float, ...], place: float) -> float:
    after = bisect_left(places, place)
    if after == 0:
        return values[0]
    if after == len(places):
        return values[-1]
    low, high = places[after - 1], places[after]
    share = (place - low) / (high - low)
    return values[after - 1] * (1 - share) + values[after] * share


@dataclass(frozen=True, slots=True)
class ProductRates:
    """Matmuls with weights of one format: multiply-adds per second by tokens of a pass.

    `rate` with weights from memory, `cached` with weights that the caches hold (None: not measured); `footprint` bytes
    of weights were read in turns when `rate` was measured. `rate` is for matrices of `columns` and `wide`, if present,
    for matrices of `wide_columns`; between them the time per weight is linear.
    """

    bytes_per_weight: float
    rate: Curve
    cached: Curve | None = None
    footprint: float = 0.0
    columns: int = 0
    wide: Curve | None = None
    wide_columns: int = 0

    def weight_s(self, n_tokens: float, columns: int) -> float:
        """Seconds per weight from memory in a pass of this many tokens."""
        narrow = self.rate.seconds(n_tokens)
        if self.wide is None or columns <= self.columns:
            return narrow
        share = min(1.0, (columns - self.columns) / (self.wide_columns - self.columns))
        return narrow * (1 - share) + self.wide.seconds(n_tokens) * share

    @property
    def weights_read_s(self) -> float:
        """Weights per second from memory in passes of the fewest tokens."""
        return max(curve.values[0] / curve.at[0] for curve in (self.rate, self.wide) if curve is not None)

    @property
    def best(self) -> float:
        """The highest of all rates: what arithmetic alone allows, as far as was measured."""
        curves = [curve for curve in (self.rate, self.cached, self.wide) if curve is not None]
        return max(max(curve.values) for curve in curves)


@dataclass(frozen=True, slots=True)
class AttentionRates:
    """Attention with heads of one width: multiply-adds per second by tokens of a pass.

    In addition a call takes `call_s`, and each row (a token's query head) `row_s` seconds, by tokens of a pass.
    `cached_only`: all this is for passes with cached tokens before them, and counts only attention to those; attention
    among the tokens of a pass is counted with everything that is not a matmul. `whole`: of texts whose tokens attend to
    all of them, at "high" precision.
    """

    head_width: int
    rate: Curve
    call_s: float = 0.0
    row_s: Curve | None = None
    cached_only: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class CoreRates:
    """One core: bytes per second it reads alone, and how fast it computes, as multiples of the fastest core."""

    number: int
    kind: str
    node: int
    read_bytes_s: float
    speed: float


@dataclass(frozen=True, slots=True)
class NodeRates:
    """A NUMA node: bytes per second that its own cores read from its memory, and from each node's, in order."""

    number: int
    memory_bytes: int
    read_bytes_s: float
    remote_bytes_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """The link between the machine's memory and an accelerator's: bytes per second each way, seconds per message.

    `host_s`: the part of those seconds in which the CPU is busy with the message and computes nothing; it then moves
    the bytes too. 0 where messages need no CPU.
    """

    to_device_bytes_s: float
    from_device_bytes_s: float
    latency_s: float
    host_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Joining:
    """Passes of a prompt that a device with the whole model can join into one: limits in tokens and multiply-adds."""

    most_tokens: int
    most_madds: float

    def tokens(self, n_weights: int, most: int) -> int:
        """Tokens of a joined prefill pass, from passes of `most` tokens."""
        joined = min(self.most_tokens, int(self.most_madds / max(1, n_weights)))
        return most * max(1, joined // most)


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """One device. All its cores take part in its rates.

    `read`: bytes per second by footprint, the bytes that are read in turns. `element_rate`: elements per second of
    everything that is neither matmul nor attention, by tokens of a pass. `op_s`: overhead of an op (a call and a
    barrier, or a launch); `pass_s`, `token_s`: time of a pass and of each of its tokens outside of all ops. `joining`:
    limits for joining the passes of a prompt, None if it does not join them. `link` is None for the CPU, whose `cores`
    and `nodes` are listed.
    """

    name: str
    kind: str
    memory_bytes: int
    read: Curve
    products: Mapping[str, ProductRates]
    attention: tuple[AttentionRates, ...]
    element_rate: Curve
    op_s: float = 0.0
    pass_s: float = 0.0
    token_s: float = 0.0
    joining: Joining | None = None
    link: Link | None = None
    cores: tuple[CoreRates, ...] = ()
    nodes: tuple[NodeRates, ...] = ()

    def product(self, form: str, bytes_per_weight: float) -> ProductRates:
        """Rates of a format: its own, those for any format, or those of the measured one nearest in size per weight.

        After a format's name may stand the precision that is enough, if less than the highest; what was measured of
        other formats of floats at that precision then counts for more than the format itself.
        """
        kind, _, precision = form.partition(" ")
        alike = {key: rates for key, rates in self.products.items() if key.partition(" ")[2] == precision}
        found = self.products.get(form) or (None if precision and kind in FLOATS and alike else self.products.get(kind))
        found = found or self.products.get(ANY)
        if found is not None:
            return found
        among = (alike if kind in FLOATS or not precision else None) or self.products
        return min(among.values(), key=lambda rates: abs(rates.bytes_per_weight - bytes_per_weight))

    def attention_rates(self, head_width: int, whole: bool = False) -> AttentionRates:
        """Rates of heads of the nearest width, of whole texts if they were measured."""
        found = [rates for rates in self.attention if rates.whole == whole] or self.attention
        return min(found, key=lambda rates: abs(rates.head_width - head_width))


@dataclass(frozen=True, slots=True)
class Disk:
    """Direct reads: bytes per second by bytes of a request, for each number of requests in flight."""

    by_depth: Mapping[int, Curve]

    @property
    def best_bytes_s(self) -> float:
        return max(max(curve.values) for curve in self.by_depth.values())

    def knows(self, least_bytes: int, most_bytes: int) -> bool:
        """Whether requests of at most and of at least these sizes were measured."""
        return all(curve.at[0] <= least_bytes and curve.at[-1] >= most_bytes for curve in self.by_depth.values())

    def bytes_s(self, request_bytes: int, n_flying: int) -> float:
        """Bytes per second of requests of a size with this many in flight, or the next lower number measured."""
        depth = max((each for each in self.by_depth if each <= n_flying), default=min(self.by_depth))
        return self.by_depth[depth](request_bytes)


@dataclass(frozen=True, slots=True)
class Profile:
    """A machine. `devices` begins with the CPU.

    `fingerprint`: of the machine it was measured on ("" for an assumed one); `measured`: when; `idle_share`: the share
    of it that nothing else used meanwhile; `short`: only the quick part was measured. `assumptions`: what was not
    measured of an assumed machine, in words.
    """

    name: str
    devices: tuple[DeviceRates, ...]
    disk: Disk | None = None
    fingerprint: str = ""
    measured: str = ""
    idle_share: float | None = None
    short: bool = False
    assumptions: tuple[str, ...] = ()

    @property
    def used_by_others(self) -> float:
        """The share of the machine that others used while it was measured; 0 if that did not matter."""
        return 0.0 if self.idle_share is None or self.idle_share >= QUIET_SHARE else 1.0 - self.idle_share

    @property
    def cpu(self) -> DeviceRates:
        return self.devices[0]

    @property
    def accelerators(self) -> tuple[DeviceRates, ...]:
        return self.devices[1:]

    def device(self, name: str) -> DeviceRates:
        """The device called `name`. Raises KeyError."""
        for device in self.devices:
            if device.name == name:
                return device
        raise KeyError(name)
