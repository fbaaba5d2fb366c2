"""Rates of a device that cannot time its ops, derived from the times of whole models of several shapes.

In: an open device, quant formats, how many bytes exceed every cache. Out: the `DeviceRates` that plans are made from.
Two models of almost no weights, a narrow one of many layers and a wide one of few are run as models are in use; the
cost of a pass, an op, a weight and attention follows from the differences (`separation`). For further formats only the
last two are run. The weights are zeros: nothing of the models predicted later is known here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from edgeinfer.backends.base import Device
from edgeinfer.engine.measure.idle import QuietMeter
from edgeinfer.engine.probing.rates import bytes_per_weight
from edgeinfer.engine.probing.synthetic import ModelShape
from edgeinfer.engine.probing.whole_passes import (
    CACHED,
    ELEMENT,
    NARROW,
    NARROW_COLUMNS,
    OP,
    PASS,
    PER_PASS,
    ROW,
    TOKEN,
    WIDE,
    WIDE_COLUMNS,
    Part,
    TimedPass,
    WholePasses,
    separated,
)
from edgeinfer.scheduling.machine import profile
from edgeinfer.scheduling.machine.profile import AttentionRates, Curve, DeviceRates, Link, ProductRates

N_VOCAB, VOCAB_UNIT, N_CONTEXT, HEAD_WIDTH = 1024, 64, 2048, 64
FLAT = ModelShape(256, 512, 4, 2, HEAD_WIDTH, 2, N_VOCAB, N_CONTEXT)
"""A model of almost no weights: the fixed cost of a pass;"""
DEEPER = 12
"""layers of a second one: the cost of their ops."""
SLIM = ModelShape(NARROW_COLUMNS, 1536, 8, 4, HEAD_WIDTH, 1, N_VOCAB, N_CONTEXT)
"""A layer of small matrices, of which models have many."""
BROAD = ModelShape(WIDE_COLUMNS, 6144, 32, 8, HEAD_WIDTH, 1, N_VOCAB, N_CONTEXT)
"""A layer of large matrices, whose time is mostly matmuls."""
LAYER_SHARE = 0.5
"""Share of the uncacheable bytes that is in layers; the rest is in the head, which long passes compute only once."""
SHALLOW_TOKENS = 256
"""Tokens of a prompt after which attention is measured; passes of a prompt are no longer than this."""
MOST_TRIES, PATIENT_S = 4, 15.0
"""How often disturbed passes are repeated, unless measuring has already taken this long."""
MOST_RATE = 1e13
"""Highest rate per second that is believed; used for anything too fast to time."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured: tokens of small passes with the number of runs, prompts, and the number of rounds.

    `prompts` are read into an empty cache, each `n_prompts` times; `deep` passes of SHALLOW_TOKENS follow the last of
    them, then small passes again.
    """

    small: Mapping[int, int]
    prompts: tuple[int, ...]
    n_prompts: int
    deep: int
    rounds: int


USUAL = Amount(MappingProxyType({1: 24, 8: 6}), (64, SHALLOW_TOKENS), 2, 2, 2)


class AcceleratorProbe:
    """Whole models on a device, one after the other. The caller owns the device."""

    def __init__(self, device: Device, footprint: int, amount: Amount = USUAL) -> None:
        self._device, self._amount = device, amount
        self._patient_until = time.monotonic() + PATIENT_S
        self._footprint = footprint
        joined = device.capabilities.joined
        self.joining = None if joined is None else profile.Joining(joined.most_tokens, joined.most_products)

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
        """The parts of passes with weights of a format."""
        shapes = self._shapes(form)
        return separated(self._usual([(shape, number == 2) for number, shape in enumerate(shapes)], form))

    def weights(self, form: str, known: Mapping[Part, float]) -> Mapping[Part, float]:
        """The cost of a weight in another format, with all other parts of a pass known."""
        others = {part: seconds for part, seconds in known.items() if part[0] not in (NARROW, WIDE)}
        return separated(self._usual([(shape, False) for shape in self._shapes(form)[-2:]], form), others)

    def _usual(self, shapes: Sequence[tuple[ModelShape, bool]], form: str) -> list[TimedPass]:
        """Passes of models, some of them at depth, round after round."""
        found: dict[tuple[int, int, int], list[TimedPass]] = {}
        for _ in range(self._amount.rounds):
            for number, (shape, is_deep) in enumerate(shapes):
                for key, each in self._timed(shape, form, is_deep=is_deep):
                    found.setdefault((number, *key), []).append(each)
        return [usual(each) for each in found.values()]

    def _shapes(self, form: str) -> tuple[ModelShape, ...]:
        """The two models of almost no weights, the narrow and the wide one; the latter two read uncacheable bytes."""
        n_weights = self._footprint / bytes_per_weight(form)
        layered = []
        for shape in (SLIM, BROAD):
            n_layers = max(2, round(LAYER_SHARE * n_weights / shape.layer_weights))
            n_vocab = max(N_VOCAB, round((1 - LAYER_SHARE) * n_weights / shape.width / VOCAB_UNIT) * VOCAB_UNIT)
            layered.append(replace(shape, n_layers=n_layers, n_vocab=n_vocab))
        return (FLAT, replace(FLAT, n_layers=DEEPER), *layered)

    def _timed(self, shape: ModelShape, form: str, *, is_deep: bool) -> list[tuple[tuple[int, int], TimedPass]]:
        """Passes of a model, each with its tokens and the group it belongs to."""
        amount, found = self._amount, []
        longest = amount.prompts[-1]
        whole = WholePasses(self._device, shape, form)
        try:
            for n_tokens, n_runs in amount.small.items():
                found += self._group((n_tokens, -1), whole.on, n_runs)
            for n_tokens in self._prompts():
                found += self._group((n_tokens, 0), whole.prompt, amount.n_prompts)
            if not is_deep:
                return found
            whole.prompt(longest)
            for place in range(1, amount.deep + 1):
                found += self._group((longest, place), whole.on, 1, is_once=True)
            for n_tokens, n_runs in amount.small.items():
                found += self._group((n_tokens, amount.deep), whole.on, n_runs)
            return found
        finally:
            whole.close()

    def _group(
        self, key: tuple[int, int], timed: Callable[[int], TimedPass], n_runs: int, *, is_once: bool = False
    ) -> list[tuple[tuple[int, int], TimedPass]]:
        """Passes of the key's number of tokens; disturbed ones are repeated, unless each goes deeper (`is_once`)."""
        found = []
        if not is_once:
            timed(key[0])
        for _ in range(1 if is_once else MOST_TRIES):
            meter = QuietMeter()
            passes = [timed(key[0]) for _ in range(n_runs)]
            is_quiet = meter.end()
            found.append((key, replace(_mean(passes), is_quiet=is_quiet)))
            if is_quiet or time.monotonic() > self._patient_until:
                break
        return found

    def _prompts(self) -> tuple[int, ...]:
        """Tokens of prompts; the longest that the device joins into one pass comes last."""
        longest = 2 * self._amount.prompts[-1]
        joins = self.joining is not None and self.joining.most_tokens >= longest
        return (*self._amount.prompts, longest) if joins else self._amount.prompts


