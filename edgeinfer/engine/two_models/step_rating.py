"""What a model thinks of the last step of a text: a digit, the token that it finds likeliest after a question.

In: a text in the model's cache, and what follows it. Out: a score from 0 to 9. The question is read on a branch of the
text and dropped. Source: SpecReason (Pan et al., arXiv 2504.07891), whose question this is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.backends.evaluator import Interrupted, StopFlag
from edgeinfer.engine.requests.drafting import CachedText
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.pool import Pool
from edgeinfer.errors import BadSetting, DoesNotFit
from edgeinfer.models.text import Tokenizer

QUESTION = (
    "\n\nEvaluate the last step solely based on factual correctness and validity. Ignore style, phrasing, or overall "
    "usefulness: only judge whether the step is objectively correct and logically follows from prior steps. Assign a "
    "score from 0 to 9.\nThe quality score is: "
)


class StepRating:
    """Rates steps of texts by the model of a pool. Raises BadSetting for a tokenizer without a token for each digit."""

    def __init__(self, pool: Pool, tokenizer: Tokenizer) -> None:
        self._pool = pool
        spelled = [tokenizer.encode(QUESTION + str(digit), add_special=False, goes_on=True) for digit in range(10)]
        self._question, self._digits = spelled[0][:-1], [tokens[-1] for tokens in spelled]
        if any(tokens[:-1] != self._question for tokens in spelled) or len(set(self._digits)) < len(spelled):
            raise BadSetting("this model cannot rate steps, for it has no token for each digit; use --hand-over bild")

    def score(self, text: CachedText, tokens: Sequence[int], stopped: StopFlag | None) -> int | None:
        """The score of a step, the last of `tokens`, which follow a cached text. Call with the pool's lock held.

        None if there is no room for the question, or the answer was asked to end.
        """
        donor = next((each for each in self._pool.members if each is text), None)
        whole, limits = [*tokens, *self._question], self._pool.executor.limits
        if donor is None or donor.n_cached + len(whole) > limits.n_context:
            return None
        rated = CachedSequence(self._pool)
        try:
            rated.share(donor, donor.n_cached)
            rated.stopped = stopped
            for first in range(0, len(whole), limits.max_tokens):
                part = whole[first : first + limits.max_tokens]
                batch = rated.chain(part, wants_logits=first + len(part) == len(whole))
                logits = self._pool.evaluate((rated,), batch)
                if not len(batch.outputs):
                    rated.commit(batch, np.arange(len(part), dtype=np.int32))
            return int(logits[0, self._digits].argmax())
        except (DoesNotFit, Interrupted):
            return None
        finally:
            rated.close()
