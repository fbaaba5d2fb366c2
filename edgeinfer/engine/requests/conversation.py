"""Fitting a conversation into the context, and continuing its last message.

In: messages, a function that turns messages into prompt tokens, the context, and the room that an answer needs. Out:
the prompt, and a notice of what was left out: the oldest turns. System messages and the last turn always stay.
Tokenizing text again often splits it differently than the model did, so a partial answer is continued from the tokens
that are known to stand for its text: they are in the cache, and the model continues as if it had not been stopped.
Knows no cache, template or model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from edgeinfer.errors import BadSetting, ContextOverflow
from edgeinfer.models.text import Message, StreamDecoder, Tokenizer
from edgeinfer.models.text.written_marks import NO_STAND_INS

SYSTEM_ROLES = ("system", "developer")

Messages = Sequence[Message | Mapping[str, object]]
"""A conversation: `Message`s, or mappings with "role" and "content"."""

Render = Callable[[Sequence[Message]], Sequence[int]]


@dataclass(frozen=True, slots=True)
class FittedPrompt:
    """A prompt that fits, the number of messages left out of it, and notices about that."""

    prompt: tuple[int, ...]
    n_dropped: int
    notices: tuple[str, ...]


def conversation_of(messages: str | Messages, system: str | None = None) -> Messages:
    """A conversation: of a text, the user's message alone; with `system`, that system message before it.

    Raises BadSetting if there are two system messages.
    """
    if isinstance(messages, str):
        messages = [Message("user", messages)] if messages else []
    if system is None:
        return messages
    if not isinstance(system, str):
        raise BadSetting(f"system cannot be {system!r}: it must be a text")
    told = checked(messages)
    if any(message.role in SYSTEM_ROLES for message in told):
        raise BadSetting("the conversation has a system message already; leave system out")
    return [Message("system", system), *told]


def fit(messages: Messages, render: Render, n_context: int, max_tokens: int | None = None) -> FittedPrompt:
    """The prompt of a conversation, without its oldest turns if the context requires that.

    Reserves `max_tokens` for the answer, at most a quarter of the context. Raises ContextOverflow if the system
    messages and the last turn alone exceed the context, BadSetting for invalid messages.
    """
    chat = checked(messages)
    quarter = max(1, n_context // 4)
    n_most = n_context - min(quarter if max_tokens is None else max_tokens, quarter)
    prompt = tuple(render(chat))
    if len(prompt) <= n_most:
        return FittedPrompt(prompt, 0, ())
    starts = _turn_starts(chat)
    low = min(1, len(starts) - 1)  # fewest turns to leave out so that it fits, or all but the last
    high = len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(render(_without(chat, starts[middle]))) <= n_most else (middle + 1, high)
    kept = _without(chat, starts[low]) if low else chat
    prompt = tuple(render(kept))
    if len(prompt) > n_context:
        raise ContextOverflow(
            f"the last message with the system prompt has {len(prompt)} tokens and the context holds {n_context}; "
            "shorten it, or load the model with a larger context (--ctx, n_context)",
            len(prompt),
            n_context,
        )
    return _fitted(prompt, len(chat) - len(kept), n_context)


def whole(messages: Messages, render: Render, n_context: int) -> FittedPrompt:
    """The prompt of a conversation with nothing left out. A prompt that fills the context has room for one token.

    Raises ContextOverflow if it is longer than the context, BadSetting for invalid messages.
    """
    prompt = tuple(render(checked(messages)))
    if len(prompt) > n_context:
        raise ContextOverflow(
            f"the conversation has {len(prompt)} tokens and the context holds {n_context}; "
            "shorten it, or load the model with a larger context (--ctx, n_context)",
            len(prompt),
            n_context,
        )
    return FittedPrompt(prompt, 0, ())


def checked(messages: Messages) -> list[Message]:
    """Raises BadSetting unless there is at least one message and each has a role and content."""
    if isinstance(messages, str | bytes | Mapping) or not messages:
        raise BadSetting("a chat needs a list of at least one message: [{'role': 'user', 'content': '…'}]")
    for message in messages:
        if not isinstance(message, Message | Mapping):
            raise BadSetting(f"a message must be a mapping of role and content, not {message!r}")
    return [Message.of(message) for message in messages]


def _turn_starts(messages: Sequence[Message]) -> list[int]:
    """Indices at which turns begin: the first message that is not a system message, and every user message."""
    first = next((index for index, message in enumerate(messages) if message.role not in SYSTEM_ROLES), 0)
    users = [index for index, message in enumerate(messages) if message.role == "user" and index > first]
    return [first, *users]


def _without(messages: Sequence[Message], start: int) -> list[Message]:
    """System messages, and everything from `start` on."""
    return [message for index, message in enumerate(messages) if index >= start or message.role in SYSTEM_ROLES]


def kept_before_turn(messages: Sequence[Message], n_dropped: int) -> list[Message]:
    """The messages before the user's last one, without the `n_dropped` oldest that are not system messages."""
    last = max((index for index, message in enumerate(messages) if message.role == "user"), default=0)
    others = [index for index, message in enumerate(messages) if message.role not in SYSTEM_ROLES]
    return _without(messages[:last], others[n_dropped] if n_dropped < len(others) else last)


