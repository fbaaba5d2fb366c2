"""The generator loop: prompt in, pieces of text out; draft, evaluate, accept, text, until something ends it.

In: a sequence that may hold part of the prompt already, the prompt's tokens, how to choose tokens and when to stop.
Out: str pieces; afterwards the tokens, the whole text and the stats. Works step by step in the caller's thread and
holds the engine only within a step. Knows no messages, templates, files or devices.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from functools import partial

import numpy as np

from edgeinfer.backends.base import Batch, Floats
from edgeinfer.backends.stopping import Interrupted, StopFlag
from edgeinfer.engine.cached import CachedSequence
from edgeinfer.engine.evaluators import Telling
from edgeinfer.engine.request import Request
from edgeinfer.engine.sampling import Sampler
from edgeinfer.engine.speculation.records import NO_TOKEN
from edgeinfer.engine.speculation.speculator import Speculator
from edgeinfer.engine.speculation.tree import Draft, Walk, trimmed, walk
from edgeinfer.engine.stats import FinishReason, Meter, Stats
from edgeinfer.engine.stops import StopStrings
from edgeinfer.models.text import StreamDecoder, Tokenizer

READING = "reading the prompt"


class Generation:
    """One answer in the making. Run `pieces()` once; `stop()` from any thread ends it within a step.

    `speculator`: who drafts the tokens of a pass; the answer is the same with any, and with none. Raises
    ContextOverflow or BadSetting at once for a request that cannot be met.
    """

    def __init__(
        self,
        cached: CachedSequence,
        tokenizer: Tokenizer,
        request: Request,
        speculator: Speculator | None = None,
    ) -> None:
        request.check(cached.n_context)
        self._cached = cached
        self._regime = cached.regime
        self._request = request
        self._speculator = speculator
        self._n_vocab = tokenizer.n_tokens
        self._eog = tokenizer.vocabulary.end_of_generation
        self._sampler = Sampler(request.sampling)
        self._decoder = StreamDecoder(tokenizer, continues=request.continues_text)
        self._stops = StopStrings(request.stop)
        self._stop_asked = StopFlag()
        self._meter = Meter()
        self._history = list(request.prompt)
        self._n_reused, self._ran_full = 0, False
        self._finish_reason: FinishReason | None = None
        self._shown: list[str] = []
        self._stats: Stats | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the answer so far."""
        return tuple(self._history[len(self._request.prompt) :])

    @property
    def text(self) -> str:
        """The text of the answer so far."""
        return "".join(self._shown)

    @property
    def stats(self) -> Stats | None:
        """The numbers of the answer, once it is done."""
        return self._stats

    @property
    def _n_generated(self) -> int:
        return len(self._history) - len(self._request.prompt)

    def stop(self) -> None:
        """End the answer before its next step; what there is of it is kept."""
        self._stop_asked.set()

    def pieces(self) -> Generator[str, None, None]:
        """Generate: pieces of text as they become certain. Closing it ends the answer as `stop()` does."""
        self._meter = Meter(joules=self._regime.joules)
        self._cached.begin(self.stop, self._stop_asked)
        try:
            if self._speculator is not None:
                with self._cached.lock:
                    self._speculator.begin(self._history, sampled=self._request.sampling.temperature > 0)
            accepted = self._read_prompt()
            while self._finish_reason is None:
                for token in accepted:
                    if piece := self._take(token):
                        yield piece
                    if self._finish_reason is not None:
                        break
                else:
                    accepted = self._step(accepted[-1])
            if piece := self._take_rest():
                yield piece
        finally:
            self._finish_reason = self._finish_reason or "cancelled"
            self._cached.end(self.stop)
            self._stats = self._measured(self._finish_reason)

    def _read_prompt(self) -> list[int]:
        """Evaluate what is not cached of the prompt, chunk by chunk; the first tokens of the answer."""
        prompt, progress = self._request.prompt, self._request.progress
        self._n_reused = position = self._cached.keep_prefix(prompt)
        n_new = len(prompt) - position
        accepted: list[int] = []
        while position < len(prompt) and self._finish_reason is None:
            progress(READING, position - self._n_reused, n_new)
            chunk = prompt[position : position + self._cached.max_tokens]
            position += len(chunk)
            self._regime.rest(self._stop_asked)
            with self._cached.lock:
                accepted = self._evaluate(self._cached.chain(chunk, wants_logits=position == len(prompt)))
            self._meter.prompt(len(chunk))
        progress(READING, position - self._n_reused, n_new)
        return accepted

    def _step(self, root: int) -> list[int]:
        """Evaluate the answer's last token; the tokens that follow it, none where the context ends."""
        if self._cached.is_full:
            self._finish_reason, self._ran_full = "length", True
            return []
        self._regime.rest(self._stop_asked)
        with self._cached.lock:
            if self._speculator is None:
                return self._evaluate(self._cached.chain((root,), wants_logits=True))
            if self._stop_asked.is_set():  # whoever drafts may be with another answer already
                self._finish_reason = "cancelled"
                return []
            started = time.perf_counter()
            draft = self._draft(self._speculator, root)
            return self._evaluate(self._cached.tree(draft), draft, started)

    def _draft(self, speculator: Speculator, root: int) -> Draft:
        """What the next pass checks: as much as memory, the context and the answer's length leave room for."""
        most, deepest = self._cached.most_drafted
        if self._request.max_tokens is not None:
            deepest = min(deepest, self._request.max_tokens - self._n_generated - 1)
        if most == 1 or deepest < 1:
            most, deepest = 1, 0
        return trimmed(speculator.draft(self._history, most, deepest), root, self._n_vocab, most, deepest)

    def _evaluate(self, batch: Batch, draft: Draft | None = None, started: float | None = None) -> list[int]:
        """Run a batch and keep what leads to the tokens that are chosen; none where a stop was asked for.

        `draft`: what the batch was made of, begun when it `started`; None for a chain, which is kept whole. The lock
        is held.
        """
        if self._stop_asked.is_set():
            self._finish_reason = "cancelled"
            return []
        started = time.perf_counter() if started is None else started
        try:
            logits = self._cached.evaluate(batch)
        except Interrupted:
            self._finish_reason = "cancelled"
            return []
        peaks, speculator = self._cached.peaks, self._speculator
        if draft is None or speculator is None:
            nodes = np.arange(len(batch.tokens), dtype=np.int32)
            walked = Walk([self._choose(logits, peaks, (), node, []) for node in range(len(logits))], nodes)
        else:
            likeliest = speculator.look(draft, logits, peaks)
            walked = walk(draft, partial(self._choose, logits, peaks, likeliest), self._eog)
        self._cached.commit(batch, walked.path)
        if draft is not None and speculator is not None:
            speculator.learn(draft, walked, time.perf_counter() - started)
        self._regime.worked(started)
        if walked.tokens:
            self._meter.step(len(walked.tokens))
        return walked.tokens

    def _choose(
        self, logits: Floats, peaks: Floats | None, likeliest: Sequence[int], row: int, before: list[int]
    ) -> int:
        """The token that follows the answer so far and these, by a row of logits; `likeliest` as `Speculator.look`."""
        if likeliest and self._sampler.takes_likeliest and likeliest[row] != NO_TOKEN:
            return likeliest[row]
        history = [*self._history, *before] if before else self._history
        of_row = peaks[row] if peaks is not None and logits.shape[1] == self._n_vocab else None
        return self._sampler.choose(logits[row, : self._n_vocab], history, self._n_generated + len(before), of_row)

    def _take(self, token: int) -> str:
        """Add a token to the answer; the text that can be shown for it."""
        if token in self._eog:
            self._finish_reason = "stop"
            return ""
        self._history.append(token)
        piece = self._stops.push(self._decoder.push(token))
        if self._stops.matched is not None:
            self._finish_reason = "stop"
        elif self._n_generated == self._request.max_tokens:
            self._finish_reason = "length"
        self._shown.append(piece)
        return piece

    def _take_rest(self) -> str:
        """The text that was held back: an unfinished character, the beginning of a stop string."""
        piece = self._stops.push(self._decoder.finish()) + self._stops.finish()
        self._shown.append(piece)
        return piece

    def _measured(self, finish_reason: FinishReason) -> Stats:
        meter, notices = self._meter, self._request.notices
        truncated = bool(notices)
        if self._ran_full:
            truncated = True
            notices += (f"the answer was cut: the context of {self._cached.n_context} tokens is full",)
        notices += self._cached.take_notices()
        if isinstance(self._speculator, Telling):
            notices += self._speculator.take_notices()
        return Stats(
            n_prompt=len(self._request.prompt),
            n_cached=self._n_reused,
            n_generated=self._n_generated,
            finish_reason=finish_reason,
            truncated=truncated,
            notices=notices,
            ttft_s=meter.ttft_s,
            prefill_tok_s=meter.prefill_tok_s,
            decode_tok_s=meter.decode_tok_s,
            steps=meter.steps,
            accepted_per_step=meter.accepted_per_step,
            seed=self._sampler.seed,
            policy=self._regime.policy.reason,
            joules=meter.joules,
            draft=None if self._speculator is None else self._speculator.report(),
        )
