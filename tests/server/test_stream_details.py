"""Streams and probabilities in the details that strict clients count on, whatever the answer is."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.server.conftest import Running

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "the rain in the tin"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
    },
}
CALLS = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 120}
ENDS_AT_ONCE = {"logit_bias": {"2": 100}, "max_tokens": 5}
JSON_OBJECT = {"response_format": {"type": "json_object"}, "max_tokens": 30}


def events(server: Running, **options: Any) -> list[dict[str, Any]]:
    """The chunks of a streamed chat; the last line is [DONE]."""
    response = server.http().post(CHAT, json={"messages": MESSAGES, "stream": True, **options})
    assert response.status_code == 200
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize(
    "options",
    [{"max_tokens": 3}, {"max_tokens": 1}, {"n": 2, "max_tokens": 2}, CALLS, ENDS_AT_ONCE, JSON_OBJECT],
    ids=["three", "one", "two answers", "calls", "empty", "json"],
)
@pytest.mark.parametrize("usage", [None, False, True])
def test_chunks_have_the_shape_of_openais(server: Running, options: dict[str, Any], usage: bool | None) -> None:
    asked = {} if usage is None else {"stream_options": {"include_usage": usage}}
    chunks = events(server, **options, **asked)
    if usage:
        assert (chunks[-1]["choices"], chunks[-1]["usage"]["prompt_tokens"] > 0) == ([], True)
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
        chunks.pop()
    else:
        assert all("usage" not in chunk for chunk in chunks)
    for index in range(options.get("n", 1)):
        own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert own[-1]["delta"] == {}
        assert own[-1]["finish_reason"] in ("stop", "length", "tool_calls")
        assert all(choice["finish_reason"] is None and choice["delta"] for choice in own[:-1])
        assert all(choice["delta"].get("content", "") is not None for choice in own[1:])
        ids = [call["id"] for choice in own for call in choice["delta"].get("tool_calls", ())]
        assert all(ids)
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 12},
        {"max_tokens": 12, "temperature": 0},
        {"max_tokens": 12, "top_p": 0.01},
        {"max_tokens": 12, "logit_bias": {str(token): -100 for token in range(3, 100)}, "top_logprobs": 20},
        {**JSON_OBJECT, "top_logprobs": 3},
        {**CALLS, "top_logprobs": 2},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["a"]}}}},
    ],
    ids=["alone", "greedy", "top_p", "bias", "json", "calls", "one answer"],
)
def test_probabilities_are_finite_and_one_for_each_token(server: Running, options: dict[str, Any]) -> None:
    found = server.http().post(CHAT, json={"messages": MESSAGES, "logprobs": True, "seed": 3, **options})
    assert found.status_code == 200
    record = json.loads(found.text, parse_constant=pytest.fail)
    entries = record["choices"][0]["logprobs"]["content"]
    assert len(entries) == record["usage"]["completion_tokens"]
    streamed = [
        entry
        for chunk in events(server, logprobs=True, seed=3, **options)
        for choice in chunk["choices"]
        for entry in (choice["logprobs"] or {}).get("content", ())
    ]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in entries]
    for entry in (*entries, *streamed):
        numbers = [entry["logprob"], *(other["logprob"] for other in entry["top_logprobs"])]
        assert all(math.isfinite(number) and number <= 0 for number in numbers)
        assert sum(math.exp(other["logprob"]) for other in entry["top_logprobs"]) < 1.001


BROKEN = "one\u2028two\u2029three\x85four"
FORM = {"type": "object", "properties": {"a": {"const": BROKEN}}, "required": ["a"]}
STREAMS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES, "json_schema": FORM},
    "/v1/completions": {"prompt": "the", "json_schema": FORM},
    "/v1/responses": {"input": "the", "text": {"format": {"type": "json_schema", "name": "x", "schema": FORM}}},
    "/v1/messages": {"messages": MESSAGES, "json_schema": FORM},
    "/api/chat": {"model": "tiny", "messages": MESSAGES, "format": FORM},
    "/completion": {"prompt": "the", "json_schema": FORM},
}


@pytest.mark.parametrize("path", STREAMS)
def test_lines_are_whole_for_clients_that_split_at_any_line_end(server: Running, path: str) -> None:
    """As httpx's `iter_lines` does, which Ollama's own client uses."""
    with server.http().stream("POST", path, json={**STREAMS[path], "max_tokens": 200, "stream": True}) as response:
        assert response.status_code == 200
        lines = [line for line in response.iter_lines() if line and not line.startswith(("event: ", "data: [DONE]"))]
    assert all(json.loads(line.removeprefix("data: ")) for line in lines)
    assert "\\u2028" in "".join(lines)
