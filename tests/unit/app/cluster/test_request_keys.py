"""Requests have equal keys as far as their texts are equal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.app.cluster.request_keys import BLOCK_BYTES, MOST_KEYS, RequestKeys, request_keys

CHAT = "/v1/chat/completions"
TURNS = [{"role": role, "content": f"{role} {n}"} for n in range(3) for role in ("user", "assistant")]


def keys_of(record: Any, path: str = CHAT) -> RequestKeys:
    return request_keys(path, json.dumps(record).encode())


def shared_of(first: RequestKeys, second: RequestKeys) -> int:
    return len(set(first.prefix) & set(second.prefix))


def test_a_conversation_has_the_keys_of_its_earlier_turns() -> None:
    for n in range(1, len(TURNS)):
        earlier, later = keys_of({"messages": TURNS[:n]}), keys_of({"messages": TURNS})
        assert later.prefix[: len(earlier.prefix)] == earlier.prefix
        assert len(later.prefix) > len(earlier.prefix)


def test_another_model_shares_no_keys() -> None:
    first, second = (keys_of({"model": name, "messages": TURNS}) for name in ("small", "large"))
    assert (first.model, second.model) == ("small", "large")
    assert shared_of(first, second) == 0


def test_a_system_prompt_comes_first_wherever_it_stands() -> None:
    first = keys_of({"system": "Be brief.", "messages": TURNS[:1]}, "/v1/messages")
    second = keys_of({"messages": TURNS[2:3], "system": "Be brief."}, "/v1/messages")
    assert shared_of(first, second) == 1


def test_long_texts_are_compared_in_blocks() -> None:
    start = "x" * (3 * BLOCK_BYTES)
    first, second = (keys_of({"prompt": start + end}, "/v1/completions") for end in ("a", "b"))
    assert shared_of(first, second) == 3
    assert first.n_bytes == len(start) + 1


def test_the_number_of_keys_is_limited() -> None:
    assert len(keys_of({"prompt": "x" * (2 * MOST_KEYS * BLOCK_BYTES)}).prefix) == MOST_KEYS


def test_the_model_of_ollama_requests_and_of_the_default() -> None:
    assert keys_of({"name": "qwen3:8b"}, "/api/show").model == "qwen3:8b"
    assert keys_of({}).model == ""


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/embed", "/v1/rerank", "/tokenize"])
def test_requests_that_leave_nothing_in_the_cache_have_no_prefix(path: str) -> None:
    assert keys_of({"input": "a tree", "model": "m"}, path) == RequestKeys("m")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b"\xff", b"[" * 100_000, b'{"model": 3, "messages": 7}'])
def test_bodies_that_are_no_requests_have_no_model(body: bytes) -> None:
    assert request_keys(CHAT, body).model == ""


def test_deeply_nested_messages_are_no_error() -> None:
    body = b'{"messages": [' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"]}"
    assert isinstance(request_keys(CHAT, body), RequestKeys)


@given(st.binary(max_size=300) | st.recursive(st.none() | st.text(), st.lists).map(lambda v: repr(v).encode()))
def test_no_body_is_an_error(body: bytes) -> None:
    request_keys(CHAT, body)
