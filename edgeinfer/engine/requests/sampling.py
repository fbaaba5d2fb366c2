"""From logits to a token: settings, the warped distribution, and seeded draws.

In: float32[V] logits, the tokens so far, the number of the draw. Out: one token id, or the exact distribution it is
drawn from. The chain is llama.cpp's default order: bias, penalties, top-k, top-p, min-p, temperature, draw. The n-th
draw of a seed uses noise that depends on seed, n and token alone, so draws can be repeated, skipped or foreseen. Knows
nothing of text: the generator handles stop strings and end-of-generation tokens.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import exp, inf, log
from numbers import Integral, Real
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.engine.requests.highest import highest_of, most_likely, most_likely_by_peaks, no_number, shortlist
from edgeinfer.engine.requests.noise import Doubles, Int64s, Noise, exponential
from edgeinfer.errors import BadSetting

FEW = 64
"""Up to so many candidates, plain numbers are faster than arrays: between passes of a model, each call of NumPy finds
its code and data in no cache near the core."""
NUCLEUS_FIRST = 1024
"""Candidates that top-p sorts at first; eight times as many until they hold enough probability."""

LEAST_FACTOR, MOST_FACTOR = 1e-30, 1e30
"""Range of factors that logits are multiplied by: outside it, they would be 0 or infinite in float32."""


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How to choose a token. With `temperature` 0, the most likely token after bias and penalties.

    `top_k` 0, `top_p` 1, `min_p` 0, `repeat_penalty` 1 and the other two penalties at 0 are off. Penalties look at the
    last `penalty_window` tokens; -1 means all. With `seed` None the sampler chooses a seed and reports it.
    """

    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty"):
            if not isinstance(getattr(self, name), Real):
                raise BadSetting(f"{name} cannot be {getattr(self, name)!r}: it must be a number")
        for name in ("top_k", "penalty_window", *(() if self.seed is None else ("seed",))):
            if not isinstance(getattr(self, name), Integral):
                raise BadSetting(f"{name} cannot be {getattr(self, name)!r}: it must be a whole number")
        _check_bias(self.logit_bias)
        for name, allowed, rule in (
            ("temperature", 0 <= self.temperature < float("inf"), "0 or more"),
            ("top_k", self.top_k >= 0, "0 (off) or more"),
            ("top_p", 0 < self.top_p <= 1, "more than 0 and at most 1 (off)"),
            ("min_p", 0 <= self.min_p <= 1, "between 0 (off) and 1"),
            (
                "repeat_penalty",
                LEAST_FACTOR <= self.repeat_penalty <= MOST_FACTOR,
                f"between {LEAST_FACTOR} and {MOST_FACTOR}; 1 is off",
            ),
            ("presence_penalty", abs(self.presence_penalty) < float("inf"), "a finite number"),
            ("frequency_penalty", abs(self.frequency_penalty) < float("inf"), "a finite number"),
            ("penalty_window", self.penalty_window >= -1, "-1 (all tokens), 0 (off) or more"),
            ("seed", self.seed is None or self.seed >= 0, "0 or more"),
        ):
            if not allowed:
                raise BadSetting(f"{name} cannot be {getattr(self, name)!r}: it must be {rule}")

    @property
    def takes_likeliest(self) -> bool:
        """Whether the token is always the one with the highest of the model's own logits, if that is not suppressed."""
        penalties = self.repeat_penalty, self.presence_penalty, self.frequency_penalty
        return self.temperature == 0 and penalties == (1, 0, 0) and not self.logit_bias


def _check_bias(logit_bias: object) -> None:
    if not isinstance(logit_bias, Mapping):
        raise BadSetting(f"logit_bias cannot be {logit_bias!r}: it must be a mapping from tokens to numbers")
    for token, bias in logit_bias.items():
        if not isinstance(token, Integral):
            raise BadSetting(f"logit_bias names {token!r}: its keys are numbers of tokens")
        if not isinstance(bias, Real) or not (np.isfinite(float(bias)) or bias < 0):
            raise BadSetting(f"logit_bias of token {token} cannot be {bias!r}: it must be finite or -infinity")


