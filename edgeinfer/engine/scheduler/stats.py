"""Progress, results and speed of requests, and counts of a model's queue: measured numbers, None if not measured.

In: moments of a sequence, marked as they happen. Out: frozen records. Those of a running request can be read from any
thread without a lock, so numbers may be one step apart. Knows no screens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Literal

from edgeinfer.engine.model_info import renamed
from edgeinfer.engine.requests.drafting import DraftReport
from edgeinfer.scheduling.allotment import Priority

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of one answer.

    n_prompt: tokens of the prompt, of which n_cached were not evaluated again, n_from_disk of them because an earlier
    answer, maybe of another process, had left them on disk, n_shifted because the same text had been read at another
    position, n_from_modules because modules had been; no such answer is exact (`reuse`, `modules`). n_rows: of
    n_prompt, tokens that are rows, as of images, whose making is part of the time until the first token. n_generated:
    tokens of the answer, without the end-of-generation token, of which n_inherited were written before, as they are
    those of the answer from which this one was forked. steps: passes that gave tokens; accepted_per_step: tokens
    per such pass.
    truncated: the context cut the conversation or the answer, and `notices` say how. Seconds are wall time, including
    rests. draft: what was drafted, None without speculation. joules: energy that the CPU packages took from the
    beginning of the prompt to the end of the answer, including other programs and waiting but not memory; None if the
    system does not report it. weights_read_bytes: reads of weights that do not stay in memory, for all running
    requests. policy: how much of the machine could be used, in words. is_first: this is the first answer since loading,
    so memory was touched for the first time. step_s: average seconds of a step outside its pass (choosing tokens,
    drafting, text); None if others took part in passes.
    """

    n_prompt: int
    n_cached: int
    n_generated: int
    finish_reason: FinishReason
    truncated: bool
    notices: tuple[str, ...]
    seed: int
    policy: str
    ttft_s: float | None = None
    prefill_tok_s: float | None = None
    decode_tok_s: float | None = None
    steps: int = 0
    accepted_per_step: float | None = None
    draft: DraftReport | None = None
    joules: float | None = None
    weights_read_bytes: int = 0
    is_first: bool = False
    step_s: float | None = None
    n_from_disk: int = 0
    n_from_modules: int = 0
    n_shifted: int = 0
    n_rows: int = 0
    n_inherited: int = 0

    @property
    def read_alone(self) -> bool:
        """Whether the time until the first token was that of reading tokens, and nothing else."""
        return not (self.n_from_disk or self.n_from_modules or self.n_rows)

    @property
    def plain_tok_s(self) -> float | None:
        """Tokens per second without drafts: measured if nothing was drafted, else derived from the cost of passes."""
        if self.draft is None:
            return self.decode_tok_s
        return None if self.draft.single_s is None else 1 / self.draft.single_s

    @property
    def draft_share(self) -> float | None:
        """Share of the time after the first token that went into drafting; None if unknown, or nothing drafts."""
        if self.draft is None or not self.decode_tok_s or self.n_generated < 2:
            return None
        return min(1.0, self.draft.seconds * self.decode_tok_s / (self.n_generated - 1))

    @property
    def joules_per_token(self) -> float | None:
        """Joules per token of the answer, including those spent on reading the prompt."""
        return None if self.joules is None or not self.n_generated else self.joules / self.n_generated


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """Progress of a running request, with the fields of `Stats`.

    n_read of n_prompt tokens of the prompt are read, of which n_cached were read before; n_generated tokens came in
    `steps` passes. Rates cover everything so far; None if nothing was measured.
    """

    n_prompt: int
    n_cached: int
    n_read: int
    n_generated: int
    steps: int
    ttft_s: float | None
    prefill_tok_s: float | None
    decode_tok_s: float | None
    accepted_per_step: float | None


@dataclass(frozen=True, slots=True)
class DraftSpan:
    """A run of characters of an answer's text, and their draft source; None if they were not drafted."""

    n_characters: int
    source: str | None


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counts of a model's requests: running, waiting, and finished with a prefix to share; and totals so far.

    Passes include those that read texts for embeddings.

    n_preempted: how often keys and values of a request were swapped out; n_recomputed: how often they were dropped, so
    that the text is read again. n_pages: pages of the cache, of which n_free_pages are free.
    """

    n_active: int
    n_waiting: int
    n_kept: int
    n_preempted: int
    n_recomputed: int
    n_passes: int
    n_evaluated: int
    n_generated: int
    n_pages: int
    n_free_pages: int

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return renamed(self, name, {"n_parked": "n_preempted", "n_forgotten": "n_recomputed"})


@dataclass(frozen=True, slots=True)
class ActiveRequest:
    """A running or waiting request."""

    is_active: bool
    priority: Priority
    live: RequestProgress


@dataclass(slots=True)
class PassCounts:
    """Totals so far: passes, tokens evaluated in them, tokens of answers, and seconds since the beginning.

    Of the evaluated tokens n_drafted were drafts, of which n_accepted became tokens of answers; draft_s: seconds spent
    on them in answers that are over, of `seconds`.
    """

    passes: int = 0
    n_evaluated: int = 0
    n_generated: int = 0
    seconds: float = 0.0
    n_drafted: int = 0
    n_accepted: int = 0
    draft_s: float = 0.0

    def count(self, totals: PassCounts, since: PassCounts) -> None:
        """Set what passes had: a scheduler's totals since some earlier ones."""
        self.passes, self.n_evaluated = totals.passes - since.passes, totals.n_evaluated - since.n_evaluated
        self.n_drafted, self.n_accepted = totals.n_drafted - since.n_drafted, totals.n_accepted - since.n_accepted


