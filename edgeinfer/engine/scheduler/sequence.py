"""One sequence in the scheduler: a request, its tokens so far, their keys and values, and its turn.

In: a request, a sequence that may already hold part of the prompt, logits. Out: batches to evaluate, text in `output`,
stats. The scheduler drives it along with many others, so it never waits and evaluates nothing itself. Knows no
messages, templates, files or devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import numpy as np

from edgeinfer.backends.evaluator import StopFlag
from edgeinfer.engine.requests.drafting import (
    ClosingSpeculator,
    Draft,
    Drafted,
    DraftRequest,
    Speculator,
    Walk,
    trimmed,
    walk,
)
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.scheduler.output import Output, Waiter
from edgeinfer.engine.scheduler.passes import BatchWork, SequenceLogits
from edgeinfer.engine.scheduler.prompt_scores import PromptScores
from edgeinfer.engine.scheduler.stats import DraftSpan, FinishReason, GenerationMeter, RequestProgress, Stats
from edgeinfer.engine.scheduler.token_choice import Draws, TokenChooser, TokenLogprobs
from edgeinfer.models.text import Tokenizer
from edgeinfer.scheduling.allotment import AGED_S, Priority, checked, rank

State = Literal["waiting", "active", "over"]
READING = "reading the prompt"
AHEAD = 16
"""Pieces that are generated before the caller asks for them, while other requests run."""


class ScheduledSequence:
    """`begin` it, then `next_work`, `accept` and `show` until it `is_done`, then `end`: this is what a scheduler does.

    `next_work` and `accept` need the pool's lock, held from one to the other. `speculator`: drafts tokens; the text is
    the same with any, and with none. `opens` creates one for this sequence alone. `shares_prefix`: it may start with
    the cached prefix of others, and leaves its own to them. `counts_energy`: it runs alone, so its energy can be
    measured. Raises ContextOverflow or BadSetting for an impossible request.
    """

    def __init__(
        self,
        cached: CachedSequence,
        tokenizer: Tokenizer,
        request: Request,
        speculator: Speculator | None = None,
        *,
        opens: Callable[[], ClosingSpeculator | None] | None = None,
        priority: Priority = "interactive",
        shares_prefix: bool = False,
        counts_energy: bool = True,
    ) -> None:
        cached.pool.check_writes()
        request.check(cached.n_context)
        self.cached, self.request = cached, request
        self.stop_asked = StopFlag()
        self._history = list(request.prompt)
        self._ids = self._history if (own := request.own_ids) is None else own
        """The tokens that drafts and penalties see: all that are ids."""
        self._n_room, self._n_vocab = cached.n_context - request.n_before, tokenizer.n_tokens
        self.chooser = TokenChooser(request, tokenizer, self._ids, self._n_room, cached.pool.finder)
        self.scores = PromptScores(request, self._n_vocab)
        self.output = Output(tokenizer, request)
        self._speculator, self._opens = speculator, opens
        self._own: ClosingSpeculator | None = None
        self._power_limiter = cached.power_limiter
        self._joules = self._power_limiter.joules if counts_energy else lambda: None  # unknown, of one among several
        self._meter, self._read_before = GenerationMeter(), 0
        self.n_reused, self._ran_full, self._is_first, self._leads = 0, False, False, False
        self._finish_reason: FinishReason | None = "stop" if self.output.has_stopped else None
        self.stats: Stats | None = None  # of the answer, once it is done
        self._enlist(checked(priority), shares_prefix=shares_prefix)

    def _enlist(self, priority: Priority, *, shares_prefix: bool) -> None:
        """Set the fields that the scheduler uses."""
        self.priority, self.shares_prefix = priority, shares_prefix
        self.is_driven = False
        """Whether it runs as fast as it can, even if its text is not taken."""
        self.released: Callable[[ScheduledSequence], None] | None = None
        """Called when it is over, by the scheduler's thread, under the engine's lock."""
        self.waiter = Waiter()
        self.notify: Callable[[], None] = self.waiter.wake
        """Called by the scheduler's thread when there is text or it is over; must not block."""
        self._waits_since_s, self._stays_until_s = time.monotonic(), 0.0
        self.state: State = "waiting"
        self.has_entered = self.has_begun = self.is_dropped = self.is_left = self.is_batched = False
        self.work: BatchWork | None = None  # under way
        self.n_pages = self.n_shared_pages = self.group = 0
        """Pages to reserve, 0: the default; how many of them a sequence that stays holds anyway; `Wish.group`."""
        self.number = self.last_pass = self.n_preempted = self.n_from_disk = self.n_shifted = 0
        self.error: BaseException | None = None
        self.failed_alone = False
        """Whether the error is its own, not a failure of a pass or of the model."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the answer so far."""
        return tuple(self._history[self.request.n_before :])

    @property
    def history(self) -> tuple[int, ...]:
        """The tokens of the prompt and the answer so far."""
        return tuple(self._history)

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Log probabilities of each token whose text was taken, if requested; not those of a stop string."""
        n_tokens = self.output.n_shown if self.n_seen is None else self.output.n_shown_taken
        return tuple(self.chooser.logprobs[: min(self.n_generated, n_tokens)])

    @property
    def end_logprobs(self) -> TokenLogprobs | None:
        """Log probabilities of the token that ended the answer and is no part of it; None if none did, or unasked."""
        told = self.chooser.logprobs[self.n_generated :][:1]
        return told[0] if self.is_done and told and told[0].token in self.chooser.eog else None

    def spans(self, n_tokens: int | None) -> tuple[DraftSpan, ...]:
        """Which part of the text of the first `n_tokens` tokens came from which draft source."""
        return self.output.spans(self.n_generated, n_tokens)

    @property
    def live(self) -> RequestProgress:
        """Progress so far; may be read from any thread."""
        return self._meter.progress(self.request.n_before, self.n_reused, self.n_generated)

    @property
    def n_generated(self) -> int:
        """Number of tokens of the answer so far."""
        return len(self._history) - self.request.n_before

    @property
    def has_chosen(self) -> bool:
        """Whether the prompt is read, and tokens were chosen."""
        return len(self._history) > len(self.request.prompt)

    @property
    def n_missing(self) -> int:
        """Number of tokens of prompt and answer that are not cached and have to be."""
        return len(self._history) - self.cached.n_cached - self.scores.n_unread

    @property
    def n_silent(self) -> int:
        """How many of these need no logits; those after them do."""
        return self.scores.n_silent(self.cached.n_cached, self.n_missing)

    @property
    def n_seen(self) -> int | None:
        """Number of tokens of the answer whose text was taken; None: all of them, and the rest of the text."""
        return None if self.is_over and not self.output.n_pieces else self.output.n_taken

    @property
    def is_done(self) -> bool:
        """Whether nothing more has to be evaluated."""
        return self._finish_reason is not None

    @property
    def is_over(self) -> bool:
        """Whether it has left the scheduler."""
        return self.state == "over"

    @property
    def is_interactive(self) -> bool:
        return self.priority == "interactive"

    @property
    def is_wanted(self) -> bool:
        """Whether a pass should continue it."""
        return self.is_driven or self.output.n_pieces < AHEAD

    def is_ready(self) -> bool:
        """Whether there is text to take, or there will be no more."""
        return bool(self.output.n_pieces) or self.is_over

    def rank(self, now_s: float) -> int:
        """The lowest rank starts first and is preempted last; after a long wait the rank is low for a while."""
        if self.state == "active":
            return rank(self.priority, AGED_S if now_s < self._stays_until_s else 0.0)
        return rank(self.priority, now_s - self._waits_since_s)

    def is_interactive_now(self, now_s: float) -> bool:
        """Whether it is interactive, or has waited so long that it counts as interactive."""
        return self.rank(now_s) == rank("interactive", 0.0)

    def go_on(self, now_s: float) -> None:
        """Called when it starts, or gets its memory back."""
        if now_s - self._waits_since_s >= AGED_S:
            self._stays_until_s = now_s + AGED_S

    def preempt(self, now_s: float) -> None:
        """Called when its memory was taken."""
        self.state, self._waits_since_s = "waiting", now_s
        self.n_preempted += 1

    def stop(self) -> None:
        """End the answer before its next step; may be called from any thread. The text so far stays."""
        self.stop_asked.set()

    def begin(self, *, is_first: bool = False) -> None:
        """Start with the cached part of the prompt. `is_first`: the model has not answered before.

        Raises EngineClosed.
        """
        self._is_first = is_first
        self._meter, self._read_before = GenerationMeter(joules=self._joules), self.cached.reading.n_bytes
        self.cached.turn_start = self.request.turn_start
        self.cached.begin(self.stop, self.stop_asked)
        try:
            with self.cached.lock:
                if self._opens is not None:
                    self._speculator = self._own = self._opens()
                if self._speculator is not None:
                    self._speculator.begin(self._ids, self.chooser.noise, self.request.sampling)
                    self._leads = self._speculator.writer is not None and self.request.is_plain
                own = self.request.shareable, self.request.scales
                self.n_reused = self.cached.keep_prefix(*own, exact=self.request.reuse == "exact")
        except BaseException:
            self.end()
            raise

    def note_restored(self, n_tokens: int) -> None:
        """Note that so many tokens of the prompt came from disk; reading the others begins now."""
        self.n_from_disk, self.n_reused = n_tokens, self.cached.n_cached
        self._meter.begin_reading()

    def cancel(self) -> None:
        """Evaluate nothing more: a pass was interrupted, or a stop was requested."""
        self._finish_reason = self._finish_reason or "cancelled"

    def drop_rest(self) -> None:
        """No more text will be taken: cut the answer where its text was taken."""
        self.is_dropped = True
        if self.output.drop_pieces():
            n_taken = self.output.n_taken
            del self._history[self.request.n_before + n_taken :]
            del self.chooser.logprobs[n_taken:]

    def end(self) -> None:
        """End it: release the cached sequence for other requests, and compute the stats."""
        self.cancel()
        assert self._finish_reason is not None
        self.cached.end(self.stop)
        self.stats = self._measured(self._finish_reason)
        if self._own is not None:
            self._own.close()
            self._own = self._speculator = None  # whoever keeps the answer keeps none of its tables

    def draft_request(self) -> DraftRequest | None:
        """What to ask a drafter before the next pass: as much as memory, context and the answer's length allow.

        None if the pass has no token of the answer, or nothing drafts for it.
        """
        is_over = self.stop_asked.is_set() or self.cached.is_full
        if self._speculator is None or not (self.has_chosen or self._leads) or self.n_missing != 1 or is_over:
            return None
        most, deepest = self.cached.most_drafted
        if self.request.max_tokens is not None:
            deepest = min(deepest, self.request.max_tokens - self.n_generated - 1)
        most, deepest = (1, 0) if most == 1 or deepest < 1 else (most, deepest)
        n_pages = self.cached.n_pages_for_draft(most, deepest)
        text = self.cached if self.request.mixed is None else None
        return DraftRequest(self._speculator, self._ids, most, deepest, n_pages, text, self.stop_asked)

    def next_work(self, most_tokens: int, started: float, drafted: Drafted | None = None) -> BatchWork | None:
        """What to evaluate next, at most `most_tokens` tokens; None if a stop was requested or the context is full.

        Uncached tokens of the prompt, or of a text whose memory was taken, are read in chains. After that each pass has
        one token of the answer and the draft that follows it. `started`: when drafting for the pass began. `drafted`:
        what came of `draft_request`.
        """
        n_missing = self.n_missing
        if not self.has_chosen:
            self._report_progress(len(self.request.prompt) - n_missing)
        if self.stop_asked.is_set() or self.is_done:
            self.cancel()
            return None
        if self.has_chosen and self.cached.is_full:
            self._finish_reason, self._ran_full = "length", True
            return None
        if drafted is not None:
            draft = self._verifiable(drafted, most_tokens)
            return BatchWork(self.cached.tree(draft, self.request.mixed), draft, started)
        n_silent, is_led = self.n_silent, self._leads and n_missing > 1  # the last token is read with what follows
        most = min(n_missing, most_tokens, n_silent + (0 if is_led else self.cached.max_outputs))
        n_tokens = self.cached.n_together(most, n_missing, len(self.request.prompt))
        own, n_read = self.request.mixed, len(self.request.prompt)
        n_tokens = self.request.n_together(self.cached.n_cached, n_tokens)
        chunk, n_outputs = self._history[self.cached.n_cached :][:n_tokens], max(0, n_tokens - n_silent)
        chain = self.cached.chain(chunk, wants_logits=n_outputs > 0, n_outputs=n_outputs, mixed=own, n_prompt=n_read)
        return BatchWork(chain, None, started)

    def _report_progress(self, n_read: int) -> None:
        self.request.progress(READING, n_read - self.n_reused, len(self.request.prompt) - self.n_reused)

    def _verifiable(self, drafted: Drafted, most_tokens: int) -> Draft:
        """The part of a draft that fits in the pass and that a constraint allows."""
        asked, most = drafted.request, min(drafted.request.most, most_tokens)
        draft = trimmed(drafted.draft, self._history[-1], self._n_vocab, most, asked.deepest)
        nodes = self.chooser.allowed_nodes(draft)
        return draft if nodes is None else asked.speculator.narrow(draft, nodes)

    def without_draft(self, work: BatchWork) -> BatchWork:
        """The same work with the next token alone."""
        if work.draft is None or self._speculator is None:
            return work
        draft = self._speculator.narrow(work.draft, (0,))
        return BatchWork(self.cached.tree(draft, self.request.mixed), draft, work.started)

    def accept(self, work: BatchWork, given: SequenceLogits) -> list[int]:
        """Choose tokens from the logits of a batch, and commit the path that leads to them to the cache.

        If the pass contained other sequences too, drafting does not learn its cost. Call `show` with each of the
        returned tokens afterwards.
        """
        draft, speculator, chooser, is_alone = work.draft, self._speculator, self.chooser, given.is_alone
        logits, peaks = given.logits, given.peaks
        pass_s = time.perf_counter() - work.ready if is_alone else None
        if draft is None or speculator is None:
            nodes, n_scored = np.arange(len(work.batch.tokens), dtype=np.int32), self.scores.take(work.batch, logits)
            chosen = [chooser.choose(logits, peaks, (), [], row, []) for row in range(n_scored, len(logits))]
            walked = Walk(chosen, nodes)
        else:
            draws = Draws()
            walked = walk(draft, chooser.choosing(speculator, draft, logits, peaks, draws), chooser.eog, draws)
            if sources := speculator.sources(walked.path):
                self.output.note_sources(self.n_generated, sources)
        path = walked.path + np.int32(given.first) if given.first else walked.path
        self.cached.commit(given.batch, path, None if speculator is None else speculator.row_reader)
        if draft is not None and speculator is not None:
            speculator.learn(draft, walked, time.perf_counter() - work.started if is_alone else None)
        if not self.has_chosen:
            self._meter.prompt(len(work.batch.tokens) if draft is None else 1)
            if self.n_missing <= 0:
                self._report_progress(len(self.request.prompt))
        if self.request.max_tokens == 0:
            self._finish_reason = self._finish_reason or (None if self.n_missing else "length")
            return []
        if walked.tokens:
            most = self.cached.n_context - len(self._history)
            if self.request.max_tokens is not None:
                most = min(most, self.request.max_tokens - self.n_generated)
            chooser.add_forced(walked.tokens, most)
            self._meter.step(len(walked.tokens), pass_s)
        return walked.tokens

    def show(self, token: int) -> None:
        """Add a token to the answer, and its text to the output."""
        if token in self.chooser.eog:
            is_cut = self.chooser.is_cut
            self._finish_reason = "length" if is_cut else "stop"
            self._ran_full = is_cut and self._n_room < (self.request.max_tokens or self._n_room + 1)
            return
        self._history.append(token)
        if self._ids is not self._history:
            self._ids.append(token)
        self.output.add(token, self.n_generated)
        if self.output.has_stopped or self.n_generated == self.request.max_tokens:
            self._finish_reason = "stop" if self.output.has_stopped else "length"

    def show_rest(self) -> None:
        """Add the text that was held back to the output."""
        self.output.add_rest(self.n_generated, ended_itself=self._finish_reason == "stop")

    def _measured(self, finish_reason: FinishReason) -> Stats:
        request, truncated = self.request, self._ran_full or bool(self.request.notices)
        notices = request.notices + request.remarks_on(self.n_shifted)
        if self._ran_full:
            notices += (f"the answer was cut: the context of {self.cached.n_context} tokens is full",)
        notices += self.cached.take_notices()
        if self._speculator is not None:
            notices += self._speculator.take_notices()
        stats = Stats(
            n_prompt=request.n_before,
            n_cached=min(request.n_before, self.n_reused),
            n_inherited=request.written,
            n_from_disk=self.n_from_disk,
            n_from_modules=0 if request.modules is None else request.modules.n_tokens,
            n_shifted=self.n_shifted,
            n_rows=request.n_rows,
            n_generated=self.n_generated,
            finish_reason=finish_reason,
            truncated=truncated,
            notices=notices,
            seed=self.chooser.seed,
            policy=self._power_limiter.policy.reason,
            weights_read_bytes=self.cached.reading.n_bytes - self._read_before,
            draft=None if self._speculator is None else self._speculator.report(),
            is_first=self._is_first,
        )
        return self._meter.timed(stats)
