"""Answers with tools: answers as they are written here, tools of a server of the official package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.app.mcp.answering import MOST_CALLS, NOT_ALLOWED, Conversation, Permission, ToolAnswering, ToolFace
from edgeinfer.app.mcp.connections import Connections
from edgeinfer.app.mcp.toolbox import OfferedTool, Toolbox, ToolResult
from edgeinfer.models.text.tools import ToolCall
from tests.unit.app.mcp.conftest import NewServer, late_server

ADD = ToolCall("add", '{"a": 1, "b": 2}')
QUESTION = [{"role": "user", "content": "what is 1 + 2?"}]


@dataclass
class Written:
    """An answer as it is written here."""

    content: str
    tool_calls: Sequence[ToolCall] = ()


@dataclass
class Face:
    """Gives answers in turn (the last one again and again), permissions in turn, and notes what it was asked."""

    answers: list[Written]
    permissions: list[Permission] = field(default_factory=list)
    conversations: list[Conversation] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    told: list[ToolResult] = field(default_factory=list)
    interrupted: bool = False

    def begin(self, conversation: Conversation, options: Mapping[str, Any]) -> Any:
        self.conversations.append(list(conversation))
        self.choices.append(options.get("tool_choice", "no tools"))
        return self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)

    def ask(self, tool: OfferedTool, arguments: str) -> Permission:
        self.asked.append((tool.name, arguments))
        return self.permissions.pop(0)

    def tell(self, name: str, arguments: str, result: ToolResult) -> None:
        self.told.append(result)

    def record(self) -> ToolFace:
        return ToolFace(self.begin, lambda stream: self.interrupted, self.ask, self.tell)


def test_the_model_goes_on_with_the_result(connections: Connections, server: NewServer) -> None:
    face = Face([Written("Let me see.", [ADD]), Written("3")], [Permission.ONCE])
    answer = ToolAnswering(Toolbox([server("good")], connections), face.record()).answer(QUESTION)
    assert (answer.stream.content, answer.interrupted) == ("3", False)
    assert face.asked == [("add", ADD.arguments)]
    call = {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": ADD.arguments}}
    assert face.conversations[1] == answer.conversation
    assert answer.conversation[1:] == [
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "name": "add", "content": "3"},
    ]


def test_nothing_is_called_without_permission(connections: Connections, server: NewServer) -> None:
    face = Face([Written("", [ToolCall("crash", "{}")]), Written("no")], [Permission.NO])
    good = server("good")
    first = connections.call(good, "process", {}).texts
    answer = ToolAnswering(Toolbox([good], connections), face.record()).answer(QUESTION)
    assert answer.conversation[-1]["content"] == NOT_ALLOWED
    assert face.told == [ToolResult(NOT_ALLOWED, failed=True)]
    assert connections.call(good, "process", {}).texts == first


def test_permission_from_now_on_is_for_one_tool(connections: Connections, server: NewServer) -> None:
    calls = [ADD, ADD, ToolCall("process", "{}")]
    face = Face([Written("", calls), Written("done")], [Permission.FROM_NOW_ON, Permission.NO])
    answering = ToolAnswering(Toolbox([server("good")], connections), face.record())
    results = [message["content"] for message in answering.answer(QUESTION).conversation if message["role"] == "tool"]
    assert results == ["3", "3", NOT_ALLOWED]
    assert [name for name, _ in face.asked] == ["add", "process"]


def test_permission_stays_with_its_tool_when_names_change(
    connections: Connections, server: NewServer, restless: None, tmp_path: Path
) -> None:
    box = Toolbox([late_server(tmp_path / "file"), server("good")], connections)
    answers = [Written("", [ADD]), Written("3"), Written("", [_add("good"), _add("late")]), Written("3")]
    face = Face(answers, [Permission.FROM_NOW_ON, Permission.NO])
    answering = ToolAnswering(box, face.record())
    answering.answer(QUESTION)
    (tmp_path / "file").write_text("")
    assert not box.try_again()[0].failed
    results = [message["content"] for message in answering.answer(QUESTION).conversation if message["role"] == "tool"]
    assert results == ["3", NOT_ALLOWED]
    assert [name for name, _ in face.asked] == ["add", "late_add"]


def _add(server: str) -> ToolCall:
    return ToolCall(f"{server}_add", ADD.arguments)


@pytest.mark.parametrize(("trusted", "n_asked"), [(None, 0), (frozenset({"add"}), 0), (frozenset({"fail"}), 1)])
def test_trusted_tools_need_no_permission(
    connections: Connections, server: NewServer, trusted: frozenset[str] | None, n_asked: int
) -> None:
    face = Face([Written("", [ADD]), Written("3")], [Permission.ONCE])
    box = Toolbox([server("good", trusted=trusted)], connections)
    assert ToolAnswering(box, face.record()).answer(QUESTION).conversation[-1]["content"] == "3"
    assert len(face.asked) == n_asked


def test_a_tool_that_shares_its_name_is_not_trusted_for_it(connections: Connections, server: NewServer) -> None:
    box = Toolbox([server("good", "mine", trusted=None), server("good", "foreign")], connections)
    face = Face([Written("", [ToolCall("foreign_add", ADD.arguments)]), Written("3")], [Permission.NO])
    assert ToolAnswering(box, face.record()).answer(QUESTION).conversation[-1]["content"] == NOT_ALLOWED


def test_rounds_end(connections: Connections, server: NewServer) -> None:
    face = Face([Written("", [ADD])])
    box = Toolbox([server("good", trusted=None)], connections)
    answer = ToolAnswering(box, face.record(), most_rounds=3).answer(QUESTION)
    assert face.choices == ["auto", "auto", "auto", "none"]
    ids = [message["tool_call_id"] for message in answer.conversation if message["role"] == "tool"]
    assert ids == ["call_0", "call_1", "call_2"]


def test_calls_of_one_answer_end(connections: Connections, server: NewServer) -> None:
    face = Face([Written("", [ADD] * (MOST_CALLS + 2)), Written("done")])
    box = Toolbox([server("good", trusted=None)], connections)
    results = [each["content"] for each in ToolAnswering(box, face.record()).answer(QUESTION).conversation[2:]]
    assert results == ["3"] * MOST_CALLS + [f"Too many calls at once; {MOST_CALLS} are the most."] * 2


def test_what_fails_is_told_to_the_model(connections: Connections, server: NewServer) -> None:
    calls = [ToolCall("crash", "{}"), ToolCall("nothing", "{}"), ToolCall("fail", '{"reason": "not today"}'), ADD]
    face = Face([Written("", calls), Written("done")])
    box = Toolbox([server("good", trusted=None)], connections)
    ToolAnswering(box, face.record()).answer(QUESTION)
    assert [result.failed for result in face.told] == [True, True, True, False]
    assert "out of cheese" in face.told[0].text
    assert "not today" in face.told[2].text


def test_an_interrupted_answer_calls_nothing(connections: Connections, server: NewServer) -> None:
    face = Face([Written("", [ADD])], interrupted=True)
    answer = ToolAnswering(Toolbox([server("good", trusted=None)], connections), face.record()).answer(QUESTION)
    assert answer.interrupted
    assert face.told == []


def test_without_tools_it_is_a_plain_answer(connections: Connections, server: NewServer) -> None:
    face = Face([Written("hello")])
    box = Toolbox([server("broken")], connections)
    assert ToolAnswering(box, face.record()).answer(QUESTION).stream.content == "hello"
    assert face.choices == ["no tools"]
    assert len(box.failures) == 1
