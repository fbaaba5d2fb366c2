"""The context of a chat: how full it is, what would be left out, and how a long conversation is shortened to fit.

In: a loaded model, a conversation, a message being written. Out: one frozen `ContextUse`, computed by tokenizing alone
and from any thread; a `CompactionPlan` and the summary that the model writes in place of the oldest turns. Knows no
database and no screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Unpack

from edgeinfer.app.plain_text import counted
from edgeinfer.errors import ContextOverflow

if TYPE_CHECKING:
    from edgeinfer.engine.model_info import ModelInfo
    from edgeinfer.engine.requests.conversation import FittedPrompt, Messages
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.models.images.image import Image
    from edgeinfer.models.sounds.sound import Sound

Content = str | Sequence[Mapping[str, Any]]
"""What a message says: a text, or parts, of which some are images or sounds."""
NAMED = 3
"""Files are listed by name only if there are fewer than this."""


class PromptMaker(Protocol):
    """Renders conversations as prompts."""

    def render(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str: ...

    def fitted(self, messages: Messages, max_tokens: int | None = None) -> FittedPrompt: ...

    def n_tokens(self, messages: Messages, options: Options | None = None) -> int: ...

    def n_image_tokens(self, image: Image) -> int: ...

    def n_sound_tokens(self, sound: Sound) -> int: ...


class Prompting(Protocol):
    """The parts of a loaded model that concern prompts."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def prompts(self) -> PromptMaker: ...


@dataclass(frozen=True, slots=True)
class ContextUse:
    """Use of the context if the chat were sent now, in tokens.

    The prompt would take n_prompt of n_context and leave n_answer_room for the answer. The n_dropped_messages oldest
    messages would be left out, n_dropped_tokens in all. If `fits` is False, the last turn with the system prompt is
    already too long: n_prompt then counts the whole conversation, and nothing can be sent.
    """

    n_prompt: int
    n_context: int
    n_answer_room: int
    n_dropped_messages: int = 0
    n_dropped_tokens: int = 0
    fits: bool = True

    @property
    def share(self) -> float:
        """Share of the context that the prompt takes; more than 1 if it does not fit."""
        return self.n_prompt / self.n_context


def context_use(llm: Prompting, messages: Messages, draft: Content = "", max_tokens: int | None = None) -> ContextUse:
    """Context use of sending `messages`, followed by `draft` if it is not empty.

    Raises BadTemplate, BadSetting.
    """
    prompts, n_context = llm.prompts, llm.info.n_context
    sent = [*messages, *([{"role": "user", "content": draft}] if draft else [])]
    if not sent:
        return ContextUse(0, n_context, _room(n_context, max_tokens))
    try:
        fitted = prompts.fitted(sent, max_tokens)
    except ContextOverflow:
        return ContextUse(prompts.n_tokens(sent), n_context, 0, fits=False)
    n_prompt = len(fitted.prompt)
    n_dropped_tokens = prompts.n_tokens(sent) - n_prompt if fitted.n_dropped else 0
    return ContextUse(
        n_prompt, n_context, _room(n_context - n_prompt, max_tokens), fitted.n_dropped, max(0, n_dropped_tokens)
    )


def why_too_long(llm: Prompting, system: Messages, said: Content, names: Sequence[str] = ()) -> str | None:
    """Why a message can never be answered, and what would work; None if the context has room for it.

    `system`: the system messages, which must fit as well; `names`: the attachments, already included in `said`.
    Raises BadTemplate, BadSetting.
    """
    prompts, n_context = llm.prompts, llm.info.n_context
    n_prompt = prompts.n_tokens([*system, {"role": "user", "content": said}])
    if n_prompt < n_context:
        return None
    n_around = prompts.n_tokens([*system, {"role": "user", "content": ""}])
    wanted, trained = _context_for(n_prompt), llm.info.n_context_trained
    if n_around >= n_context:
        return (
            f"the system prompt alone has {n_around:,} tokens and the context holds {n_context:,}. /system changes it"
        )
    with_files = f" with {', '.join(names)}" if len(names) < NAMED else f" with {counted(len(names), 'file')}"
    what = f"the message{with_files if names else ''} has {n_prompt - n_around:,} tokens"
    less = "Attach less" if names else "Send less"
    larger = f"{less}, or have a larger context: /set ctx {wanted}, then open the model again with /model"
    most = f"{less}: this model was made for {trained:,} tokens at most"
    return f"{what}, and there is room for {max(0, n_context - n_around):,}. {larger if wanted <= trained else most}"


def _context_for(n_prompt: int) -> int:
    """A context length with room for a prompt and an answer, rounded up to a multiple of 1024."""
    return -(-n_prompt * 4 // (3 * 1024)) * 1024


def _room(n_free: int, max_tokens: int | None) -> int:
    """Maximum tokens of an answer."""
    return n_free if max_tokens is None else min(n_free, max_tokens)


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
