"""Scripted answers that are written side by side: a piece of each in turn; what is kept is the real picks' choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeinfer.engine.scheduler.stats import Stats
from edgeinfer.engine.several.answer_forms import automatic
from edgeinfer.engine.several.picking import Choice
from edgeinfer.engine.several.side_by_side import AnswerText
from edgeinfer.scheduling.several.picks import PICKS
from edgeinfer.scheduling.several.samples import Rules, SampledAnswer


class Stream(Protocol):
    """One of them."""

    stats: Stats | None

    def __iter__(self) -> Iterator[str]: ...

    @property
    def text(self) -> str: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Progress:
    number: int
    pieces: Iterator[str]


class ScriptedSeveral:
    """Several answers, of which one is kept."""

    def __init__(self, answers: Sequence[Stream], pick: str) -> None:
        self.answers = tuple(answers)
        self.choice: Choice | None = None
        self._pick = PICKS.get(pick)

    def __iter__(self) -> Iterator[AnswerText]:
        for piece in in_turn(self.answers):
            yield piece
            self._look()
        self._look()

    def stop(self) -> None:
        for answer in self.answers:
            answer.stop()

    def _look(self) -> None:
        if self.choice is not None:
            return
        samples = [sample_of(number, answer) for number, answer in enumerate(self.answers)]
        verdict = self._pick.verdict(samples, Rules())
        left = tuple(sorted(number for number in verdict.leave if self.answers[number].stats is None))
        for number in left:
            self.answers[number].stop()
        if verdict.chosen is not None:
            self.choice = Choice(verdict.chosen, verdict.reason, tuple(each.answer for each in samples), left)


class ScriptedMapped:
    """An answer for each item. `begin`: makes the stream of an item; what it raises is the item's error."""

    def __init__(self, items: Sequence[str], begin: Callable[[str], Stream]) -> None:
        self.errors: dict[int, Exception] = {}
        self._streams = {number: begin(item) for number, item in enumerate(items)}

    def __iter__(self) -> Iterator[AnswerText]:
        yield from in_turn([self._streams[number] for number in sorted(self._streams)])

    def stream(self, number: int) -> Stream | None:
        return self._streams.get(number)

    def stop(self) -> None:
        for stream in self._streams.values():
            stream.stop()


def in_turn(answers: Sequence[Stream]) -> Iterator[AnswerText]:
    """A piece of each answer in turn, until all are over."""
    left = [_Progress(number, iter(answer)) for number, answer in enumerate(answers)]
    while left:
        for progress in list(left):
            piece = next(progress.pieces, None)
            if piece is None:
                left.remove(progress)
            else:
                yield AnswerText(progress.number, piece)


def sample_of(number: int, answer: Stream) -> SampledAnswer:
    """How far an answer is."""
    stats, n_tokens = answer.stats, len(answer.text.split())
    if stats is None:
        return SampledAnswer(number, n_tokens)
    is_whole = stats.finish_reason == "stop"
    return SampledAnswer(number, n_tokens, True, is_whole, automatic(answer.text) if is_whole else None)
