"""One answer that thinks, and answers from its thoughts cut at several places: the thought is closed, then answered.

Budget forcing (Muennighoff et al., "s1", arXiv 2501.19393) at several budgets of one thought, which is written once.
All answers share it up to where each is cut, at the end of a sentence. By default thoughts are cut into equal parts
once they are over; with `every`, while they are being written, so that answers that agree end them early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from edgeinfer.engine.requests.constrained.after_thoughts import ThoughtMarks
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.scheduler.token_choice import TokenLogprobs
from edgeinfer.engine.several.leading import Leader, LedAnswers, Strategy
from edgeinfer.errors import BadSetting
from edgeinfer.models.text import Tokenizer
from edgeinfer.models.text.thought_formats import ThoughtFormat
from edgeinfer.scheduling.several.forking import cut_places, next_cut

TRUNK = 0
"""The answer whose thoughts are cut."""
STOPS = b".", b"!", b"?", b"\n"


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut at the first end of a sentence after each `every` tokens of thoughts; 0: into equal parts, in the end."""

    every: int = 0
    n_logprobs: ClassVar[None] = None
    reads_entropy: ClassVar[bool] = False
    reads_forks: ClassVar[bool] = False
    draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.every < 0:
            raise BadSetting("lead cut: every cannot be negative; 0 cuts thoughts into equal parts")

    def n_first(self, n: int) -> int:
        """One."""
        return 1

    def begin(self, n: int, request: Request, tokenizer: Tokenizer) -> Leader | None:
        """Cut the thoughts of the first answer. Raises BadSetting if the model has none that are set apart."""
        if request.thoughts is None:
            raise BadSetting(
                "lead cut needs a chat with a model whose thoughts are set apart from its answers (<think>…</think>), "
                "and this is none; independent, uncertain and particles work with all"
            )
        return CutLeader(self.every, n, ThoughtText(request.thoughts, tokenizer, opened=request.opens_thought))


class ThoughtText:
    """Follows the tokens of an answer: where its thoughts begin, where their sentences end, where they are over.

    All places are numbers of tokens. `opened`: the prompt ends within a thought.
    """

    def __init__(self, form: ThoughtFormat, tokenizer: Tokenizer, *, opened: bool) -> None:
        self._form, self._tokenizer = form, tokenizer
        self._begin, self._end = form.begin.strip().encode(), form.end.encode()
        self.place: Literal["start", "thought", "after"] = "thought" if opened else "start"
        self.first = 0
        """Where the thoughts begin."""
        self.stop = 0
        """Where they are over, or how far they are."""
        self.stops: list[int] = []
        """Where sentences of them end."""
        self._text = b""
        self._reached: list[int] = []  # bytes after each token
        self._ends_sentence = False

    @property
    def closings(self) -> tuple[tuple[int, ...], ...]:
        """Tokens that close a thought and lead to the answer: as text, or where a constraint says how it begins."""
        marks = ThoughtMarks.of(self._form, self._tokenizer, self._form.answer)
        end = self._tokenizer.encode(self._form.end, add_special=False, goes_on=True)
        return marks.closing, (*end, *marks.after)

    def read(self, tokens: Sequence[int]) -> None:
        """Take the tokens so far."""
        for token in tokens[len(self._reached) :]:
            piece = self._tokenizer.piece(token)
            if self.place == "thought" and self._ends_sentence and (piece[:1].isspace() or piece == b""):
                self.stops.append(len(self._reached))
            self._text += piece
            self._reached.append(len(self._text))
            if self.place == "start":
                self._open()
            elif self.place == "thought":
                self._think(piece)

    def _open(self) -> None:
        said = self._text.lstrip()
        if said.startswith(self._begin):
            self.place, self.first = "thought", len(self._reached)
        elif not self._begin.startswith(said):
            self.place = "after"

    def _think(self, piece: bytes) -> None:
        start = self._reached[self.first - 1] if self.first else 0
        at = self._text.find(self._end, max(start, len(self._text) - len(piece) - len(self._end)))
        if at >= 0:
            self.place, self.stop = "after", sum(reached <= at for reached in self._reached)
            self.stops = [place for place in self.stops if self.first < place < self.stop]
            return
        self.stop = len(self._reached)
        self._ends_sentence = piece.rstrip(b" ").endswith(STOPS)
        if piece.endswith(b"\n") and self.stop > self.first:
            self.stops.append(self.stop)
            self._ends_sentence = False


class CutLeader:
    """Forks the first answer at cuts of its thoughts until there are `n`."""

    def __init__(self, every: int, n: int, thoughts: ThoughtText) -> None:
        self._every, self._n, self._thoughts = every, n, thoughts
        self._next: int | None = None

    def look(self, answers: LedAnswers) -> None:
        """Fork at the cuts that are known by now."""
        if len(answers.answers) >= self._n:
            return
        trunk, is_over, thoughts = answers.answers[TRUNK], TRUNK in answers.ended, self._thoughts
        thoughts.read(trunk.tokens)
        if self._every:
            self._go_along(answers)
        ends = is_over or thoughts.place == "after"
        if ends and not self._every:
            n_tokens, n_cuts = thoughts.stop - thoughts.first, self._n - 1
            for place in cut_places([each - thoughts.first for each in thoughts.stops], n_tokens, n_cuts):
                self._cut(answers, thoughts.first + place)
        if ends:
            self._n = len(answers.answers)
            answers.expect(self._n)

    def _go_along(self, answers: LedAnswers) -> None:
        """Cut after every so many tokens."""
        thoughts = self._thoughts
        self._next = thoughts.first + self._every if self._next is None else self._next
        while len(answers.answers) < self._n and (place := next_cut(thoughts.stops, self._next)) is not None:
            self._next = place + self._every
            self._cut(answers, place)

    def _cut(self, answers: LedAnswers, place: int) -> None:
        for closing in self._thoughts.closings:
            if answers.fork(TRUNK, place, [TokenLogprobs(token, 0.0, ()) for token in closing]) is not None:
                return


STRATEGY = Strategy(Cut, "one that thinks, and answers from its thoughts cut at several places")
