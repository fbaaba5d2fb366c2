"""Messages between the benchmark and its child processes.

A `BenchOpening` goes to a child first, then one `BenchJob` after another; each is answered by a `BenchReply`. These are
plain records, sent by `edgeinfer.ipc`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from edgeinfer.settings import KVKind, Spec

Turns = tuple[tuple[int, int, int], ...]
"""Turns of conversations as (tokens already cached (0: a new conversation), tokens read, tokens answered)."""

Purpose = Literal["passes", "answers", "ops", "drafting"]
"""What one of our devices is opened for.

Single passes, whole answers, the times of the ops of a pass, or answers with and without drafting.
"""


@dataclass(frozen=True, slots=True)
class BenchOpening:
    """What a child loads: `executor` is a device key or a peer's key, `folder` what that peer reads instead.

    `ram_bytes`: memory for weights; the cpu device reads the rest from disk in every pass. None: all weights stay in
    memory. `approx`: our own device treats activations below this threshold as zero. None: no activations are dropped.
    """

    executor: str
    model: str
    threads: int
    n_context: int
    cores: tuple[int, ...] | None = None
    folder: str | None = None
    purpose: Purpose = "passes"
    kv: KVKind = "f16"
    spec: Spec = "auto"
    verify_cost: Mapping[int, float] = field(default_factory=dict)
    temp: float = 0.0
    schedule: str = "auto"
    ram_bytes: int | None = None
    approx: float | None = None


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


@dataclass(frozen=True, slots=True)
class DraftRun:
    """One conversation run one way ("off", "cold" or "warm"). Answers count from their second token to where they loop.

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
