"""The generator loop: prompt in, pieces of text out; draft, evaluate, accept, text, until something ends it.

In: an `Answer` to lead: a sequence, a prompt's tokens, how to choose tokens and when to stop. Out: str pieces;
afterwards the tokens, the whole text and the stats. Works step by step in the caller's thread and holds the engine
only within a step. Knows no messages, templates, files or devices.
"""

from __future__ import annotations

from collections.abc import Generator

from edgeinfer.backends.stopping import Interrupted
from edgeinfer.engine.answering import Answer
from edgeinfer.engine.cached import CachedSequence
from edgeinfer.engine.live import Live, Mark
from edgeinfer.engine.request import Request
from edgeinfer.engine.speculation.speculator import Speculator
from edgeinfer.engine.stats import Stats
from edgeinfer.models.text import Tokenizer


class Generation:
    """One answer in the making. Run `pieces()` once; `stop()` from any thread ends it within a step.

    Raises as `Answer`.
    """

    def __init__(
        self,
        cached: CachedSequence,
        tokenizer: Tokenizer,
        request: Request,
        speculator: Speculator | None = None,
    ) -> None:
        self._cached = cached
        self._regime = cached.regime
        self._answer = Answer(cached, tokenizer, request, speculator)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the answer so far."""
        return self._answer.tokens

    @property
    def history(self) -> tuple[int, ...]:
        """The tokens of the prompt and the answer so far."""
        return self._answer.history

    @property
    def text(self) -> str:
        """The text of the answer so far."""
        return self._answer.text

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Who drafted which part of the text so far: runs of characters, in order; from any thread."""
        return self._answer.marks

    @property
    def live(self) -> Live:
        """How far it is, while it is made; from any thread."""
        return self._answer.live

    @property
    def stats(self) -> Stats | None:
        """The numbers of the answer, once it is done."""
        return self._answer.stats

    def stop(self) -> None:
        """End the answer before its next step; what there is of it is kept."""
        self._answer.stop()

    def pieces(self) -> Generator[str, None, None]:
        """Generate: pieces of text as they become certain. Closing it ends the answer as `stop()` does."""
        answer = self._answer
        answer.begin()
        try:
            while not answer.is_done:
                self._regime.rest(answer.stop_asked)
                for token in self._step():
                    if piece := answer.show(token):
                        yield piece
                    if answer.is_done:
                        break
            if piece := answer.rest():
                yield piece
        finally:
            answer.end()

    def _step(self) -> list[int]:
        """Evaluate what the answer wants next; the tokens it gives."""
        answer, cached = self._answer, self._cached
        with cached.lock:
            work = answer.work(cached.max_tokens)
            if work is None:
                return []
            try:
                logits = cached.evaluate(work.batch)
            except Interrupted:
                answer.cancel()
                return []
            tokens = answer.take(work, logits, cached.peaks, work.batch)
            self._regime.worked(work.started)
            return tokens
