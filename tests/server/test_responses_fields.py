"""Fields of /v1/responses that other APIs have too: they mean the same in all of them."""

from __future__ import annotations

import pytest

from edgeinfer.app.server.responses_schemas import ResponseRequest
from tests.server.conftest import Running
from tests.server.test_responses import CLOCK, MESSAGES, server

__all__ = ["server"]  # a fixture


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.5, "seed": 7},
        {"temperature": 1.5, "top_k": 1},
        {"temperature": 0, "presence_penalty": 2.0, "repeat_last_n": -1},
        {"temperature": 0, "grammar": 'root ::= "in the tin"'},
        {"temperature": 0, "stop": ["B"]},
        {"temperature": 0, "samplers": "t", "logit_bias": [[5, 100]]},
    ],
)
def test_fields_of_other_servers_mean_the_same_in_every_api(server: Running, options: dict[str, object]) -> None:
    http, limits = server.http(), {"max_tokens": 20, "max_output_tokens": 20}
    asked = {"messages": MESSAGES[1:], "input": MESSAGES[1:], **limits, **options}
    chat = http.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"]["content"]
    assert http.post("/v1/responses", json=asked).json()["output"][0]["content"][0]["text"] == chat
    assert http.post("/v1/messages", json=asked).json()["content"][0]["text"] == chat
    plain = {**asked, **dict.fromkeys(options), "temperature": options["temperature"]}
    assert http.post("/v1/chat/completions", json=plain).json()["choices"][0]["message"]["content"] != chat


def test_functions_may_be_strict() -> None:
    body = ResponseRequest.model_validate({"input": "a", "tools": [{**CLOCK, "strict": True}]})
    (tool,) = body.as_chat().tools or ()
    assert tool.function.strict is True


def test_what_is_too_long_is_refused_unless_it_may_be_shortened(server: Running) -> None:
    turns = [{"role": role, "content": "the rain in the tin " * 40} for role in ("user", "assistant")] * 20
    asked = {"input": [*turns, MESSAGES[1]], "max_output_tokens": 2}
    for truncation in ({}, {"truncation": "disabled"}):
        refused = server.http().post("/v1/responses", json={**asked, **truncation})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    found = server.http().post("/v1/responses", json={**asked, "truncation": "auto"}).json()
    assert (found["truncation"], found["usage"]["output_tokens"]) == ("auto", 2)
    assert found["notices"]