class GenerationMeter:
    """Records the moments of one generation. `clock` returns seconds, `joules` the energy used so far, if known."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, joules: Callable[[], float | None] = lambda: None
    ) -> None:
        self._clock = clock
        self._count_joules = joules
        self._joules_before = joules()
        self._started = self._reads_from = clock()
        self._first: float | None = None
        self._last: float | None = None
        self._n_first = 0
        self.n_sampled = 0
        self.steps = 0
        self.n_evaluated = 0
        self._read_at: float | None = None
        self._passes_s: float | None = 0.0

    def begin_reading(self) -> None:
        """Record that the prompt is read from now on; what came before was waiting for what is on disk of it."""
        self._reads_from = self._clock()

    def prompt(self, n_tokens: int) -> None:
        """Record that a part of the prompt was evaluated."""
        self.n_evaluated += n_tokens
        self._read_at = self._clock()

    def step(self, n_tokens: int, pass_s: float | None = None) -> None:
        """Record a pass that gave `n_tokens` tokens and took `pass_s`; None for a pass shared with others."""
        self._last = self._clock()
        if self._first is None:
            self._first, self._n_first = self._last, n_tokens
        else:
            self._passes_s = None if pass_s is None or self._passes_s is None else self._passes_s + pass_s
        self.steps += 1
        self.n_sampled += n_tokens

    def timed(self, stats: Stats) -> Stats:
        """The statistics of an answer, with what was recorded of it."""
        return replace(
            stats,
            ttft_s=self.ttft_s,
            prefill_tok_s=self.prefill_tok_s,
            decode_tok_s=self.decode_tok_s,
            steps=self.steps,
            accepted_per_step=self.accepted_per_step,
            joules=self.joules,
            step_s=self.step_s,
        )

    def progress(self, n_prompt: int, n_cached: int, n_generated: int) -> RequestProgress:
        """The progress of a request with these numbers of tokens."""
        return RequestProgress(
            n_prompt=n_prompt,
            n_cached=min(n_prompt, n_cached),
            n_read=min(n_prompt, n_cached + self.n_evaluated),
            n_generated=n_generated,
            steps=self.steps,
            ttft_s=self.ttft_s,
            prefill_tok_s=self.prefill_so_far_tok_s,
            decode_tok_s=self.decode_tok_s,
            accepted_per_step=self.accepted_per_step,
        )

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token."""
        return None if self._first is None else self._first - self._started

    @property
    def prefill_tok_s(self) -> float | None:
        """Prompt tokens evaluated per second until the first token."""
        return _rate(self.n_evaluated, None if self._first is None else self._first - self._reads_from)

    @property
    def prefill_so_far_tok_s(self) -> float | None:
        """Prompt tokens evaluated per second so far."""
        return _rate(self.n_evaluated, None if self._read_at is None else self._read_at - self._reads_from)

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens per second after the first pass."""
        if self._first is None or self._last is None:
            return None
        return _rate(self.n_sampled - self._n_first, self._last - self._first)

    @property
    def step_s(self) -> float | None:
        """Average seconds of a step outside its pass."""
        if self._first is None or self._last is None or self._passes_s is None or self.steps < 2:
            return None
        return max(0.0, self._last - self._first - self._passes_s) / (self.steps - 1)

    @property
    def joules(self) -> float | None:
        """Joules used until now."""
        now = self._count_joules()
        return None if now is None or self._joules_before is None else now - self._joules_before

    @property
    def accepted_per_step(self) -> float | None:
        """Tokens per pass that gave tokens."""
        return _rate(self.n_sampled, self.steps)


def _rate(count: int, by: float | None) -> float | None:
    return count / by if by and count else None


def spans_of(pieces: Sequence[str], sources: Sequence[str | None]) -> tuple[DraftSpan, ...]:
    """Join pieces of the same source into runs. `sources` covers the first pieces; the others have none."""
    sourced = zip_longest(pieces, sources[: len(pieces)])
    runs = groupby(((piece, source) for piece, source in sourced if piece), key=lambda pair: pair[1])
    return tuple(DraftSpan(sum(len(piece) for piece, _ in run), source) for source, run in runs)
