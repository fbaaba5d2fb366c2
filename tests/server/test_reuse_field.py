"""Requests that may take text from other positions of earlier prompts, beside requests that may not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.server.conftest import served

BODY = "".join(f"w{number:03d} " for number in np.random.default_rng(0).integers(0, 1000, 60))
"""A byte of it is a token."""


@pytest.fixture(scope="module")
def http(tiny_model: Path) -> Iterator[httpx.Client]:
    with served(tiny_model) as server:
        yield server.http()


def completed(http: httpx.Client, prompt: str, **fields: Any) -> tuple[str, dict[str, int]]:
    """The text of an answer, and how much of its prompt was not read."""
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0.0, **fields}
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    found = response.json()
    details = found["usage"]["prompt_tokens_details"]
    assert any("approximate" in notice for notice in found.get("notices", [])) is ("shifted_tokens" in details)
    return found["choices"][0]["text"], details


def test_a_request_says_whether_it_may(http: httpx.Client) -> None:
    completed(http, "Monday it was. " + BODY)
    _, details = completed(http, "A Saturday. " + BODY, reuse="shifted")
    assert details["shifted_tokens"] > 200
    assert details["cached_tokens"] >= details["shifted_tokens"]
    text, details = completed(http, "A Saturday. " + BODY)
    assert "shifted_tokens" not in details
    assert details["cached_tokens"] < 30
    assert completed(http, "A Saturday. " + BODY, reuse="exact")[0] == text


def test_another_word_is_refused(http: httpx.Client) -> None:
    response = http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 1, "reuse": "all"})
    assert response.status_code in (400, 422)
    assert "exact" in response.text


def test_what_several_prompts_have_taken_is_summed_up(http: httpx.Client) -> None:
    completed(http, "On Monday. " + BODY)
    one, other = (f"{day}. " + BODY for day in ("It is Thursday", "And now it is Friday"))
    body = {"prompt": ["Hi", one, other], "max_tokens": 2, "reuse": "shifted"}
    found = http.post("/v1/completions", json=body).json()
    assert found["usage"]["prompt_tokens_details"]["shifted_tokens"] > 400
    assert len(found["notices"]) in (1, 2)  # one for each number of tokens


def test_chats_too(http: httpx.Client) -> None:
    found = []
    for day in ("Monday", "Saturday"):
        messages = [{"role": "system", "content": f"It is {day}. " + BODY}, {"role": "user", "content": "Hi"}]
        body = {"messages": messages, "max_tokens": 4, "reuse": "shifted"}
        found.append(http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens_details"])
    assert found[1]["shifted_tokens"] > 200
