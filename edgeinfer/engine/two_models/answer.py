"""One answer that two models write: what the small one wrote since the last pass, and who wrote what.

In: the text so far, logits of the small model, logits of the large one. Out: drafts for the large model to read, and
which of their tokens stay. It is a `Speculator` whose `writer` it is itself. Runs no passes: `two_models` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.evaluator import StopFlag
from edgeinfer.engine.requests.drafting import (
    ROOT,
    Draft,
    DraftReport,
    DraftRequest,
    SharedWriting,
    SourceCount,
    Walk,
)
from edgeinfer.engine.requests.noise import Noise
from edgeinfer.engine.requests.prompt_rows import n_common
from edgeinfer.engine.requests.sampling import Sampler, SamplingSettings
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.speculation.records import NO_TOKEN
from edgeinfer.engine.two_models.certainty import certainty, surprises
from edgeinfer.graph.step import Batch, Floats, Int32s
from edgeinfer.scheduling.several.hesitation import MOST_STEP, ends_step, hands_over, stays

if TYPE_CHECKING:
    from edgeinfer.engine.two_models.two_models import TwoModels

SOURCE = "small_model"
"""Draft source of the small model's tokens."""


class TwoModelAnswer:
    """An answer that two models write. Close it."""

    row_reader, rests, expected = None, False, 1.0

    def __init__(self, shared: TwoModels) -> None:
        self._shared = shared
        self._cached: CachedSequence | None = None
        self._sampler = Sampler(SamplingSettings(temperature=0))
        self._text: list[int] = []
        self._n_begun = 0
        self._stopped: StopFlag | None = None
        self.written: list[int] = []
        """Tokens of the small model after the text, which the large one has not read;"""
        self._most = 0
        """as many as there is room for,"""
        self._is_done = True
        """and whether no more follow before the large model runs."""
        self._hesitates = self._ran_full = False
        self._kept: list[int] = []
        self._is_approved = False
        """Whether the tokens written are of a step that the large model approved;"""
        self._large_from: int | None = None
        """where in the text the step begins that it writes itself; None: it writes none."""
        self._n_small = self._n_large = self._n_handed_over = self._n_dropped = self._n_passes = self._n_single = 0
        self.seconds = 0.0
        """Spent on the small model, and on rating."""

    @property
    def writer(self) -> TwoModelAnswer:
        """What decides which tokens stay."""
        return self

    @property
    def drafter(self) -> TwoModels:
        """What runs the small model for this text, along with others of a pass."""
        return self._shared

    def begin(
        self, history: Sequence[int], noise: Noise | None = None, settings: SamplingSettings | None = None
    ) -> None:
        """Start a text to continue, whose tokens the small model chooses as the large one would."""
        n_vocab, vocabulary = self._shared.small.n_vocab, self._shared.tokenizer.vocabulary
        settings = settings or SamplingSettings(temperature=0)
        biases = {token: bias for token, bias in settings.logit_bias.items() if int(token) < n_vocab}
        suppressed = [token for token in vocabulary.suppressed if token < n_vocab]
        self._sampler = Sampler(replace(settings, logit_bias=biases), suppressed)
        if noise is not None:
            self._sampler.noise = noise
        self._n_begun = len(history)
        self._text, self.written, self._is_approved, self._large_from = list(history), [], False, None
        self.close()
        self._cached = self._shared.small.begin(history)

    @property
    def cached(self) -> CachedSequence:
        """The text in the small model's cache."""
        assert self._cached is not None
        return self._cached

    @property
    def wants_more(self) -> bool:
        """Whether the small model goes on."""
        return not self._is_done and not (self._stopped is not None and self._stopped.is_set())

    def follow(self, asked: DraftRequest, n_room: int) -> None:
        """Write on after a text that may have grown, up to `n_room` tokens besides one for the last node."""
        new = asked.history[len(self._text) :]
        is_rest = self._is_approved and n_common(self.written, list(new)) == len(new)
        self.written = self.written[len(new) :] if is_rest else []
        self._is_approved = bool(self.written)
        self._text = list(asked.history)
        self._stopped, self._hesitates = asked.stopped, False
        self._most = 1 + n_room
        if self._shared.rule.kind == "steps":  # which must not depend on how much room a pass has
            self._most = MOST_STEP
            self._note_large_step()
        fits = len(self._text) < self.cached.n_context
        self._ran_full = self._ran_full or not fits
        self._is_done = not fits or self._large_from is not None or self._is_approved
        if not self._is_done:
            self.cached.stopped = asked.stopped  # which interrupts its passes too
            self.cached.keep_prefix(self._shared.small.as_read(self._text))

    def _note_large_step(self) -> None:
        """See whether the step that the large model writes is over."""
        if self._large_from is not None and (step := self._text[self._large_from :]) and self._has_ended(step):
            self._large_from = None

    def next_part(self, most: int) -> Batch | None:
        """The next part of what the small model has not read, up to `most` tokens; None if none fits."""
        unread = self._shared.small.as_read([*self._text, *self.written][self.cached.n_cached :])
        part = unread[:most]
        if not part:
            return None
        return self.cached.chain(part, wants_logits=len(part) == len(unread))

    def take(self, row: Floats) -> None:
        """Take the small model's logits after all that it wrote: float32[V]."""
        rule = self._shared.rule
        if rule.kind != "steps" and hands_over(rule, *certainty(row)):
            self._hesitates = self._is_done = True
            return
        before = [*self._text, *self.written]
        token = self._sampler.choose(row, before, len(before) - self._n_begun)
        self.written.append(token)
        ends = token in self._shared.tokenizer.vocabulary.end_of_generation
        is_full = len(self.written) >= self._most or len(before) + 1 >= self.cached.n_context
        self._is_done = ends or is_full or (rule.kind == "steps" and self._has_ended(self.written))

    def _has_ended(self, step: Sequence[int]) -> bool:
        return ends_step(self._shared.tokenizer.decode(step), len(step))

    @property
    def wants_rating(self) -> bool:
        """Whether a step is waiting for the large model's opinion."""
        return self._shared.rule.kind == "steps" and bool(self.written) and not self._is_approved

    def rated(self, *, is_good: bool) -> None:
        """Take the large model's opinion of the step."""
        if is_good:
            self._is_approved = True
        else:
            self._n_dropped += len(self.written)
            self._n_handed_over += 1
            self._large_from, self.written = len(self._text), []

    def drafted(self, n_room: int) -> Draft:
        """What the large model is to read: the last token of the text, and what the small one wrote after it.

        What follows the last node is the small model's next token, which is not read yet, unless it hesitates.
        """
        n_nodes = min(n_room, len(self.written) - (not self._hesitates))
        nodes = self.written[: max(0, n_nodes)]
        tokens = [self._text[-1], *nodes]
        return Draft(np.array(tokens, np.int32), np.arange(ROOT, len(tokens) - 1, dtype=np.int32))

    def narrow(self, draft: Draft, nodes: Sequence[int]) -> Draft:
        """Reduce the last draft to these nodes, which are the first ones of a chain."""
        return Draft(draft.tokens[: len(nodes)], draft.parents[: len(nodes)])

    def look(self, draft: Draft, logits: Floats, peaks: Floats | None) -> Sequence[int]:
        """Do nothing: `kept` looks at the logits."""
        return ()

    def kept(self, draft: Draft, logits: Floats) -> Sequence[int]:
        """The small model's token after each node; NO_TOKEN for those that the large one finds too improbable."""
        rule, n_nodes = self._shared.rule, len(draft.tokens)
        tokens = self.written[:n_nodes]
        if tokens and rule.kind == "bild":
            judged = surprises(logits[:, : self._shared.tokenizer.n_tokens], tokens)
            tokens = [
                token if stays(rule, surprise) else NO_TOKEN for token, surprise in zip(tokens, judged, strict=True)
            ]
        self._kept = [*tokens, *[NO_TOKEN] * (n_nodes - len(tokens))]
        return self._kept

    def sources(self, path: Int32s) -> list[str | None]:
        """Who wrote each token after a node of the path."""
        return [None if self._kept[node] == NO_TOKEN else SOURCE for node in path.tolist()]

    def learn(self, draft: Draft, walked: Walk, seconds: float | None) -> None:
        """Count who wrote the tokens of the pass."""
        ends = self._shared.tokenizer.vocabulary.end_of_generation
        by_small = [token == kept for token, kept in zip(walked.tokens, self._kept, strict=False)]
        n_told = len(walked.tokens) - (walked.tokens[-1] in ends)
        n_small = sum(by_small[:n_told])
        self._n_small, self._n_large = self._n_small + n_small, self._n_large + n_told - n_small
        if self._shared.rule.kind != "steps":
            self._n_dropped += len(self.written) - n_common(self.written, walked.tokens)
            self._n_handed_over += not all(by_small)
        self._n_passes += 1
        self._n_single += len(draft.tokens) == 1

    def timed(self, n_tokens: int, seconds: float, *, drafted: bool) -> None:
        """Do nothing: who writes does not depend on time."""

    def report(self) -> DraftReport:
        """Who wrote what since `begin`."""
        small, n_kept = self._shared.small.name, self._n_small
        counts = {SOURCE: SourceCount(n_kept + self._n_dropped, n_kept)}
        told = SharedWriting(small, str(self._shared.rule), n_kept, self._n_large, self._n_handed_over, self._n_dropped)
        n_expected = float(self._n_small + self._n_large)
        return DraftReport(counts, self.seconds, self._n_passes, self._n_single, n_expected, None, told)

    def take_notices(self) -> tuple[str, ...]:
        """What the answer is, and what happened to the small model."""
        n_tokens = self._n_small + self._n_large
        notices = self._shared.take_notices()
        if self._ran_full:
            notices += (f"the text is too long for {self._shared.small.name}: this model wrote the rest of it",)
        if n_tokens:
            small, rule = self._shared.small.name, self._shared.rule
            notices = (
                f"the answer is not this model's own: {small} wrote {self._n_small} of {n_tokens} tokens "
                f"(--hand-over {rule})",
                *notices,
            )
        return notices

    def close(self) -> None:
        """Leave the text in the small model's cache to later ones."""
        if self._cached is not None:
            self._shared.small.end(self._cached)
            self._cached = None
