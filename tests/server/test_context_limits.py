"""Requests as long as the context and one token longer, by every route: answered, or refused with the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.server.conftest import Running
from tests.server.test_params import conversation

ENDLESS = {"logit_bias": {"2": -100}}
Body = Callable[[Running, int], dict[str, Any]]
TEXT_ROUTES: dict[str, tuple[str, Body]] = {
    "chat": ("/v1/chat/completions", lambda server, n: {"messages": conversation(server, n), "max_tokens": 20}),
    "chat streamed": (
        "/v1/chat/completions",
        lambda server, n: {"messages": conversation(server, n), "max_tokens": 20, "stream": True},
    ),
    "chat without a limit": (
        "/v1/chat/completions",
        lambda server, n: {"messages": conversation(server, n), "max_tokens": -1},
    ),
    "chat with a high limit": (
        "/v1/chat/completions",
        lambda server, n: {"messages": conversation(server, n), "max_tokens": 10**6},
    ),
    "completion": ("/v1/completions", lambda server, n: {"prompt": "z" * n, "max_tokens": 20}),
    "completion of tokens": ("/v1/completions", lambda server, n: {"prompt": [70] * n, "max_tokens": 20}),
    "completion streamed": ("/v1/completions", lambda server, n: {"prompt": "z" * n, "max_tokens": 20, "stream": True}),
}
ROUTES: dict[str, tuple[str, Body]] = {
    **TEXT_ROUTES,
    "responses": ("/v1/responses", lambda server, n: {"input": conversation(server, n), "max_output_tokens": 20}),
    "responses streamed": ("/v1/responses", lambda server, n: {"input": conversation(server, n), "stream": True}),
    "embedding": ("/v1/embeddings", lambda server, n: {"input": "z" * n}),
    "embedding among others": ("/v1/embeddings", lambda server, n: {"input": ["a", "z" * n]}),
    "embedding of tokens": ("/v1/embeddings", lambda server, n: {"input": [70] * n}),
}


@pytest.mark.parametrize("name", ROUTES)
def test_a_token_too_many_is_refused_with_openais_code(server: Running, name: str) -> None:
    path, body = ROUTES[name]
    n_context = server.llm.info.n_context
    assert server.http().post(path, json=body(server, n_context)).status_code == 200
    refused = server.http().post(path, json=body(server, n_context + 1))
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["message"].startswith("prompt is too long: ")  # words that agents look for, besides the code
    assert "is longer than the model's context length" in error["message"]  # litellm 1.81, which aider 0.86 brings
    assert f"{n_context + 1} tokens and the context holds {n_context}" in error["message"]


@pytest.mark.parametrize("name", [name for name in TEXT_ROUTES if "streamed" not in name])
def test_at_the_border_an_answer_ends_by_length(server: Running, name: str) -> None:
    path, body = TEXT_ROUTES[name]
    n_context = server.llm.info.n_context
    for n_tokens in (n_context - 1, n_context):
        found = server.http().post(path, json={**body(server, n_tokens), **ENDLESS}).json()
        assert found["choices"][0]["finish_reason"] == "length"
        assert found["usage"]["prompt_tokens"] == n_tokens
        assert found["usage"]["total_tokens"] == n_context + 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_functions_alone_can_be_too_long(server: Running, path: str) -> None:
    function = {"name": "f", "description": "the hen " * 400}
    tool = {"type": "function", **function} if "responses" in path else {"type": "function", "function": function}
    text = {"input": "a"} if "responses" in path else {"messages": [{"role": "user", "content": "a"}]}
    refused = server.http().post(path, json={**text, "tools": [tool]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