@dataclass(frozen=True, slots=True)
class Distribution:
    """The tokens that can be drawn, and weights that their probabilities are proportional to.

    tokens   int64[C]    increasing
    weights  float64[C]  above 0
    """

    tokens: Int64s
    weights: Doubles

    @property
    def probabilities(self) -> Doubles:
        """Probabilities of the tokens, which sum to 1: float64[C]."""
        return np.asarray(self.weights / self.weights.sum(), np.float64)

    @property
    def record(self) -> tuple[int, int, int, float]:
        """Addresses of tokens and weights, C, and the sum of the weights; valid as long as this exists."""
        return self.tokens.ctypes.data, self.weights.ctypes.data, len(self.tokens), float(self.weights.sum())

    def draw(self, noise: Noise, n: int) -> int:
        """The token of draw `n`."""
        if len(self.tokens) == 1:
            return int(self.tokens[0])
        if len(self.tokens) <= FEW:
            key, best, most = noise.draw_key(n), -1, -1.0
            for token, weight in zip(self.tokens.tolist(), self.weights.tolist(), strict=True):
                if (score := weight / exponential(key, token)) > most:
                    best, most = token, score
            return best
        return int(self.tokens[(self.weights / noise.exponentials(n, self.tokens)).argmax()])  # E / p could overflow

    def dense(self, n_vocab: int) -> Doubles:
        """Probabilities of the whole vocabulary: float64[V]."""
        probabilities = np.zeros(n_vocab)
        probabilities[self.tokens] = self.probabilities
        return probabilities


class Biases:
    """What is added to the logits of some tokens.

    tokens  int32[N]    different ones
    values  float32[N]  -inf for tokens that are never chosen
    """

    def __init__(self, tokens: Sequence[int], values: Sequence[float]) -> None:
        self.tokens, self.values = np.array(tokens, np.int32), np.array([np.float32(each) for each in values])
        self.addresses = self.tokens.ctypes.data, self.values.ctypes.data, len(tokens)
        """Of tokens and values, and N; valid as long as this exists."""


class LikeliestFinder(Protocol):
    """Finds the likeliest tokens faster than arrays do."""

    def find(
        self,
        logits: NDArray[np.float32],
        peaks: NDArray[np.float32],
        n: int,
        window: Sequence[int],
        settings: SamplingSettings,
        biases: Biases,
    ) -> tuple[list[int], list[float]] | None:
        """The `n` likeliest tokens and their logits after biases, and the penalties of `settings` on a window.

        All tokens if there are fewer. The likeliest comes first, of equals the lowest token. None if it cannot tell:
        use arrays.
        """
        ...


