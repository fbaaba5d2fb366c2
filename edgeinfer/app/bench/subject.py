"""What a child measures: the interface between the loop that takes jobs and the engines that do them.

In: jobs. Out: replies. A `Stepper` is an engine that evaluates given tokens against a cache that it can truncate;
`Stepped` turns one into a `BenchSubject`, so that the same code times our devices and every peer with a low-level
interface. Engines that only generate implement `BenchSubject` themselves.
"""

from __future__ import annotations

import statistics
import time
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.app.bench.messages import BenchJob, BenchReply, Turns
from edgeinfer.errors import EdgeInferError

VERIFY_REPEATS = 3

Tokens = NDArray[np.int32]


class NotMeasurable(EdgeInferError):
    """A job that this engine cannot do; the message says why."""


class BenchSubject(Protocol):
    """An engine with a model loaded."""

    def run(self, job: BenchJob) -> BenchReply:
        """Do a job and return its times. Raises NotMeasurable."""
        ...

    def close(self) -> None: ...


class Stepper(Protocol):
    """An engine with one sequence of cached tokens."""

    @property
    def n_vocab(self) -> int: ...

    @property
    def n_cached(self) -> int: ...

    def evaluate(self, tokens: Tokens, *, every: bool) -> None:
        """Evaluate tokens after the cached ones and keep them; with logits of `every` token, or of the last."""
        ...

    def truncate(self, n_cached: int) -> None:
        """Drop the cached tokens from n_cached on."""
        ...

    def close(self) -> None: ...


class Stepped:
    """Turns a stepper into a subject. The cache stays filled between runs of equal depth."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper

    def run(self, job: BenchJob) -> BenchReply:
        """Do a job and return its times. Raises NotMeasurable."""
        measures = {"prefill": self._prefill, "decode": self._decode, "verify": self._verify, "chat": self._replay}
        if job.test not in measures:
            raise NotMeasurable(f"there is no test {job.test!r} of a loaded model")
        return measures[job.test](job)

    def close(self) -> None:
        self._stepper.close()

    def _prefill(self, job: BenchJob) -> BenchReply:
        """Seconds for a prompt of n tokens, up to the logits of its last token."""
        self._fill(job.depth)
        seconds = self._timed(random_tokens(job.seed, job.n, self._stepper.n_vocab))
        return BenchReply({job.n: seconds})

    def _decode(self, job: BenchJob) -> BenchReply:
        """Seconds for n tokens, one after the other."""
        self._fill(job.depth)
        tokens = random_tokens(job.seed, job.n, self._stepper.n_vocab)
        started = time.perf_counter()
        for place in range(job.n):
            self._stepper.evaluate(tokens[place : place + 1], every=False)
        return BenchReply({job.n: time.perf_counter() - started}, accepted_per_step=1.0)

    def _verify(self, job: BenchJob) -> BenchReply:
        """Seconds of one pass for each number of tokens, with the logits of all tokens: medians of a few turns."""
        self._fill(job.depth)
        seconds: dict[int, list[float]] = {count: [] for count in job.counts}
        for turn in range(VERIFY_REPEATS):
            for count in job.counts:
                tokens = random_tokens(job.seed + turn, count, self._stepper.n_vocab)
                seconds[count].append(self._timed(tokens, every=True))
                self._stepper.truncate(job.depth)
        return BenchReply({count: statistics.median(times) for count, times in seconds.items()})

    def _replay(self, job: BenchJob) -> BenchReply:
        """Seconds for conversations with the same lengths as another engine's, reading and answering."""
        if not job.turns:
            raise NotMeasurable("a chat is replayed by its lengths, and none were given")
        stepper = self._stepper
        tokens = random_tokens(job.seed, max(max(turn[1:]) for turn in job.turns), stepper.n_vocab)
        started = time.perf_counter()
        for n_cached, n_read, n_answer in job.turns:
            stepper.truncate(min(n_cached, stepper.n_cached))
            stepper.evaluate(tokens[:n_read], every=False)
            for place in range(n_answer - 1):  # the prompt's pass gave the first token
                stepper.evaluate(tokens[place : place + 1], every=False)
        seconds = time.perf_counter() - started
        return BenchReply({answered(job.turns): seconds}, accepted_per_step=1.0, turns=job.turns)

    def _fill(self, depth: int) -> None:
        """Fill or truncate the cache to exactly `depth` tokens."""
        if self._stepper.n_cached > depth:
            self._stepper.truncate(depth)
        missing = depth - self._stepper.n_cached
        if missing:
            self._stepper.evaluate(random_tokens(depth, missing, self._stepper.n_vocab), every=False)

    def _timed(self, tokens: Tokens, *, every: bool = False) -> float:
        started = time.perf_counter()
        self._stepper.evaluate(tokens, every=every)
        return time.perf_counter() - started


def answered(turns: Turns) -> int:
    """Tokens answered in all turns."""
    return sum(n_answered for _, _, n_answered in turns)


def random_tokens(seed: int, count: int, n_vocab: int) -> Tokens:
    """Tokens of the vocabulary, the same for every engine: int32[count]. Speed does not depend on the text."""
    return np.random.default_rng(seed).integers(0, n_vocab, count).astype(np.int32)
