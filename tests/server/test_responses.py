"""OpenAI's newer API: whole and streamed, with schemas and calls, and nothing kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

import openai
import pydantic
import pytest

from edgeinfer.app.server.responses_schemas import ResponseRequest
from tests.conftest import write_tiny_llama
from tests.server.conftest import Running, served

MESSAGES = [{"role": "system", "content": "the rain"}, {"role": "user", "content": "in the tin"}]
CLOCK = {
    "type": "function",
    "name": "clock",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}
OPTIONS = {"temperature": 0, "max_output_tokens": 20}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = write_tiny_llama(tmp_path_factory.mktemp("responses") / "tiny.gguf", context=4096)
    with served(path) as running:
        yield running


def expected(server: Running) -> str:
    return server.llm.chat(MESSAGES, temperature=0, max_tokens=20).read()


def test_an_answer_is_that_of_a_chat(server: Running) -> None:
    found = server.client().responses.create(model="tiny", instructions="the rain", input="in the tin", **OPTIONS)
    assert found.output_text == expected(server)
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert found.usage.output_tokens == 20
    parts = [
        {"role": "system", "content": "the rain"},
        {"role": "user", "content": [{"type": "input_text", "text": "in the tin"}]},
    ]
    again = server.client().responses.create(model="tiny", input=parts, **OPTIONS)
    assert again.output_text == found.output_text
    assert again.usage.input_tokens_details.cached_tokens > 0


def test_a_stream_of_events(server: Running) -> None:
    text, kinds = "", []
    with server.client().responses.stream(model="tiny", input=MESSAGES, **OPTIONS) as stream:
        for event in stream:
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
    assert text == expected(server)
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]


class Colour(pydantic.BaseModel):
    name: Literal["red", "green"]


def test_answers_that_follow_a_schema(server: Running) -> None:
    found = server.client().responses.parse(model="tiny", input="a colour", text_format=Colour, max_output_tokens=200)
    assert isinstance(found.output_parsed, Colour)
    assert found.status == "completed"


def test_calls(server: Running) -> None:
    options = {"tools": [CLOCK], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 200}
    found = server.client().responses.create(model="tiny", input="what time is it?", **options)
    (call,) = found.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "clock", {})
    kinds = []
    with server.client().responses.stream(model="tiny", input="what time is it?", **options) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output[0].name == "clock"
    assert "response.function_call_arguments.done" in kinds
    turn = [
        {"role": "user", "content": "what time is it?"},
        call.model_dump(),
        {"type": "function_call_output", "call_id": call.call_id, "output": "noon"},
    ]
    after = server.client().responses.create(model="tiny", input=turn, tools=[CLOCK], **OPTIONS)
    assert after.output_text


def test_nothing_is_kept(server: Running) -> None:
    for options in ({"previous_response_id": "resp_1"}, {"conversation": "conv_1"}):
        with pytest.raises(openai.BadRequestError, match="keeps nothing between requests"):
            server.client().responses.create(model="tiny", input="hi", **options)
    for options, status in (
        ({"input": [{"type": "image_generation_call", "id": "x", "result": "", "status": "completed"}]}, 400),
        ({"input": "hi", "tools": [{"type": "web_search"}]}, 400),
        ({"input": "hi", "background": True}, 400),
        ({"input": "the hen " * 4000}, 400),
        ({"input": []}, 400),
    ):
        with pytest.raises(openai.APIStatusError) as refused:
            server.client().responses.create(model="tiny", **options)
        assert refused.value.status_code == status


def test_the_parts_of_an_answer_are_one_message() -> None:
    """Thoughts, text and calls; thoughts that no answer follows, and those of a user's turn, are left out."""
    call = {"type": "function_call", "call_id": "a", "name": "clock", "arguments": ""}
    items = [
        {"type": "message", "role": "user", "content": [{"text": "one"}, {"text": "two"}]},
        {"type": "reasoning", "summary": [{"text": "hm"}], "content": []},
        {"type": "message", "role": "assistant", "content": "I look."},
        call,
        {**call, "call_id": "b"},
        {"type": "function_call_output", "call_id": "a", "output": "noon"},
        {"type": "function_call_output", "call_id": "b", "output": "one"},
        {"type": "reasoning", "content": [{"text": "so"}], "summary": [{"text": "short"}]},
        {"type": "reasoning", "summary": [{"text": "more"}]},
        {"type": "message", "role": "assistant", "content": [{"text": "Noon."}]},
        {"type": "message", "role": "assistant", "content": [{"text": "Or one."}]},
        {"type": "reasoning", "summary": [{"text": "lost"}]},
        {"type": "message", "role": "user", "content": "thanks"},
        {"type": "reasoning", "encrypted_content": "x", "summary": []},
    ]
    chat = ResponseRequest.model_validate({"input": items}).as_chat()
    calls = [{"id": name, "type": "function", "function": {"name": "clock", "arguments": "{}"}} for name in "ab"]
    assert [message.model_dump(exclude_none=True) for message in chat.messages] == [
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "content": "noon", "tool_call_id": "a"},
        {"role": "tool", "content": "one", "tool_call_id": "b"},
        {"role": "assistant", "content": "Noon.", "reasoning_content": "so\n\nmore"},
        {"role": "assistant", "content": "Or one."},
        {"role": "user", "content": "thanks"},
    ]