class Sampler:
    """Chooses tokens by `settings`. `seed` is the one in use; the operating system provides it if none was given.

    `suppressed`: tokens that are never chosen, except those to which the settings give a bias. `finder`: saves time.
    """

    def __init__(
        self, settings: SamplingSettings, suppressed: Collection[int] = (), finder: LikeliestFinder | None = None
    ) -> None:
        self.settings = settings
        self.suppressed = frozenset(suppressed) - settings.logit_bias.keys()
        self._finder = finder
        penalties = settings.repeat_penalty, settings.presence_penalty, settings.frequency_penalty
        self._penalises = penalties != (1, 0, 0) and settings.penalty_window != 0
        added = dict.fromkeys(self.suppressed, -inf) | {token: float(x) for token, x in settings.logit_bias.items()}
        self._biases = Biases(list(added), list(added.values()))
        self._suppressed_ids = sorted(self.suppressed)
        self._least = log(settings.min_p) if settings.min_p > 0 else -inf
        """How far below the highest logit those of possible tokens may lie."""
        self.seed = int.from_bytes(os.urandom(4), "little") if settings.seed is None else settings.seed
        self.noise = Noise.of(self.seed)
        self.drawn_from: Distribution | None = None
        """What the last token was drawn from; None if none was."""

    def choose(
        self,
        logits: NDArray[np.float32],
        history: Sequence[int],
        n: int,
        peaks: NDArray[np.float32] | None = None,
    ) -> int:
        """The token of draw `n`, given the tokens before it. Raises NotFinite if logits are NaN or infinity.

        `peaks`: peaks of the logits, as described in `base.Peaked`; they only save time.
        """
        if self.settings.temperature == 0:
            if (likeliest := self._likeliest(logits, history, peaks, 1)) is not None:
                return likeliest[0][0]
            shifted = self._shifted(logits, history)
            if peaks is not None and shifted is logits and (found := most_likely_by_peaks(logits, peaks)) is not None:
                return found
            best = most_likely(shifted)
            _check_finite(logits, best)
            return best
        self.drawn_from = self.distribution(logits, history, peaks)
        return self.drawn_from.draw(self.noise, n)

    def distribution(
        self, logits: NDArray[np.float32], history: Sequence[int], peaks: NDArray[np.float32] | None = None
    ) -> Distribution:
        """The distribution that `choose` draws from.

        Raises NotFinite if logits are NaN or infinity, EdgeInferError if no token is possible.
        """
        settings = self.settings
        if settings.temperature > 0 and (found := self._likeliest(logits, history, peaks, settings.top_k)) is not None:
            return self._of_few(*found)
        shifted = self._shifted(logits, history)
        tokens = shortlist(shifted, settings.top_k) if settings.top_k else np.arange(len(shifted))
        values = shifted[tokens]
        best = most_likely(values, tokens)
        highest = float(values[best])
        _check_finite(logits, int(tokens[best]))
        if settings.temperature == 0:
            return Distribution(tokens[best : best + 1], np.ones(1))
        if highest == np.inf:
            tokens = tokens[values == np.inf]
            return Distribution(tokens, np.ones(len(tokens)))
        if 0 < settings.top_k <= FEW:
            order = np.negative(values).argsort(kind="stable")[: settings.top_k]  # of equals, lower tokens first
            return self._of_few(tokens[order].tolist(), values[order].tolist())
        if 0 < settings.top_k < len(tokens):
            candidates = highest_of(values, settings.top_k)
            tokens, values = tokens[candidates], values[candidates]
        if settings.top_p < 1:
            candidates = _top_p(values, settings.top_p)
            tokens, values = tokens[candidates], values[candidates]
        below_best = values.astype(np.float64) - highest
        if settings.min_p > 0:
            likely = below_best >= self._least
            tokens, below_best = tokens[likely], below_best[likely]
        weights = np.exp(below_best / settings.temperature)
        if weights.min() == 0:
            tokens, weights = tokens[weights > 0], weights[weights > 0]
        return Distribution(tokens, weights)

    def _likeliest(
        self, logits: NDArray[np.float32], history: Sequence[int], peaks: NDArray[np.float32] | None, n: int
    ) -> tuple[list[int], list[float]] | None:
        """The `n` likeliest tokens and their logits, from the finder; None if arrays have to be used."""
        if self._finder is None or peaks is None or not 0 < n <= FEW:
            return None
        if any(not 0 <= token < len(logits) for token in self.settings.logit_bias):
            return None
        window = self._window(history) if self._penalises else ()
        return self._finder.find(logits, peaks, n, window, self.settings, self._biases)

    def _window(self, history: Sequence[int]) -> Sequence[int]:
        """The tokens that penalties look at."""
        size = self.settings.penalty_window
        return history if size < 0 else history[max(0, len(history) - size) :]

    def _of_few(self, tokens: list[int], logits: list[float]) -> Distribution:
        """The distribution over these tokens, likeliest first, number by number: calls of NumPy would take longer."""
        settings, highest, n_left = self.settings, logits[0], len(logits)
        if settings.top_p < 1:
            reached = list(accumulate([exp(logit - highest) for logit in logits]))
            n_left = min(n_left, bisect_left(reached, settings.top_p * reached[-1]) + 1)
        weights = []
        for logit in logits[:n_left]:
            weight = exp((logit - highest) / settings.temperature)
            if not weight or logit - highest < self._least:
                break
            weights.append(weight)
        chosen = sorted(zip(tokens, weights, strict=False))
        return Distribution(np.array([token for token, _ in chosen]), np.array([weight for _, weight in chosen]))

    def _shifted(self, logits: NDArray[np.float32], history: Sequence[int]) -> NDArray[np.float32]:
        """Logits after bias and penalties; copied only if something changes."""
        settings = self.settings
        window = self._window(history) if self._penalises else ()
        if not settings.logit_bias and not self.suppressed and not window:
            return logits
        shifted = logits.copy()
        if self.suppressed:
            shifted[self._suppressed_ids] = -np.inf
        for token, bias in settings.logit_bias.items():
            if not 0 <= token < len(shifted):
                raise BadSetting(f"logit_bias names token {token}; the vocabulary has tokens 0 to {len(shifted) - 1}")
            shifted[token] += np.float32(bias)
        if window:
            _penalise(shifted, window, settings)
        return shifted


