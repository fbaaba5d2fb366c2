"""Answers that call tools: the model answers, its calls are allowed and made, and it goes on with their results.

In: a conversation, a toolbox, functions that begin and show an answer and that ask for permission. Out: the last answer
and the conversation with the calls in it. Rounds are limited; in the last one no tool may be called. A partial answer
at the end of the conversation is continued. Knows neither terminals nor screens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from edgeinfer.app.mcp.connections import IsStopped, never
from edgeinfer.app.mcp.toolbox import OfferedTool, Toolbox, ToolResult

if TYPE_CHECKING:
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.models.text.tools import ToolCall

MOST_ROUNDS = 8
"""Answers with calls before one without."""
MOST_CALLS = 8
"""Calls of one answer that are made; the others are answered with a refusal."""
NOT_ALLOWED = "The user did not allow this call."
STOPPED = "The user stopped the answer."


class Permission(Enum):
    """What a person says of a call."""

    ONCE = "once"
    FROM_NOW_ON = "from now on"  # this tool, until the program ends
    NO = "no"


Conversation = list[dict[str, Any]]
Begin = Callable[[Conversation, Mapping[str, Any]], "TextStream"]
"""Begins an answer to a conversation, with these options of a request besides the usual ones."""
Show = Callable[["TextStream"], bool]
"""Shows an answer until its end; whether it was interrupted."""
Ask = Callable[[OfferedTool, str], Permission]
"""Asks the person about a call of a tool with these arguments."""
Tell = Callable[[str, str, ToolResult], None]
"""Shows a call that was made: name, arguments, result."""
Calling = Callable[["TextStream", str], None]
"""Shows that an answer is about to call a tool of this name, or to ask whether it may."""
Waiting = Callable[[str], AbstractContextManager[object]]
"""Shows, while its context is open, that a tool of this name is being called."""


@dataclass(frozen=True, slots=True)
class ToolFace:
    """How a face begins and shows answers, asks for permission and shows calls.

    `is_stopped`: whether the person has stopped the answer; nothing is called after that.
    """

    begin: Begin
    show: Show
    ask: Ask
    tell: Tell
    calling: Calling = lambda stream, name: None
    is_stopped: IsStopped = never
    waiting: Waiting = nullcontext


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The last answer, the conversation before it with all calls, and whether the person interrupted it."""

    stream: TextStream
    conversation: Conversation
    interrupted: bool


class ToolAnswering:
    """Answers with the tools of a toolbox. Permissions "from now on" last as long as this does, or `allowed`."""

    def __init__(
        self, toolbox: Toolbox, face: ToolFace, most_rounds: int = MOST_ROUNDS, allowed: set[str] | None = None
    ) -> None:
        """`allowed`: the keys of tools that need no permission any more, added to as the person says so."""
        self._toolbox, self._face, self._most_rounds = toolbox, face, most_rounds
        self._allowed = set[str]() if allowed is None else allowed

    def answer(self, messages: Sequence[Mapping[str, Any]]) -> ToolAnswer:
        """Answer a conversation. Raises EdgeInferError where an answer cannot begin."""
        conversation: Conversation = [dict(message) for message in messages]
        functions = [tool.function for tool in self._toolbox.tools.values()]
        n_calls = sum(message["role"] == "tool" for message in conversation)
        for number in range(self._most_rounds + 1):
            choice = "auto" if number < self._most_rounds else "none"
            options = {"tools": functions, "tool_choice": choice} if functions else {}
            stream = self._face.begin(conversation, options)
            interrupted = self._face.show(stream)
            calls = stream.tool_calls if functions and choice == "auto" else ()
            if interrupted or not calls:
                return ToolAnswer(stream, conversation, interrupted)
            ids = [f"call_{n_calls + at}" for at in range(len(calls))]
            n_calls += len(calls)
            begun = str(conversation.pop()["content"]) if _is_partial(conversation[-1]) else ""
            conversation.append(_said(begun + stream.content, calls, ids))
            for at, (each, call) in enumerate(zip(ids, calls, strict=True)):
                self._face.calling(stream, call.name)
                result = self._made(call, at)
                conversation.append({"role": "tool", "tool_call_id": each, "name": call.name, "content": result.text})
            if self._face.is_stopped():
                return ToolAnswer(stream, conversation, True)
        raise AssertionError("the last round has no calls")

    def _made(self, call: ToolCall, at: int) -> ToolResult:
        """The result of a call, if it may be made."""
        tool = self._toolbox.tools.get(call.name)
        if self._face.is_stopped():
            result = ToolResult(STOPPED, failed=True)
        elif at >= MOST_CALLS:
            result = ToolResult(f"Too many calls at once; {MOST_CALLS} are the most.", failed=True)
        elif tool is not None and not self._may(tool, call.arguments):
            result = ToolResult(NOT_ALLOWED, failed=True)
        else:
            with self._face.waiting(call.name):
                result = self._toolbox.call(call.name, call.arguments, self._face.is_stopped)
        self._face.tell(call.name, call.arguments, result)
        return result

    def _may(self, tool: OfferedTool, arguments: str) -> bool:
        if tool.key in self._allowed or tool.remote.server.trusts(tool.remote.name):
            return True
        said = self._face.ask(tool, arguments)
        if said is Permission.FROM_NOW_ON:
            self._allowed.add(tool.key)
        return said is not Permission.NO


def _is_partial(message: Mapping[str, Any]) -> bool:
    """Whether a message is an answer that is to be continued."""
    return message["role"] == "assistant" and not message.get("tool_calls")


def _said(content: str, calls: Sequence[ToolCall], ids: Sequence[str]) -> dict[str, Any]:
    """The message of an answer with calls."""
    told = [
        {"id": each, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}
        for each, call in zip(ids, calls, strict=True)
    ]
    return {"role": "assistant", "content": content, "tool_calls": told}
