"""One running request: which batch it wants next, and what the logits of that batch make of it.

In: a sequence that may hold part of the prompt already, a request, logits. Out: batches, pieces of text, stats. It is
led by whoever evaluates, `batching`'s scheduler, with many others, so it never waits, and evaluates nothing. Knows no
messages, templates, files or devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from edgeinfer.backends.stopping import StopFlag
from edgeinfer.engine.requests.constrained.constraints import allowed_nodes
from edgeinfer.engine.requests.logprobs import TokenLogprobs, logprobs_of
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.requests.sampling import Sampler
from edgeinfer.engine.requests.stops import StopStrings
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.tree import Draft, Walk, trimmed, walk
from edgeinfer.engine.scheduler.live import DraftSpan, RequestProgress, marks_of
from edgeinfer.engine.speculation.records import NO_TOKEN
from edgeinfer.engine.speculation.speculator import ALONE, Beside, ClosingSpeculator, Speculator
from edgeinfer.engine.stats import FinishReason, GenerationMeter, Stats
from edgeinfer.graph.step import Batch, Floats
from edgeinfer.models.text import StreamDecoder, Tokenizer

READING = "reading the prompt"
MOST_FORCED = 256
"""Tokens in a row that a constraint forces before the model is asked again."""


@dataclass(frozen=True, slots=True)
class BatchWork:
    """A batch that an answer wants evaluated, begun when it `started`, made when it was `ready`.

    `draft`: what it was made of; None for a chain, which is kept whole. `expected`: tokens it should give.
    """

    batch: Batch
    draft: Draft | None
    started: float
    expected: float = 1.0
    ready: float = field(default_factory=time.perf_counter)


class Answer:
    """Lead it: `begin`, then `work`, `take` and `show` until it `is_done`, then `rest` and `end`.

    `work` and `take` need the lock of the sequence, held from one to the other. `speculator`: who drafts the tokens of
    a pass; the answer is the same with any, and with none. `opens` makes one for this answer alone. `counts_energy`:
    whether it is the only one. Raises ContextOverflow or BadSetting at once for a request that cannot be met.
    """

    def __init__(
        self,
        cached: CachedSequence,
        tokenizer: Tokenizer,
        request: Request,
        speculator: Speculator | None = None,
        *,
        opens: Callable[[], ClosingSpeculator] | None = None,
        counts_energy: bool = True,
    ) -> None:
        cached.pool.check_writes()
        request.check(cached.n_context)
        self.cached = cached
        self.stop_asked = StopFlag()
        self._power_limiter = cached.power_limiter
        self.request = request
        self._speculator, self._opens = speculator, opens
        self._own: ClosingSpeculator | None = None
        self._n_vocab = tokenizer.n_tokens
        self._eog = tokenizer.vocabulary.end_of_generation
        self._sampler = Sampler(request.sampling)
        shows_control = request.tools is not None and request.tools.is_written_by_token(tokenizer)
        self._decoder = StreamDecoder(tokenizer, show_control=shows_control, continues=request.continues_text)
        self._stops = StopStrings(request.stop)
        self._joules = self._power_limiter.joules if counts_energy else _unknown
        self._meter, self._read_before = GenerationMeter(), 0
        self._history = list(request.prompt)
        self._mixed = request.mixed
        self._spoken = self._history if request.mixed is None else request.mixed.ids
        """The tokens that drafts and penalties look at: all that are ids."""
        self._n_reused, self._ran_full, self._is_first = 0, False, False
        self._finish_reason: FinishReason | None = None
        self._shown: list[str] = []
        self._n_room = cached.n_context - len(request.prompt)
        self._constraint = request.constraint
        if self._constraint is not None:
            most = request.max_tokens
            self._constraint.end_within(self._n_room if most is None else min(most, self._n_room))
        self._told: list[TokenLogprobs] = []
        self._sources: list[str | None] = []  # who drafted each token, of as many as anyone drafted for
        self.stats: Stats | None = None
        """The numbers of the answer, once it is done."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the answer so far."""
        return tuple(self._history[len(self.request.prompt) :])

    @property
    def history(self) -> tuple[int, ...]:
        """The tokens of the prompt and the answer so far."""
        return tuple(self._history)

    @property
    def text(self) -> str:
        """The text of the answer so far."""
        return self.text_of(None)

    def text_of(self, n_tokens: int | None) -> str:
        """The text of the first tokens of the answer; None: of all so far."""
        return "".join(self._shown[:n_tokens])

    def marks_of(self, n_tokens: int | None) -> tuple[DraftSpan, ...]:
        """Who drafted which part of that text; text that a token completes counts as that token's."""
        pieces = tuple(self._shown[:n_tokens])
        return marks_of(pieces, self._sources[: self.n_generated])

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Of each token of the answer so far, if they were asked for."""
        return tuple(self._told[: self.n_generated])

    def keep(self, n_tokens: int) -> None:
        """Forget all but the first tokens of the answer, which nobody has seen; it must not go on."""
        del self._history[len(self.request.prompt) + n_tokens :]
        del self._shown[n_tokens:]
        del self._told[n_tokens:]

    @property
    def live(self) -> RequestProgress:
        """How far it is, from any thread."""
        meter, n_prompt = self._meter, len(self.request.prompt)
        return RequestProgress(
            n_prompt=n_prompt,
            n_cached=self._n_reused,
            n_read=min(n_prompt, self._n_reused + meter.n_evaluated),
            n_generated=self.n_generated,
            steps=meter.steps,
            ttft_s=meter.ttft_s,
            prefill_tok_s=meter.prefill_so_far_tok_s,
            decode_tok_s=meter.decode_tok_s,
            accepted_per_step=meter.accepted_per_step,
        )

    @property
    def is_done(self) -> bool:
        """Whether nothing more is to be evaluated."""
        return self._finish_reason is not None

    @property
    def n_missing(self) -> int:
        """Tokens of prompt and answer that are not cached."""
        return len(self._history) - self.cached.n_cached

    @property
    def n_generated(self) -> int:
        """How many tokens the answer has so far."""
        return len(self._history) - len(self.request.prompt)

    def stop(self) -> None:
        """End the answer before its next step, from any thread; what there is of it is kept."""
        self.stop_asked.set()

    def begin(self, *, is_first: bool = False) -> None:
        """Start: keep what is cached of the prompt; `is_first`: nothing was answered before. Raises EngineClosed."""
        self._is_first = is_first
        self._meter, self._read_before = GenerationMeter(joules=self._joules), self.cached.reading.n_bytes
        self.cached.begin(self.stop, self.stop_asked)
        try:
            with self.cached.lock:
                if self._opens is not None:
                    self._speculator = self._own = self._opens()
                if self._speculator is not None:
                    self._speculator.begin(self._spoken, sampled=self.request.sampling.temperature > 0)
                self._n_reused = self.cached.keep_prefix(self.request.prompt)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """It is over, or given up: let others know, and count."""
        self._finish_reason = self._finish_reason or "cancelled"
        self.cached.end(self.stop)
        self.stats = self._measured(self._finish_reason)
        if self._own is not None:
            self._own.close()
            self._own = None

    def cancel(self) -> None:
        """Nothing more is to be evaluated: a pass was broken off, or a stop asked for."""
        self._finish_reason = self._finish_reason or "cancelled"

    def work(self, most_tokens: int, beside: Beside = ALONE) -> BatchWork | None:
        """What to evaluate next, of so many tokens at most; None where a stop was asked for or the context has ended.

        Whatever is not cached is read in chains, of a prompt or of a text whose memory was taken; then comes a token of
        the answer at a time, with what is drafted after it. `beside`: what else the pass will have.
        """
        started, n_missing = time.perf_counter(), self.n_missing
        if n_missing > 1 and not self.n_generated:
            self._tell_progress(len(self.request.prompt) - n_missing)
        if self.stop_asked.is_set():
            self.cancel()
            return None
        if self.n_generated and self.cached.is_full:
            self._finish_reason, self._ran_full = "length", True
            return None
        if n_missing == 1 and self.n_generated and self._speculator is not None:
            draft = self._draft(self._speculator, self._history[-1], most_tokens, beside)
            return BatchWork(self.cached.tree(draft, self._mixed), draft, started, self._speculator.expected)
        n_tokens = min(n_missing, most_tokens)
        first = len(self._history) - n_missing
        chunk = self._history[first : first + n_tokens]
        batch = self.cached.chain(chunk, wants_logits=n_tokens == n_missing, mixed=self._mixed)
        return BatchWork(batch, None, started)

    def _tell_progress(self, n_read: int) -> None:
        n_prompt = len(self.request.prompt)
        self.request.progress(READING, n_read - self._n_reused, n_prompt - self._n_reused)

    def _draft(self, speculator: Speculator, root: int, most_tokens: int, beside: Beside) -> Draft:
        """What the next pass checks: as much as memory, the context and the answer's length leave room for."""
        most, deepest = self.cached.most_drafted
        if self.request.max_tokens is not None:
            deepest = min(deepest, self.request.max_tokens - self.n_generated - 1)
        most = min(most, most_tokens)
        if most == 1 or deepest < 1:
            most, deepest = 1, 0
        draft = trimmed(speculator.draft(self._spoken, most, deepest, beside), root, self._n_vocab, most, deepest)
        if self._constraint is None or len(draft.tokens) == 1:
            return draft
        nodes = allowed_nodes(draft, self._constraint)
        return draft if len(nodes) == len(draft.tokens) else speculator.narrow(draft, nodes)

    def take(self, work: BatchWork, logits: Floats, peaks: Floats | None, batch: Batch, first: int = 0) -> list[int]:
        """The tokens that the logits of some work give, and keep in the cache what leads to them.

        `logits`: float32[O, V] of the work's outputs, `peaks` theirs if the device tells. `batch`: what was evaluated,
        in which the work's tokens begin at `first`; where it has others too, drafting learns nothing of what passes
        cost. `show` each of the tokens afterwards.
        """
        draft, speculator = work.draft, self._speculator
        pass_s = time.perf_counter() - work.ready if batch is work.batch else None
        if draft is None or speculator is None:
            nodes = np.arange(len(work.batch.tokens), dtype=np.int32)
            walked = Walk([self._choose(logits, peaks, (), node, []) for node in range(len(logits))], nodes)
        else:
            likeliest = speculator.look(draft, logits, peaks)
            walked = walk(draft, partial(self._choose, logits, peaks, likeliest), self._eog)
        if len(walked.path) > 1 and draft is not None and speculator is not None:
            self._sources += [None] * (self.n_generated - len(self._sources))
            self._sources += speculator.sources(walked.path)
        self.cached.commit(batch, walked.path + np.int32(first) if first else walked.path)
        if draft is not None and speculator is not None:
            seconds = time.perf_counter() - work.started if batch is work.batch else None
            speculator.learn(draft, walked, seconds)
        if not self.n_generated:
            self._meter.prompt(len(work.batch.tokens))
            if walked.tokens:
                self._tell_progress(len(self.request.prompt))
        if walked.tokens:
            self._force(walked.tokens)
            self._meter.step(len(walked.tokens), pass_s)
        return walked.tokens

    def _force(self, tokens: list[int]) -> None:
        """Add to chosen tokens those that must follow, as far as there is room; nobody need ask the model for these."""
        constraint, most = self._constraint, min(MOST_FORCED, self.cached.n_context - len(self._history))
        if self.request.max_tokens is not None:
            most = min(most, self.request.max_tokens - self.n_generated)
        while constraint is not None and tokens[-1] not in self._eog and len(tokens) < most:
            forced = constraint.forced()[: most - len(tokens)]
            if not forced:
                return
            for token in forced:
                constraint.accept(token)
                tokens.append(token)
                if self.request.logprobs is not None:
                    self._told.append(TokenLogprobs(token, 0.0, ()))

    def _choose(
        self, logits: Floats, peaks: Floats | None, likeliest: Sequence[int], row: int, before: list[int]
    ) -> int:
        """The token that follows the answer so far and these, by a row of logits; `likeliest` as `Speculator.look`."""
        if self._constraint is not None or self.request.logprobs is not None:
            n = self.n_generated + len(before)
            return self._choose_and_tell(logits[row, : self._n_vocab], [*self._spoken, *before], n)
        if likeliest and self._sampler.takes_likeliest and likeliest[row] != NO_TOKEN:
            return likeliest[row]
        history = [*self._spoken, *before] if before else self._spoken
        of_row = peaks[row] if peaks is not None and logits.shape[1] == self._n_vocab else None
        return self._sampler.choose(logits[row, : self._n_vocab], history, self.n_generated + len(before), of_row)

    def _choose_and_tell(self, logits: Floats, history: list[int], n: int) -> int:
        """The n-th token of the answer, where it must be allowed, or its probability told. `logits`: float32[V]."""
        constraint, sampler = self._constraint, self._sampler
        forced = () if constraint is None else constraint.forced()
        if forced:
            token = forced[0]
        elif constraint is None:
            token = sampler.choose(logits, history, n)
        elif self.request.sampling.temperature > 0 or not constraint.allows(
            token := sampler.choose(logits, history, n)
        ):
            token = sampler.choose(np.where(constraint.mask(), logits, np.float32(-np.inf)), history, n)
        if constraint is not None and not forced:
            token = constraint.settled(token)
        if constraint is not None and token not in self._eog:
            constraint.accept(token)
        if self.request.logprobs is not None:
            told = TokenLogprobs(token, 0.0, ()) if forced else logprobs_of(logits, token, self.request.logprobs)
            self._told.append(told)
        return token

    def show(self, token: int) -> str:
        """Add a token to the answer; the text that can be shown for it."""
        if token in self._eog:
            is_cut = self._constraint is not None and self._constraint.is_cut
            self._finish_reason = "length" if is_cut else "stop"
            self._ran_full = is_cut and self._n_room < (self.request.max_tokens or self._n_room + 1)
            return ""
        self._history.append(token)
        if self._mixed is not None:
            self._spoken.append(token)
        piece = self._stops.push(self._decoder.push(token))
        if self._stops.matched is not None:
            self._finish_reason = "stop"
        elif self.n_generated == self.request.max_tokens:
            self._finish_reason = "length"
        self._shown.append(piece)
        return piece

    def rest(self) -> str:
        """The text that was held back: an unfinished character, the beginning of a stop string.

        A character whose rest will not come, as the answer was stopped or cut, is left out.
        """
        ended_itself = self._finish_reason == "stop"
        piece = self._stops.push(self._decoder.finish() if ended_itself else "") + self._stops.finish()
        self._shown.append(piece)
        return piece

    def _measured(self, finish_reason: FinishReason) -> Stats:
        meter, notices = self._meter, self.request.notices
        truncated = bool(notices)
        if self._ran_full:
            truncated = True
            notices += (f"the answer was cut: the context of {self.cached.n_context} tokens is full",)
        notices += self.cached.take_notices()
        if self._speculator is not None:
            notices += self._speculator.take_notices()
        return Stats(
            n_prompt=len(self.request.prompt),
            n_cached=self._n_reused,
            n_generated=self.n_generated,
            finish_reason=finish_reason,
            truncated=truncated,
            notices=notices,
            ttft_s=meter.ttft_s,
            prefill_tok_s=meter.prefill_tok_s,
            decode_tok_s=meter.decode_tok_s,
            steps=meter.steps,
            accepted_per_step=meter.accepted_per_step,
            seed=self._sampler.seed,
            policy=self._power_limiter.policy.reason,
            joules=meter.joules,
            weights_read_bytes=self.cached.reading.n_bytes - self._read_before,
            draft=None if self._speculator is None else self._speculator.report(),
            is_first=self._is_first,
            step_s=meter.step_s,
        )


def _unknown() -> float | None:
    """The energy of one answer among several."""
    return None
