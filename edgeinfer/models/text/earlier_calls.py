"""Earlier calls and their results in a conversation, in other forms than messages with `tool_calls`.

In: messages. Out: messages that say the same: calls written as text in a family's form, results as the user's, calls
apart from text, one call in a message; and which calls a text lacks. Independent of templates; `message_forms` says
which form one takes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from edgeinfer.models.text.message import Message
from edgeinfer.models.text.tool_formats import FALLBACK, TOOL_FORMATS, ToolFormat
from edgeinfer.models.text.tools import function_of, object_of

_INSTRUCTIONS = (
    "You may call functions. They are, as JSON schemas:\n{tools}\n"
    "To call one, write an object with its name and arguments between two tags, and nothing else:\n"
    '<tool_call>\n{{"name": <its name>, "arguments": <an object of its arguments>}}\n</tool_call>'
)


def with_instructions(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """A conversation for a template without function support: the system message describes functions in words."""
    schemas = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    instructions = _INSTRUCTIONS.format(tools=schemas)
    if messages and messages[0].role in ("system", "developer"):
        return [Message(messages[0].role, f"{messages[0].text}\n\n{instructions}"), *messages[1:]]
    return [Message("system", instructions), *messages]


def form_in_words() -> ToolFormat:
    """How calls are written in words, for families without a form."""
    return TOOL_FORMATS.get(FALLBACK)


def calls_in_words(messages: Sequence[Message], with_results: Collection[int] = ()) -> list[Message]:
    """A conversation with calls and results written in the text.

    The results of one turn are combined in one message, because many templates require alternating user and assistant
    turns. `with_results`: the numbers of messages whose calls go into that message, before the results, since a
    template leaves out what the assistant says there.
    """
    told: list[Message] = []
    form = form_in_words()
    for number, message in enumerate(messages):
        goes_on = number > 0 and (messages[number - 1].role == "tool" or number - 1 in with_results)
        if message.role == "tool":
            before = f"{told.pop().text}\n" if goes_on else ""
            told.append(Message("user", f"{before}<tool_response>\n{message.text}\n</tool_response>"))
        elif number in with_results:
            told += [Message(message.role, message.content)] if message.text.strip() else []
            told.append(Message("user", _written_calls(message, form)))
        else:
            told.append(_as_text(message, form))
    return told


def untold_calls(messages: Sequence[Message], form: ToolFormat, text: str) -> list[int]:
    """The numbers of messages whose calls, written in a family's form, are not in a text, as they are or as JSON."""
    calls = (_written_calls(message, form).strip() for message in messages)
    return [number for number, call in enumerate(calls) if not _is_told(call, text)]


def _is_told(said: str, text: str) -> bool:
    return said in text or any(json.dumps(said, ensure_ascii=is_ascii)[1:-1] in text for is_ascii in (True, False))


def calls_as_text(messages: Sequence[Message], form: ToolFormat) -> list[Message]:
    """A conversation with calls in the text of their messages, as a model of the family writes them."""
    return [_as_text(message, form) for message in messages]


def calls_apart(messages: Sequence[Message]) -> list[Message]:
    """A conversation in which messages with calls have no content: a text goes before them, as a message of its own."""
    told: list[Message] = []
    for message in messages:
        if not message.extra.get("tool_calls"):
            told.append(message)
            continue
        if message.text.strip():
            told.append(Message(message.role, message.content))
        told.append(Message(message.role, None, message.extra))
    return told


def one_call_each(messages: Sequence[Message]) -> list[Message]:
    """A conversation in which every message has one call at most, followed by its result."""
    told: list[Message] = []
    results = [message for message in messages if message.role == "tool"]
    for message in messages:
        calls = message.extra.get("tool_calls")
        if message.role == "tool":
            if message in results:
                told.append(message)
        elif not isinstance(calls, Sequence) or len(calls) < 2:
            told.append(message)
        else:
            for number, call in enumerate(calls):
                content = message.content if not number or message.content is None else ""
                told.append(Message(message.role, content, {**message.extra, "tool_calls": [call]}))
                known = call.get("id") if isinstance(call, Mapping) else None
                own = next((each for each in results if each.extra.get("tool_call_id") == known), None)
                if own is not None:
                    results.remove(own)
                    told.append(own)
    return told


def with_other_names(messages: Sequence[Message]) -> tuple[list[Message], list[str]]:
    """A conversation in which every call has a name of its own, which occurs nowhere else; and these names."""
    told: list[Message] = []
    names: list[str] = []
    for message in messages:
        calls = message.extra.get("tool_calls")
        if not isinstance(calls, Sequence) or not calls:
            told.append(message)
            continue
        renamed = []
        for call in calls:
            names.append(f"earlier_call_{len(names)}_of_none")
            renamed.append({**call, "function": {**function_of(call), "name": names[-1]}})
        told.append(Message(message.role, message.content, {**message.extra, "tool_calls": renamed}))
    return told, names


def _as_text(message: Message, form: ToolFormat) -> Message:
    calls = _written_calls(message, form)
    if not calls:
        return message
    extra = {name: value for name, value in message.extra.items() if name != "tool_calls"}
    before = f"{message.text}\n" if message.text.strip() else ""
    return Message(message.role, before + calls, extra)


def _written_calls(message: Message, form: ToolFormat) -> str:
    """The calls of a message as a model of the family writes them; nothing if it has none."""
    calls = message.extra.get("tool_calls")
    return written(calls, form) if isinstance(calls, Sequence) and calls else ""


def written(calls: Sequence[object], form: ToolFormat) -> str:
    """Calls as a model of the family writes them; as most do, if this form is not known well enough to write it."""
    functions = [function_of(call) for call in calls]
    if form.shape == "block" and form.write is None:
        form = form_in_words()
    named = [(str(each.get("name")), object_of(each.get("arguments"))) for each in functions]
    if form.write is not None:
        return f"{form.begin}{form.write(named)}{form.end}"
    texts = [
        json.dumps({form.name_key: name, form.arguments_key: arguments}, ensure_ascii=False)
        for name, arguments in named
    ]
    if form.shape == "list":
        return f"{form.begin}[{', '.join(texts)}]{form.end}"
    return form.separator.join(f"{form.begin}{text}{form.end}" for text in texts)
