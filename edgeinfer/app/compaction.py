"""Compaction: the oldest messages of a conversation summed up by the model itself, so that there is room again.

In: a model, the conversation. Out: a stream of the summary, and how many messages it stands for. Changes no chat.
Where the old messages are longer than the context they are summed up piece by piece, each with the summary so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Unpack

from edgeinfer.errors import BadSetting
from edgeinfer.models.text import Message

if TYPE_CHECKING:
    from edgeinfer.engine.conversation import Messages
    from edgeinfer.engine.llm import Facts
    from edgeinfer.engine.marks import Mark
    from edgeinfer.engine.request import Options
    from edgeinfer.engine.stats import Live, Stats

KEPT_SHARE, SUMMARY_SHARE = 0.25, 0.125
"""Of the context: what the newest messages may take afterwards, and the summary."""
TASK = (
    "Sum up the conversation below in a few short paragraphs. Keep names, numbers, decisions, open questions and "
    "whatever the user asked to remember. Write only the summary."
)


class Summarising(Protocol):
    """What makes answers: a session of the engine."""

    def chat(self, messages: Messages, **options: Unpack[Options]) -> SummaryStream: ...


class SummaryStream(Protocol):
    """An answer in the making."""

    def __iter__(self) -> Iterator[str]: ...

    @property
    def text(self) -> str: ...

    @property
    def stats(self) -> Stats | None: ...

    @property
    def live(self) -> Live | None: ...

    def stop(self) -> None: ...


class Counting(Protocol):
    """What counts tokens: a model."""

    @property
    def facts(self) -> Facts: ...

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What to sum up: pieces of text in their order, standing for the `n_summarised` oldest messages."""

    pieces: tuple[str, ...]
    n_summarised: int
    n_answer: int
    """Tokens that a summary may have."""


def plan_compaction(model: Counting, messages: Sequence[Message]) -> CompactionPlan:
    """What to sum up of a conversation, so that about half the context is free afterwards.

    Raises BadSetting where there is too little. System messages stay as they are, and what is summed up already is
    summed up again. Only whole turns are: what stays begins with a question.
    """
    n_context = model.facts.n_context
    said = [message for message in messages if message.role != "system"]
    sizes = [len(model.tokenize(message.text, add_special=False, parse_special=False)) for message in said]
    left, first_kept = int(KEPT_SHARE * n_context), len(said)
    for place in range(len(said) - 1, -1, -1):
        left -= sizes[place]
        if left < 0 and first_kept < len(said):
            break
        if said[place].role == "user":
            first_kept = place
    if first_kept == 0:
        first_kept = _second_question(said)
    if not 0 < first_kept < len(said):
        raise BadSetting("there is too little to sum up yet: two questions at least are needed")
    n_answer = max(16, int(SUMMARY_SHARE * n_context))
    most = max(32, n_context // 2 - n_answer)
    texts = [f"{message.role}: {message.text}" for message in said[:first_kept]]
    return CompactionPlan(_pieces(model, texts, most), first_kept, n_answer)


def _second_question(said: Sequence[Message]) -> int:
    questions = [place for place, message in enumerate(said) if message.role == "user"]
    return questions[-1] if len(questions) > 1 else 0


def _pieces(model: Counting, texts: Sequence[str], most: int) -> tuple[str, ...]:
    """Texts joined to pieces of about `most` tokens; longer ones are cut."""
    pieces: list[str] = []
    current, n_current = "", 0
    for text in texts:
        for part in _parts(model, text, most):
            n_part = len(model.tokenize(part, add_special=False, parse_special=False))
            if current and n_current + n_part > most:
                pieces.append(current)
                current, n_current = "", 0
            current, n_current = f"{current}\n\n{part}" if current else part, n_current + n_part
    return (*pieces, current) if current else tuple(pieces)


def _parts(model: Counting, text: str, most: int) -> list[str]:
    """A text, or its halves, quarters … where it has too many tokens."""
    if len(text) < 2 or len(model.tokenize(text, add_special=False, parse_special=False)) <= most:
        return [text]
    middle = len(text) // 2
    return [*_parts(model, text[:middle], most), *_parts(model, text[middle:], most)]


class Compaction:
    """A summary in the making: iterate it, stop it. Its text is that of the last summary."""

    def __init__(self, session: Summarising, plan: CompactionPlan, progress: Callable[[str, int, int], None]) -> None:
        self._session = session
        self._plan = plan
        self._progress = progress
        self._current: SummaryStream | None = None
        self._stopped = False

    @property
    def text(self) -> str:
        """The summary so far; "" while another piece is to come."""
        return "" if self._current is None else self._current.text

    @property
    def live(self) -> Live | None:
        """The numbers of the piece in the making."""
        return None if self._current is None else self._current.live

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Nobody asks who drafted a summary."""
        return ()

    @property
    def stats(self) -> Stats | None:
        """The numbers of the last piece."""
        return None if self._current is None else self._current.stats

    def stop(self) -> None:
        """End it within a step; from any thread."""
        self._stopped = True
        if self._current is not None:
            self._current.stop()

    def __iter__(self) -> Iterator[str]:
        """Pieces of the last summary; those before it are only told as progress."""
        before = ""
        for number, piece in enumerate(self._plan.pieces, 1):
            so_far = f"Summary of what came before:\n{before}\n\n" if before else ""
            question = Message("user", f"{TASK}\n\n{so_far}{piece}")
            self._current = self._session.chat(
                [question], temperature=0.0, max_tokens=self._plan.n_answer, progress=self._progress
            )
            if self._stopped:
                self._current.stop()
            is_last = number == len(self._plan.pieces)
            for text in self._current:
                if is_last:
                    yield text
            before = self._current.text.strip()
            if self._stopped:
                return
