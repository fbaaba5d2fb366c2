"""The small model of two: opened beside the large one, and run for the texts of a pass together.

In: a file, texts in parts. Out: logits. It keeps the sequences of texts that have ended, so that a conversation's next
answer reads only what is new. Chooses no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgeinfer.backends.base import Limits
from edgeinfer.engine.requests.prompt_rows import n_common
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.speculation.draft_followers import KnownTokens
from edgeinfer.engine.speculation.draft_model import ModelBeside, open_beside
from edgeinfer.errors import BadSetting
from edgeinfer.graph.step import Batch, Floats, join
from edgeinfer.models.text import Vocabulary
from edgeinfer.steps import Progress

MOST_KEPT = 4
"""Sequences of texts that have ended which are kept for later ones."""


class SmallModel:
    """The small model, for all texts. Close it."""

    def __init__(self, name: str, found: ModelBeside) -> None:
        self.name, self.n_vocab = name, found.n_known
        self._known: KnownTokens | None = found.known
        self._close = found.close
        self._pool = Pool(found.executor)
        self._kept: list[CachedSequence] = []

    @property
    def limits(self) -> Limits:
        return self._pool.executor.limits

    def as_read(self, text: Sequence[int]) -> list[int]:
        """A text as it reads it: with another token in place of those that it does not know."""
        return list(text if self._known is None else self._known.of(text))

    def begin(self, text: Sequence[int]) -> CachedSequence:
        """A sequence for a text, which holds as much of its beginning as any that is kept."""
        read, best, n_best = self.as_read(text), None, 0
        for each in self._kept:
            if (n_same := n_common(list(each.tokens), read)) > n_best:
                best, n_best = each, n_same
        if best is None:
            return self._pool.open()
        self._kept.remove(best)
        return best

    def end(self, sequence: CachedSequence) -> None:
        """Keep the sequence of a text that has ended; the oldest is freed for it."""
        sequence.stopped = None
        self._kept.append(sequence)
        if len(self._kept) > MOST_KEPT:
            self._kept.pop(0).close()

    def evaluate(self, batches: Sequence[tuple[CachedSequence, Batch]]) -> list[Floats]:
        """Evaluate a part of each text in one pass, and commit it; a copy of the logits of each: float32[O, V].

        Raises as `Pool.evaluate`: DoesNotFit, DeviceFailed, Interrupted.
        """
        found, first, row = list[Floats](), 0, 0
        joined = join([batch for _, batch in batches])
        with self._pool.lock:
            logits = self._pool.evaluate([sequence for sequence, _ in batches], joined)
            for sequence, batch in batches:
                n_tokens, n_outputs = len(batch.tokens), len(batch.outputs)
                found.append(logits[row : row + n_outputs, : self.n_vocab].copy())
                sequence.commit(joined, np.arange(first, first + n_tokens, dtype=np.int32))
                first, row = first + n_tokens, row + n_outputs
        return found

    def close(self) -> None:
        """Free the memory; may be called twice."""
        self._kept.clear()
        self._pool.close()
        self._close()


def open_small_model(path: Path, vocabulary: Vocabulary, executor: SequenceEvaluator, progress: Progress) -> SmallModel:
    """Open a small model that writes for the model of `executor`, which has this vocabulary. Raises as `open_beside`.

    A vocabulary with fewer tokens will do, as long as it has those that end an answer.
    """
    found = open_beside(path, vocabulary, executor, progress, "write")
    missing = [token for token in vocabulary.end_of_generation if token >= found.n_known]
    if len(missing) == len(vocabulary.end_of_generation) and missing:
        found.executor.close()
        found.close()
        raise BadSetting(
            f"{path.name} cannot write for this model, for its vocabulary has no {vocabulary.tokens[missing[0]]}, "
            "which ends an answer; give a smaller model of the same family and version"
        )
    return SmallModel(path.name, found)
