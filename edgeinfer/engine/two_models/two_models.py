"""Two models for all answers of a model: runs the small one before each pass of the large one.

In: the texts of a pass. Out: for each a draft, what the small model wrote until it hesitated. The large model reads it
in one pass, in which its tokens stay or are written anew: see `TwoModelAnswer`, and `scheduling.several` for the rules.
Both models draw with one noise, so an answer depends on its seed, and not on the passes it is made of: where the large
model writes everything it is its own answer with that seed, and where it writes nothing the small model's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from edgeinfer.backends.evaluator import Interrupted
from edgeinfer.engine.requests.drafting import Draft, DraftRequest, DraftRoom
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.two_models.answer import TwoModelAnswer
from edgeinfer.engine.two_models.small_model import SmallModel
from edgeinfer.engine.two_models.step_rating import StepRating
from edgeinfer.errors import DeviceFailed, DoesNotFit
from edgeinfer.hand_over import HandOver
from edgeinfer.models.text import Tokenizer
from edgeinfer.scheduling.several.hesitation import MOST_STEP, is_good_step

AHEAD = 16
"""Most tokens that the small model writes before the large one reads them: more are read faster, fewer come sooner, and
fewer are lost where they do not stay."""


class TwoModels:
    """The small model beside a large one. Its calls never overlap. Close it."""

    def __init__(self, small: SmallModel, rule: HandOver, tokenizer: Tokenizer, pool: Pool) -> None:
        """`pool`: that of the large model. Raises BadSetting if it cannot rate steps."""
        self.small, self.rule, self.tokenizer = small, rule, tokenizer
        self._rating = StepRating(pool, tokenizer) if rule.kind == "steps" else None
        self._failure: DeviceFailed | MemoryError | None = None
        self._told = False

    @property
    def notice(self) -> str:
        """What answers are, in words."""
        return (
            f"answers are not this model's own: {self.small.name} writes them, and this model in its place "
            f"where --hand-over {self.rule} says"
        )

    def session(self) -> TwoModelAnswer:
        """One more answer."""
        return TwoModelAnswer(self)

    def draft(self, requests: Sequence[DraftRequest], room: DraftRoom) -> list[Draft]:
        """Let the small model write on after each text, and make drafts of that."""
        started, writings = time.perf_counter(), [_writing_of(each) for each in requests]
        rooms = _shared_out(requests, room, AHEAD if self._rating is None else MOST_STEP)
        for writing, asked, n_room in zip(writings, requests, rooms, strict=True):
            writing.follow(asked, n_room)
        if self._failure is None:
            try:
                self._write(writings)
            except (DeviceFailed, MemoryError) as reason:
                self._failure = reason
        for writing, asked in zip(writings, requests, strict=True):
            if self._rating is not None and writing.wants_rating:
                self._rate(self._rating, writing, asked)
        seconds = (time.perf_counter() - started) / len(writings)
        for writing in writings:
            writing.seconds += seconds
        return [writing.drafted(n_room) for writing, n_room in zip(writings, rooms, strict=True)]

    def _write(self, writings: Sequence[TwoModelAnswer]) -> None:
        """Run the small model for all texts until each hesitates or has no more room."""
        while going := [each for each in writings if each.wants_more]:
            try:
                self._run(going[: self.small.limits.max_outputs])
            except Interrupted:
                return
            except DoesNotFit:
                if len(going) == 1:
                    raise
                for each in going:  # one after the other: those that wait give up their memory
                    self._write([each])

    def _run(self, going: Sequence[TwoModelAnswer]) -> None:
        """One pass of the small model."""
        n_left, parts = self.small.limits.max_tokens, []
        for each in going:
            part = each.next_part(n_left)
            if part is not None:
                parts.append((each, part))
                n_left -= len(part.tokens)
        found = self.small.evaluate([(each.cached, part) for each, part in parts])
        for (each, _), logits in zip(parts, found, strict=True):
            if len(logits):
                each.take(logits[0])

    def _rate(self, rating: StepRating, writing: TwoModelAnswer, asked: DraftRequest) -> None:
        """Let the large model rate a step; one that it cannot rate it writes itself."""
        score = None
        if asked.text is not None:
            score = rating.score(asked.text, [asked.history[-1], *writing.written], asked.stopped)
        writing.rated(is_good=score is not None and is_good_step(self.rule, score))

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Do nothing: who writes does not depend on time."""

    def take_notices(self) -> tuple[str, ...]:
        """Notices since the last call; a failure is reported once."""
        if self._told or self._failure is None:
            return ()
        self._told = True
        why = str(self._failure) or "it ran out of memory"
        return (f"{self.small.name} failed and writes no more ({why}); this model goes on alone",)

    def close(self) -> None:
        """Free the memory; may be called twice."""
        self.small.close()


def _shared_out(requests: Sequence[DraftRequest], room: DraftRoom, most: int) -> list[int]:
    """How many tokens after its root each draft may have, `most` at most."""
    n_each = max(0, room.n_tokens - len(requests)) // len(requests)
    found, n_pages = list[int](), room.n_pages
    for asked in requests:
        n_tokens = max(0, min(most, n_each, asked.most - 1, asked.deepest))
        if asked.n_pages > n_pages:
            n_tokens = 0
        n_pages -= asked.n_pages if n_tokens else 0
        found.append(n_tokens)
    return found


def _writing_of(request: DraftRequest) -> TwoModelAnswer:
    """The answer that a request is for."""
    assert isinstance(request.speculator, TwoModelAnswer)
    return request.speculator
