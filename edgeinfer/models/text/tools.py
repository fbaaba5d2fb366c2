"""Functions that a model may call, and finding the calls in its output.

In: functions as in OpenAI's API, a template's family, answers as they are generated. Out: content and calls.
Anything that is not a call stays text: no output of the model is lost. Independent of grammars.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from edgeinfer.errors import BadSetting
from edgeinfer.models.text.message import Message
from edgeinfer.models.text.tokenizer import overlap
from edgeinfer.models.text.tool_formats import Parameters, ReadCalls, ToolFormat
from edgeinfer.models.text.tool_formats.values import python_calls

MOST_TOOLS = 128
MOST_CUTS = 64
"""Ends of calls that are tried in a block that was cut."""
MOST_FAILED = 64
"""What begins as a call and is none, one after the other, before the rest is content: each is looked at to its end."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call requested by a model. `arguments`: text of a JSON object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function that a model may call; `parameters`: the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]


def functions_of(tools: Sequence[Mapping[str, Any]]) -> list[Function]:
    """The functions in OpenAI's list of tools. Raises BadSetting for anything else."""
    if len(tools) > MOST_TOOLS:
        raise BadSetting(f"{len(tools)} tools are too many; {MOST_TOOLS} are the most")
    found: dict[str, Function] = {}
    for tool in tools:
        function = function_of(tool)
        name = function.get("name")
        if not isinstance(name, str) or not name or tool.get("type", "function") != "function":
            raise BadSetting('a tool must be {"type": "function", "function": {"name": …, "parameters": …}}')
        if name in found:
            raise BadSetting(f"two tools are called {name!r}")
        parameters = function.get("parameters")
        if not isinstance(parameters, Mapping | None):
            raise BadSetting(f"the parameters of {name} must be a JSON schema")
        found[name] = Function(name, str(function.get("description") or ""), parameters or {"type": "object"})
    return list(found.values())


def with_objects(message: Message) -> Message:
    """A message whose calls have their arguments in the form templates expect: objects, and texts that are no JSON.

    Raises BadSetting for other JSON: no function takes a number or a list.
    """
    calls = message.extra.get("tool_calls")
    if not isinstance(calls, list | tuple):
        return message
    return Message(message.role, message.content, {**message.extra, "tool_calls": list(map(_with_object, calls))})


def _with_object(call: object) -> object:
    function = function_of(call)
    if not isinstance(call, Mapping) or "arguments" not in function:
        return call
    arguments = object_of(function["arguments"])
    if arguments is None or (isinstance(arguments, str) and arguments.strip() in ("", "null")):
        arguments = {}
    if not isinstance(arguments, Mapping) and _is_json(arguments):
        raise BadSetting(
            f"the arguments of a call of {function.get('name')!r} are {str(arguments)[:60]!r}; they must be an object"
        )
    return {**call, "function": {**function, "arguments": arguments}}


def _is_json(arguments: object) -> bool:
    """Whether arguments are JSON, as a value or as a text."""
    try:
        if isinstance(arguments, str):
            json.loads(arguments)
        return True
    except (ValueError, RecursionError):
        return False


def function_of(tool_or_call: object) -> Mapping[str, Any]:
    """The function of a call or tool; empty if missing."""
    function = tool_or_call.get("function") if isinstance(tool_or_call, Mapping) else None
    return function if isinstance(function, Mapping) else {}


def object_of(arguments: object) -> object:
    """The arguments of a call: an object if they are the text of one, otherwise unchanged."""
    try:
        found = json.loads(arguments) if isinstance(arguments, str) else None
    except (ValueError, RecursionError):
        return arguments
    return found if isinstance(found, dict) else arguments


