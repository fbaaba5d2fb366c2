"""Rates of a device that does not tell what its ops take: whole models of several shapes, taken apart by their sums.

In: an open device, quant formats, how many bytes no cache holds. Out: the `DeviceRates` that plans are made from. A
model that is next to nothing, a narrow one of many layers and a wide one of few are run as models are run in use; what
a pass, an op, a weight and attention take follows from the differences (`separation`). Of further formats the wide one
alone is run. Zeros are multiplied: nothing of the models that are predicted later is known here.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from edgeinfer.backends.base import Device, Joining
from edgeinfer.engine.probing.rates import bytes_per_weight
from edgeinfer.engine.probing.separation import (
    CACHED,
    ELEMENT,
    OP,
    PASS,
    PER_PASS,
    ROW,
    TOKEN,
    WEIGHT,
    Part,
    TimedPass,
    amounts,
    separated,
)
from edgeinfer.engine.probing.synthetic import Shape
from edgeinfer.engine.probing.whole_passes import WholePasses
from edgeinfer.scheduling import profile
from edgeinfer.scheduling.cost import Pass
from edgeinfer.scheduling.profile import AttentionRates, Curve, DeviceRates, Link, ProductRates

N_VOCAB, N_CONTEXT, HEAD_WIDTH = 1024, 2048, 64
NARROW = Shape(768, 2048, 12, 4, HEAD_WIDTH, 1, N_VOCAB, N_CONTEXT)
"""A layer of small matrices: models have them in great numbers, so what each op takes besides tells."""
WIDE = Shape(2048, 6144, 32, 8, HEAD_WIDTH, 1, N_VOCAB, N_CONTEXT)
"""A layer of large ones, which are mostly products."""
TINY = Shape(256, 512, 4, 2, HEAD_WIDTH, 2, N_VOCAB, N_CONTEXT)
"""A model of next to no weights: what a pass takes anyway."""
FOOTPRINT_SHARE = 0.5
"""Of the bytes that no cache holds, as the cpu is measured with: enough to be read from memory for the most part."""
SHALLOW_TOKENS = 256
"""Of a prompt after which attention is measured; passes in which prompts come are no longer."""
MOST_RATE = 1e13
"""Of anything in a second that is believed: what takes no time that can be seen has it."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured: tokens of small passes with how many are timed, of prompts, and how often all of it.

    `prompts` are read into an empty cache, each `n_prompts` times; `deep` of SHALLOW_TOKENS follow the last of them,
    and small passes again after those.
    """

    small: Mapping[int, int]
    prompts: tuple[int, ...]
    n_prompts: int
    deep: int
    rounds: int


USUAL = Amount(MappingProxyType({1: 12, 8: 5}), (64, SHALLOW_TOKENS), 2, 2, 2)


class AcceleratorProbe:
    """Whole models on a device, one after the other. The device is its owner's."""

    def __init__(self, device: Device, footprint: int, amount: Amount = USUAL) -> None:
        self._device, self._amount = device, amount
        self._footprint = FOOTPRINT_SHARE * footprint
        self.joining: profile.Joining | None = None
        if isinstance(device, Joining):
            self.joining = profile.Joining(device.joined.most_tokens, device.joined.most_products)

    def rates(self, name: str, kind: str, memory_bytes: int, forms: Sequence[str], link: Link) -> DeviceRates:
        """Measure now. Raises DeviceFailed."""
        parts = self.parts(forms[0])
        products = {forms[0]: _product(parts, forms[0])}
        for form in forms[1:]:
            products[form] = _product(self.weights(form, parts), form)
        heads = AttentionRates(HEAD_WIDTH, _rate(parts, CACHED), 0.0, _row_s(parts), cached_only=True)
        return DeviceRates(
            name=name,
            kind=kind,
            memory_bytes=memory_bytes,
            read=Curve.level(max(each.weights_read_s * each.bytes_per_weight for each in products.values())),
            products=MappingProxyType(products),
            attention=(heads,),
            element_rate=_rate(parts, ELEMENT, by_pass=True),
            op_s=parts[OP, PER_PASS],
            pass_s=parts[PASS, PER_PASS],
            token_s=parts[TOKEN, PER_PASS],
            joining=self.joining,
            link=link,
        )

    def parts(self, form: str) -> Mapping[Part, float]:
        """What passes with weights of a format are made of."""
        found: dict[tuple[int, int, int], list[TimedPass]] = {}
        shapes = self._shapes(form)
        for _ in range(self._amount.rounds):
            for number, shape in enumerate(shapes):
                for key, each in self._timed(shape, form, is_deep=number == 1):
                    found.setdefault((number, *key), []).append(each)
        return separated([usual(each) for each in found.values()])

    def weights(self, form: str, known: Mapping[Part, float]) -> Mapping[Part, float]:
        """Of another format, what a weight takes, by tokens of a pass: all that is left of its wide model's passes."""
        found: dict[tuple[int, int], list[TimedPass]] = {}
        for _ in range(self._amount.rounds):
            for key, each in self._timed(self._shapes(form)[-1], form, is_deep=False):
                found.setdefault(key, []).append(each)
        seconds: dict[Part, float] = {}
        for each in sorted(map(usual, found.values()), key=lambda each: each.step.n_tokens):
            own = amounts(each.work, each.step)
            left_s = each.seconds - sum(
                amount * (seconds.get(part, 0.0) if part[0] == WEIGHT else known.get(part, 0.0))
                for part, amount in own.items()
                if part != (WEIGHT, each.step.n_tokens)
            )
            part = (WEIGHT, each.step.n_tokens)
            seconds[part] = max(0.0, left_s) / own[part]
        return seconds

    def _shapes(self, form: str) -> tuple[Shape, ...]:
        """The model of next to nothing, the narrow and the wide one; these read what no cache holds."""
        n_weights = self._footprint / bytes_per_weight(form)
        layered = [replace(shape, n_layers=max(2, round(n_weights / shape.layer_weights))) for shape in (NARROW, WIDE)]
        return (TINY, *layered)

    def _timed(self, shape: Shape, form: str, *, is_deep: bool) -> list[tuple[tuple[int, int], TimedPass]]:
        """Passes of a model, each with its tokens and the group it belongs to; the first of a kind is not counted."""
        amount, found = self._amount, []
        whole = WholePasses(self._device, shape, form)
        try:
            for n_tokens, n_runs in amount.small.items():
                whole.on(n_tokens)
                found += [((n_tokens, -1), whole.on(n_tokens)) for _ in range(n_runs)]
            for n_tokens in self._prompts():
                whole.prompt(n_tokens)
                found += [((n_tokens, 0), whole.prompt(n_tokens)) for _ in range(amount.n_prompts)]
            if not is_deep:
                return found
            whole.prompt(amount.prompts[-1])
            for place in range(1, amount.deep + 1):
                found.append(((amount.prompts[-1], place), whole.on(amount.prompts[-1])))
            for n_tokens, n_runs in amount.small.items():
                whole.on(n_tokens)
                found += [((n_tokens, amount.deep), whole.on(n_tokens)) for _ in range(n_runs)]
            return found
        finally:
            whole.close()

    def _prompts(self) -> tuple[int, ...]:
        """Tokens of prompts: the longest that are read as one last."""
        longest = 2 * self._amount.prompts[-1]
        joins = self.joining is not None and self.joining.most_tokens >= longest
        return (*self._amount.prompts, longest) if joins else self._amount.prompts


