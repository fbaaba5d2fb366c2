"""The forms in which one conversation can be given to a template: templates differ in what they take.

In: messages. Out: the same messages in other forms, the given one first, and whether a text has them in words that a
model reads. Some templates search in a content that is none, add the arguments of a call to a text, or read contents
only as text or only as parts. Python's notation of a list or dict in the text means that a template wanted a text
there. Independent of Jinja.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import combinations
from typing import Any

from edgeinfer.models.text.message import Message
from edgeinfer.models.text.tools import calls_in_words, one_call_each

Form = Callable[[Message], Message]


def forms_of(chat: Sequence[Message]) -> Iterator[list[Message]]:
    """The messages as they are, then in one other form, then in two at a time, and so on.

    Then with one call in a message, then with calls and their results in words.
    """
    tried: list[list[Message]] = []
    for arranged in (chat, one_call_each(chat), calls_in_words(chat)):
        if list(arranged) in tried:
            continue
        tried.append(list(arranged))
        changes = [form for form in _FORMS if any(form(message) != message for message in arranged)]
        for n_changes in range(len(changes) + 1):
            for chosen in combinations(changes, n_changes):
                yield [_changed(message, chosen) for message in arranged]


def forms_of_tools(variables: Mapping[str, object], now: datetime) -> Iterator[dict[str, object]]:
    """The variables of tools as they are, then as templates want them that know no other way.

    Some count on a list also where there are no tools, some read functions without OpenAI's frame and with every
    argument described, and firefunction's reads a text, and the time.
    """
    yield {}
    tools = variables.get("tools")
    tools = tools if isinstance(tools, list) else []
    functions = [_described(tool["function"]) for tool in tools if isinstance(tool, dict) and "function" in tool]
    named = {"functions": json.dumps(functions, indent=4, ensure_ascii=False), "datetime": f"{now:%Y-%m-%d %H:%M}"}
    yield {"tools": tools, **named}
    if functions:
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


def _changed(message: Message, forms: Sequence[Form]) -> Message:
    for form in forms:
        message = form(message)
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


_FORMS: tuple[Form, ...] = (_filled, _with_texts, _joined, _in_parts)


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
