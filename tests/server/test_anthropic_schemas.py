"""What a request of Anthropic's API amounts to as a chat, and the form of its streams that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from edgeinfer.app.server import streaming
from edgeinfer.app.server.anthropic_schemas import MessagesRequest
from edgeinfer.app.server.anthropic_stream import ANTHROPIC
from edgeinfer.app.server.errors import APIError
from edgeinfer.app.server.message_contents import messages_of
from edgeinfer.app.server.requests import ChatRequest, chat_options
from tests.server.conftest import written

ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a.py"}}
BILLING = "x-anthropic-billing-header: cc_version=2.1.9; cch=0a1b2;"


def chat_of(**more: Any) -> ChatRequest:
    return MessagesRequest.model_validate(ASKED | more).as_chat()


def told(messages: list[Any], system: Any = None) -> list[dict[str, Any]]:
    return messages_of(chat_of(messages=messages, system=system).messages)


def test_results_come_before_what_the_user_says_with_them() -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "x = 1"}]}
    asked = {"role": "user", "content": [{"type": "text", "text": "see"}, result]}
    thinking = {"type": "thinking", "thinking": "I read it", "signature": "s"}
    answer = {"role": "assistant", "content": [thinking, {"type": "text", "text": "Reading."}, CALL]}
    user, assistant, tool, last = told([*ASKED["messages"], answer, asked])
    assert user == {"role": "user", "content": "hi"}
    assert (assistant["content"], assistant["reasoning_content"]) == ("Reading.", "I read it")
    assert assistant["tool_calls"] == [
        {"id": "toolu_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.py"}'}}
    ]
    assert tool == {"role": "tool", "tool_call_id": "toolu_1", "content": "x = 1"}
    assert last == {"role": "user", "content": "see"}


@pytest.mark.parametrize(
    ("said", "read"),
    [("no such file", "Error: no such file"), ("Error 5", "Error 5"), (None, "Error: ")],
)
def test_a_failed_call_is_told_as_an_error(said: str | None, read: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True} | ({"content": said} if said else {})
    assert told([{"role": "user", "content": [result]}]) == [
        {"role": "tool", "tool_call_id": "toolu_1", "content": read}
    ]


def test_turns_of_one_role_are_one_message_and_a_late_system_message_stays_in_place() -> None:
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "page"}}
    turns = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, document]},
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "…"}, {"type": "text", "text": "d"}]},
    ]
    assert [(each["role"], each["content"]) for each in told(turns)] == [
        ("user", "a\nb\npage"),
        ("system", "be brief"),
        ("user", "c"),
        ("assistant", "d"),
    ]


@pytest.mark.parametrize(
    ("system", "read"),
    [
        (BILLING, None),
        (f"{BILLING}\nYou code.", "You code."),
        ([{"type": "text", "text": BILLING}, {"type": "text", "text": "You code."}], "You code."),
        (f"You code.\n{BILLING}", f"You code.\n{BILLING}"),
        ("x-anthropic is a name", "x-anthropic is a name"),
    ],
)
def test_lines_that_change_with_every_request_are_left_out_at_the_top(system: Any, read: str | None) -> None:
    messages = told(ASKED["messages"], system)
    assert [each["content"] for each in messages if each["role"] == "system"] == ([] if read is None else [read])


def test_options_become_those_of_a_chat() -> None:
    tool = {"name": "read", "input_schema": {"type": "object"}}
    options = chat_options(
        chat_of(
            tools=[tool, {"type": "web_search_20260209", "name": "web_search"}],
            tool_choice={"type": "auto", "disable_parallel_tool_use": True},
            thinking={"type": "enabled", "budget_tokens": 1024},
            output_config={"effort": "max"},
            stop_sequences=["END"],
            top_k=40,
            min_p=0.1,
        ),
        {},
    )
    assert [each["function"]["name"] for each in options["tools"]] == ["read"]
    assert (options["tool_choice"], options["parallel_tools"]) == ("auto", False)
    assert (options["max_thought_tokens"], options["max_tokens"], options["top_k"]) == (1024, 9, 40)
    assert options["template_variables"]["reasoning_effort"] == "high"
    assert options["template_variables"]["enable_thinking"] is True
    assert (options["stop"], options["min_p"]) == (["END"], 0.1)


def test_where_the_model_may_decide_the_defaults_of_the_server_hold() -> None:
    defaults: Any = {"template_variables": {"enable_thinking": False}}
    for thinking in (None, {"type": "adaptive"}):
        assert chat_options(chat_of(thinking=thinking), defaults)["template_variables"]["enable_thinking"] is False


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "document", "source": {"type": "base64", "data": "JVBERg=="}}],
        [{"type": "tool_result", "tool_use_id": "x", "content": [{"type": "image"}]}],
        [{"type": "text"}],
        [{"type": "container_upload", "file_id": "x"}],
    ],
)
def test_what_is_no_text_is_refused_with_its_place(content: list[Any]) -> None:
    with pytest.raises(APIError, match=r"messages\[0\]\.content\[0\]") as refused:
        chat_of(messages=[{"role": "user", "content": content}])
    assert refused.value.status == 400


def test_names_of_tools_that_are_too_long_are_refused() -> None:
    assert chat_of(tools=[{"name": "n" * 128, "input_schema": {}}]).tools
    with pytest.raises(APIError, match="at most 128"):
        chat_of(tools=[{"name": "n" * 129, "input_schema": {}}])


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_errors_have_the_form_of_their_api(status: int, kind: str) -> None:
    error = APIError(status, "no")
    assert error.body_at("/v1/messages/count_tokens") == {"type": "error", "error": {"type": kind, "message": "no"}}
    assert error.body_at("/v1/chat/completions") == error.body()


async def test_a_stream_that_fails_ends_with_an_error_event() -> None:
    async def events() -> AsyncIterator[bytes]:
        yield b"event: message_start\n\n"
        raise APIError(503, "the queue is full")

    async def done() -> None:
        pass

    parts = await written(streaming.streaming(events(), done, ANTHROPIC))
    told_of = b'{"type": "error", "error": {"type": "overloaded_error", "message": "the queue is full"}}'
    assert parts[1] == b"event: error\ndata: " + told_of + b"\n\n"


async def test_silences_have_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PING_S", 0.001)
    waited = asyncio.Event()

    async def events() -> AsyncIterator[bytes]:
        await waited.wait()
        yield b"event: message_stop\n\n"

    async def done() -> None:
        pass

    parts = streaming.streaming(events(), done, ANTHROPIC).body_iterator
    assert await anext(parts) == b'event: ping\ndata: {"type":"ping"}\n\n'
    waited.set()
    assert [part async for part in parts][-1] == b"event: message_stop\n\n"