class ToolReader:
    """Separates content from calls in growing text: push pieces, take what is certain, finish at the end.

    White space between content and a call belongs to neither: templates write their own. It is between content before
    and after calls.
    """

    def __init__(self, form: ToolFormat, names: frozenset[str], parameters: Parameters | None = None) -> None:
        """`parameters`: the schemas of arguments, for forms that write them without their types."""
        self._form, self._names, self._parameters = form, names, parameters or {}
        self._end = form.end.strip()
        self._value = _ValueEnd()
        self.calls: list[ToolCall] = []
        """The calls completed so far."""
        self._held = self._space = ""
        self._place: Literal["content", "call", "after"] = "content"
        self._has_content = self._is_final = False
        self._n_failed = 0

    def push(self, text: str) -> str:
        """Content that is now certain not to be a call; completed calls are in `calls`."""
        self._held += text
        content, goes_on = "", True
        while goes_on:
            more, goes_on = {"content": self._in_content, "call": self._in_call, "after": self._after}[self._place]()
            content += more
        self._has_content = self._has_content or bool(content.strip())
        return content

    def finish(self) -> str:
        """The text held back, at the end of the answer."""
        self._is_final = True
        content = self.push("")
        rest, self._held = self._held, ""
        return content + ("" if self._place == "after" else rest)

    def _in_content(self) -> tuple[str, bool]:
        """The content before the next call, and whether a call begins."""
        if self._form.as_python and not self._has_content and (listed := self._listed()) is not None:
            return listed
        if self._form.shape == "bare":
            return self._in_bare_content()
        text, trigger = self._held, self._form.trigger
        at = text.find(trigger) if self._n_failed < MOST_FAILED else -1
        if at >= 0:
            content = text[:at].rstrip()
            self._held, self._space, self._place = text[at:], text[len(content) : at], "call"
            return content, True
        cut = len(text)
        if not self._is_final:
            cut = len(text[: cut - overlap(text, trigger)].rstrip())
        self._held = text[cut:]
        return text[:cut], False

    def _in_bare_content(self) -> tuple[str, bool]:
        """The same where a call is an object that comes first, with white space wherever JSON has it."""
        text, trigger = self._held, self._form.trigger
        told, at = "".join(text.split()), len(text) - len(text.lstrip())
        if not self._has_content and told.startswith(trigger):
            self._held, self._place = text[at:], "call"
            return text[:at], True
        may_begin = not self._has_content and trigger.startswith(told) and not self._is_final
        self._held = text[at:] if may_begin else ""
        return text[: at if may_begin else len(text)], False

    def _listed(self) -> tuple[str, bool] | None:
        """Read an answer that is a list of calls as in Python; None if it is not."""
        text = self._held.strip()
        begun = text.removeprefix("[").lstrip()
        if not text.startswith("[") or not any(_is_begun(begun, name) for name in self._names):
            return None
        if not self._is_final:
            return "", False  # more text may follow
        try:
            self.calls += [checked_call(*call, self._names) for call in python_calls(text, self._parameters)]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        self._held, self._place = "", "after"
        return "", False

    def _in_call(self) -> tuple[str, bool]:
        """Parse a call once it is complete; if it is not a call after all, it becomes content."""
        text = self._held
        if self._form.read is not None:
            return self._in_block(text[len(self._form.trigger) :], self._form.read)
        body = text[0 if self._form.shape == "bare" else len(self._form.trigger) :].lstrip()
        end = self._value.find(body) if body[:1] in ("{", "[") else None
        if end is None and (not body or body[0] in "{[") and not self._is_final:
            return "", False
        self._value = _ValueEnd()
        self._n_failed += body[:1] in ("{", "[")
        calls = None if end is None else calls_of(body[:end], self._form, self._names)
        if calls is None:
            return self._no_call()
        self.calls += calls
        self._n_failed = 0
        self._held, self._place = body[end:], "after"
        return "", True

    def _in_block(self, body: str, read: ReadCalls) -> tuple[str, bool]:
        """Read the calls of a block once its end is there."""
        at = body.find(self._end) if self._end else -1
        if at < 0 and not self._is_final:
            return "", False
        cuts = [at] if at >= 0 else self._cuts(body)
        for cut in cuts[:MOST_CUTS]:
            with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                self.calls += [checked_call(*call, self._names) for call in read(body[:cut], self._parameters)]
                self._held, self._place = body[cut:], "after"
                self._n_failed = 0
                return "", True
        self._n_failed += 1
        return self._no_call()

    def _cuts(self, body: str) -> list[int]:
        """Where calls may end in a block without its end, the last first."""
        if self._form.call_end is None:
            return [len(body)]
        return [found.end() for found in re.finditer(re.escape(self._form.call_end), body)][::-1]

    def _no_call(self) -> tuple[str, bool]:
        """What began as a call is content."""
        n_given = len(self._form.trigger)
        given, self._held = self._space + self._held[:n_given], self._held[n_given:]
        self._space, self._place, self._has_content = "", "content", True
        return given, True

    def _after(self) -> tuple[str, bool]:
        """Skip what closes calls and separates them."""
        rest = self._held.lstrip(" \t\r\n;" if self._form.shape == "bare" else None)
        while self._end and rest.startswith(self._end):
            rest = rest.removeprefix(self._end).lstrip()
        self._held = rest
        if not rest or self._end.startswith(rest):  # at the end of an answer, the rest of what was cut off
            return "", False
        self._place = "call" if self._form.shape == "bare" and rest[0] == "{" else "content"
        if self._place == "content":
            self._held, self._space = self._space + rest, ""
        return "", True


def _is_begun(text: str, name: str) -> bool:
    """Whether a text is the beginning of a call, as far as there is any."""
    call = f"{name}("
    return text.startswith(call) or call.startswith(text)


def calls_of(value: str, form: ToolFormat, names: frozenset[str]) -> list[ToolCall] | None:
    """The calls in a JSON value; None if it calls none of these functions."""
    try:
        found = json.loads(value, parse_constant=_no_number, strict=False)  # small models write lines as they are
        return [_call_of(each, form, names) for each in (found if isinstance(found, list) else [found])]
    except (ValueError, RecursionError):
        return None


def _call_of(found: object, form: ToolFormat, names: frozenset[str]) -> ToolCall:
    """Raises ValueError for anything that does not call one of these functions with an object."""
    if not isinstance(found, dict):
        raise ValueError("no call")
    name = found.get(form.name_key, found.get("name"))
    arguments = object_of(found.get(form.arguments_key, found.get("arguments", found.get("parameters", {}))))
    return checked_call(name, arguments, names)


def checked_call(name: object, arguments: object, names: frozenset[str]) -> ToolCall:
    """A call of one of these functions with an object. Raises ValueError for anything else."""
    if not isinstance(name, str) or name not in names:
        raise ValueError("no call")
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        raise ValueError("arguments are no object")
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return ToolCall(name, text.encode(errors="backslashreplace").decode())  # half a surrogate pair is not valid text


def _no_number(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


class _ValueEnd:
    """Finds the end of the JSON object or list that a growing text begins with; examines each character once."""

    def __init__(self) -> None:
        self._n_seen = self._depth = 0
        self._in_string = self._is_escaped = False

    def find(self, text: str) -> int | None:
        """The end, in a text that extends the previous one; None if it has not ended."""
        for at in range(self._n_seen, len(text)):
            character = text[at]
            if self._in_string:
                self._in_string = self._is_escaped or character != '"'
                self._is_escaped = character == "\\" and not self._is_escaped
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if not self._depth:
                    return at + 1
        self._n_seen = len(text)
        return None