def usual(passes: Sequence[TimedPass]) -> TimedPass:
    """Of passes alike, the lower quartile of their seconds: others on the machine only ever add to it."""
    seconds = sorted(each.seconds for each in passes)
    depth = round(statistics.fmean(each.step.n_cached for each in passes))
    step = Pass(passes[0].step.n_tokens, depth)
    return TimedPass(passes[0].work, step, seconds[len(seconds) // 4])


def _product(parts: Mapping[Part, float], form: str) -> ProductRates:
    return ProductRates(bytes_per_weight(form), _rate(parts, WEIGHT, by_pass=True))


def _rate(parts: Mapping[Part, float], kind: str, *, by_pass: bool = False) -> Curve:
    """Units per second by tokens of a pass. `by_pass`: seconds are of a unit for all tokens of a pass."""
    found = {n: seconds for (each, n), seconds in sorted(parts.items()) if each == kind}
    rates = {n: (n if by_pass else 1) / max(seconds, 1 / MOST_RATE) for n, seconds in found.items()}
    return Curve(tuple(rates), tuple(rates.values()))


def _row_s(parts: Mapping[Part, float]) -> Curve:
    found = {n: max(seconds, 1 / MOST_RATE) for (each, n), seconds in sorted(parts.items()) if each == ROW}
    found = {1: 1 / MOST_RATE, **found}
    return Curve(tuple(found), tuple(found.values()))