def _fitted(prompt: tuple[int, ...], n_dropped: int, n_context: int) -> FittedPrompt:
    if not n_dropped:
        return FittedPrompt(prompt, 0, ())
    oldest = "the oldest message was" if n_dropped == 1 else f"the {n_dropped} oldest messages were"
    return FittedPrompt(prompt, n_dropped, (f"the context of {n_context} tokens is full: {oldest} left out",))


ASSISTANT = "assistant"


def split_partial(messages: Sequence[Message]) -> tuple[Sequence[Message], str | None]:
    """The messages before a partial answer, and the answer's text; None if there is nothing to continue.

    A last message of the assistant is a partial answer, unless it calls tools.
    """
    last = messages[-1] if messages else None
    if last is None or last.role != ASSISTANT or last.extra.get("tool_calls"):
        return messages, None
    return messages[:-1], last.text


def partial_tokens(
    tokenizer: Tokenizer,
    head: Sequence[int],
    text: str,
    known: Sequence[int] = (),
    kept: Collection[str] | None = None,
) -> list[int]:
    """The tokens of a partial answer's `text`, to follow those of `head`.

    `known`: tokens that were read or generated. Those that follow `head` and agree with the beginning of the text are
    reused as they are, in whole characters. `kept`: the marks in the text that are control tokens; None: all of them.
    """
    hidden, stand_ins = (text, NO_STAND_INS) if kept is None else tokenizer.marks.hidden(text, kept)
    n_head = len(head)
    agreed, n_said = _agreeing(tokenizer, known[n_head:], text) if list(known[:n_head]) == list(head) else ([], 0)
    goes_on = bool(agreed) or not (n_head and tokenizer.vocabulary.begins_anew(head[-1]))
    return agreed + tokenizer.encode(hidden[n_said:], add_special=False, goes_on=goes_on, stand_ins=stand_ins)


def _agreeing(tokenizer: Tokenizer, tokens: Sequence[int], text: str) -> tuple[list[int], int]:
    """The longest run of these tokens whose text begins `text`, and its length in characters."""
    decoder = StreamDecoder(tokenizer)
    n_kept = n_said = at = 0
    for number, token in enumerate(tokens, 1):
        if token < 0:  # a row of numbers, which stands for no text
            break
        piece = decoder.push(token)
        if not text.startswith(piece, at):
            break
        at += len(piece)
        if decoder.is_whole:
            n_kept, n_said = number, at
        if at == len(text) and decoder.is_whole:
            break
    return list(tokens[:n_kept]), n_said
