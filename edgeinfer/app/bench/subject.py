"""What a benchmark measures: the messages of jobs and replies, and the interface of an engine that does the jobs.

In: a `BenchOpening`, then one `BenchJob` after another; plain records, sent to a child process by `edgeinfer.ipc`. Out:
a `BenchReply` to each. A `Stepper` is an engine that evaluates given tokens against a cache that it can truncate;
`Stepped` turns one into a `BenchSubject`, so that the same code times our devices and every peer with a low-level
interface. Engines that only generate implement `BenchSubject` themselves. Knows no engine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.approximation import EXACT, Approximation
from edgeinfer.errors import EdgeInferError
from edgeinfer.setting_groups import GenerationSettings
from edgeinfer.settings import KVKind, Spec

Turns = tuple[tuple[int, int, int], ...]
"""Turns of conversations as (tokens already cached (0: a new conversation), tokens read, tokens answered)."""

Purpose = Literal["passes", "answers", "ops", "drafting"]
"""What one of our devices is opened for.

Single passes, whole answers, the times of the ops of a pass, or answers with and without drafting.
"""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions that are the same for every executor.

    `ram_bytes`: memory for weights; the cpu device reads the rest from disk in every pass. None: all weights stay in
    memory. `approx`: what our own device leaves out.
    `generation`: what `edgeinfer chat` would answer with; drafting is measured so, and at the temperature `temp`.
    """

    model: Path
    threads: int
    n_context: int
    cores: tuple[int, ...] | None = None
    kv: KVKind = "f16"
    spec: Spec = "auto"
    verify_cost: Mapping[int, float] = field(default_factory=dict)
    temp: float = 0.0
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    schedule: str = "auto"
    ram_bytes: int | None = None
    approx: Approximation = EXACT


@dataclass(frozen=True, slots=True)
class BenchOpening:
    """What a child loads: `executor` is a device key or a peer's key, `folder` what that peer reads instead."""

    executor: str
    conditions: Conditions
    folder: Path | None = None
    purpose: Purpose = "passes"


@dataclass(frozen=True, slots=True)
class BenchConversation:
    """A conversation to run: the user's turns, and a category."""

    category: str
    turns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BenchJob:
    """One run: `n` tokens with `depth` tokens cached. `seed` chooses the tokens.

    verify: passes of each of `counts` tokens. chat: answers of up to n tokens to `questions`, or a replay of `turns`.
    start: the start of a process, with nothing compiled if `cold`. ops: one pass of n tokens. drafting: a conversation,
    `repeats` times in each way.
    """

    test: str
    n: int
    depth: int = 0
    seed: int = 0
    counts: tuple[int, ...] = ()
    questions: tuple[BenchConversation, ...] = ()
    turns: Turns = ()
    cold: bool = False
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class OpTime:
    """All calls of one kernel for one kind of op in a pass: seconds in the calls, and at the barriers after them."""

    op: str
    kernel: str
    calls: int
    busy_s: float
    waiting_s: float
    bytes_read: int = 0


AS_CHAT = "chat"
"""Name of the sampling with which `edgeinfer chat` answers."""


@dataclass(frozen=True, slots=True)
class DraftRun:
    """One conversation run one way ("off", "cold" or "warm"), sampled as `sampling` says.

    Answers count from their second token to where they loop.

    n_kept tokens in n_passes took `seconds`, `drafting_s` of them for drafting, and have a modelled cost of `cost`
    passes of one token; n_tokens includes the loops. sizes: passes by the tokens they verified. sources: drafted and
    accepted tokens by draft source. calibration: by tenth of the estimated probability: candidates, the sum of their
    probabilities, and how many were accepted.
    """

    category: str
    way: str
    repeat: int
    n_tokens: int
    n_kept: int
    n_passes: int
    seconds: float
    cost: float
    drafting_s: float
    sizes: Mapping[str, int]
    sources: Mapping[str, tuple[int, int]]
    calibration: tuple[tuple[float, float, float], ...] = ()
    looped: bool = False
    same: bool = True
    sampling: str = AS_CHAT


@dataclass(frozen=True, slots=True)
class BenchReply:
    """The result of a run: seconds by number of tokens, or a `problem` in words. `turns`: the turns of a chat."""

    seconds: Mapping[int, float] = field(default_factory=dict)
    accepted_per_step: float | None = None
    turns: Turns = ()
    categories: Mapping[str, float] = field(default_factory=dict)
    """Tokens per second by category of question."""
    ops: tuple[OpTime, ...] = ()
    overhead: Mapping[str, float] = field(default_factory=dict)
    """Seconds that a launch, a call and a barrier take when there is nothing to compute."""
    problem: str | None = None
    drafting: tuple[DraftRun, ...] = ()
    python_s: float = 0.0
    """Of a pass of `ops`, outside of compiled code."""
    clock_hz: float | None = None
    """Of the core that ran this process, right after the ops."""
    peak_rss_bytes: int | None = None
    """The most memory that the engine's process has held so far; None where the system does not tell."""


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
