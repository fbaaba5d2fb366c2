"""Shortens a long conversation: its oldest turns are replaced by a summary that the model writes.

In: messages and a way to count their tokens. Out: a `CompactionPlan`; run over a session, it yields the streams of the
answers that make up the summary, and the summary's text. Text longer than the context is summarised in parts, and those
summaries are then summarised. Knows no screens and saves nothing: the caller decides what becomes of the turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, Unpack

if TYPE_CHECKING:
    from edgeinfer.engine.requests.conversation import Messages
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.engine.scheduler.stats import Stats

SHARE = 0.5
"""Largest share of the context in use after compaction."""
SUMMARY_SHARE, SUMMARY_TOKENS_MAX = 0.125, 512
"""Share of the context for a summary, and its maximum number of tokens."""
SPARE_SHARE = 0.03
"""Share of the context left free in a request: parts are counted singly and may be slightly longer when joined."""
SYSTEM_ROLES = ("system", "developer")
SPEAKERS = {"user": "User", "assistant": "Assistant"}
HEADING = "Summary of the conversation so far:"
INSTRUCTION = (
    "Summarise the conversation below, so that it can go on without it. Keep names, numbers, decisions, open questions "
    "and what the user wants. Write only the summary, in the language of the conversation."
)

Turn = dict[str, str]
"""A message: "role" and "content"."""
Count = Callable[[Sequence[Turn]], int]
"""Counts the prompt tokens of a conversation."""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What is to be summarised.

    first_kept  messages from here on stay, as do system messages
    parts       the text of the messages before, each part short enough for a request
    n_summary   maximum tokens of a summary
    n_after     upper bound on the tokens of the conversation afterwards
    """

    first_kept: int
    parts: tuple[str, ...]
    n_summary: int
    n_after: int


def plan_compaction(
    messages: Sequence[Turn], count: Count, n_context: int, share: float = SHARE
) -> CompactionPlan | None:
    """Choose the fewest oldest turns to summarise so that at most `share` of the context is used afterwards.

    The last turn always stays, even if it is longer. None if there is no other turn.
    """
    starts = _turn_starts(messages)
    if len(starts) < 2:
        return None
    n_summary = summary_tokens(n_context)

    def after(start: int) -> int:
        return count(_without(messages, start)) + n_summary

    low, high = 1, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if after(starts[middle]) <= n_context * share else (middle + 1, high)
    first_kept = starts[low]
    old = [message for message in messages[:first_kept] if message["role"] not in SYSTEM_ROLES]
    parts = parts_of([_said(message) for message in old], count, n_context)
    return CompactionPlan(first_kept, parts, n_summary, after(first_kept))


def parts_of(texts: Sequence[str], count: Count, n_context: int) -> tuple[str, ...]:
    """Join texts into as few parts as the context length allows per request; cut texts that are longer."""
    n_empty = count(request_for(""))
    room = max(1, n_context - summary_tokens(n_context) - n_empty - int(n_context * SPARE_SHARE))

    def length(text: str) -> int:
        return count(request_for(text)) - n_empty + 1

    parts: list[list[str]] = []
    left = 0
    for piece in (piece for text in texts for piece in _cut(text, length, room)):
        n_piece = length(piece)
        if not parts or n_piece > left:
            parts.append([])
            left = room
        parts[-1].append(piece)
        left -= n_piece
    return tuple("\n\n".join(part) for part in parts)


def summary_tokens(n_context: int) -> int:
    """Maximum tokens of a summary."""
    return max(1, min(SUMMARY_TOKENS_MAX, int(n_context * SUMMARY_SHARE)))


def request_for(text: str) -> list[Turn]:
    """The conversation that asks for the summary of a text."""
    return [{"role": "user", "content": f"{INSTRUCTION}\n\n{text}"}]


def system_with_summary(system: str | None, summary: str) -> str:
    """A system prompt that includes a summary of the earlier conversation."""
    return "\n\n".join([*([system] if system else []), f"{HEADING}\n{summary}"])


class SummaryStream(Protocol):
    """A running request."""

    @property
    def text(self) -> str: ...

    @property
    def stats(self) -> Stats | None: ...


S = TypeVar("S", bound=SummaryStream, covariant=True)


class AnsweringSession(Protocol[S]):
    """A session of the engine."""

    def chat(self, messages: Messages, **options: Unpack[Options]) -> S: ...


class Compaction(Generic[S]):
    """Runs a plan over a session. The summary is available once all its streams have ended normally."""

    def __init__(
        self, session: AnsweringSession[S], plan: CompactionPlan, count: Count, n_context: int, options: Options
    ) -> None:
        self._session, self._plan, self._count, self._n_context = session, plan, count, n_context
        self._options: Options = {**options, "max_tokens": plan.n_summary}
        self.summary: str | None = None

    def streams(self) -> Iterator[S]:
        """Yield a stream for each part, then for their summaries. Read each to its end before requesting the next.

        After a stream that was stopped, or gave no text, no further one follows and there is no summary.
        """
        parts = self._plan.parts
        while parts:
            summaries: list[str] = []
            for part in parts:
                stream = self._session.chat(request_for(part), **self._options)
                yield stream
                text = stream.text.strip()
                if stream.stats is None or stream.stats.finish_reason == "cancelled" or not text:
                    return
                summaries.append(text)
            if len(summaries) == 1:
                self.summary = summaries[0]
                return
            parts = parts_of(summaries, self._count, self._n_context)
            if len(parts) >= len(summaries):  # summaries no shorter than their sources do not converge
                self.summary = "\n\n".join(summaries)
                return


def _said(message: Turn) -> str:
    return f"{SPEAKERS.get(message['role'], message['role'])}: {message['content']}"


def _turn_starts(messages: Sequence[Turn]) -> list[int]:
    """Indices at which turns begin: the first message other than system messages, and every user message."""
    others = [index for index, message in enumerate(messages) if message["role"] not in SYSTEM_ROLES]
    return [index for index in others if index == others[0] or messages[index]["role"] == "user"]


def _without(messages: Sequence[Turn], start: int) -> list[Turn]:
    """The conversation after compaction, with an empty summary."""
    system = "\n\n".join(message["content"] for message in messages[:start] if message["role"] in SYSTEM_ROLES)
    return [{"role": "system", "content": system_with_summary(system, "")}, *messages[start:]]


def _cut(text: str, length: Callable[[str], int], room: int) -> Iterator[str]:
    """Split a text into pieces of at most so many tokens, after white space where possible."""
    while (n_tokens := length(text)) > room and len(text) > 1:
        cut = max(1, int(len(text) * room / n_tokens))
        while cut > 1 and length(text[:cut]) > room:
            cut = max(1, cut * 4 // 5)
        space = max(text.rfind(white, cut // 2, cut) for white in (" ", "\n"))
        cut = space + 1 if space > 0 else cut
        yield text[:cut].rstrip()
        text = text[cut:]
    yield text