def _mean(passes: Sequence[TimedPass]) -> TimedPass:
    """The mean of consecutive passes: slow ones count as they do in use."""
    first = passes[0]
    depth = round(statistics.fmean(each.step.n_cached for each in passes))
    return replace(
        first,
        step=replace(first.step, n_cached=depth),
        seconds=statistics.fmean(each.seconds for each in passes),
    )


def usual(passes: Sequence[TimedPass]) -> TimedPass:
    """The median of equal passes, from quiet ones if there are any; if all were disturbed, the lower quartile."""
    quiet = sorted((each for each in passes if each.is_quiet), key=lambda each: each.seconds)
    if quiet:
        return quiet[(len(quiet) - 1) // 2]
    return sorted(passes, key=lambda each: each.seconds)[len(passes) // 4]


def _product(parts: Mapping[Part, float], form: str) -> ProductRates:
    """Rates of narrow and of wide matrices, as far as both were measured."""
    kinds = {kind for kind, _ in parts}
    rate = _rate(parts, NARROW if NARROW in kinds else WIDE, by_pass=True)
    if not {NARROW, WIDE} <= kinds:
        return ProductRates(bytes_per_weight(form), rate)
    wide = _rate(parts, WIDE, by_pass=True)
    return ProductRates(bytes_per_weight(form), rate, None, 0.0, NARROW_COLUMNS, wide, WIDE_COLUMNS)


def _rate(parts: Mapping[Part, float], kind: str, *, by_pass: bool = False) -> Curve:
    """Units per second by tokens of a pass. `by_pass`: seconds are per unit for all tokens of a pass."""
    found = {n: seconds for (each, n), seconds in sorted(parts.items()) if each == kind}
    rates = {n: (n if by_pass else 1) / max(seconds, 1 / MOST_RATE) for n, seconds in found.items()}
    return Curve(tuple(rates), tuple(rates.values()))


def _row_s(parts: Mapping[Part, float]) -> Curve:
    found = {n: max(seconds, 1 / MOST_RATE) for (each, n), seconds in sorted(parts.items()) if each == ROW}
    found = {1: 1 / MOST_RATE, **found}
    return Curve(tuple(found), tuple(found.values()))
