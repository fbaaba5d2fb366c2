"""The forms in which one conversation can be given to a template: templates differ in what they take.

In: messages, a template's source and a function that renders. Out: the text of the first form that has all in words
that a model reads. Some templates search in a content that is none, add the arguments of a call to a text, read
contents only as text or only as parts, or leave out calls: all of them, those beside text, all but the first, or with
the whole of what the assistant says.
Python's notation of a list or dict in the text means that a template wanted a text there. Independent of Jinja.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from typing import Any

from edgeinfer.errors import BadTemplate
from edgeinfer.models.text.earlier_calls import (
    calls_apart,
    calls_as_text,
    calls_in_words,
    form_in_words,
    one_call_each,
    untold_calls,
    with_other_names,
)
from edgeinfer.models.text.message import Message
from edgeinfer.models.text.tool_formats import ToolFormat, format_of

Change = Callable[[Message], Message]
Arrange = Callable[[Sequence[Message]], list[Message]]
Render = Callable[[Sequence[Message], Mapping[str, object]], str]
"""Renders messages with variables; raises BadTemplate."""


@dataclass(frozen=True, slots=True)
class ChatForm:
    """A conversation in one form. `calls_key`: equal for forms that give calls to a template in the same way.

    `written`: how calls are written in the text of messages, if they are.
    """

    messages: list[Message]
    calls_key: tuple[int, frozenset[Change]]
    written: ToolFormat | None


def first_form(
    chat: Sequence[Message],
    source: str,
    variables: Mapping[str, object],
    now: datetime,
    render: Render,
    *,
    in_words: bool = False,
) -> str:
    """What `render` makes of the first form of `chat` that the template with this source takes and tells in full.

    In full: what users said is there, nothing is in Python's notation, and no call is missing. Calls that are missing
    even in words, since the template leaves out the whole message, are told with their results. If there is none: the
    first text that was made. Raises BadTemplate if there is none of these either, or none within the time.
    `in_words`: calls and results are told in words only.
    """
    refusal: BadTemplate | None = None
    first: str | None = None
    dropped: set[object] = set()
    said = calls_in_words(chat) if in_words else chat
    for form in forms_of(chat, source, in_words=in_words):
        if form.calls_key in dropped:
            continue
        for tools in forms_of_tools(variables, now):
            try:
                text = render(form.messages, {**variables, **tools})
            except BadTemplate as error:
                refusal = refusal or error
                continue
            first = text if first is None else first
            if not is_in_words(text, said):
                continue
            untold = [] if form.written is None else untold_calls(chat, form.written, text)
            if untold and form.written == form_in_words():
                return first_form(calls_in_words(chat, untold), source, variables, now, render)
            if not untold and _tells_calls(form.messages, {**variables, **tools}, render):
                return text
            dropped.add(form.calls_key)
            break
    if first is None:
        raise refusal or BadTemplate("the chat template takes no form of these messages")
    return first


def _tells_calls(messages: Sequence[Message], variables: Mapping[str, object], render: Render) -> bool:
    """Whether the template writes every call: whether others would be in the text by their names."""
    others, names = with_other_names(messages)
    try:
        text = render(others, variables) if names else ""
    except BadTemplate:
        return True  # a template that knows only the names of functions that there are
    return all(name in text for name in names)


def forms_of(chat: Sequence[Message], source: str, *, in_words: bool = False) -> Iterator[ChatForm]:
    """The messages as they are, then in one other form, then in two at a time, and so on.

    Then with messages of one role that follow each other as one, with calls apart from text, with one call in a
    message, with calls in the text as the family writes them, and with calls and their results in words. With
    `in_words`: only the last.
    """
    tried: list[list[Message]] = []
    arrangements = _in_words(chat) if in_words else _arrangements(chat, source)
    for number, (arranged, written) in enumerate(arrangements):
        if arranged in tried:
            continue
        tried.append(arranged)
        changes = [change for change in _CHANGES if any(change(message) != message for message in arranged)]
        for n_changes in range(len(changes) + 1):
            for chosen in combinations(changes, n_changes):
                key = number, frozenset(chosen).intersection(_CHANGES_OF_CALLS)
                yield ChatForm([_changed(message, chosen) for message in arranged], key, written)


def _arrangements(chat: Sequence[Message], source: str) -> Iterator[tuple[list[Message], ToolFormat | None]]:
    """The messages with calls where the template may read them, and how these are written if they are in the text.

    A template that names calls nowhere reads none.
    """
    has_calls = any(message.extra.get("tool_calls") for message in chat)
    chats = list(chat), together(chat)
    if "tool_calls" in source or not has_calls:
        arrangements: tuple[Arrange, ...] = (list, calls_apart, one_call_each, _one_call_apart)
        yield from ((arrange(each), None) for arrange in arrangements for each in chats)
    if has_calls and (family := format_of(source)) is not None:
        yield from ((calls_as_text(each, family[1]), family[1]) for each in chats)
    yield from _in_words(chat)


def _one_call_apart(chat: Sequence[Message]) -> list[Message]:
    return one_call_each(calls_apart(chat))


def _in_words(chat: Sequence[Message]) -> Iterator[tuple[list[Message], ToolFormat | None]]:
    told, form = calls_in_words(chat), form_in_words()
    yield told, form
    yield together(told), form


def together(chat: Sequence[Message]) -> list[Message]:
    """A conversation in which messages of one role that follow each other are one; those with calls are not changed.

    Some templates refuse all that is not in turns, and agents give instructions, facts and questions as messages of
    their own.
    """
    told: list[Message] = []
    for message in chat:
        before = told[-1] if told else None
        if before is not None and before.role == message.role and _is_text(before) and _is_text(message):
            told[-1] = Message(message.role, f"{before.text}\n\n{message.text}")
        else:
            told.append(message)
    return told


def _is_text(message: Message) -> bool:
    """Whether a message is nothing but text, and no result of a call."""
    return message.role != "tool" and not message.extra and _joined(message).content == message.text


def forms_of_tools(variables: Mapping[str, object], now: datetime) -> Iterator[dict[str, object]]:
    """The variables of tools as they are, then as templates want them that know no other way.

    Some count on a list also where there are no tools, some on every field and every argument being described, some
    read functions without OpenAI's frame, and firefunction's reads a text, and the date. With the time of day, nothing
    of what was read before could be used again.
    """
    yield {}
    tools = variables.get("tools")
    tools = tools if isinstance(tools, list) else []
    functions = [_described(tool["function"]) for tool in tools if isinstance(tool, dict) and "function" in tool]
    named = {"functions": json.dumps(functions, indent=4, ensure_ascii=False), "datetime": f"{now:%b %d %Y}"}
    yield {"tools": tools, **named}
    if functions:
        yield {"tools": [{"type": "function", "function": function} for function in functions], **named}
        yield {"tools": functions, **named}


def _described(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters") or {}
    fields = {name: {"description": "", **field} for name, field in (parameters.get("properties") or {}).items()}
    parameters = {"type": "object", "required": [], **parameters, "properties": fields}
    return {"description": "", **function, "parameters": parameters}


def is_in_words(text: str, chat: Sequence[Message]) -> bool:
    """Whether `text` has what users said, and no contents or arguments in Python's notation."""
    if any(message.content is None for message in chat) and "None" in text and not any("None" in m.text for m in chat):
        return False
    return not any(notation in text for notation in _notations(chat)) and all(
        said.strip() in text for message in chat if message.role == "user" for said in _texts(message)
    )


