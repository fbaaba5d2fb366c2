"""One instruction for many items: their answers are written side by side, a fixed number at a time, in order.

In: items, and how a sequence for one begins. Out: pieces of text with the number of their item; all texts in the end,
and the errors of items that have no answer. Answers do not see one another: each is exactly the one that its item has
alone. The instruction stands before the item, so that all of them share its pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.stats import Stats
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.several.side_by_side import AnswerText, SideBySide
from edgeinfer.errors import EdgeInferError

MOST_NAMED = 3
"""Items without an answer whose errors a message tells."""


class Mapped(SideBySide):
    """The answers to one instruction for many items. Iterate over it once, with `for` or `async for`, to write them.

    Numbers in pieces are those of items, from 0 on; pieces have thoughts, if there are any, `texts` have not. An item
    without text is not asked: its answer is empty. An item whose request is refused, or whose answer fails by itself,
    has an error in its place; the others go on.
    """

    def __init__(
        self, items: Sequence[str], begun: Callable[[int], ScheduledSequence], driver: StepDriver, n_parallel: int
    ) -> None:
        """`begun`: makes the sequence of an item, by its number, when its turn comes.

        Writes nothing before the first piece is requested.
        """
        super().__init__((), driver)
        self.items: tuple[str, ...] = tuple(items)
        self._begin, self._n_parallel = begun, n_parallel
        self._places: list[int] = []
        """The item of each answer that has begun."""
        self._streams: dict[int, TextStream] = {}
        self._answer_of: dict[int, int] = {}
        self._errors: dict[int, Exception] = {}
        self._n_taken = 0

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts so far, without thoughts, in order of the items; "" for those that have none."""
        return tuple(self.text(number) for number in range(len(self.items)))

    def text(self, number: int) -> str:
        """The text of an item so far, without thoughts."""
        stream = self._streams.get(number)
        return "" if stream is None else stream.content

    @property
    def errors(self) -> Mapping[int, Exception]:
        """Why items have no answer, or only a part of one, by their number."""
        return MappingProxyType(self._errors)

    @property
    def stats(self) -> tuple[Stats | None, ...]:
        """Statistics of the answers, in order of the items; None for those that are not done, or have none."""
        return tuple(self.stats_of(number) for number in range(len(self.items)))

    def stats_of(self, number: int) -> Stats | None:
        """Statistics of the answer of an item; None until it is done, and if there is none."""
        stream = self._streams.get(number)
        return None if stream is None else stream.stats

    def stream(self, number: int) -> TextStream | None:
        """The answer of an item, to look at and not to iterate over; None if it has not begun, or has none."""
        return self._streams.get(number)

    def is_over(self, number: int) -> bool:
        """Whether nothing more comes of an item."""
        if number not in self._streams:
            return number < self._n_taken or self._is_stopped
        return self._answer_of[number] in self._told_over

    def read(self) -> tuple[str, ...]:
        """Write all answers and return their texts, in order of the items.

        Raises EdgeInferError if items have no answer; `texts` has the others then, and `errors` says why.
        """
        for _ in self:
            pass
        if self._errors:
            raise EdgeInferError(failures_text(self._errors, len(self.items)))
        return self.texts

    @property
    def _has_room(self) -> bool:
        """Whether another answer may begin now."""
        if self._is_stopped or self._n_taken == len(self.items):
            return False
        return len(self._sequences) - len(self._told_over) < self._n_parallel

    def _has_news(self) -> bool:
        return super()._has_news() or self._has_room

    @property
    def _is_over(self) -> bool:
        """Whether nothing more comes: all items were taken, or it was stopped, and what has begun is over."""
        return super()._is_over and (self._is_stopped or self._n_taken == len(self.items))

    def _failed(self, number: int, sequence: ScheduledSequence) -> None:
        """Keep the error of an answer that failed by itself; others end them all."""
        if not (isinstance(sequence.error, Exception) and sequence.failed_alone):
            super()._failed(number, sequence)
            return
        self._errors[self._places[number]] = sequence.error

    def _news(self) -> list[AnswerText]:
        """As `SideBySide._news`, with the numbers of items."""
        return [AnswerText(self._places[piece.number], piece.text) for piece in super()._news()]

    def _look(self) -> None:
        """Begin answers while there is room."""
        while self._has_room:
            number = self._n_taken
            if self.items[number].strip():
                try:
                    sequence = self._begin(number)
                except EdgeInferError as reason:
                    self._driver.scheduler.pool.check_open()
                    self._errors[number] = reason
                else:
                    self._answer_of[number] = len(self._places)
                    self._places.append(number)
                    self._streams[number] = self._add(sequence)
            self._n_taken += 1


def failures_text(errors: Mapping[int, Exception], n_items: int) -> str:
    """Which items have no answer, in one line; items are counted from 1 on."""
    named = "; ".join(f"item {number + 1}: {errors[number]}" for number in sorted(errors)[:MOST_NAMED])
    more = "; …" if len(errors) > MOST_NAMED else ""
    return f"{len(errors)} of {n_items} {'item has' if n_items == 1 else 'items have'} no answer: {named}{more}"