def _check_finite(logits: NDArray[np.float32], token: int) -> None:
    """Raises NotFinite if the model itself has infinity for the likeliest token."""
    if logits[token] == np.inf:
        raise no_number(token, "infinity")


def _penalise(shifted: NDArray[np.float32], window: Sequence[int], settings: SamplingSettings) -> None:
    """Apply the penalties to all tokens of the window, in place."""
    if settings.frequency_penalty or settings.presence_penalty:
        times = Counter(window)
        seen, counts = np.fromiter(times, np.int64), np.fromiter(times.values(), np.int64)
    else:
        seen, counts = np.fromiter(set(window), np.int64), None
    shifted[seen] = _penalised(shifted[seen], counts, settings)


def _penalised(values: NDArray[np.float32], counts: Int64s | None, settings: SamplingSettings) -> NDArray[np.float32]:
    """Repeat penalty (Keskar et al., arXiv 1909.05858), then frequency and presence (OpenAI), if counts are given."""
    penalty = np.float32(settings.repeat_penalty)
    values = np.where(values > 0, values / penalty, values * penalty)
    if counts is not None:
        values -= (counts * settings.frequency_penalty + settings.presence_penalty).astype(np.float32)
    return values


def draw_weights(
    settings: SamplingSettings, tokens: Int64s, logits: NDArray[np.float32], history: Sequence[int]
) -> Doubles:
    """Logarithms of the weights to draw these tokens with, as if there were no others: float64[C], the highest is 0.

    -inf for tokens that cannot be drawn; with temperature 0, how far each lies below the one that is taken. For guesses
    at a draw from likely tokens alone. `history`: the tokens before.
    """
    values = logits.astype(np.float32)
    for place, token in enumerate(tokens.tolist()):
        values[place] += np.float32(settings.logit_bias.get(token, 0.0))
    if (settings.repeat_penalty, settings.presence_penalty, settings.frequency_penalty) != (1, 0, 0):
        times = Counter(history if settings.penalty_window < 0 else history[-settings.penalty_window or len(history) :])
        counts = np.array([times[token] for token in tokens.tolist()], np.int64)
        values = np.where(counts > 0, _penalised(values, counts, settings), values)
    highest = float(values.max())
    if not np.isfinite(highest):
        return np.where((values == highest) & (highest > 0), 0.0, -np.inf)
    if settings.temperature == 0:
        return values.astype(np.float64) - highest
    found = np.full(len(tokens), -np.inf)
    places = highest_of(values, settings.top_k) if 0 < settings.top_k < len(tokens) else np.arange(len(tokens))
    if settings.top_p < 1:
        places = places[_top_p(values[places], settings.top_p)]
    below_best = values[places].astype(np.float64) - highest
    least = np.log(settings.min_p) if settings.min_p > 0 else -np.inf
    found[places] = np.where(below_best >= least, below_best / settings.temperature, -np.inf)
    return found


def _top_p(candidates: NDArray[np.float32], top_p: float) -> Int64s:
    """Increasing indices of the fewest most likely candidates whose probability reaches `top_p`.

    Holtzman et al., arXiv 1904.09751. The candidate that crosses the threshold is included.
    """
    weights = np.exp(candidates - candidates.max())
    total, heavy = weights.sum(dtype=np.float64), None
    if len(weights) > NUCLEUS_FIRST:  # most of so many are too small to matter
        heavy = (weights >= (1 - top_p) * total / (2 * len(weights))).nonzero()[0]
        weights = weights[heavy]
    wanted, n_sorted = top_p * total, min(NUCLEUS_FIRST, len(weights))
    while True:
        highest = np.sort(weights[highest_of(weights, n_sorted)] if n_sorted < len(weights) else weights)[::-1]
        reached = highest.cumsum(dtype=np.float64)
        if n_sorted == len(weights) or reached[-1] >= wanted:
            break
        n_sorted = min(8 * n_sorted, len(weights))
    found = highest_of(weights, min(int(reached.searchsorted(wanted, side="left")) + 1, len(weights)))
    return found if heavy is None else heavy[found]