def _texts(message: Message) -> list[str]:
    """The text of the content, or those of its parts: templates may put something between them."""
    if message.content is None or isinstance(message.content, str):
        return [message.text]
    return [str(part.get("text", "")) for part in message.content]


def _changed(message: Message, changes: Sequence[Change]) -> Message:
    for change in changes:
        message = change(message)
    return message


def _filled(message: Message) -> Message:
    """An empty text instead of no content."""
    return Message(message.role, "", message.extra) if message.content is None else message


def _with_texts(message: Message) -> Message:
    """The arguments of calls as text instead of objects."""
    calls = message.extra.get("tool_calls")
    if not isinstance(calls, Sequence):
        return message
    return Message(message.role, message.content, {**message.extra, "tool_calls": [_with_text(call) for call in calls]})


def _with_text(call: object) -> object:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    if not isinstance(arguments, Mapping):
        return call
    return {**call, "function": {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}}


def _joined(message: Message) -> Message:
    """A text instead of parts that are all text."""
    parts = message.content
    if parts is None or isinstance(parts, str) or any(part.get("type", "text") != "text" for part in parts):
        return message
    return Message(message.role, message.text, message.extra)


def _in_parts(message: Message) -> Message:
    """A part of text instead of a text."""
    if not isinstance(message.content, str) or not message.content:
        return message
    return Message(message.role, [{"type": "text", "text": message.content}], message.extra)


_CHANGES: tuple[Change, ...] = (_filled, _with_texts, _joined, _in_parts)
_CHANGES_OF_CALLS = frozenset({_filled, _with_texts})


def _notations(chat: Sequence[Message]) -> Iterator[str]:
    """How Python writes the contents and arguments that are no text."""
    for message in chat:
        if message.content and not isinstance(message.content, str):
            yield str([dict(part) for part in message.content])
        calls = message.extra.get("tool_calls")
        for call in calls if isinstance(calls, Sequence) else ():
            function = call.get("function") if isinstance(call, Mapping) else None
            arguments = function.get("arguments") if isinstance(function, Mapping) else None
            if arguments and isinstance(arguments, Mapping):
                yield str(dict(arguments))
